"""The interface of a peer: an implementation of operations that the benchmark measures."""

import abc
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tf_hvd.bench.workloads import Workload


class Peer(abc.ABC):
    """One implementation of an operation. All ranks call the same methods in the same order."""

    name: str
    is_collective = True
    """Whether data moves between ranks. If not, the peer has no bus bandwidth."""

    def missing(self) -> str | None:
        """Return the reason why this process cannot use this peer at all, or None if it can."""
        return None

    @abc.abstractmethod
    def prepare(self, workload: Workload, inputs: list[np.ndarray]) -> str | None:
        """Prepare `run` without changing `inputs`; return why this peer cannot run, or None."""

    @abc.abstractmethod
    def run(self) -> Any:
        """Perform the operation once, on all tensors in the workload."""

    def results(self) -> list[np.ndarray]:
        raise NotImplementedError

    def check(self, inputs: list[np.ndarray], outputs: list[np.ndarray]) -> int | None:
        """Run once; return the index of a tensor with a wrong result, or None."""
        wanted = outputs if self.is_collective else inputs
        for number, (value, right) in enumerate(zip(self.results(), wanted, strict=True)):
            if value.shape != right.shape or not np.array_equal(value, right):
                return number
        return None

    def seconds(self, calls: int, barrier: Callable[[], None]) -> float:
        return timed(self.run, calls, barrier)

    def release(self) -> None:  # noqa: B027
        """Free the memory that `prepare` allocated."""


def timed(call: Callable[[], Any], calls: int, barrier: Callable[[], None]) -> float:
    """Return the seconds per call, averaged over `calls` calls after a barrier."""
    barrier()
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - begin) / calls
