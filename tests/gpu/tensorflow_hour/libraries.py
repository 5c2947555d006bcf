"""The CUDA libraries that TensorFlow opens before it lists a GPU, real ones and stand-ins.

TensorFlow 2.21's wheel links none of them. It opens libcudart when it is imported, and all of
SONAMES before it lists GPUs. If one is missing, there is no GPU. It calls no function of SONAMES
until an op needs it. A function that a library lacks then returns an error, even in place of a
text, which crashes. So a stand-in has the functions that are called first, and prints its name.

If the machine has CUDA 13's cuBLAS and cuDNN, they replace CUDA 12's: they have the same C
functions, and the driver supports both. This is only an attempt, and therefore a separate part.
"""

from __future__ import annotations

import dataclasses
import glob
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))  # PYTHONSAFEPATH may be set

import gpu_machine

RUNTIME = "libcudart.so.12"  # carried unchanged: it registers and launches all kernels
# if either is missing there is no GPU, without a message
DRIVER = ("libcuda.so.1", "libnvidia-ml.so.1")

CHOSEN = "libraries.json"


@dataclasses.dataclass(frozen=True)
class Library:
    """A library that TensorFlow opens, and its possible stand-in."""

    soname: str
    refuses: dict[str, int]  # functions, and the "not supported" status that each returns
    body: str = ""  # C: functions that do more
    of_cuda_13: str = ""  # the machine's library with the same functions, if it exists

    @property
    def functions(self) -> list[str]:
        return [*self.refuses, *re.findall(r"\b(cu\w+)\(", self.body)]


BLAS = """
const char* cublasGetStatusString(int status) { (void)status; return text; }
const char* cublasGetStatusName(int status) { (void)status; return text; }
"""
# XLA requires a handle for each step that it compiles, whatever the step does.
DNN = """
int cudnnCreate(void** handle) { static int it; *handle = &it; return 0; }
int cudnnDestroy(void* handle) { (void)handle; return 0; }
int cudnnSetStream(void* handle, void* stream) { (void)handle; (void)stream; return 0; }
size_t cudnnGetVersion(void) { return 90300; }
int cudnnGetProperty(int which, int* value) {
  *value = which == 0 ? 9 : which == 1 ? 3 : 0;
  return 0;
}
const char* cudnnGetErrorString(int status) { (void)status; return text; }
void cudnnGetLastErrorString(char* to, size_t size) { snprintf(to, size, "%s", text); }
"""
SPARSE = """
const char* cusparseGetErrorName(int status) { (void)status; return text; }
const char* cusparseGetErrorString(int status) { (void)status; return text; }
"""
CREATE_DNN = ("Pooling", "Tensor", "Filter", "Convolution", "Activation", "LRN", "RNN", "Dropout")
SONAMES = (
    Library(
        "libcudnn.so.9",
        {"cudnnBackendCreateDescriptor": 3000}
        | {f"cudnnCreate{kind}Descriptor": 3000 for kind in CREATE_DNN},
        DNN,
        "libcudnn.so.9",
    ),
    Library(
        "libcublas.so.12",
        {"cublasCreate_v2": 15, "cublasDestroy_v2": 15, "cublasSetStream_v2": 15},
        BLAS,
        "libcublas.so.13",
    ),
    Library(
        "libcublasLt.so.12",
        {"cublasLtCreate": 15, "cublasLtDestroy": 15, "cublasLtMatmulDescCreate": 15},
        BLAS.replace("cublas", "cublasLt"),
        "libcublasLt.so.13",
    ),
    Library("libcufft.so.11", {"cufftCreate": 16, "cufftPlan1d": 16, "cufftPlanMany": 16}),
    Library("libcusolver.so.11", {"cusolverDnCreate": 9, "cusolverSpCreate": 9}),
    Library("libcusparse.so.12", {"cusparseCreate": 10, "cusparseDestroy": 10}, SPARSE),
)


