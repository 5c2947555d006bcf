"""horovod.common.basics: the functions of the runtime as methods of one object."""

from collections.abc import Sequence
from typing import Any

from tf_hvd.collectives import reduce_ops
from tf_hvd.core import _communicators, basics, process_sets
from tf_hvd.observe import timeline


class HorovodBasics:
    """What `horovod.tensorflow.mpi_ops._basics` is an instance of.

    Args:
      pkg_path: not used: there is one native library, and it is loaded.
      *args: not used.
    """

    Average = reduce_ops.Average
    Sum = reduce_ops.Sum
    Adasum = reduce_ops.Adasum
    Min = reduce_ops.Min
    Max = reduce_ops.Max
    Product = reduce_ops.Product

    HOROVOD_PROCESS_SET_ERROR_INIT = -1
    HOROVOD_PROCESS_SET_ERROR_DYNAMIC = -2
    HOROVOD_PROCESS_SET_ERROR_UNKNOWN_SET = -3
    HOROVOD_PROCESS_SET_ERROR_FOREIGN_SET = -4
    HOROVOD_PROCESS_SET_ERROR_SHUTDOWN = -5
    HOROVOD_PROCESS_SET_ERROR_EXISTING_SET = -6

    init = staticmethod(basics.init)
    shutdown = staticmethod(basics.shutdown)
    is_initialized = staticmethod(basics.is_initialized)
    start_timeline = staticmethod(timeline.start_timeline)
    stop_timeline = staticmethod(timeline.stop_timeline)
    size = staticmethod(basics.size)
    local_size = staticmethod(basics.local_size)
    cross_size = staticmethod(basics.cross_size)
    rank = staticmethod(basics.rank)
    local_rank = staticmethod(basics.local_rank)
    cross_rank = staticmethod(basics.cross_rank)
    is_homogeneous = staticmethod(basics.is_homogeneous)
    mpi_threads_supported = staticmethod(basics.mpi_threads_supported)
    mpi_enabled = staticmethod(basics.mpi_enabled)
    mpi_built = staticmethod(basics.mpi_built)
    gloo_enabled = staticmethod(basics.gloo_enabled)
    gloo_built = staticmethod(basics.gloo_built)
    nccl_built = staticmethod(basics.nccl_built)
    ddl_built = staticmethod(basics.ddl_built)
    ccl_built = staticmethod(basics.ccl_built)
    cuda_built = staticmethod(basics.cuda_built)
    rocm_built = staticmethod(basics.rocm_built)

    def __init__(self, pkg_path: str, *args: str) -> None:
        del pkg_path, args

    def _get_process_set_ids_and_ranks(self) -> dict[int, list[int]]:
        """The members of each registered process set, by its number."""
        basics.rank()  # ValueError before init
        return process_sets.registered()

    def _process_set_size(self, process_set_id: int) -> int:
        """Number of members. ValueError if there is no such set."""
        return len(self._ranks_of(process_set_id))

    def _process_set_rank(self, process_set_id: int) -> int:
        """Place of this rank in a set. ValueError if it is no member, or there is no such set."""
        ranks, mine = self._ranks_of(process_set_id), basics.rank()
        if mine not in ranks:
            raise ValueError(f"rank {mine} is not in process set {process_set_id} of {ranks}.")
        return ranks.index(mine)

    def _comm_process_set_id(self, comm: Any) -> int:
        """The number of the set of a communicator's processes.

        Raises:
          ValueError: no such set is registered, or `comm` is no communicator of mpi4py.
        """
        if not _communicators.is_communicator(comm):
            raise ValueError(f"{comm!r} is not a communicator of mpi4py.")
        ranks = sorted(process_sets.job_ranks_of(comm))
        for number, members in self._get_process_set_ids_and_ranks().items():
            if members == ranks:
                return number
        raise ValueError(
            f"no process set of the ranks {ranks} of this communicator is registered; pass it to "
            "add_process_set."
        )

    comm_process_set = _comm_process_set_id

    def _add_process_set_impl(self, ranks: Sequence[int]) -> int | None:
        """Registers a set on all ranks. Its number; None if there is one of the same ranks."""
        if sorted(ranks) in self._get_process_set_ids_and_ranks().values():
            return None
        return process_sets.add_process_set(list(ranks)).process_set_id

    def _remove_process_set_impl(self, process_set_id: int) -> int | None:
        """Removes a set on all ranks. Its number; None if there is no such set, and for 0."""
        known = process_sets.with_number(process_set_id)
        if known is None or not process_sets.remove_process_set(known):
            return None
        return process_set_id

    def _ranks_of(self, process_set_id: int) -> list[int]:
        ranks = self._get_process_set_ids_and_ranks().get(process_set_id)
        if ranks is None:
            raise ValueError(f"there is no process set {process_set_id}.")
        return ranks


_basics = HorovodBasics(__file__)
