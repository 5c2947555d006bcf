"""The parts of the hour with TensorFlow: each has its time, its result file and its lines.

Results stay in the store, so that a command may be cut short and the next one goes on.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import pathlib
import shlex
import sys
import time
from collections.abc import Iterator

import install
import libraries

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # PYTHONSAFEPATH may be set

import run_gpu  # noqa: E402

# What they need is in this order: little first.
PARTS: dict[str, tuple[int, str]] = {
    "gpu": (200, "elementwise ops and one of our collectives, against the CPU, bit for bit"),
    "ops1": (400, "our op tests with tensors on the GPU, one rank, which NCCL is not asked for"),
    "training1": (120, "a network of elementwise ops and sums, against one process on the CPU"),
    "products": (200, "matrix products and convolutions by the machine's cuBLAS and cuDNN"),
    "mnist1": (200, "examples/mnist_keras.py, one rank"),
    "ops2": (400, "the op tests with two ranks on one GPU, through the host's memory"),
    "training2": (120, "the network, two ranks"),
    "mnist2": (200, "the example, two ranks"),
    "compiled": (200, "a step with a collective that XLA compiles"),
    "images": (400, "images per second of `tf_hvd bench`, with and without the reduction"),
}
NEED_PRODUCTS = ("products", "mnist1", "mnist2", "images")
LEAST = 20  # s: with less left, no part is begun
HOST = {"TF_HVD_NCCL": "0"}
KINDS = {"1": ("1 rank", 1, {}), "2": ("2 ranks, host", 2, HOST)}  # as run_gpu names them
TAIL = 40  # lines of a failed part in the report


class Lines(run_gpu.Table):
    """The lines of one part, also as they are to be kept."""

    def __init__(self) -> None:
        self.failures = []
        self.rows: list[tuple[str, str, str]] = []
        self.log = ""

    def add(self, part: str, result: str, figure: str, output: str = "") -> None:
        super().add(part, result, figure, output)
        self.rows.append((part, result, figure))
        self.log += f"== {part}: {result}: {figure}\n{output}\n"


class Hour(run_gpu.Run):
    """Runs parts; a part that is cut off by the command's end is run again by the next."""

    table: Lines

    def __init__(self, store: pathlib.Path, chosen: libraries.Chosen, options: argparse.Namespace):
        given = argparse.Namespace(
            programs="", folder=str(store / "programs"), job="", bandwidth="", patience=1.0
        )
        super().__init__(given, run_gpu.find_gpus(os.environ.get("TF_HVD_CUDA_LIBRARY", "")))
        self.store, self.chosen, self.asked = store, chosen, options
        self.results = store / "results"
        self.dry = bool(options.dry_run)
        self.end_at: float = time.monotonic() + options.seconds
        self.launcher = str(store / "environment" / "bin" / "tf_hvd")
        self.python = str(install.python(store))

    def left(self) -> float:
        return self.end_at - time.monotonic()

    def part(self, name: str, command: list[str], limit: float, **environment: str) -> None:
        if self.dry:
            settings = [f"{key}={shlex.quote(value)}" for key, value in environment.items()]
            self.table.add(name, "would run", " ".join([*settings, shlex.join(command)]))
        else:
            super().part(name, command, limit, **environment)

    def launches(self) -> Iterator[tuple[str, int, dict[str, str]]]:
        for kind in KINDS:
            yield KINDS[kind]

    def all(self, names: list[str]) -> int:
        """Runs what is asked for, or what has no result yet; 1 if a part failed."""
        failed = False
        for name in names or [one for one in PARTS if self.dry or not self.file(one).exists()]:
            self.table = Lines()
            limit = min(PARTS[name][0], self.left())
            if limit < LEAST and not self.dry:
                print(f"{name} and what follows: no time is left, the next `run` goes on there")
                break
            self.one(name, limit)
            failed = failed or bool(self.table.failures)
            if not self.dry:
                self.keep(name)
        return 1 if failed else 0

    def one(self, name: str, limit: float) -> None:
        said, ranks, environment = KINDS[name[-1] if name[-1] in KINDS else "1"]
        title = f"TensorFlow, {name.rstrip('12').replace('ops', 'op tests')}, {said}"
        reason = self.why_not(name)
        if reason and not self.dry:
            self.skip(title, reason)
        elif name == "images":
            self.images(limit)
        elif name.startswith("ops"):
            command = run_gpu.op_test_command(self.launcher, self.python, ranks, bool(environment))
            self.part(title, command, limit, **run_gpu.ON_GPU, **environment)
        else:
            command = [self.launcher, "run", "-np", str(ranks), self.python]
            self.part(title, [*command, *self.script(name)], limit, **environment)

    def script(self, name: str) -> list[str]:
        """What a part's ranks run."""
        if name.startswith("training"):
            return [str(HERE / "training.py")]
        if name.startswith("mnist"):
            example = run_gpu.ROOT / "examples" / "mnist_keras.py"
            digits = self.store / "environment" / "digits"
            return [str(example), "--data", str(digits), "--epochs", "5"]
        return [str(HERE / "probe.py"), name]

    def images(self, limit: float) -> None:
        if self.dry:
            command = [self.launcher, "bench", "--training", "keras", "--json"]
            self.part("TensorFlow, images/s, 1 and 2 ranks", command, limit)
            return
        self.options.patience = limit / 600 / len(KINDS)  # what training allows for each
        self.training(self.launcher)

    def why_not(self, name: str) -> str:
        if not self.gpus.names:
            return self.gpus.reason
        if name in NEED_PRODUCTS and not self.chosen.has_products:
            return "no cuBLAS and cuDNN were found on this machine"
        if name in ("mnist1", "mnist2", "images") and self.has_failed("products"):
            return "the part `products` failed: this cuBLAS or cuDNN does not do for TensorFlow"
        return ""

    def file(self, name: str) -> pathlib.Path:
        return self.results / f"{list(PARTS).index(name):02}-{name}.json"

    def has_failed(self, name: str) -> bool:
        kept = self.file(name)
        return kept.exists() and any(row[1] == "failed" for row in json.loads(kept.read_text())[0])

    def keep(self, name: str) -> None:
        self.results.mkdir(parents=True, exist_ok=True)
        self.file(name).write_text(json.dumps([self.table.rows, self.table.log]))
        if self.asked.out:
            write_report(self.results, pathlib.Path(self.asked.out), self.headline())

    def headline(self) -> str:
        version = (self.store / "versions.txt").read_text().strip()
        return f"{', '.join(self.gpus.names) or self.gpus.reason}; {version}; {self.chosen.line()}"


