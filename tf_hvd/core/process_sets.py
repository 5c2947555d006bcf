"""Process sets: groups of ranks that run collectives among themselves.

All ranks of the job must add and remove sets in the same order, even if they are not members. Only
a set's members call its collectives. See docs/concepts.md.
"""

import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from tf_hvd.core import _communicators, _native, tensorflow_hooks
from tf_hvd.core.convention import Convention
from tf_hvd.core.exceptions import HorovodInternalError, JobError, ProcessSetError

WORLD = 0
"""The number of the set of all ranks."""
# Status codes of base/status.h: errors that the caller can fix, and StatusCode::kInternal.
_MISTAKES = (1, 2)
INTERNAL = 4
# TensorFlow may keep kernels, of 20 kB each, for about this many removed sets.
_KEPT = 32


class ProcessSet:
    """A set of ranks that run collectives together.

    `init` or `add_process_set` registers the set. Only then can collectives use it.

    Attributes:
      process_set_id: int, the set's number in ops; None while the set is not registered.
      ranks: list of the members' ranks, ascending; None if the set was made from a communicator
        and was never registered.
      mpi_comm: the mpi4py communicator that the set was made from, or None.

    Example:
      first = hvd.add_process_set(hvd.ProcessSet([0]))
      if first.included():
          hvd.allreduce(tf.ones([2]), process_set=first)
      hvd.remove_process_set(first)
    """

    process_set_id: int | None = None
    mpi_comm: Any = None

    def __init__(self, ranks_or_comm: Any) -> None:
        """Create a set without registering it. This needs no communication.

        Args:
          ranks_or_comm: list of ranks of the job, in any order; or an mpi4py communicator of
            the members. Ranks may pass different communicators, such as those that Comm.Split
            returns. Each rank then gets the set of the communicator that it passed.

        Raises:
          ValueError: the argument is neither a list of ranks nor an mpi4py communicator.
        """
        self._ranks: list[int] | None = None
        # The numbers of all sets that were made in the same call, including this one.
        self._numbers: list[int] = []
        self._removed = False
        if _communicators.is_communicator(ranks_or_comm):
            self.mpi_comm = ranks_or_comm
        elif isinstance(ranks_or_comm, Iterable) and not isinstance(ranks_or_comm, str | bytes):
            self._ranks = sorted(_communicators.as_ranks(ranks_or_comm, "ProcessSet(...)"))
        else:
            raise ValueError(
                f"ProcessSet({ranks_or_comm!r}): the argument is not valid; "
                "pass a list of ranks or an mpi4py communicator."
            )

    @property
    def ranks(self) -> list[int] | None:
        """The members' ranks in ascending order; None if they are unknown."""
        return None if self._ranks is None else list(self._ranks)

    def size(self) -> int | None:
        """Return the number of members; None before registration.

        Raises:
          ProcessSetError: the set no longer exists.
        """
        return None if self.process_set_id is None else len(self._registered_ranks())

    def rank(self) -> int | None:
        """Return the index of this process in the set, from 0; None before registration.

        Raises:
          ProcessSetError: this process is not a member.
        """
        if self.process_set_id is None:
            return None
        ranks, mine = self._registered_ranks(), _own_rank()
        if mine not in ranks:
            raise ProcessSetError(
                f"rank {mine} is not in process set {self.process_set_id}, which has the ranks "
                f"{ranks}; check included() before you call rank()."
            )
        return ranks.index(mine)

    def included(self) -> bool | None:
        """Return whether this process is a member; None before `init` or for unknown ranks."""
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
            raise ProcessSetError(
                f"process set {self.process_set_id} does not exist; pass a set that "
                "add_process_set returned and that was not removed."
            )
        return ranks

    def _forget(self, removed: bool) -> None:
        """Mark the set as unregistered, so that it can be registered again."""
        self.process_set_id = None
        self._numbers = []
        self._removed = removed
        if not removed and self.mpi_comm is not None:
            self._ranks = None  # they differ in another job


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

    def __reduce__(self) -> str:
        """Pickle the set by name, so copies and other processes get their own global set."""
        return "global_process_set"


global_process_set: ProcessSet = _GlobalProcessSet([])
"""The set of all ranks, which is the default of every argument `process_set=`."""


class JobCount(Protocol):
    """The interface of an object that counts the steps of a job."""

    def restart(self) -> None:
        """Restart the count for a new job. Called outside of all graphs."""


class JoinCount(Protocol):
    """The interface of a count that is the same on all ranks of a process set."""

    def after_join(self) -> Any:
        """Restart the count after all ranks have joined, and return the ops to wait for.

        In a graph, the count restarts when these ops run.
        """


