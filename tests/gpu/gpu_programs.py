"""Checks whether the built programs of tests/gpu run here, and builds them.

g++ compiles them, with GPU code of Bazel's last build, or with code that NVRTC or nvcc makes here
for the existing GPUs.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import shutil
import sys
from collections.abc import Callable, Iterator

from gpu_machine import ROOT, call, closing_line, find_nvrtcs

NAMES = ("device_check", "device_bandwidth", "device_probes", "nccl_job")
NO_GPU = 3  # the programs' exit code
# Bazel's file; a packed folder has it at the same path.
CODES = ROOT / "bazel-bin" / "compute" / "device_codes.cc"
FIRST_KERNEL = "compute/device_kernels.cu.cc"
HASH = re.compile(r"^// Hash of the sources: (\w+)$", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A part's outcome: the result in one word, a figure in one line, and the output."""

    result: str  # "passed", "failed", "found", "not run", "cut short"
    figure: str
    output: str = ""


def kernel_sources() -> list[str]:
    """The source files of the GPU code; the one that includes all others comes first."""
    found = [FIRST_KERNEL]
    for name in found:  # the list grows
        text = (ROOT / name).read_text()
        for included in re.findall(r'^#include "(compute/[^"]+)"', text, re.MULTILINE):
            if included not in found:
                found.append(included)
    return [FIRST_KERNEL, *sorted(found[1:])]


def script() -> pathlib.Path:
    return ROOT / "build_defs" / "device_code.py"


def sources_hash() -> str:
    sys.path.insert(0, str(script().parent))
    import device_code

    before = pathlib.Path.cwd()
    os.chdir(ROOT)
    try:
        return str(device_code.hash_of(kernel_sources()))
    finally:
        os.chdir(before)


def codes_of_bazel() -> pathlib.Path | None:
    """Bazel's code if it was made from the present sources, regardless of the files' times."""
    if not CODES.exists():
        return None
    with CODES.open() as file:
        found = HASH.search(file.read(1000))
    return CODES if found and found[1] == sources_hash() else None


def compilers() -> Iterator[tuple[str, list[str]]]:
    """Compilers of this machine, best first: name, and options for device_code.py."""
    for nvrtc in find_nvrtcs():
        yield nvrtc, ["--nvrtc", nvrtc]
    nvcc = shutil.which("nvcc")
    if nvcc:
        yield nvcc, ["--nvrtc", "", "--nvcc", nvcc]


def compile_codes(output: pathlib.Path, capabilities: list[str]) -> Outcome:
    """Compile the kernels for these GPUs to a C++ file, with the first compiler that works."""
    output.parent.mkdir(parents=True, exist_ok=True)
    architectures = sorted(set(capabilities))
    said = ""
    for name, options in compilers():
        command = [sys.executable, str(script()), *options, "--output", str(output)]
        command += ["--architectures", ",".join(architectures), *kernel_sources()]
        code, text = call(command, 300, cwd=ROOT)
        if code == 0:
            return Outcome("passed", f"by {name}, for {', '.join(architectures)}", said)
        said += f"{name}:\n{text}\n"
    if said:
        return Outcome("failed", closing_line(said), said)
    return Outcome("not run", "NVRTC, nvcc and a build by Bazel are all missing")


def device_codes(folder: pathlib.Path, capabilities: list[str]) -> tuple[pathlib.Path, Outcome]:
    made = codes_of_bazel()
    if made is not None:
        return made, Outcome("found", "of the last build by Bazel")
    output = folder / "device_codes.cc"
    return output, compile_codes(output, capabilities)


def compiler_of_programs() -> str:
    return shutil.which(os.environ.get("CXX", "g++")) or ""


def build(
    folder: pathlib.Path, capabilities: list[str], limit: float,
    tell: Callable[[str, Outcome], None],
) -> bool:  # fmt: skip
    """Build all programs in the folder and report each part to `tell`; return False on failure."""
    if not compiler_of_programs():
        tell(
            "programs",
            Outcome("not run", "g++ is missing; pass built programs with --programs FOLDER"),
        )
        return False
    codes, made = device_codes(folder, capabilities)
    tell("device code", made)
    if made.result in ("failed", "not run"):
        return False
    command = ["bash", str(ROOT / "tests" / "gpu" / "build_programs.sh"), str(folder), str(codes)]
    code, output = call(command, limit)
    result = "failed" if code else "passed"
    tell("programs, by g++", Outcome(result, closing_line(output), output))
    return code == 0


def why_unusable(folder: pathlib.Path) -> str:
    """Return why a program does not start on this machine; empty if all do."""
    for name in NAMES:
        program = folder / name
        if not program.exists():
            return f"{folder} does not contain {name}"
        try:
            code, output = call([str(program), "--cuda=libno_such_driver.so"], 60)
        except OSError as error:
            return f"{name}: {error.strerror}"
        if code != NO_GPU:
            return f"{name} does not start here: {closing_line(output)}"
    return ""
