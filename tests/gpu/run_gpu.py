"""What tests/run_gpu.sh does: runs all that this machine's GPUs allow, and prints a table.

One line for each part: `part | result | figure`. A part that cannot be run is listed with the
reason. Exit code 1 if something that ran failed; a bandwidth below its target is no failure.

Needs Python alone, and g++ or --programs. TF_HVD_CUDA_LIBRARY and TF_HVD_NCCL_LIBRARY name other
libraries than the machine's own.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import os
import pathlib
import shutil
import sys
from collections.abc import Iterator

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import gpu_programs
from gpu_machine import ROOT, Gpus, call, closing_line, find_gpus
from gpu_parts import LARGEST_JOB, Part, Parts, read_plainly
from gpu_programs import Outcome

BATCH = 32  # of tf_hvd bench
ON_GPU = {"TF_HVD_TESTS_DEVICE": "/GPU:0", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
BY_LOCAL_RANK = (
    'CUDA_VISIBLE_DEVICES="${OMPI_COMM_WORLD_LOCAL_RANK:-${MPI_LOCALRANKID:-0}}" exec "$@"'
)


class Table:
    """Prints each line as it comes, and what failed at the end."""

    def __init__(self) -> None:
        self.failures: list[tuple[str, str]] = []
        print(f"{'part':<38} | {'result':<7} | figure", flush=True)

    def add(self, part: str, result: str, figure: str, output: str = "") -> None:
        print(f"{part:<38} | {result:<7} | {figure}", flush=True)
        if result == "failed":
            self.failures.append((part, output))

    def end(self) -> int:
        for part, output in self.failures:
            print(f"\n== {part} failed:\n{output[-6000:]}")
        return 1 if self.failures else 0


class Run:
    """All parts, on the GPUs that there are."""

    def __init__(self, options: argparse.Namespace, gpus: Gpus) -> None:
        self.options = options
        self.gpus = gpus
        self.table = Table()
        self.programs = pathlib.Path(options.programs or options.folder).resolve()

    def tell(self, name: str, outcome: Outcome) -> None:
        self.table.add(name, outcome.result, outcome.figure, outcome.output)

    def run(self, part: Part) -> None:
        if part.missing:
            return self.skip(part.name, part.missing)
        code, output = call(part.command, part.limit * self.options.patience, part.environment)
        return self.tell(part.name, part.outcome(code, output))

    def part(self, name: str, command: list[str], limit: float, **environment: str) -> None:
        """Runs one; its closing line is the figure."""
        self.run(Part(name, command, limit, environment, read_plainly))

    def skip(self, name: str, reason: str) -> None:
        self.table.add(name, "not run", reason)

    def everything(self) -> int:
        names = ", ".join(sorted(set(self.gpus.names)))
        self.table.add("GPUs", "found", f"{len(self.gpus.names)}: {names}")
        if self.build():
            options = self.options
            parts = Parts(self.programs, self.gpus, options.bandwidth, options.job)
            for part in [parts.check(), *parts.sanitizers(), parts.bandwidth(), *parts.jobs()]:
                self.run(part)
        self.tensorflow()
        return self.table.end()

    def build(self) -> bool:
        """False if there are no programs."""
        if self.options.programs:
            self.table.add("programs", "found", "built before")
            return True
        limit = 1200 * self.options.patience
        return gpu_programs.build(self.programs, self.gpus.capabilities, limit, self.tell)

    def tensorflow(self) -> None:
        """With TensorFlow, where it and the wheel are installed."""
        parts = ("op tests", "images/s", "overlap", "timeline")
        asked = (
            "import tensorflow as tf, tf_hvd; print(len(tf.config.list_physical_devices('GPU')))"
        )
        code, output = call([sys.executable, "-c", asked], 300, {"TF_CPP_MIN_LOG_LEVEL": "2"})
        reason = ""
        launcher = shutil.which(
            "tf_hvd", path=f"{pathlib.Path(sys.executable).parent}:{os.defpath}"
        )
        if code != 0:
            reason = f"no TensorFlow with tf_hvd in {sys.executable}"
        elif closing_line(output) == "0":
            reason = "TensorFlow sees no GPU"
        elif launcher is None:
            reason = "there is no tf_hvd beside this Python"
        if reason:
            for part in parts:
                self.skip(f"TensorFlow, {part}", reason)
            return
        self.op_tests(str(launcher))
        self.training(str(launcher))

    def launches(self) -> Iterator[tuple[str, int, dict[str, str]]]:
        """Kinds of jobs: what they are, ranks, settings. Two ranks share one GPU without NCCL."""
        several = min(len(self.gpus.names), LARGEST_JOB)
        yield "1 rank", 1, {}
        if several > 1:
            yield f"{several} ranks, NCCL", several, {}
        yield "2 ranks, host", 2, {"TF_HVD_NCCL": "0"}

    def op_tests(self, launcher: str) -> None:
        for kind, ranks, environment in self.launches():
            if importlib.util.find_spec("pytest") is None:
                self.skip(f"TensorFlow, op tests, {kind}", "there is no pytest")
                continue
            by_host = environment.get("TF_HVD_NCCL") == "0"
            command = op_test_command(launcher, sys.executable, ranks, by_host)
            self.part(f"TensorFlow, op tests, {kind}", command, 1200, **ON_GPU, **environment)

    def training(self, launcher: str) -> None:
        self.programs.mkdir(parents=True, exist_ok=True)
        for kind, ranks, environment in self.launches():
            timeline = self.programs / f"timeline-{ranks}.json"
            timeline.unlink(missing_ok=True)
            command = [launcher, "run", "-np", str(ranks)]
            if len(self.gpus.names) >= ranks:
                command += ["bash", "-c", BY_LOCAL_RANK, "_"]
            command += [launcher, "bench", "--sizes", "4", "--peers", "tf_hvd"]
            command += ["--repetitions", "30", "--training", "keras", "--json"]
            settings = {"HOROVOD_TIMELINE": str(timeline), "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
            limit = 600 * self.options.patience
            code, output = call(command, limit, {**settings, **environment})
            self.steps(kind, ranks, code, output)
            name = f"TensorFlow, timeline, {kind}"
            if timeline.exists():
                self.table.add(name, "passed", str(timeline))
            else:
                self.skip(name, "this version of tf_hvd writes none")

    def steps(self, kind: str, ranks: int, code: int, output: str) -> None:
        """Tells what `tf_hvd bench --json` has measured."""
        times = training_times(output) if code == 0 else None
        name = f"TensorFlow, images/s, {kind}"
        if times is None:
            self.table.add(name, "failed", closing_line(output), output)
            return
        with_it, without = (BATCH * ranks / times[key] for key in ("with_reduction", "without"))
        figure = f"{with_it:.0f} with the reduction, {without:.0f} without"
        self.table.add(name, "passed", figure)
        if ranks > 1:
            exposed = times["exposed"]
            figure = f"a step waits for {exposed:.0%} of the reduction"
            figure += "" if 0 <= exposed <= 1 else " (noise: the machine is busy)"
            self.table.add(f"TensorFlow, overlap, {kind}", "passed", figure)


def training_times(output: str) -> dict[str, float] | None:
    """The times in the JSON object that the output ends with; s."""
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


def op_test_command(launcher: str, python: str, ranks: int, by_host: bool) -> list[str]:
    """The tests of collectives, by pytest; not by way of the host, NCCL rounds half precisions."""
    files = [f"python/parallel/{name}_test.py" for name in software_device_files()]
    command = [launcher, "run", "-np", str(ranks), python, "-m", "pytest"]
    command += [*files, "-q", "-p", "no:cacheprovider"]
    return command if by_host else [*command, "-k", "not have_the_same_bits"]


def software_device_files() -> list[str]:
    """The tests of the Python layer that the software GPU runs too."""
    text = (ROOT / "tests" / "gpu" / "software_device_test.py").read_text()
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "FILES":
            return list(ast.literal_eval(node.value))
    raise SystemExit("software_device_test.py names no FILES")


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="tests/run_gpu.sh", description=__doc__.splitlines()[0])
    parser.add_argument("--programs", help="folder with the programs that Bazel has built")
    parser.add_argument(
        "--folder", default=str(ROOT / "build" / "run_gpu"), help="where they are compiled, else"
    )
    parser.add_argument("--bandwidth", default="", help="arguments for device_bandwidth")
    parser.add_argument("--job", default="", help="arguments for nccl_job")
    parser.add_argument("--patience", type=float, default=1.0, help="times all time limits")
    options = parser.parse_args()
    gpus = find_gpus(os.environ.get("TF_HVD_CUDA_LIBRARY", ""))
    if not gpus.names:
        print(f"no GPU: {gpus.reason}")
        return 0
    return Run(options, gpus).everything()


if __name__ == "__main__":
    sys.exit(main())