class _Registry:
    """The sets of the current job for which this process has ProcessSet objects."""

    lock = threading.RLock()  # one change at a time, so that all ranks make them in the same order
    job = _communicators.Job()
    sets: dict[int, list[ProcessSet]] = {}  # noqa: RUF012
    removed = 0  # number of removed sets, over all jobs
    counts: weakref.WeakSet[JobCount] = weakref.WeakSet()  # noqa: RUF012
    join_counts: weakref.WeakKeyDictionary[JoinCount, ProcessSet] = weakref.WeakKeyDictionary()  # noqa: RUF012


def restart_in_each_job(count: JobCount) -> None:
    """Call `count.restart()` at each `init` that starts a job, as long as `count` exists.

    Ranks may have been in different jobs before, so counts that they compare must start from zero.
    """
    _Registry.counts.add(count)


def restart_after_join(count: JoinCount, process_set: ProcessSet) -> None:
    """Call `count.after_join()` each time all ranks of `process_set` have joined.

    Before the join, the ranks may make different numbers of steps. After it, they count together.
    """
    _Registry.join_counts[count] = process_set


def counts_to_restart(process_set: ProcessSet) -> list[JoinCount]:
    """Return the counts that must restart when this set's ranks have joined."""
    number = id_of(process_set)
    with _Registry.lock:
        counts = list(_Registry.join_counts.items())
    return [count for count, owner in counts if owner.process_set_id == number]


def _own_rank() -> int:
    return int(_native.library.tf_hvd_rank())


def _check(code: int, text: str) -> None:
    if code in _MISTAKES:
        raise ProcessSetError(text)
    if code == INTERNAL:
        raise HorovodInternalError(text)
    if code != 0:
        raise JobError(text)


def check_kind(process_set: Any) -> None:
    """Raise ProcessSetError unless the argument is a ProcessSet, registered or not."""
    if not isinstance(process_set, ProcessSet):
        raise ProcessSetError(
            f"process_set={process_set!r} is not a process set; pass tf_hvd.global_process_set or "
            "a set that tf_hvd.add_process_set returned."
        )


def id_of(process_set: ProcessSet) -> int:
    """Return the number of a registered set.

    Raises:
      ProcessSetError: the argument is not a process set, or the set is not registered.
    """
    check_kind(process_set)
    number = process_set.process_set_id
    if number is not None:
        # The number is public; without this check the op would report a wrong one.
        if number != WORLD and _own_rank() >= 0 and _native.process_set_ranks(number) is None:
            raise ProcessSetError(
                f"process set {number} does not exist; pass a set that add_process_set returned "
                "and that was not removed."
            )
        return number
    if process_set._removed:
        raise ProcessSetError(
            f"{process_set} was removed with remove_process_set; add it again with "
            "add_process_set, on all ranks, or use another set."
        )
    raise ProcessSetError(
        f"{process_set} is not a registered process set; pass it to add_process_set, or to "
        "init(process_sets=[...]), on all ranks."
    )


def registration_of(process_set: ProcessSet) -> tuple[int, int | None]:
    """Return the key for functions traced for a set: the set's number and its number of ranks.

    Callers that keep such functions must get the key at each call. A set gets another number when
    it is removed and added again, or registered in another job.
    """
    return id_of(process_set), process_set.size()


class SetExistsError(ProcessSetError):
    """A set with the same ranks already exists, so the job continues without a second one."""


def _number_for(ranks: Sequence[int]) -> int:
    known = registered()
    if Convention.name == "horovod" and ranks == known.get(WORLD):
        raise SetExistsError(
            f"Attempted to add a duplicate process set: the ranks {ranks} are all ranks of the "
            "job. Use global_process_set instead."
        )
    code, number, text = _native.add_process_set(ranks)
    if code in _MISTAKES and ranks in known.values():
        raise SetExistsError(text)
    _check(code, text)
    return number


def _numbers_for(sets: list[list[int]]) -> list[int]:
    """Register all of the sets, or none if one of them fails on all ranks."""
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
    """Return the members of this rank's set, and the sets of all ranks in rank order."""
    mine = [_Registry.job.rank_of(rank) for rank in _communicators.world_ranks(comm)]
    if _communicators.FOREIGN in mine:
        mine = [_communicators.FOREIGN]  # the communicator may be larger than the job
    code, lists, text = _native.gather_ranks(mine)
    _check(code, text)
    # Each set once, in the order of its first occurrence.
    distinct = dict.fromkeys(tuple(sorted(ranks)) for ranks in lists if ranks)
    sets = [list(ranks) for ranks in distinct]
    # All ranks see the same lists, so all of them raise or none.
    for rank, ranks in enumerate(lists):
        if _communicators.FOREIGN in ranks:
            raise ProcessSetError(
                f"rank {rank} has a ProcessSet of a communicator with a process outside of the "
                "job; pass to init(comm=...) all processes that are in a set."
            )
        if not ranks and len(sets) != 1:
            raise ProcessSetError(
                f"rank {rank} has ProcessSet(COMM_NULL), which is ambiguous because the other "
                f"ranks' communicators form the sets {sets}; pass a communicator on this rank too."
            )
    return sorted(mine) or sets[0], sets


