"""Tests tests/gpu/gpu_machine.py: finding NVRTC and NCCL in CUDA 13's packages."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "gpu"
# An NVRTC like that of CUDA 13's wheel: it finds its second library only by name.
NVRTC = """
#include <dlfcn.h>
#include <string.h>
extern "C" {
int nvrtcCreateProgram(void** p, const char*, const char*, int, const char* const*,
                       const char* const*) { *p = nullptr; return 0; }
const char* nvrtcGetErrorString(int) { return "an error"; }
int nvrtcCompileProgram(void*, int, const char* const*) {
  return dlopen("libnvrtc-builtins.so.13.0", RTLD_NOW) == nullptr ? 6 : 0;
}
int nvrtcGetProgramLogSize(void*, size_t* n) { *n = 3; return 0; }
int nvrtcGetProgramLog(void*, char* text) { strcpy(text, "no"); return 0; }
int nvrtcGetCUBINSize(void*, size_t* n) { *n = 8; return 0; }
int nvrtcGetCUBIN(void*, char* code) { memcpy(code, "machine!", 8); return 0; }
}
"""


@pytest.fixture
def wheels(tmp_path):
    """The packages of CUDA 13, in one of two folders of Python's path."""
    lib = tmp_path / "user" / "nvidia" / "cu13" / "lib"
    nccl = tmp_path / "system" / "nvidia" / "nccl" / "lib"
    lib.mkdir(parents=True)
    nccl.mkdir(parents=True)
    (nccl / "libnccl.so.2").touch()
    (tmp_path / "nvrtc.cc").write_text(NVRTC)
    name = "libnvrtc-builtins.so.13.0"
    compiler = ["g++", "-shared", "-fPIC", "-x", "c++"]
    builtins = [*compiler, f"-Wl,-soname,{name}", "-o", str(lib / name), "/dev/null"]
    subprocess.run(builtins, check=True)
    library = [*compiler, str(tmp_path / "nvrtc.cc"), "-o", str(lib / "libnvrtc.so.13"), "-ldl"]
    subprocess.run(library, check=True)
    return tmp_path


def test_nvrtc_of_a_wheel_finds_its_builtins(wheels):
    library = wheels / "user" / "nvidia" / "cu13" / "lib" / "libnvrtc.so.13"
    output = wheels / "codes.cc"
    script = [sys.executable, str(ROOT / "build_defs" / "device_code.py")]
    options = ["--architectures=90", f"--nvrtc={library}", f"--output={output}"]
    subprocess.run([*script, *options, str(wheels / "nvrtc.cc")], check=True)
    assert f"0x{int.from_bytes(b'machine!', 'little'):x}" in output.read_text()


def test_libraries_are_found_in_all_of_pythons_places(wheels):
    ask = "import gpu_machine as m; print(m.find_nvrtcs()[0], m.find_nccl())"
    path = os.pathsep.join(str(one) for one in (FOLDER, wheels / "user", wheels / "system"))
    environment = {**os.environ, "PYTHONPATH": path}
    ended = subprocess.run(
        [sys.executable, "-c", ask], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    nvrtc, nccl = ended.stdout.split()
    assert nvrtc == str(wheels / "user" / "nvidia" / "cu13" / "lib" / "libnvrtc.so.13")
    assert nccl == str(wheels / "system" / "nvidia" / "nccl" / "lib" / "libnccl.so.2")
