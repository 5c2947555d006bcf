"""The job that a benchmark runs in."""

import os
from collections.abc import Callable
from typing import Any

from tf_hvd.bench.native import RawMpi, SharedMemory
from tf_hvd.collectives import collectives, objects
from tf_hvd.core import _native, basics


class RunningJob:
    """All ranks. Joins them when it is made."""

    def __init__(self) -> None:
        basics.init()
        self.rank, self.size = basics.rank(), basics.size()
        self.shared = SharedMemory(self.rank, self.size, self.gather)
        self.mpi = RawMpi()
        self.barrier: Callable[[], Any] = collectives.barrier
        """Spins in shared memory where all ranks share it; else MPI's."""
        if not self.shared.missing:
            self.barrier = self.shared.barrier
        elif not self.mpi.missing and basics.mpi_threads_supported():
            self.barrier = self.mpi.call("Barrier")

    def gather(self, value: Any) -> list[Any]:
        """What each rank has given, in the order of ranks; any object."""
        return objects.allgather_object(value)

    def core_latency(self) -> float | None:
        """The latency in microseconds between the ranks' cores; None if it is not known.

        The largest between rank 0 and another one; the same on all ranks.
        """
        if self.shared.missing or self.size == 1:
            return None
        return float(self.gather(self.shared.latency())[0])

    def about(self) -> dict[str, Any]:
        """What a report says of it; the same on all ranks."""
        mpi = _native.mpi_version().split(",")[0].partition("\n")[0]
        return {
            "ranks": self.size,
            "hosts": self.gather(os.uname().nodename),
            "cores": self.gather(sorted(os.sched_getaffinity(0))),
            "mpi": " ".join(mpi.replace("Version:", "").split()) or None,
            "tf_hvd": _native.build_info.VERSION,
            "tensorflow": _native.build["tensorflow"],
        }
