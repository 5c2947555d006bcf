"""The parts that need TensorFlow and the wheel: op tests with tensors on the GPU, and training."""

from __future__ import annotations

import ast
import functools
import importlib.util
import json
import os
import pathlib
import shutil
import sys
from collections.abc import Iterator

from gpu_machine import ROOT, Gpus, call, closing_line
from gpu_parts import LARGEST_JOB, Part, read_plainly
from gpu_programs import Outcome

BATCH = 32  # of tf_hvd bench
GROWTH = {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}  # two ranks share a GPU
BY_HOST = {"TF_HVD_NCCL": "0"}
BY_LOCAL_RANK = (
    'CUDA_VISIBLE_DEVICES="${OMPI_COMM_WORLD_LOCAL_RANK:-${MPI_LOCALRANKID:-0}}" exec "$@"'
)


def launcher_beside(python: str) -> str:
    folders = f"{pathlib.Path(python).parent}:{os.defpath}"
    return shutil.which("tf_hvd", path=folders) or ""


@functools.cache
def why_no_tensorflow() -> str:
    """Return why this Python cannot run the parts; empty if it can."""
    asked = "import tensorflow as tf, tf_hvd; print(len(tf.config.list_physical_devices('GPU')))"
    code, output = call([sys.executable, "-c", asked], 300, {"TF_CPP_MIN_LOG_LEVEL": "2"})
    if code != 0:
        return f"no TensorFlow with tf_hvd in {sys.executable}"
    if closing_line(output) == "0":
        return "TensorFlow sees no GPU"
    return "" if launcher_beside(sys.executable) else "tf_hvd is not next to this Python"


def launches(gpus: Gpus) -> Iterator[tuple[str, int, dict[str, str]]]:
    """Kinds of jobs: name, ranks, settings. Two ranks share one GPU without NCCL."""
    several = min(len(gpus.names), LARGEST_JOB)
    yield "1 rank", 1, {}
    if several > 1:
        yield f"{several} ranks, NCCL", several, {}
    yield "2 ranks, host", 2, BY_HOST


def of_this_python(gpus: Gpus, folder: pathlib.Path) -> list[Part]:
    """All parts, with the installed TensorFlow and wheel."""
    missing, launcher = why_no_tensorflow(), launcher_beside(sys.executable)
    found: list[Part] = []
    no_pytest = "" if importlib.util.find_spec("pytest") else "pytest is not installed"
    for kind, ranks, environment in launches(gpus):
        programs = [launcher, sys.executable]
        found.append(op_tests(kind, programs, ranks, environment, missing or no_pytest))
    for kind, ranks, environment in launches(gpus):
        several = ranks > 1 and len(gpus.names) >= ranks
        found.append(images(kind, launcher, ranks, environment, folder, several, missing))
    return found


def op_tests(
    kind: str, programs: list[str], ranks: int, environment: dict[str, str], missing: str = "",
    limit: float = 1200,
) -> Part:  # fmt: skip
    """The tests of collectives by pytest. NCCL rounds half-precision sums on GPUs."""
    launcher, python = programs
    files = [f"python/parallel/{name}_test.py" for name in software_device_files()]
    command = [launcher, "run", "-np", str(ranks), python, "-m", "pytest"]
    command += [*files, "-q", "-p", "no:cacheprovider"]
    if environment != BY_HOST:
        command += ["-k", "not have_the_same_bits"]
    settings = {"TF_HVD_TESTS_DEVICE": "/GPU:0", **GROWTH, **environment}
    name = f"TensorFlow, op tests, {kind}"
    return Part(name, command, limit, settings, read_plainly, missing)


def software_device_files() -> list[str]:
    """The tests of the Python layer that the software GPU also runs."""
    text = (ROOT / "tests" / "gpu" / "software_device_test.py").read_text()
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "FILES":
            return list(ast.literal_eval(node.value))
    raise SystemExit("software_device_test.py names no FILES")


def images(
    kind: str, launcher: str, ranks: int, environment: dict[str, str], folder: pathlib.Path,
    own_gpus: bool = False, missing: str = "", limit: float = 600,
) -> Part:  # fmt: skip
    """Run `tf_hvd bench --training`, with a timeline in the folder."""
    timeline = folder / f"timeline-{ranks}.json"
    command = [launcher, "run", "-np", str(ranks)]
    if own_gpus:
        command += ["bash", "-c", BY_LOCAL_RANK, "_"]
    command += [launcher, "bench", "--sizes", "4", "--peers", "tf_hvd"]
    command += ["--repetitions", "30", "--training", "keras", "--json"]
    settings = {"HOROVOD_TIMELINE": str(timeline), **GROWTH, **environment}
    read = functools.partial(read_training, ranks)
    return Part(f"TensorFlow, images/s, {kind}", command, limit, settings, read, missing)


def read_training(ranks: int, code: int, output: str) -> Outcome:
    """Read the measurements of `tf_hvd bench --json`."""
    times = training_times(output) if code == 0 else None
    if times is None:
        return Outcome("failed", closing_line(output), output)
    with_it, without = (BATCH * ranks / times[key] for key in ("with_reduction", "without"))
    figure = f"{with_it:.0f} with the reduction, {without:.0f} without"
    if ranks > 1:
        exposed = times["exposed"]
        figure += f"; a step waits for {exposed:.0%} of the reduction"
        figure += "" if 0 <= exposed <= 1 else " (noise: the machine is busy)"
    return Outcome("passed", figure, output)


def training_times(output: str) -> dict[str, float] | None:
    """The times in the JSON object at the end of the output, in s."""
    start = output.find("{")
    while start >= 0:
        try:
            times = json.JSONDecoder().raw_decode(output[start:])[0].get("training")
            if times:
                return dict(times[0] if isinstance(times, list) else times)
        except ValueError:
            pass
        start = output.find("{", start + 1)
    return None
