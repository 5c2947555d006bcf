"""Finds a machine's GPUs and libraries with Python's standard library, and runs programs on it.

As a program it prints one fact in a separate process, since loading a driver or an NCCL may crash
the process: `gpu_machine.py driver|nccl|host [LIBRARY]`.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import glob
import importlib.util
import os
import pathlib
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import IO

ROOT = pathlib.Path(__file__).resolve().parents[2]
CAPABILITY = (75, 76)  # attributes of a device: major, minor
CUT_SHORT = 124  # exit code of a program that exceeded its limit, like timeout's
PR_SET_PDEATHSIG = 1


@dataclasses.dataclass
class Gpus:
    """The GPUs as reported by the driver."""

    names: list[str]
    capabilities: list[str]
    reason: str = ""
    driver: int = 0  # 13000 for CUDA 13.0


def find_gpus(library: str) -> Gpus:
    """Query the driver through its C functions; `reason` tells why there is no GPU."""
    try:
        cuda = ctypes.CDLL(library or "libcuda.so.1")
    except OSError as error:
        return Gpus([], [], f"there is no CUDA driver ({error})")
    count, device, value = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    code = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
    if code or count.value == 0:
        return Gpus([], [], f"the driver has no device (error {code})")
    gpus = Gpus([], [])
    cuda.cuDriverGetVersion(ctypes.byref(value))
    gpus.driver = value.value
    for ordinal in range(count.value):
        name = ctypes.create_string_buffer(256)
        cuda.cuDeviceGet(ctypes.byref(device), ordinal)
        cuda.cuDeviceGetName(name, 255, device)
        gpus.names.append(name.value.decode())
        capability = ""
        for attribute in CAPABILITY:
            cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
            capability += str(value.value)
        gpus.capabilities.append(capability)
    return gpus


def places(package: str) -> list[str]:
    """The folders of a package, without importing it; none if it does not exist."""
    try:
        spec = importlib.util.find_spec(package)
    except (ModuleNotFoundError, ValueError):  # a parent is missing or is not a package
        return []
    return list(spec.submodule_search_locations or ()) if spec else []


def files_of_wheels(pattern: str) -> list[str]:
    """Files of NVIDIA's packages in all of Python's folders, including CUDA 13's single folder."""
    found: list[str] = []
    for folder in places("nvidia"):
        found += sorted(glob.glob(f"{folder}/*/{pattern}"))
    return found


def find_nvrtcs() -> list[str]:
    """Paths of libnvrtc in Python's packages, the toolkit and the system."""
    found = files_of_wheels("lib/libnvrtc.so.*")
    nvcc = shutil.which("nvcc")
    if nvcc:
        toolkit = pathlib.Path(nvcc).resolve().parents[1]
        found += glob.glob(f"{toolkit}/lib64/libnvrtc.so*")
    found += glob.glob("/usr/local/cuda*/lib64/libnvrtc.so*")
    found += glob.glob("/usr/lib/*/libnvrtc.so*")
    return list(dict.fromkeys(os.path.realpath(one) for one in found if ".alt." not in one))


def find_nccl() -> str:
    """The libnccl.so.2 of Python's packages or of conda; empty: the loader finds the system's.

    As tf_hvd itself finds it (tf_hvd/core/basics.py).
    """
    name = "lib/libnccl.so.2"
    sites = [pathlib.Path(place).parent / "nvidia" / "nccl" for place in places("tensorflow")]
    folders = [*sites, *map(pathlib.Path, places("nvidia.nccl"))]
    found = [str(folder / name) for folder in folders] + files_of_wheels(name)
    found.append(f"{sys.prefix}/{name}")
    return next((os.path.realpath(one) for one in found if os.path.exists(one)), "")


def tie_to_parent() -> None:
    """In a child, before its program: make a process group that ends with this process."""
    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def call(
    command: Sequence[str],
    limit: float,
    environment: Mapping[str, str] | None = None,
    cwd: pathlib.Path = ROOT / "tests",
    output: IO[bytes] | None = None,
) -> tuple[int, str]:
    """Return the exit code and the output, and leave no process running.

    The code is CUT_SHORT if the program exceeded the limit (s). In the default folder, no package
    of the checkout hides an installed one. With `output`, the program's output goes to that file
    as it is written, and is not returned.
    """
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env={**os.environ, "PYTHONSAFEPATH": "1", **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=output or subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        preexec_fn=tie_to_parent,
    )
    said, late = "", ""
    try:
        said = process.communicate(timeout=limit)[0] or ""
    except subprocess.TimeoutExpired:
        late = f"\nit did not end within {limit:.0f} s"
    finally:  # child processes may be left; an interrupt ends here too
        end_group(process.pid)
    if late:
        said = process.communicate()[0] or ""
        return CUT_SHORT, said + late
    return process.returncode, said


def end_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def closing_line(output: str) -> str:
    lines = [line for line in output.strip().split("\n") if line.strip()]
    return lines[-1].strip() if lines else "no output"


def driver_facts(library: str) -> str:
    gpus = find_gpus(library)
    if not gpus.names:
        raise SystemExit(gpus.reason)
    capabilities = ", ".join(f"{one[:-1]}.{one[-1]}" for one in sorted(set(gpus.capabilities)))
    names = ", ".join(sorted(set(gpus.names)))
    version = f"{gpus.driver // 1000}.{gpus.driver % 1000 // 10}"
    return f"{len(gpus.names)}: {names}, compute capability {capabilities}, CUDA {version}"


def nccl_facts(library: str) -> str:
    version = ctypes.c_int()
    try:
        nccl = ctypes.CDLL(library or "libnccl.so.2")
    except OSError as error:
        raise SystemExit(str(error)) from error
    nccl.ncclGetVersion(ctypes.byref(version))
    number = version.value
    origin = "of Python's packages" if library else "the system's"
    if os.environ.get("TF_HVD_NCCL_LIBRARY"):
        origin = "named by TF_HVD_NCCL_LIBRARY"
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}, {origin}"


def host_facts() -> str:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    system = f"{platform.system()} {platform.release()}, {' '.join(platform.libc_ver())}"
    python = f"Python {platform.python_version()}"
    return f"{system}, {python}, {os.cpu_count()} cores, {pages / 2**30:.0f} GiB of memory"


def main() -> None:
    what, library = sys.argv[1], "".join(sys.argv[2:3])
    if what == "driver":
        print(driver_facts(library))
    elif what == "nccl":
        print(nccl_facts(library))
    else:
        print(host_facts())


if __name__ == "__main__":
    main()
