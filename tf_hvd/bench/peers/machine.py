"""What the machine allows: its copies, and the shared-memory sketch of limits.cc."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tf_hvd.bench.native import SharedMemory
from tf_hvd.bench.peers.base import Peer
from tf_hvd.bench.workloads import Workload


class Copy(Peer):
    """Each rank copies its input once, all at a time: what no operation on it can undercut."""

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
    """The sum through shared memory, in place, with nothing around it."""

    name = "sketch"

    def __init__(self, shared: SharedMemory) -> None:
        self._shared = shared
        self._values: list[np.ndarray] = []
        self._calls: list[Callable[[], None]] = []

    def missing(self) -> str | None:
        return self._shared.missing

    def prepare(self, workload: Workload, inputs: list[np.ndarray]) -> str | None:
        if workload.operation != "allreduce":
            return "it only has allreduce"
        if workload.dtype not in ("float32", "float64"):
            return "it only adds float32 and float64"
        self._values = [value.copy() for value in inputs]
        self._calls = [self._shared.allreduce(values) for values in self._values]
        return None

    def run(self) -> Any:
        for call in self._calls:
            call()

    def results(self) -> list[np.ndarray]:
        """The sums; from now on zeros are added, so that they cannot grow without end."""
        self.run()
        found = [values.copy() for values in self._values]
        for values in self._values:
            values.fill(0)
        return found

    def release(self) -> None:
        self._values, self._calls = [], []
