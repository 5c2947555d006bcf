"""What a peer is to the measurement."""

import abc
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tf_hvd.bench.workloads import Workload


class Peer(abc.ABC):
    """One way to do an operation. All ranks call the same methods in the same order."""

    name: str
    is_collective = True
    """Whether something goes from rank to rank: if not, there is no bus bandwidth."""

    def missing(self) -> str | None:
        """Why this peer cannot be used here at all; None if it can."""
        return None

    @abc.abstractmethod
    def prepare(self, workload: Workload, inputs: list[np.ndarray]) -> str | None:
        """Gets ready for `run`; why this cannot be done, if so. `inputs` are not written to."""

    @abc.abstractmethod
    def run(self) -> Any:
        """Does the operation once, on all tensors of the workload."""

    def results(self) -> list[np.ndarray]:
        raise NotImplementedError

    def check(self, inputs: list[np.ndarray], outputs: list[np.ndarray]) -> int | None:
        """Runs once; the number of a tensor that came out wrong, if one did."""
        wanted = outputs if self.is_collective else inputs
        for number, (value, right) in enumerate(zip(self.results(), wanted, strict=True)):
            if value.shape != right.shape or not np.array_equal(value, right):
                return number
        return None

    def seconds(self, calls: int, barrier: Callable[[], None]) -> float:
        return timed(self.run, calls, barrier)

    def release(self) -> None:  # noqa: B027
        """Forgets what `prepare` made."""


def timed(call: Callable[[], Any], calls: int, barrier: Callable[[], None]) -> float:
    """The seconds of one of so many calls that follow on a barrier."""
    barrier()
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - begin) / calls
