"""Process sets: which ranks take part in a collective.

All ranks of the job add and remove sets alike and in the same order, members or
not; collectives of a set are called by its members only. docs/process_sets.md.
"""

import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from tf_hvd.core import _communicators, _native, tensorflow_hooks
from tf_hvd.core.convention import Convention
from tf_hvd.core.exceptions import HorovodInternalError

WORLD = 0
"""The number of the set of all ranks."""
# Of base/status.h: what the caller can put right.
_MISTAKES = (1, 2)
# For about how many removed sets TensorFlow may keep kernels, of 20 kB each.
_KEPT = 32


class ProcessSet:
    """A set of ranks; `init` or `add_process_set` registers it.

    Attributes:
      process_set_id: the number that ops carry; None while the set is not registered.
      ranks: the members in ascending order; None if a communicator gives them and the
        set was never registered.
      mpi_comm: the communicator of mpi4py that the set was made from, or None.
    """

    process_set_id: int | None = None
    mpi_comm: Any = None

    def __init__(self, ranks_or_comm: Any) -> None:
        """Makes a set that is not registered yet; no other rank is asked.

        Args:
          ranks_or_comm: ranks of the job, in any order; or a communicator of mpi4py,
            whose processes they are. Ranks may give different communicators, as
            Comm.Split makes them: then each gets the set of its own.

        Raises:
          ValueError: neither of the two.
        """
        self._ranks: list[int] | None = None
        # All sets that were made with this one, of which it is one.
        self._numbers: list[int] = []
        self._removed = False
        if _communicators.is_communicator(ranks_or_comm):
            self.mpi_comm = ranks_or_comm
        elif isinstance(ranks_or_comm, Iterable) and not isinstance(ranks_or_comm, str | bytes):
            self._ranks = sorted(_communicators.as_ranks(ranks_or_comm, "ProcessSet(...)"))
        else:
            raise ValueError(
                f"ProcessSet({ranks_or_comm!r}): pass a list of ranks or a communicator of mpi4py."
            )

    @property
    def ranks(self) -> list[int] | None:
        """The members in ascending order, if they are known."""
        return None if self._ranks is None else list(self._ranks)

    def size(self) -> int | None:
        """Number of members; None before registration.

        Raises:
          ValueError: the runtime has no such set any more.
        """
        return None if self.process_set_id is None else len(self._registered_ranks())

    def rank(self) -> int | None:
        """Place of this process in the set; None before registration.

        Raises:
          ValueError: this process is no member.
        """
        if self.process_set_id is None:
            return None
        ranks, mine = self._registered_ranks(), _own_rank()
        if mine not in ranks:
            raise ValueError(
                f"rank {mine} is not in process set {self.process_set_id}, which has the ranks "
                f"{ranks}; ask included() first."
            )
        return ranks.index(mine)

    def included(self) -> bool | None:
        """Whether this process is a member; None if the ranks are unknown or before `init`."""
        ranks, mine = self.ranks, _own_rank()
        return None if ranks is None or mine < 0 else mine in ranks

    def __str__(self) -> str:
        return (
            f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, "
            f"mpi_comm={self.mpi_comm})"
        )

    __repr__ = __str__

    def _registered_ranks(self) -> list[int]:
        ranks = _native.process_set_ranks(id_of(self))
        if ranks is None:
            raise ValueError(
                f"there is no process set {self.process_set_id}; pass a set that "
                "add_process_set returned and that was not removed."
            )
        return ranks

    def _forget(self, removed: bool) -> None:
        """Is not registered any more, and can be again."""
        self.process_set_id = None
        self._numbers = []
        self._removed = removed
        if not removed and self.mpi_comm is not None:
            self._ranks = None  # in another job they are others


class _GlobalProcessSet(ProcessSet):
    process_set_id = WORLD

    @property
    def ranks(self) -> list[int] | None:
        return _native.process_set_ranks(WORLD)

    def size(self) -> int | None:
        ranks = self.ranks
        return None if ranks is None else len(ranks)

    def rank(self) -> int | None:
        return None if self.ranks is None else _own_rank()


global_process_set: ProcessSet = _GlobalProcessSet([])
"""The set of all ranks, the default of every `process_set=`."""


class JobCount(Protocol):
    """Something that counts the steps of a job."""

    def restart(self) -> None:
        """Another job begins. Called outside of all graphs."""


class JoinCount(Protocol):
    """Something that the ranks of a process set count together."""

    def after_join(self) -> Any:
        """All ranks have joined; in a graph, when it runs. Gives what others wait for, or None."""


class _Registry:
    """The sets of the running job, as far as this process has objects for them."""

    lock = threading.RLock()  # one change at a time: its order is that of all ranks
    job = _communicators.Job()
    sets: dict[int, list[ProcessSet]] = {}  # noqa: RUF012
    removed = 0  # sets, in all jobs
    counts: weakref.WeakSet[JobCount] = weakref.WeakSet()  # noqa: RUF012
    join_counts: weakref.WeakKeyDictionary[JoinCount, ProcessSet] = weakref.WeakKeyDictionary()  # noqa: RUF012


