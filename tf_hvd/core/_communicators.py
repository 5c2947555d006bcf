"""Communicators of mpi4py, which is imported by whoever has one, never here."""

import operator
import sys
from collections.abc import Iterable
from typing import Any, NamedTuple

FOREIGN = -3
"""Stands for a process that is not in the job, where ranks of the job are exchanged."""


class Job(NamedTuple):
    """Which processes `init` was given."""

    ranks: list[int] | None = None  # of MPI_COMM_WORLD, in the job's order; None for all
    handle: int | None = None  # the Fortran handle of a communicator that gives them

    def rank_of(self, world_rank: int) -> int:
        """The rank in the job of a rank of MPI_COMM_WORLD, or FOREIGN."""
        if self.ranks is None:
            return world_rank
        return self.ranks.index(world_rank) if world_rank in self.ranks else FOREIGN


def is_communicator(value: Any) -> bool:
    """Whether `value` is a communicator of mpi4py; imports nothing."""
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi is not None and isinstance(value, mpi.Comm)


def world_ranks(comm: Any) -> list[int]:
    """The ranks in MPI_COMM_WORLD of a communicator's processes, in its order."""
    mpi = sys.modules["mpi4py.MPI"]
    if comm == mpi.COMM_NULL:
        return []
    if comm.Is_inter():
        raise ValueError(
            f"{comm.Get_name() or 'the communicator'} is an intercommunicator, of two groups of "
            "processes; pass an intracommunicator (its Merge() makes one)."
        )
    group, world = comm.Get_group(), mpi.COMM_WORLD.Get_group()
    ranks = mpi.Group.Translate_ranks(group, list(range(group.Get_size())), world)
    if mpi.UNDEFINED in ranks:
        raise ValueError(
            "the communicator has processes that are not in MPI_COMM_WORLD (started by Spawn?); "
            "start all processes of the job with one launcher."
        )
    return [int(rank) for rank in ranks]


def as_ranks(values: Iterable[Any], what: str) -> list[int]:
    """`values` as a list of ints."""
    ranks = []
    for value in values:
        try:
            if isinstance(value, bool):
                raise TypeError
            ranks.append(operator.index(value))
        except TypeError:
            raise ValueError(
                f"{what} has {value!r}, which is not a rank; pass a list of ints or a "
                "communicator of mpi4py."
            ) from None
    return ranks


def job_of(comm: Any) -> Job:
    """The processes that `init(comm=...)` names."""
    if comm is None:
        return Job()
    if is_communicator(comm):
        ranks = world_ranks(comm)
        if not ranks:
            raise ValueError(
                "init(comm=COMM_NULL): this process is not in the communicator; call init() only "
                "where it is, or give each process a communicator (Comm.Split does)."
            )
        return Job(ranks, int(comm.py2f()))
    if not isinstance(comm, Iterable) or isinstance(comm, str | bytes):
        raise ValueError(
            f"init(comm={comm!r}): pass None, a list of ranks of MPI_COMM_WORLD, or a "
            "communicator of mpi4py."
        )
    ranks = as_ranks(comm, "init(comm=...)")
    if not ranks:
        raise ValueError("init(comm=[]) names no rank; pass None for all processes of the job.")
    return Job(ranks)
