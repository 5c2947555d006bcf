"""The parts of the hour with TensorFlow: each has a time limit, a result file and output lines.

Results stay in the store, so that a command may be cut short and the next one continues.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import os
import pathlib
import shutil
import sys
from collections.abc import Iterator

import install
import libraries

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # PYTHONSAFEPATH may be set

import first_hour_report  # noqa: E402
import tensorflow_parts  # noqa: E402
from gpu_machine import ROOT, find_gpus  # noqa: E402
from gpu_parts import Part  # noqa: E402
from step_runner import Runner, Step  # noqa: E402

# Ordered by requirements, the smallest first. Limit in seconds, and description.
PARTS: dict[str, tuple[int, str]] = {
    "gpu": (200, "elementwise ops and one of our collectives, against the CPU, bit for bit"),
    "ops1": (400, "our op tests with tensors on the GPU, one rank, without NCCL"),
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
LEAST = 20.0  # s: with less time left, no part is started
KINDS: dict[str, tuple[str, int, dict[str, str]]] = {
    "1": ("1 rank", 1, {}),
    "2": ("2 ranks, host", 2, tensorflow_parts.BY_HOST),
}


def steps() -> list[Step]:
    return [
        Step(name, what, functools.partial(Hour.parts_of, name=name), LEAST)
        for name, (_, what) in PARTS.items()
    ]


class Hour(Runner):
    """Runs the parts as steps; results stay in the store and are copied to --out."""

    def __init__(self, store: pathlib.Path, chosen: libraries.Chosen, options: argparse.Namespace):
        given = argparse.Namespace(budget=options.seconds, earlier="", patience=1.0)
        gpus = find_gpus(os.environ.get("TF_HVD_CUDA_LIBRARY", ""))
        super().__init__(given, gpus, steps(), store / "results")
        self.store, self.chosen_libraries, self.copies = store, chosen, options.out
        self.launcher = str(store / "environment" / "bin" / "tf_hvd")
        self.python = str(install.python(store))
        if options.parts:
            self.asked = options.parts
            self.named = {part.name for step in self.steps() for part in step.parts(self)}

    def parts_of(self, name: str) -> list[Part]:
        limit = PARTS[name][0]
        if name == "images":
            return [
                tensorflow_parts.images(
                    said, self.launcher, ranks, settings, self.out, limit=limit / len(KINDS)
                )
                for said, ranks, settings in KINDS.values()
            ]
        said, ranks, settings = KINDS[name[-1] if name[-1] in KINDS else "1"]
        if name.startswith("ops"):
            programs = [self.launcher, self.python]
            return [tensorflow_parts.op_tests(said, programs, ranks, settings, limit=limit)]
        command = [self.launcher, "run", "-np", str(ranks), self.python, *self.script(name)]
        return [Part(f"TensorFlow, {name.rstrip('12')}, {said}", command, limit, settings)]

    def script(self, name: str) -> list[str]:
        """The command of a part's ranks."""
        if name.startswith("training"):
            return [str(HERE / "training.py")]
        if name.startswith("mnist"):
            example = ROOT / "examples" / "mnist_keras.py"
            digits = self.store / "environment" / "digits"
            return [str(example), "--data", str(digits), "--epochs", "5"]
        return [str(HERE / "probe.py"), name]

    def why_not(self, step: Step, part: Part) -> str:
        missing = super().why_not(step, part)
        if missing or step.name not in NEED_PRODUCTS:
            return missing
        if not self.chosen_libraries.has_products:
            return "no cuBLAS and cuDNN were found on this machine"
        if any(entry.result == "failed" for entry in self.entries("products").values()):
            return "the part `products` failed: this cuBLAS or cuDNN does not work with TensorFlow"
        return ""

    def text(self) -> str:
        version = (self.store / "versions.txt").read_text().strip()
        gpus = ", ".join(self.gpus.names) or self.gpus.reason
        headline = f"# TensorFlow on a GPU: {gpus}; {version}; {self.chosen_libraries.line()}"
        return first_hour_report.parts_report(headline, self.all_entries(), self.left)

    def report(self) -> None:
        super().report()
        if not self.copies:
            return
        copies = pathlib.Path(self.copies)
        copies.mkdir(parents=True, exist_ok=True)
        for file in (*self.out.glob("*.log"), self.out / "report.md"):
            shutil.copyfile(file, copies / file.name)


def missing(store: pathlib.Path, installed: bool, absent: list[str] | None) -> Iterator[str]:
    """Names of missing requirements of a run on this machine."""
    if absent is None:
        yield f"no piece has been received in {store}"
    elif absent:
        yield f"pieces: {', '.join(absent)}"
    if not installed:
        yield "the environment: `install` has not been run"
    for name in libraries.DRIVER:
        if not _opens(name):
            yield f"the driver's {name}"
    gpus = find_gpus(os.environ.get("TF_HVD_CUDA_LIBRARY", ""))
    if not gpus.names:
        yield f"a GPU: {gpus.reason}"


def _opens(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True