def restart_in_each_job(count: JobCount) -> None:
    """Has `count.restart()` called at each `init` that starts a job, for as long as it lives.

    What ranks compare must not come from jobs before, in which they may not have been together.
    """
    _Registry.counts.add(count)


def restart_after_join(count: JoinCount, process_set: ProcessSet) -> None:
    """Has `count.after_join()` called when the ranks of `process_set` have joined.

    They have then made different numbers of steps, and go on together.
    """
    _Registry.join_counts[count] = process_set


def counts_to_restart(process_set: ProcessSet) -> list[JoinCount]:
    """Those that its ranks' join is about."""
    number = id_of(process_set)
    with _Registry.lock:
        counts = list(_Registry.join_counts.items())
    return [count for count, whose in counts if whose.process_set_id == number]


def _own_rank() -> int:
    return int(_native.library.tf_hvd_rank())


def _check(code: int, text: str) -> None:
    if code in _MISTAKES:
        raise ValueError(text)
    if code != 0:
        raise HorovodInternalError(text)


def id_of(process_set: ProcessSet) -> int:
    """The number of a registered set.

    Raises:
      ValueError: not a process set, not registered, removed, or of a wrong number.
    """
    if not isinstance(process_set, ProcessSet):
        raise ValueError(
            f"process_set={process_set!r} is not a process set; pass tf_hvd.global_process_set or "
            "what tf_hvd.add_process_set returned."
        )
    number = process_set.process_set_id
    if number is not None:
        # The number is public, and a wrong one would only be told in the op.
        if number != WORLD and _own_rank() >= 0 and _native.process_set_ranks(number) is None:
            raise ValueError(
                f"there is no process set {number}; pass a set that add_process_set returned and "
                "that was not removed."
            )
        return number
    if process_set._removed:
        raise ValueError(
            f"{process_set} was removed with remove_process_set; add it again with "
            "add_process_set, on all ranks, or use another one."
        )
    raise ValueError(
        f"{process_set} is not a registered process set; pass it to add_process_set, or to "
        "init(process_sets=[...]), on all ranks."
    )


def registration_of(process_set: ProcessSet) -> tuple[int, int | None]:
    """What a function that is traced for a set holds of it: its number, and how many ranks it has.

    Who keeps such functions asks for it at each call: a set that is removed and added again, or
    registered in another job, has another number.
    """
    return id_of(process_set), process_set.size()


class SetExistsError(ValueError):
    """There is a set of the same ranks: the job goes on without another one."""


def _number_for(ranks: Sequence[int]) -> int:
    known = registered()
    if Convention.name == "horovod" and ranks == known.get(WORLD):
        raise SetExistsError(
            f"Attempted to add a duplicate process set: the ranks {ranks} are all ranks of the "
            "job, which global_process_set has. Use that instead."
        )
    code, number, text = _native.add_process_set(ranks)
    if code in _MISTAKES and ranks in known.values():
        raise SetExistsError(text)
    _check(code, text)
    return number


def _numbers_for(sets: list[list[int]]) -> list[int]:
    """All of them, or none: a failure is the same on all ranks."""
    numbers: list[int] = []
    try:
        for ranks in sets:
            numbers.append(_number_for(ranks))
    except ValueError:
        for number in numbers:
            _check(*_native.remove_process_set(number))
        raise
    return numbers


def _sets_of_communicators(comm: Any) -> tuple[list[int], list[list[int]]]:
    """The members for this rank, and all ranks' sets in the order of ranks."""
    mine = [_Registry.job.rank_of(rank) for rank in _communicators.world_ranks(comm)]
    if _communicators.FOREIGN in mine:
        mine = [_communicators.FOREIGN]  # there may be more of them than the job has ranks
    code, lists, text = _native.gather_ranks(mine)
    _check(code, text)
    # Each once, in the order of first sight.
    distinct = dict.fromkeys(tuple(sorted(ranks)) for ranks in lists if ranks)
    sets = [list(ranks) for ranks in distinct]
    # All ranks see the same lists, so all of them raise or none.
    for rank, ranks in enumerate(lists):
        if _communicators.FOREIGN in ranks:
            raise ValueError(
                f"rank {rank} has a ProcessSet of a communicator with a process that is not in "
                "the job; init(comm=...) must have all processes that belong to a set."
            )
        if not ranks and len(sets) != 1:
            raise ValueError(
                f"rank {rank} has ProcessSet(COMM_NULL), but the other ranks' communicators make "
                f"the sets {sets}, so its own is ambiguous; pass a communicator there too."
            )
    return sorted(mine) or sets[0], sets


