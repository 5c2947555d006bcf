"""Raw MPI: the library that tf_hvd uses, called from the same thread."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tf_hvd.bench import values
from tf_hvd.bench.native import MOST_VALUES, RawMpi, address
from tf_hvd.bench.peers.base import Peer
from tf_hvd.bench.workloads import Workload
from tf_hvd.core import basics

_ROOT = 0
_FUNCTIONS = {
    "allreduce": "Allreduce",
    "allgather": "Allgather",
    "broadcast": "Bcast",
    "alltoall": "Alltoall",
    "reducescatter": "Reduce_scatter_block",
}


class Mpi(Peer):
    name = "mpi"

    def __init__(self, mpi: RawMpi, in_place: bool = False) -> None:
        self._mpi, self._in_place = mpi, in_place
        if in_place:
            self.name = "mpi in place"
        self._calls: list[Callable[[], None]] = []
        self._inputs: list[np.ndarray] = []
        self._outputs: list[np.ndarray] = []

    def missing(self) -> str | None:
        """Return a reason if MPI is not running (a single-rank job) or allows only one thread."""
        if self._mpi.missing:
            return self._mpi.missing
        several = basics.mpi_threads_supported()
        return None if several else "this MPI only allows calls from tf_hvd's own thread"

    def prepare(self, workload: Workload, inputs: list[np.ndarray]) -> str | None:
        if workload.operation not in _FUNCTIONS:
            return f"MPI's {workload.operation} is not measured"
        if workload.kind.reduces and workload.dtype not in self._mpi.summed:
            return f"MPI does not support {workload.dtype}"
        if self._in_place and workload.operation != "allreduce":
            return "only allreduce is measured in place"
        dtype = values.numpy_type(workload.dtype)
        shapes = values.output_shapes(workload)
        self._inputs, self._outputs = inputs, [np.zeros(shape, dtype) for shape in shapes]
        if any(each.nbytes > MOST_VALUES for each in (*inputs, *self._outputs)):
            return "MPI supports at most 2^31 - 1 elements"
        if workload.operation == "broadcast":
            self._outputs = [value.copy() for value in inputs]
        self._calls = [
            self._call(workload, send, to)
            for send, to in zip(self._inputs, self._outputs, strict=True)
        ]
        return None

    def _call(self, workload: Workload, send: np.ndarray, to: np.ndarray) -> Callable[[], None]:
        function = _FUNCTIONS[workload.operation]
        source = self._mpi.in_place if self._in_place else address(send)
        target = address(to)
        if workload.kind.reduces:
            return self._mpi.call(function, source, target, to.size, workload.dtype, "sum")
        if workload.kind.has_root:
            return self._mpi.call(function, target, to.nbytes, "byte", _ROOT)
        part = min(send.nbytes, to.nbytes)
        if workload.operation == "alltoall":
            part = send.nbytes // workload.ranks
        return self._mpi.call(function, source, part, "byte", target, part, "byte")

    def run(self) -> Any:
        for call in self._calls:
            call()

    def results(self) -> list[np.ndarray]:
        """Return the results; for in-place sums, also clear the inputs so that sums cannot grow."""
        if self._in_place:
            for to, value in zip(self._outputs, self._inputs, strict=True):
                np.copyto(to, value)
        self.run()
        found = [to.copy() for to in self._outputs]
        if self._in_place:
            for to in self._outputs:
                to.fill(0)
        return found

    def release(self) -> None:
        self._calls, self._inputs, self._outputs = [], [], []
