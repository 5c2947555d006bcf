"""Conversion of mpi4py communicators to ranks, without importing mpi4py.

A program that has a communicator has imported mpi4py already.
"""

import operator
import sys
from collections.abc import Iterable
from typing import Any, NamedTuple

FOREIGN = -3
"""The value that represents a process outside the job in exchanged lists of ranks."""


class Job(NamedTuple):
    """The processes that form the job, as passed to `init`."""

    ranks: list[int] | None = None  # in MPI_COMM_WORLD, in the job's order; None for all
    handle: int | None = None  # Fortran handle of the communicator with these ranks

    def rank_of(self, world_rank: int) -> int:
        """Convert a rank of MPI_COMM_WORLD to a rank of the job; FOREIGN if not in the job."""
        if self.ranks is None:
            return world_rank
        return self.ranks.index(world_rank) if world_rank in self.ranks else FOREIGN


def is_communicator(value: Any) -> bool:
    """Return whether `value` is an mpi4py communicator, without importing anything."""
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi is not None and isinstance(value, mpi.Comm)


def world_ranks(comm: Any) -> list[int]:
    """Return the MPI_COMM_WORLD ranks of a communicator's processes, in the same order."""
    mpi = sys.modules["mpi4py.MPI"]
    if comm == mpi.COMM_NULL:
        return []
    if comm.Is_inter():
        raise ValueError(
            f"{comm.Get_name() or 'the communicator'} is an intercommunicator, which connects two "
            "groups of processes; pass an intracommunicator, such as the result of its Merge()."
        )
    group, world = comm.Get_group(), mpi.COMM_WORLD.Get_group()
    ranks = mpi.Group.Translate_ranks(group, list(range(group.Get_size())), world)
    if mpi.UNDEFINED in ranks:
        raise ValueError(
            "the communicator includes processes that are not in MPI_COMM_WORLD, such as "
            "processes started by Spawn(); start all processes of the job with one launcher."
        )
    return [int(rank) for rank in ranks]


def as_ranks(values: Iterable[Any], what: str) -> list[int]:
    """Convert `values` to a list of ints; raise ValueError for a value that is not a rank."""
    ranks = []
    for value in values:
        try:
            if isinstance(value, bool):
                raise TypeError
            ranks.append(operator.index(value))
        except TypeError:
            raise ValueError(
                f"{what} contains {value!r}, which is not a rank; pass a list of ints or an "
                "mpi4py communicator."
            ) from None
    return ranks


def job_of(comm: Any) -> Job:
    """Return the processes that `init(comm=...)` selects."""
    if comm is None:
        return Job()
    if is_communicator(comm):
        ranks = world_ranks(comm)
        if not ranks:
            raise ValueError(
                "init(comm=COMM_NULL): this process is not in the communicator; call init() only "
                "on the communicator's members, or pass a communicator on every process, for "
                "example one from Comm.Split()."
            )
        return Job(ranks, int(comm.py2f()))
    if not isinstance(comm, Iterable) or isinstance(comm, str | bytes):
        raise ValueError(
            f"init(comm={comm!r}): comm is not valid; pass None, a list of ranks of "
            "MPI_COMM_WORLD, or an mpi4py communicator."
        )
    ranks = as_ranks(comm, "init(comm=...)")
    if not ranks:
        raise ValueError("init(comm=[]): the list is empty; pass None for all processes.")
    return Job(ranks)
