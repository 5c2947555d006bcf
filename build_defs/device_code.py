"""Compiles a .cu.cc file for GPUs with NVRTC and writes the result as a C++ file.

Run by Bazel, and by tests/run_gpu.sh, which uses nvcc if NVRTC is missing. NVRTC needs neither a
GPU nor a CUDA toolkit. Machine code of CUDA 12 runs on all drivers of CUDA 12, including older
minor versions. PTX runs on drivers of this NVRTC's version and later.
"""

import argparse
import ctypes
import hashlib
import pathlib
import subprocess
import tempfile
from collections.abc import Iterator, Sequence

# Compute capabilities; "ptx" is for later architectures, which compile it.
ARCHITECTURES = ("60", "70", "75", "80", "86", "89", "90", "100", "103", "120")
PTX = "90"

# The same bits as on the CPU: a product and a sum are rounded separately.
ROUNDING = "--fmad=false"

HEAD = """// Written by build_defs/device_code.py.
// Hash of the sources: {hash}
#include "compute/device_image.h"

namespace tf_hvd {{
namespace {{

"""


def hash_of(sources: Sequence[str]) -> str:
    """Hash by which tests/gpu checks that code was made from its own sources."""
    whole = hashlib.sha256()
    for name in sorted(sources):
        whole.update(name.encode() + b"\0" + pathlib.Path(name).read_bytes() + b"\0")
    return whole.hexdigest()


class Nvrtc:
    """The library's functions, which return 0 or an error code."""

    def __init__(self, library: pathlib.Path) -> None:
        # CUDA 13's wheel does not set the path of its second library, which it opens only by name.
        # A library that is already loaded is found, so the list keeps both loaded.
        self.builtins = [
            ctypes.CDLL(str(file), mode=ctypes.RTLD_GLOBAL)
            for file in sorted(library.parent.glob("libnvrtc-builtins.so*"))
        ]
        self.library = ctypes.CDLL(str(library))
        self.library.nvrtcGetErrorString.restype = ctypes.c_char_p

    def call(self, name: str, *arguments: object) -> None:
        """Call a function, and end the program if it fails."""
        error = getattr(self.library, name)(*arguments)
        if error != 0:
            meaning = self.library.nvrtcGetErrorString(error).decode()
            raise SystemExit(f"device_code.py: {name} failed: {meaning}")

    def text(self, program: ctypes.c_void_p, what: str) -> bytes:
        """Return the result of nvrtcGet<what>."""
        size = ctypes.c_size_t()
        self.call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self.call(f"nvrtcGet{what}", program, buffer)
        return buffer.raw

    def compile(self, source: str, headers: Sequence[str], target: str) -> bytes:
        """Compile for `target`: sm_90, or compute_90 for PTX."""
        program = ctypes.c_void_p()
        contents = [pathlib.Path(name).read_bytes() for name in headers]
        self.call(
            "nvrtcCreateProgram",
            ctypes.byref(program),
            pathlib.Path(source).read_bytes(),
            source.encode(),
            len(headers),
            (ctypes.c_char_p * len(headers))(*contents),
            (ctypes.c_char_p * len(headers))(*[name.encode() for name in headers]),
        )
        options = [f"--gpu-architecture={target}", "--std=c++17", ROUNDING, "-default-device"]
        encoded = (ctypes.c_char_p * len(options))(*[text.encode() for text in options])
        if self.library.nvrtcCompileProgram(program, len(options), encoded) != 0:
            log = self.text(program, "ProgramLog").decode()
            raise SystemExit(f"device_code.py: {source} for {target}:\n{log}")
        return self.text(program, "CUBIN" if target.startswith("sm_") else "PTX")


class Nvcc:
    """The compiler of a CUDA toolkit."""

    def __init__(self, program: str) -> None:
        self.program = program

    def compile(self, source: str, headers: Sequence[str], target: str) -> bytes:
        """Compile as Nvrtc.compile does; headers are found relative to the current folder."""
        del headers
        with tempfile.TemporaryDirectory() as folder:
            output = pathlib.Path(folder) / "code"
            kind = "-cubin" if target.startswith("sm_") else "-ptx"
            command = [self.program, "-x", "cu", kind, f"-arch={target}", "-std=c++17", ROUNDING]
            subprocess.run([*command, "-I.", "-o", str(output), source], check=True)
            return output.read_bytes()


def array(name: str, code: bytes) -> Iterator[str]:
    """Yield the bytes as 64-bit numbers, which gives the alignment that the loader requires."""
    padded = code + b"\0" * (-len(code) % 8)
    yield f"const uint64_t {name}[] = {{\n"
    for at in range(0, len(padded), 64):
        row = padded[at : at + 64]
        numbers = (int.from_bytes(row[i : i + 8], "little") for i in range(0, len(row), 8))
        yield ",".join(f"0x{number:x}" for number in numbers) + ",\n"
    yield "};\n"


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nvrtc", required=True, help="path of libnvrtc; empty: write no code")
    parser.add_argument("--nvcc", default="", help="path of nvcc, used if NVRTC is missing")
    parser.add_argument(
        "--architectures", help="compute capabilities such as 80,90 (default: all, and PTX)"
    )
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("source")
    parser.add_argument("headers", nargs="*")
    arguments = parser.parse_args()
    text, rows = [HEAD.format(hash=hash_of([arguments.source, *arguments.headers]))], []
    targets = [(False, one) for one in ARCHITECTURES] + [(True, PTX)]
    if arguments.architectures:
        targets = [(False, one) for one in arguments.architectures.split(",")]
    if arguments.nvrtc or arguments.nvcc:
        nvrtc = arguments.nvrtc and Nvrtc(pathlib.Path(arguments.nvrtc))
        compiler = nvrtc or Nvcc(arguments.nvcc)
        for is_ptx, capability in targets:
            name = ("kPtx" if is_ptx else "kCode") + capability
            target = ("compute_" if is_ptx else "sm_") + capability
            code = compiler.compile(arguments.source, arguments.headers, target)
            text.extend(array(name, code))
            major, minor = capability[:-1], capability[-1]
            rows.append(f"    {{{major}, {minor}, {str(is_ptx).lower()}, {name}, {len(code)}}},\n")
    text.append("const DeviceCode kCodes[] = {\n")
    text.extend(rows or ["    {0, 0, false, nullptr, 0},\n"])
    text.append(
        f"}};\n\n}}  // namespace\n\nconst DeviceCode* DeviceCodes(size_t* count) {{\n"
        f"  *count = {len(rows)};\n  return kCodes;\n}}\n\n}}  // namespace tf_hvd\n"
    )
    arguments.output.write_text("".join(text))


if __name__ == "__main__":
    main()