def source(library: Library) -> str:
    """The stand-in's source in C."""
    lines = [
        "#include <stddef.h>",
        "#include <stdio.h>",
        f'static const char text[] = "not supported: {library.soname} is a stand-in";',
        "#define REFUSES(name, status) \\",
        "  int name(void); \\",
        "  int name(void) { \\",
        '    fprintf(stderr, "%s, and " #name " was called\\n", text); \\',
        "    return status; \\",
        "  }",
        *(f"REFUSES({name}, {status})" for name, status in library.refuses.items()),
    ]
    return "\n".join(lines) + library.body


def build(folder: pathlib.Path) -> None:
    """Compile the stand-ins; any C compiler works."""
    folder.mkdir(parents=True, exist_ok=True)
    compiler = os.environ.get("CC", "gcc")
    for library in SONAMES:
        code = folder / f"{library.soname}.c"
        code.write_text(source(library))
        command = [compiler, "-w", "-O1", "-shared", "-fPIC", f"-Wl,-soname,{library.soname}"]
        subprocess.run([*command, "-o", folder / library.soname, code], check=True)
        code.unlink()


def machine_folders() -> Iterator[pathlib.Path]:
    """Folders in which this machine's Python and system keep CUDA's libraries."""
    yield from map(pathlib.Path, gpu_machine.files_of_wheels("lib"))
    for pattern in ("/usr/local/cuda*/lib64", "/usr/lib/*-linux-gnu"):
        yield from map(pathlib.Path, sorted(glob.glob(pattern)))


def cuda_toolkit() -> pathlib.Path | None:
    """A folder in which XLA finds ptxas and libdevice."""
    folders = [folder.parent for folder in machine_folders()]
    nvcc = shutil.which("nvcc")
    if nvcc:
        folders.insert(0, pathlib.Path(nvcc).resolve().parents[1])
    needed = ("bin/ptxas", "nvvm/libdevice/libdevice.10.bc")
    return next((one for one in folders if all((one / name).exists() for name in needed)), None)


@dataclasses.dataclass
class Chosen:
    """The chosen file for each library, and how the loader finds it."""

    by_soname: dict[str, str]
    search: list[str]
    nccl: str = ""

    @property
    def has_products(self) -> bool:
        """Whether matrix products and convolutions work."""
        needed = [one.soname for one in SONAMES if one.of_cuda_13]
        return all(self.by_soname[name] != "a stand-in" for name in needed)

    def line(self) -> str:
        return ", ".join(f"{soname}: {what}" for soname, what in self.by_soname.items())


def choose(stand_ins: pathlib.Path, folder: pathlib.Path, machine: bool = True) -> Chosen:
    """Fill a folder with links: to the machine's libraries if all exist, otherwise to stand-ins.

    cuBLAS and cuDNN find their own parts next to the opened file or on the search path; through a
    link only on the search path.
    """
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    folders = list(machine_folders()) if machine else []
    found = {one.soname: _find(one.of_cuda_13, folders) for one in SONAMES if one.of_cuda_13}
    whole = all(found.values())
    chosen = Chosen({}, [str(folder)])
    for one in SONAMES:
        real = found.get(one.soname) if whole else None
        (folder / one.soname).symlink_to((real or stand_ins / one.soname).resolve())
        chosen.by_soname[one.soname] = f"the machine's {real.name}" if real else "a stand-in"
        if real and str(real.parent) not in chosen.search:
            chosen.search.append(str(real.parent))
    chosen.nccl = str(_find("libnccl.so.2", list(machine_folders())) or "")
    return chosen


def write(store: pathlib.Path, chosen: Chosen) -> None:
    """Save it for the environment's Python, which does not search the machine's Python."""
    (store / CHOSEN).write_text(json.dumps(dataclasses.asdict(chosen)))


def read(store: pathlib.Path) -> Chosen:
    return Chosen(**json.loads((store / CHOSEN).read_text()))


def _find(name: str, folders: list[pathlib.Path]) -> pathlib.Path | None:
    return next((folder / name for folder in folders if name and (folder / name).exists()), None)
