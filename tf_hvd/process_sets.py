"""Process sets: which ranks take part in a collective.

This version has the one that always exists, of all ranks.
"""

from tf_hvd import basics


class ProcessSet:
    """A set of ranks. Made by tf_hvd only, in this version: see `global_process_set`.

    Attributes:
      process_set_id: the number that ops carry; None before the set is registered.
    """

    process_set_id: int | None = None

    @property
    def ranks(self) -> list[int] | None:
        """The members in ascending order; None before `init`."""
        if self.process_set_id != 0 or not basics.is_initialized():
            return None
        return list(range(basics.size()))

    def size(self) -> int | None:
        """Number of members; None before `init`."""
        ranks = self.ranks
        return None if ranks is None else len(ranks)

    def rank(self) -> int | None:
        """Place of this process in the set; None before `init`."""
        ranks = self.ranks
        return None if ranks is None else ranks.index(basics.rank())

    def included(self) -> bool | None:
        """Whether this process is a member; None before `init`."""
        ranks = self.ranks
        return None if ranks is None else basics.rank() in ranks

    def __str__(self) -> str:
        return (
            f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm=None)"
        )


def _global() -> ProcessSet:
    process_set = ProcessSet()
    process_set.process_set_id = 0
    return process_set


global_process_set = _global()
"""The set of all ranks, the default of every `process_set=`."""


def id_of(process_set: ProcessSet) -> int:
    """The number of a registered set.

    Raises:
      ValueError: not a process set, or not registered.
    """
    number = getattr(process_set, "process_set_id", None)
    if number is None:
        raise ValueError(
            f"process_set={process_set!r} is not a registered process set; this version has "
            "tf_hvd.global_process_set only."
        )
    return int(number)