def _register(process_set: ProcessSet) -> None:
    """Register a set. All ranks of the job must make this call."""
    if process_set.process_set_id is not None:
        raise ProcessSetError(
            f"{process_set} is already registered; use it, or call remove_process_set first."
        )
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
    """Register a process set, and wait until all ranks of the job have made this call.

    All ranks must make these calls in the same order, even if they are not members.

    Args:
      process_set: a ProcessSet that is not registered, a list of ranks, or an mpi4py
        communicator.

    Returns:
      The registered ProcessSet.

    Raises:
      ProcessSetError: `init` was not called; a rank is not in the job or is listed twice; or the
        lists differ between ranks. Also if a set with the same ranks exists. (The set of all ranks
        counts as such a set only after `install_as_horovod` or with `--as-horovod`.)
      JobError: the job has ended because another rank left or died.

    Example:
      last = hvd.add_process_set([hvd.size() - 1])
      assert last.size() == 1
      hvd.remove_process_set(last)
    """
    wanted = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    with _Registry.lock:
        _register(wanted)
    return wanted


def remove_process_set(process_set: ProcessSet) -> bool:
    """Remove a process set, and wait until all ranks of the job have made this call.

    A collective of the set fails if some members have not called it by then. The set's number is
    never used again. If the set was made from a communicator, the other ranks' sets from the
    same call are removed too.

    Args:
      process_set: a registered ProcessSet. It loses its number, and can be added again.

    Returns:
      True if the set was removed; False for the set of all ranks and for a set that is not
      registered.

    Raises:
      ProcessSetError: `init` was not called, or the ranks remove different sets.
      JobError: the job has ended because another rank left or died.

    Example:
      last = hvd.add_process_set([hvd.size() - 1])
      assert hvd.remove_process_set(last)
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
    """Return the members of all registered sets that this process knows, by number."""
    with _Registry.lock:
        others = {number for known in _Registry.sets.values() for number in known[0]._numbers}
    ranks = {number: _native.process_set_ranks(number) for number in sorted({WORLD, *others})}
    return {number: members for number, members in ranks.items() if members is not None}


def with_number(number: int) -> ProcessSet | None:
    """Return the set with a number; None if it does not exist or is the set of all ranks."""
    with _Registry.lock:
        known = _Registry.sets.get(number)
    return known[0] if known else None


def as_sets(given: Any) -> list[ProcessSet]:
    """Return the argument of `init(process_sets=...)` as a list of sets."""
    if given is None:
        return []
    if isinstance(given, str):
        if given.lower() == "dynamic":
            return []
        raise ProcessSetError(
            f"init(process_sets={given!r}): the only valid string is 'dynamic'; pass it, or a list "
            "of ProcessSet objects."
        )
    return [s if isinstance(s, ProcessSet) else ProcessSet(s) for s in given]


def register_initial(job: _communicators.Job, comm: Any, sets: Iterable[ProcessSet]) -> None:
    """Register the sets that a new job's `init` was given. All ranks must make this call.

    Raises:
      SetExistsError: some sets have the same ranks as an earlier set and are skipped. The job
        and the other sets exist on all ranks.
      ValueError: a set is invalid in this job.
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
    """Give the sets of a second `init` the numbers that these sets already have.

    Raises:
      ValueError: the processes differ from those of the first `init`, or a set is new.
      SetExistsError: some sets have the same ranks as an earlier set and are skipped.
    """
    refused: list[str] = []
    seen: set[int] = set()
    with _Registry.lock:
        ranks = _Registry.job.ranks or global_process_set.ranks or []
        if job.ranks is not None and job.ranks != ranks:
            raise ProcessSetError(
                f"init(comm=...) names the ranks {job.ranks} of MPI_COMM_WORLD, but tf_hvd is "
                f"already running with {ranks}; call shutdown() before init()."
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
            f"init(process_sets=...): {'; '.join(texts)}. The job is running with the other sets; "
            "pass each set only once."
        )


def _number_of(process_set: ProcessSet) -> int:
    for number, known in _Registry.sets.items():
        first, comm = known[0], process_set.mpi_comm
        if first.ranks == process_set.ranks if comm is None else first.mpi_comm == comm:
            return number
    raise ProcessSetError(
        f"init(process_sets=...): tf_hvd is already running without {process_set}; register it "
        "with add_process_set."
    )


def _take(process_set: ProcessSet, number: int) -> None:
    known = _Registry.sets[number]
    process_set.process_set_id, process_set._numbers = number, known[0]._numbers
    process_set._ranks = known[0].ranks
    known.append(process_set)


def forget_all() -> None:
    """Unregister all sets, for `shutdown`."""
    with _Registry.lock:
        for known in _Registry.sets.values():
            for one in known:
                one._forget(removed=False)
        _Registry.sets.clear()
        _Registry.job = _communicators.Job()
        global_process_set.mpi_comm = None
