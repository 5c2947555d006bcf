"""The job in which a benchmark runs."""

import os
from collections.abc import Callable
from typing import Any

from tf_hvd.bench.native import RawMpi, SharedMemory
from tf_hvd.collectives import collectives, objects
from tf_hvd.core import _native, basics


class RunningJob:
    """The job with all ranks in the benchmark. The constructor joins the job."""

    def __init__(self) -> None:
        basics.init()
        self.rank, self.size = basics.rank(), basics.size()
        self.shared = SharedMemory(self.rank, self.size, self.gather)
        self.mpi = RawMpi()
        self.barrier: Callable[[], Any] = collectives.barrier
        """A barrier that spins in shared memory if all ranks share it, and otherwise uses MPI."""
        if not self.shared.missing:
            self.barrier = self.shared.barrier
        elif not self.mpi.missing and basics.mpi_threads_supported():
            self.barrier = self.mpi.call("Barrier")

    def gather(self, value: Any) -> list[Any]:
        """Return the values from all ranks, which may be any objects, in rank order."""
        return objects.allgather_object(value)

    def core_latency(self) -> float | None:
        """Return the latency in microseconds between the ranks' cores, or None if unknown.

        This is the largest latency between rank 0 and another rank. All ranks get the same value.
        """
        if self.shared.missing or self.size == 1:
            return None
        return float(self.gather(self.shared.latency())[0])

    def about(self) -> dict[str, Any]:
        """Return a description of the job for reports. All ranks get the same description."""
        mpi = _native.mpi_version().split(",")[0].partition("\n")[0]
        return {
            "ranks": self.size,
            "hosts": self.gather(os.uname().nodename),
            "cores": self.gather(sorted(os.sched_getaffinity(0))),
            "mpi": " ".join(mpi.replace("Version:", "").split()) or None,
            "tf_hvd": _native.build_info.VERSION,
            "tensorflow": _native.build["tensorflow"],
        }
