"""The machine's limits: copies, and the minimal shared-memory allreduce in limits.cc."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tf_hvd.bench.native import SharedMemory
from tf_hvd.bench.peers.base import Peer
from tf_hvd.bench.workloads import Workload


class Copy(Peer):
    """A copy of each rank's input, made on all ranks at once: a lower bound for any operation."""

    name = "copy"
    is_collective = False

    def __init__(self) -> None:
        self._pairs: list[tuple[np.ndarray, np.ndarray]] = []

    def prepare(self, workload: Workload, inputs: list[np.ndarray]) -> str | None:
        self._pairs = [(np.zeros_like(value), value) for value in inputs]
        return None

    def run(self) -> Any:
        for to, value in self._pairs:
            np.copyto(to, value)

    def results(self) -> list[np.ndarray]:
        self.run()
        return [to for to, _ in self._pairs]

    def release(self) -> None:
        self._pairs = []


class Sketch(Peer):
    """A minimal in-place allreduce through shared memory."""

    name = "sketch"

    def __init__(self, shared: SharedMemory) -> None:
        self._shared = shared
        self._values: list[np.ndarray] = []
        self._calls: list[Callable[[], None]] = []

    def missing(self) -> str | None:
        return self._shared.missing

    def prepare(self, workload: Workload, inputs: list[np.ndarray]) -> str | None:
        if workload.operation != "allreduce":
            return "it supports only allreduce"
        if workload.dtype not in ("float32", "float64"):
            return "it supports only float32 and float64"
        self._values = [value.copy() for value in inputs]
        self._calls = [self._shared.allreduce(values) for values in self._values]
        return None

    def run(self) -> Any:
        for call in self._calls:
            call()

    def results(self) -> list[np.ndarray]:
        """Return the sums, and clear the inputs so that further sums cannot grow indefinitely."""
        self.run()
        found = [values.copy() for values in self._values]
        for values in self._values:
            values.fill(0)
        return found

    def release(self) -> None:
        self._values, self._calls = [], []
