"""The benchmark's native code: the machine's limits (limits.cc) and the loaded MPI."""

import ctypes
import mmap
import os
import pathlib
import re
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

from tf_hvd.bench.errors import BenchError

_LIBRARY = pathlib.Path(__file__).resolve().parent.parent / "libtf_hvd_limits.so"
_FOLDER = "/dev/shm"
_LIBMPI = re.compile(r"/.*/libmpi\.so[.\d]*$")
_SUCCESS = 0


def core_latency(first: int, second: int) -> float | None:
    """Return the latency in microseconds between two cores; None if either may not be used."""
    function = ctypes.CDLL(str(_LIBRARY)).tf_hvd_limits_core_latency
    function.restype = ctypes.c_double
    latency = float(function(first, second))
    return latency if latency > 0 else None


def address(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


class SharedMemory:
    """A segment shared by all ranks on one machine, with a barrier and an allreduce on it."""

    PIECE_BYTES = 1 << 19

    def __init__(self, rank: int, ranks: int, gather: Callable[[Any], list[Any]]) -> None:
        self._rank, self._ranks = rank, ranks
        self._library = library = ctypes.CDLL(str(_LIBRARY))
        number, long, pointer = ctypes.c_int, ctypes.c_int64, ctypes.c_void_p
        library.tf_hvd_limits_segment_bytes.restype = long
        library.tf_hvd_limits_segment_bytes.argtypes = [number, long]
        library.tf_hvd_limits_barrier.argtypes = [pointer, number, number]
        library.tf_hvd_limits_latency.restype = ctypes.c_double
        library.tf_hvd_limits_latency.argtypes = [pointer, number, number, number]
        library.tf_hvd_limits_allreduce.argtypes = [
            *(pointer, number, number, long, number, pointer, pointer, long)
        ]
        size = library.tf_hvd_limits_segment_bytes(ranks, self.PIECE_BYTES)
        name, failure = "", ""
        if rank == 0:
            name, failure = _create(size)
        name = gather(name)[0]
        self._segment = None if failure else _open(name, size)
        reasons = gather(failure if self._segment else failure or f"{name} is not visible")
        if rank == 0 and name:
            os.unlink(name)
        self.missing: str | None = next((reason for reason in reasons if reason), None)
        if self._segment and not self.missing:
            self._base = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(self._segment)))

    def barrier(self) -> None:
        """Wait, spinning, until all ranks have called this method.

        Raises:
          BenchError: a rank does not arrive within a minute.
        """
        if self._library.tf_hvd_limits_barrier(self._base, self._rank, self._ranks) != _SUCCESS:
            raise BenchError("a rank did not reach the barrier within a minute")

    def latency(self) -> float:
        """Return the largest latency between rank 0's core and another core, in microseconds.

        All ranks must call this method. Each rank except rank 0 gets only the latency to its own
        core. In a single-rank job, the latency is 0.0.

        Raises:
          BenchError: a rank does not arrive within a minute.
        """
        farthest = 0.0
        for other in range(1, self._ranks):
            if self._rank in (0, other):
                found = self._library.tf_hvd_limits_latency(
                    self._base, self._rank, self._ranks, other
                )
                if found < 0:
                    raise BenchError("a rank did not answer within a minute")
                farthest = max(farthest, found)
        return farthest

    def allreduce(self, values: np.ndarray) -> Callable[[], None]:
        """Return a function that sums float32 or float64 `values` across all ranks in place.

        The function is valid as long as `values` exists. It raises BenchError if a rank does not
        arrive within a minute.
        """
        data = address(values)
        words = (
            *(self._base, self._rank, self._ranks, self.PIECE_BYTES),
            *(values.dtype == np.float64, data, data, values.size),
        )

        def call() -> None:  # keeps alive the segment that `words` points to
            if self._library.tf_hvd_limits_allreduce(*words) != _SUCCESS:
                raise BenchError("a rank did not reach the allreduce within a minute")

        return call


def _create(size: int) -> tuple[str, str]:
    """Create a file of zeros. Return its path and "", or on failure "" and the reason."""
    try:
        descriptor, name = tempfile.mkstemp(prefix="tf_hvd_bench.", dir=_FOLDER)
    except OSError as error:
        return "", f"{_FOLDER}: {error.strerror}"
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        os.unlink(name)
        return "", f"{_FOLDER}: {error.strerror}"
    finally:
        os.close(descriptor)
    return name, ""


def _open(name: str, size: int) -> mmap.mmap | None:
    try:
        descriptor = os.open(name, os.O_RDWR)
    except OSError:
        return None
    try:
        return mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)


# MPICH's handles are numbers fixed by its ABI; Open MPI's are addresses of its symbols.
_MPICH = {
    "world": 0x44000000,
    "sum": 0x58000003,
    "byte": 0x4C00010D,
    "float32": 0x4C00040A,
    "float64": 0x4C00080B,
}
_MPICH_IN_PLACE = -1
_OPEN_MPI = {
    "world": "ompi_mpi_comm_world",
    "sum": "ompi_mpi_op_sum",
    "byte": "ompi_mpi_byte",
    "float32": "ompi_mpi_float",
    "float64": "ompi_mpi_double",
}
_OPEN_MPI_IN_PLACE = 1
MOST_VALUES = 2**31 - 1
"""The maximum number of values in a call, because MPI counts have the type int."""


class RawMpi:
    """The MPI library that this process has loaded, called directly."""

    def __init__(self) -> None:
        path = _loaded_mpi()
        self.missing = None if path else "MPI is not running in this process"
        self.summed = frozenset({"float32", "float64"})
        if path is None:
            return
        self._library = ctypes.CDLL(path)
        open_mpi = hasattr(self._library, _OPEN_MPI["world"])
        self.in_place = ctypes.c_void_p(_OPEN_MPI_IN_PLACE if open_mpi else _MPICH_IN_PLACE)
        self._handles = {
            name: self._address(symbol) if open_mpi else ctypes.c_int(_MPICH[name])
            for name, symbol in _OPEN_MPI.items()
        }

    def _address(self, symbol: str) -> ctypes.c_void_p:
        return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(self._library, symbol)))

    def call(self, function: str, *arguments: Any) -> Callable[[], None]:
        """Return a function that calls an MPI function; all ranks must call it.

        Args:
          function: name of the MPI function, without `MPI_`.
          *arguments: addresses of buffers (which the caller keeps alive), counts, and names of
            handles, without the communicator.
        """
        words = [self._handles[word] if isinstance(word, str) else word for word in arguments]
        entry = getattr(self._library, f"MPI_{function}")
        world = self._handles["world"]

        def call() -> None:
            code = entry(*words, world)
            if code != _SUCCESS:
                raise BenchError(f"MPI_{function} failed with code {code}")

        return call


def _loaded_mpi() -> str | None:
    with open("/proc/self/maps", errors="replace") as maps:
        return next((found[0] for line in maps if (found := _LIBMPI.search(line))), None)