def _register(process_set: ProcessSet) -> None:
    """Collective over all ranks of the job."""
    if process_set.process_set_id is not None:
        raise ValueError(f"{process_set} is registered already; use it, or remove it first.")
    if process_set.mpi_comm is not None:
        mine, sets = _sets_of_communicators(process_set.mpi_comm)
    else:
        mine = process_set.ranks or []
        sets = [mine]
    numbers = _numbers_for(sets)
    process_set.process_set_id = numbers[sets.index(mine)]
    process_set._ranks = list(mine)
    process_set._numbers = numbers
    process_set._removed = False
    _Registry.sets.setdefault(process_set.process_set_id, []).append(process_set)


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Registers a process set; blocks until all ranks of the job have done it.

    All ranks call it alike and in the same order, whether they are members or not.

    Args:
      process_set: a set that is not registered, or what ProcessSet is made from.

    Returns:
      The registered set.

    Raises:
      ValueError: before `init`; ranks that the job does not have, that are there twice
        or differ between ranks; a set of the same ranks exists, for which under Horovod's
        names the set of all ranks counts, too.
      HorovodInternalError: the job has ended, because another rank left or died.
    """
    wanted = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    with _Registry.lock:
        _register(wanted)
    return wanted


def remove_process_set(process_set: ProcessSet) -> bool:
    """Removes a process set; blocks until all ranks of the job have done it.

    Collectives of the set that not all members have called by then fail. Its
    number is not used again. Of a set that a communicator gave, the sets that the
    other ranks got in the same call are removed with it.

    Args:
      process_set: a registered set. The object loses its number, and can be added again.

    Returns:
      Whether it was removed: False for the set of all ranks and for one that is not
      registered.

    Raises:
      ValueError: before `init`; the ranks remove different sets.
      HorovodInternalError: the job has ended, because another rank left or died.
    """
    if process_set.process_set_id in (None, WORLD):
        return False
    with _Registry.lock:
        for number in list(process_set._numbers):
            _check(*_native.remove_process_set(number))
            for known in _Registry.sets.pop(number, []):
                known._forget(removed=True)
            _Registry.removed += 1
            if _Registry.removed % _KEPT == 0:
                tensorflow_hooks.free_eager_kernels()
    return True


def registered() -> dict[int, list[int]]:
    """The members of all registered sets that this process knows of, by their numbers."""
    with _Registry.lock:
        others = {number for known in _Registry.sets.values() for number in known[0]._numbers}
    ranks = {number: _native.process_set_ranks(number) for number in sorted({WORLD, *others})}
    return {number: members for number, members in ranks.items() if members is not None}


def with_number(number: int) -> ProcessSet | None:
    """The set that has a number; None if there is none, and for the set of all ranks."""
    with _Registry.lock:
        known = _Registry.sets.get(number)
    return known[0] if known else None


def as_sets(given: Any) -> list[ProcessSet]:
    """What `init(process_sets=...)` was given, as sets."""
    if given is None:
        return []
    if isinstance(given, str):
        if given.lower() == "dynamic":
            return []
        raise ValueError(
            f"init(process_sets={given!r}): the only string accepted is 'dynamic'; pass it, or a "
            "list of ProcessSet."
        )
    return [s if isinstance(s, ProcessSet) else ProcessSet(s) for s in given]


def register_initial(job: _communicators.Job, comm: Any, sets: Iterable[ProcessSet]) -> None:
    """Registers the sets of `init`, right after it, for what is a new job. Collective.

    Raises:
      SetExistsError: some have the ranks of one before them, and are left out. The job
        and the other sets are there all the same, on all ranks.
      ValueError: the job cannot have one of them.
    """
    with tensorflow_hooks.eagerly():
        for count in list(_Registry.counts):
            count.restart()
    refused: list[str] = []
    with _Registry.lock:
        _Registry.job = job
        if _communicators.is_communicator(comm):
            global_process_set.mpi_comm = comm
        for place, one in enumerate(sets):
            try:
                _register(one)
            except SetExistsError as error:
                refused.append(f"entry {place}, {one}: {error}")
    _refuse(refused)


def find_initial(job: _communicators.Job, sets: Iterable[ProcessSet]) -> None:
    """What a second `init` does: gives its sets the numbers they have already.

    Raises:
      ValueError: other processes than those of the first `init`, or a new set.
      SetExistsError: some have the ranks of one before them, and are left out.
    """
    refused: list[str] = []
    seen: set[int] = set()
    with _Registry.lock:
        ranks = _Registry.job.ranks or global_process_set.ranks or []
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


def forget_all() -> None:
    """What `shutdown` does: no set is registered any more."""
    with _Registry.lock:
        for known in _Registry.sets.values():
            for one in known:
                one._forget(removed=False)
        _Registry.sets.clear()
        _Registry.job = _communicators.Job()
        global_process_set.mpi_comm = None