def write_report(results: pathlib.Path, out: pathlib.Path, headline: str) -> None:
    """report.md, and log.txt with all that was printed; written again after each part."""
    out.mkdir(parents=True, exist_ok=True)
    table, logs, failures = ["| part | result | figure |", "|---|---|---|"], [], []
    for path in sorted(results.glob("*.json")):
        rows, log = json.loads(path.read_text())
        table += ["| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in rows]
        logs.append(log)
        if any(row[1] == "failed" for row in rows):
            tail = "\n".join(log.rstrip().split("\n")[-TAIL:])
            failures.append(f"## {path.stem}\n\n```text\n{tail}\n```")
    text = "\n\n".join(["# TensorFlow on a GPU", headline, "\n".join(table), *failures])
    (out / "report.md").write_text(text + "\n")
    (out / "log.txt").write_text("\n".join(logs))


def missing(store: pathlib.Path, installed: bool, absent: list[str] | None) -> Iterator[str]:
    """What stands between this machine and a run."""
    if absent is None:
        yield f"no piece has been received in {store}"
    elif absent:
        yield f"pieces: {', '.join(absent)}"
    if not installed:
        yield "the environment: `install` has not been run"
    for name in libraries.DRIVER:
        if not _opens(name):
            yield f"the driver's {name}"
    gpus = run_gpu.find_gpus(os.environ.get("TF_HVD_CUDA_LIBRARY", ""))
    if not gpus.names:
        yield f"a GPU: {gpus.reason}"


def _opens(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True
