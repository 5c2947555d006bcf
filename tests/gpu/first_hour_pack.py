"""Packs the files for the first hour on a bare machine into one folder.

It contains the built programs with the GPU code in them, and the sources to compile them if they
do not start there.
"""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess
from collections.abc import Iterable

import gpu_programs
from gpu_machine import ROOT

# Size limit of the folder: 64 MiB, minus the size of a checkout.
MOST = 56 << 20
# Files of the checkout: the sources for build_programs.sh, and the kit itself.
SOURCES = (
    "base/*.h", "base/*.cc", "runtime/**/*.h", "runtime/**/*.cc", "compute/*.h", "compute/*.cc",
    "tests/gpu/*.h", "tests/gpu/*.cc", "tests/gpu/*.py", "tests/gpu/*.sh",
    "build_defs/device_code.py", "bazel-bin/compute/device_codes.cc",
)  # fmt: skip


# In the folder: the files of a pack, which the next pack replaces.
LIST = "packed.txt"


def size_of(folder: pathlib.Path, names: Iterable[str]) -> int:
    return sum((folder / name).stat().st_size for name in names)


def files(programs: pathlib.Path) -> dict[str, pathlib.Path]:
    """The files by their paths in the folder."""
    found = {
        str(file.relative_to(ROOT)): file
        for pattern in SOURCES
        for file in sorted(ROOT.glob(pattern))
        if not re.search(r"_test\.\w+$", file.name)
    }
    return {**found, **{f"build/gpu/{name}": programs / name for name in gpu_programs.NAMES}}


def remove_earlier(folder: pathlib.Path) -> None:
    """Remove the files of an earlier pack, and no others."""
    made = (folder / LIST).read_text().split("\n") if (folder / LIST).exists() else []
    for name in filter(None, made):
        (folder / name).unlink(missing_ok=True)


def strip(programs: list[pathlib.Path]) -> None:
    """Remove the names of functions, which are only useful in a backtrace."""
    if shutil.which("strip"):
        subprocess.run(["strip", *map(str, programs)], check=True)


def pack(folder: pathlib.Path, programs: pathlib.Path) -> int:
    """Return the exit code. The folder must be new, empty, or from an earlier pack."""
    why = gpu_programs.why_unusable(programs)
    if not why and gpu_programs.codes_of_bazel() is None:
        why = f"{gpu_programs.CODES} was made from other sources"
    if why:
        print(f"{why}: run ./dev build")
        return 1
    if folder.resolve() == ROOT:
        print(f"{folder} is the folder of this script; pass another one")
        return 1
    if folder.exists() and any(folder.iterdir()) and not (folder / LIST).exists():
        print(f"{folder} is not empty, and not from an earlier pack")
        return 1
    remove_earlier(folder)
    folder.mkdir(parents=True, exist_ok=True)
    found = files(programs)
    (folder / LIST).write_text("".join(f"{name}\n" for name in found))
    for name, file in found.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, folder / name)
    if size_of(folder, found) > MOST:
        strip([folder / "build" / "gpu" / name for name in gpu_programs.NAMES])
    size = size_of(folder, found)
    print(f"{folder}: {size / 2**20:.1f} MiB of {MOST >> 20}")
    return 1 if size > MOST else 0
