"""What a peer is to the measurement."""

import abc
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from tf_hvd.bench.workloads import Workload

MpiCommand = Callable[[str, Sequence[str], Sequence[str]], list[str]]


class Job(Protocol):
    """The ranks, as a benchmark needs them."""

    rank: int
    size: int

    def gather(self, value: Any) -> list[Any]:
        """What each rank has given, in the order of ranks; any object."""

    def barrier(self) -> None:
        """Returns when all ranks have called it, on all ranks as much at once as can be."""


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
        """Gets ready for `run`; why this cannot be done, if so.

        Args:
          workload: what to do.
          inputs: what this rank gives; not to be written to.
        """

    @abc.abstractmethod
    def run(self) -> Any:
        """Does the operation once, on all tensors of the workload."""

    def results(self) -> list[np.ndarray]:
        """Runs once and gives what came of it."""
        raise NotImplementedError

    def check(self, inputs: list[np.ndarray], outputs: list[np.ndarray]) -> int | None:
        """Runs once; the number of a tensor that came out wrong, if one did.

        Args:
          inputs: as `prepare` got them.
          outputs: what the operation makes of them.
        """
        wanted = outputs if self.is_collective else inputs
        for number, (value, right) in enumerate(zip(self.results(), wanted, strict=True)):
            if value.shape != right.shape or not np.array_equal(value, right):
                return number
        return None

    def seconds(self, calls: int, barrier: Callable[[], None]) -> float:
        """The time of one of so many calls, in seconds, that follow on a barrier."""
        barrier()
        begin = time.perf_counter()
        for _ in range(calls):
            self.run()
        return (time.perf_counter() - begin) / calls

    def release(self) -> None:  # noqa: B027
        """Forgets what `prepare` made."""

    def close(self) -> None:  # noqa: B027
        """Ends what the peer has started."""


@dataclasses.dataclass(frozen=True)
class Surroundings:
    """What peers are made from."""

    job: Job
    environ: Mapping[str, str]
    """Of the processes that a peer starts: without what a launcher tells a rank."""
    mpi_command: MpiCommand
    """What starts a command under MPI: of a Python environment's folder, the host of each rank and
    the command. Empty if there is no launcher."""
    horovod: str = ""
    """The folder of the Python environment in which Horovod is installed."""
