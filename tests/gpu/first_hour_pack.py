"""Puts what the first hour needs on a bare machine into one folder: the programs that were built,
with the code for GPUs in them, and what it takes to compile them there if they do not start.
"""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess
from collections.abc import Iterable

import gpu_programs
from gpu_machine import ROOT

# Bytes that can be brought along: 64 MiB, less what a checkout beside it takes.
MOST = 56 << 20
# Of the checkout: what build_programs.sh compiles, and the kit itself.
SOURCES = (
    "base/*.h", "base/*.cc", "runtime/**/*.h", "runtime/**/*.cc", "compute/*.h", "compute/*.cc",
    "tests/gpu/*.h", "tests/gpu/*.cc", "tests/gpu/*.py", "tests/gpu/*.sh",
    "build_defs/device_code.py", "bazel-bin/compute/device_codes.cc",
)  # fmt: skip


# In the folder: what a pack has put there, which the next one replaces.
LIST = "packed.txt"


def size_of(folder: pathlib.Path, names: Iterable[str]) -> int:
    return sum((folder / name).stat().st_size for name in names)


def files(programs: pathlib.Path) -> dict[str, pathlib.Path]:
    """Where each of them is, by its place in the folder."""
    found = {
        str(file.relative_to(ROOT)): file
        for pattern in SOURCES
        for file in sorted(ROOT.glob(pattern))
        if not re.search(r"_test\.\w+$", file.name)
    }
    return {**found, **{f"build/gpu/{name}": programs / name for name in gpu_programs.NAMES}}


def remove_earlier(folder: pathlib.Path) -> None:
    """What a pack has put there, and nothing else."""
    made = (folder / LIST).read_text().split("\n") if (folder / LIST).exists() else []
    for name in filter(None, made):
        (folder / name).unlink(missing_ok=True)


def strip(programs: list[pathlib.Path]) -> None:
    """Takes the names of functions out, which only a backtrace has a use for."""
    if shutil.which("strip"):
        subprocess.run(["strip", *map(str, programs)], check=True)


def pack(folder: pathlib.Path, programs: pathlib.Path) -> int:
    """The exit code. The folder must be new, or empty, or of an earlier pack."""
    why = gpu_programs.why_unusable(programs)
    if not why and gpu_programs.codes_of_bazel() is None:
        why = f"{gpu_programs.CODES} is not of these sources"
    if why:
        print(f"{why}: ./dev build makes them")
        return 1
    if folder.resolve() == ROOT:
        print(f"{folder} is where this is run from")
        return 1
    if folder.exists() and any(folder.iterdir()) and not (folder / LIST).exists():
        print(f"{folder} is not empty, and not of an earlier pack")
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
