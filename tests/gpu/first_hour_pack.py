"""Puts what the first hour needs on a bare machine into one folder: the programs that were built,
with the code for GPUs in them, and what it takes to compile them there if they do not start.
"""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess

import gpu_programs
from gpu_machine import ROOT

MOST = 64 << 20  # bytes that can be brought along
# Of the checkout: what build_programs.sh compiles, and the kit itself.
SOURCES = (
    "runtime/**/*.h", "runtime/**/*.cc", "compute/*.h", "compute/*.cc", "tests/gpu/*.h",
    "tests/gpu/*.cc", "tests/gpu/*.py", "tests/gpu/*.sh", "build_defs/device_code.py",
    "bazel-bin/compute/device_codes.cc",
)  # fmt: skip


def size_of(folder: pathlib.Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def copy_sources(folder: pathlib.Path) -> None:
    for pattern in SOURCES:
        for file in ROOT.glob(pattern):
            if re.search(r"_test\.\w+$", file.name):
                continue
            to = folder / file.relative_to(ROOT)
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, to)


def strip(programs: list[pathlib.Path]) -> None:
    """Takes the names of functions out, which only a backtrace has a use for."""
    if shutil.which("strip"):
        subprocess.run(["strip", *map(str, programs)], check=True)


def pack(folder: pathlib.Path, programs: pathlib.Path) -> int:
    """The exit code. The folder must be new, or empty."""
    why = gpu_programs.why_unusable(programs)
    if not why and gpu_programs.codes_of_bazel() is None:
        why = f"{gpu_programs.CODES} is not of these sources"
    if why:
        print(f"{why}: ./dev build makes them")
        return 1
    if folder.exists() and any(folder.iterdir()):
        print(f"{folder} is not empty")
        return 1
    copy_sources(folder)
    built = folder / "build" / "gpu"
    built.mkdir(parents=True)
    copies = [
        pathlib.Path(shutil.copy2(programs / name, built / name)) for name in gpu_programs.NAMES
    ]
    if size_of(folder) > MOST:
        strip(copies)
    size = size_of(folder)
    print(f"{folder}: {size / 2**20:.1f} MiB of {MOST >> 20}")
    return 1 if size > MOST else 0
