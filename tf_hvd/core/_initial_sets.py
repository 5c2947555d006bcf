"""The process sets that `init` is given: the first call registers them, a later one finds them."""

from collections.abc import Iterable
from typing import Any

from tf_hvd.core import _communicators, process_sets
from tf_hvd.core.process_sets import ProcessSet, SetExistsError, _Registry


def as_sets(given: Any) -> list[ProcessSet]:
    """What `init(process_sets=...)` was given, as sets.

    Raises:
      ValueError: not a list of sets.
    """
    if given is None:
        return []
    if isinstance(given, str):
        if given.lower() == "dynamic":
            return []
        raise ValueError(
            f"init(process_sets={given!r}): the only word is 'dynamic'; pass it, or a list "
            "of ProcessSet."
        )
    return [s if isinstance(s, ProcessSet) else ProcessSet(s) for s in given]


def start(job: _communicators.Job, comm: Any, sets: Iterable[ProcessSet]) -> None:
    """Registers the sets of `init`, right after it. Collective.

    Raises:
      SetExistsError: some have the ranks of one before them, and are left out. The job
        and the other sets are there all the same, on all ranks.
      ValueError: the job cannot have one of them.
    """
    refused: list[str] = []
    with _Registry.lock:
        _Registry.job = job
        if _communicators.is_communicator(comm):
            process_sets.global_process_set.mpi_comm = comm
        for place, one in enumerate(sets):
            try:
                process_sets._register(one)
            except SetExistsError as error:
                refused.append(f"entry {place}, {one}: {error}")
    _refuse(refused)


def find(job: _communicators.Job, sets: Iterable[ProcessSet]) -> None:
    """What a second `init` does: gives its sets the numbers they have already.

    Raises:
      ValueError: other processes than those of the first `init`, or a new set.
      SetExistsError: some have the ranks of one before them, and are left out.
    """
    refused: list[str] = []
    seen: set[int] = set()
    with _Registry.lock:
        ranks = _job_ranks()
        if job.ranks is not None and job.ranks != ranks:
            raise ValueError(
                f"init(comm=...) names the ranks {job.ranks} of MPI_COMM_WORLD, but tf_hvd runs "
                f"already with {ranks}; call shutdown() first."
            )
        for place, one in enumerate(sets):
            number = one.process_set_id
            if number is None:
                number = _number_of(one)
            if number in seen:
                refused.append(f"entry {place}, {one}: process set {number} has the same ranks")
            elif one.process_set_id is None:
                _take(one, number)
            seen.add(number)
    _refuse(refused)


def _refuse(texts: list[str]) -> None:
    if texts:
        raise SetExistsError(
            f"init(process_sets=...): {'; '.join(texts)}. The job runs, with the other sets; pass "
            "each set once."
        )


def _job_ranks() -> list[int]:
    if _Registry.job.ranks is not None:
        return _Registry.job.ranks
    return process_sets.global_process_set.ranks or []


def _number_of(process_set: ProcessSet) -> int:
    for number, known in _Registry.sets.items():
        first, comm = known[0], process_set.mpi_comm
        if first.ranks == process_set.ranks if comm is None else first.mpi_comm == comm:
            return number
    raise ValueError(
        f"init(process_sets=...): tf_hvd runs already, without {process_set}; register it with "
        "add_process_set."
    )


def _take(process_set: ProcessSet, number: int) -> None:
    known = _Registry.sets[number]
    process_set.process_set_id, process_set._numbers = number, known[0]._numbers
    process_set._ranks = known[0].ranks
    known.append(process_set)
