"""What went wrong in a job, from its flight recorders' files; pure.

Also of a job that still runs, of which files are missing, or of which nobody says how it ended.
"""

from __future__ import annotations

import re
import signal
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tf_hvd.core.ranks_text import runs
from tf_hvd.observe.recording import (
    AGREED,
    ENDED,
    FAILED,
    JOINED,
    MOVING,
    THROUGH,
    WAITING,
    Call,
    Recording,
)

_WORLD = 0
_OF_RANK = re.compile(r"rank (\d+): ")
_DIED = re.compile(r"\brank (\d+) \([^()]*\) died\b")
_SILENT = re.compile(r"\bno (?:data|answer) from rank (\d+) ")
_LEFT = re.compile(r"\brank (\d+) \([^()]*\) left: ")
_SHOWN_BEFORE = 6  # calls that are in order, before the difference
_SHOWN_WAITING = 20  # calls that are not, those that were made first
_NOT_CALLED, _NO_RECORDING, _FAILED = "not called", "no recording", "failed"
_MEBIBYTE = 1 << 20
_LONGEST = 160  # characters of a reason in the sentence


@dataclass(frozen=True)
class Row:
    """One call on all ranks."""

    title: str
    order: int
    """Among the calls of its process set; 0: it has none yet."""
    ranks: dict[str, list[int]]
    """Those of each state."""


@dataclass(frozen=True)
class Failure:
    sentence: str
    ranks: tuple[int, ...] = ()
    """Whose doing it was; empty if nobody's."""
    rows: tuple[Row, ...] = ()
    """The calls around the difference, in their order."""


@dataclass(frozen=True)
class Ends:
    """What is known, besides, of the end of a job. Ranks by the launcher's count."""

    first: int | None = None
    """The rank that was the first to end badly."""
    codes: Mapping[int, int] = field(default_factory=dict)
    """The exit code, or minus the signal, of ranks that ended badly."""


def of_one_job(recordings: Sequence[Recording], first: int | None) -> list[Recording]:
    """Those of one job, where one launcher's ranks form several (`init(comm=...)`).

    Args:
        recordings: of all of them.
        first: the rank whose job is meant, by the launcher's count; None: one that was told of an
            end, or else any.
    """
    jobs: dict[int, list[Recording]] = {}
    for one in recordings:
        jobs.setdefault(one.part, []).append(one)
    return max(
        jobs.values(),
        key=lambda job: (
            any(one.launched == first for one in job),
            any(one.lost_call or one.failed_call for one in job),
            len(job),
        ),
    )


def explain(recordings: Sequence[Recording], ends: Ends | None = None) -> Failure:
    """Says what went wrong.

    Args:
        recordings: of one job; at least one.
        ends: what else is known.
    """
    job = _Job(recordings, ends or Ends())
    for look in (_death, _disagreement, _failure, _gone, _early_end, _difference, _stuck):
        found = look(job)
        if found:
            sentence, ranks = found
            return Failure(sentence, tuple(ranks), _rows(job))
    return Failure(_nothing(job), (), _rows(job))


class _Job:
    """The ranks' calls beside each other."""

    def __init__(self, recordings: Sequence[Recording], ends: Ends) -> None:
        ends_badly = [one.told for one in recordings if one.told and not _LEFT.search(one.ended)]
        end = min(ends_badly, default=0)
        self.of = {one.rank: _until_the_end(one, end) for one in recordings}
        of_launched = {one.launched: one.rank for one in recordings}
        self.ends = Ends(
            of_launched.get(ends.first, ends.first) if ends.first is not None else None,
            {of_launched.get(each, each): code for each, code in ends.codes.items()},
        )
        self.size = max(one.size for one in recordings)
        self.without = [rank for rank in range(self.size) if rank not in self.of]
        # By key, and by rank, those that are not in order.
        self.waits: dict[tuple[int, str], dict[int, Call]] = {}
        for one in self.of.values():
            for call in one.calls:
                if not call.order and _is_open(call):
                    self.waits.setdefault(call.key, {}).setdefault(one.rank, call)

    def members(self, process_set: int) -> list[int]:
        """The ranks of a process set, as far as they can be told."""
        if process_set == _WORLD:
            return list(range(self.size))
        return sorted(
            rank
            for rank, one in self.of.items()
            if any(call.set == process_set for call in one.calls)
        )

    def lacking(self, key: tuple[int, str]) -> list[int]:
        """Those that have not called what others wait in."""
        waiting = self.waits[key]
        joined = {
            rank
            for other, calls in self.waits.items()
            for rank, call in calls.items()
            if other[0] == key[0] and call.kind == "join"
        }
        # Where ranks have gone on in the order, who waits has not learnt of it yet.
        learnt = max(self.last_order(each, key[0]) for each in waiting)
        return [
            each
            for each in self.members(key[0])
            if each not in waiting and each not in joined and not self.has_called(each, key, learnt)
        ]

    def last_order(self, rank: int, process_set: int) -> int:
        """The place of the last call of a set that a rank knows to be in order."""
        calls = self.of[rank].calls if rank in self.of else ()
        return max((call.order for call in calls if call.set == process_set), default=0)

    def has_called(self, rank: int, key: tuple[int, str], learnt: int) -> bool:
        """Whether a rank has a call in order of that name behind that place."""
        calls = self.of[rank].calls if rank in self.of else ()
        return any(call.key == key and call.order > learnt for call in calls)

    def oldest(self) -> list[tuple[int, str]]:
        """What is waited for: what was called first before the rest, and join, which may, last."""

        def age(key: tuple[int, str]) -> tuple[bool, int]:
            calls = self.waits[key].values()
            joins = any(call.kind == "join" for call in calls)
            return joins, min(call.submitted for call in calls)

        return sorted(self.waits, key=age)

    def after(self, rank: int) -> str:
        """What a rank had done, as a clause."""
        one = self.of.get(rank)
        if one is None:
            return "there is no recording of it"
        if one.last is None:
            return "it had made no call"
        return f"its last call, number {one.last.number}, was {one.last.title}"

    def others(self, rank: int) -> str:
        """In what the others waited, as a clause; empty if in nothing."""
        for key in self.oldest():
            waiting = {each: call for each, call in self.waits[key].items() if each != rank}
            if waiting and rank not in self.waits[key]:
                first = next(iter(waiting.values()))
                return f"{named(waiting)} waited for it in {first.title}"
        moving = {
            one.rank: call
            for one in self.of.values()
            for call in one.calls
            if one.rank != rank and call.order and _is_open(call)
        }
        if not moving:
            return ""
        return f"{named(moving)} {_were(moving)} in {next(iter(moving.values())).title}"


def named(ranks: Iterable[int]) -> str:
    """Ranks as a sentence has them: "rank 3", "ranks 0, 1 and 7", "ranks 0 to 6"."""
    numbers = sorted(ranks)
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    parts = []
    for run in runs(numbers):
        parts += [f"{run[0]} to {run[-1]}"] if len(run) > 2 else [str(each) for each in run]
    return "ranks " + " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))


def _were(ranks: Iterable[int]) -> str:
    return "was" if len(list(ranks)) == 1 else "were"


def _until_the_end(one: Recording, end: int) -> Recording:
    """Without the calls that a program made after a bad end: nobody could have joined in them.

    At an orderly end it is told of, the calls after it are what the others still wanted.

    Args:
        one: of a rank, which may not have been told: it was stopped, and goes on as it is ended.
        end: when the first rank was told of a bad end; 0: none was.
    """
    if not end or (one.told and _LEFT.search(one.ended)):
        return one
    return replace(one, calls=tuple(call for call in one.calls if call.submitted <= end))


def _is_open(call: Call) -> bool:
    """Whether it had not been done when the job ended, or the file was read."""
    return call.state != ENDED or call.code == "aborted"


def _sentence(*clauses: str) -> str:
    return "; ".join(filter(None, clauses))


def _disagreement(job: _Job) -> tuple[str, list[int]] | None:
    """A call that could not be made, after which nothing has gone well."""
    found = []
    for one in job.of.values():
        call = one.call(one.failed_call) if one.failed_call else None
        if call and not any(each.code == "ok" and each.ended > call.ended for each in one.calls):
            found.append((call.ended, one.rank, call, one.failed))
    if not found:
        return None
    _, rank, call, text = min(found, key=lambda each: each[:2])
    ranks = sorted(rank for _, rank, _, _ in found)
    if call.order:
        where = f"the ranks disagree from call {call.order} on"
    else:  # others are told whose it was; that rank is not
        told = _OF_RANK.match(text)
        ranks = [int(told[1]) if told else rank]
        text = _OF_RANK.sub("", text)
        where = f"a call of rank {ranks[0]} is wrong"
    return _sentence(f"{where}, {call.title}: {text}"), ranks


def _death(job: _Job) -> tuple[str, list[int]] | None:
    """A rank that surely died."""
    rank = _dead(job)
    return None if rank is None else _died(job, rank)


def _gone(job: _Job) -> tuple[str, list[int]] | None:
    """Who ended first, and badly, has no recording that says why."""
    first = job.ends.first
    return None if first is None or first in job.of else _died(job, first)


def _died(job: _Job, rank: int) -> tuple[str, list[int]]:
    died = _how(job.ends, rank)
    one = job.of.get(rank)
    open_calls = [call for call in one.calls if _is_open(call)] if one else []
    moving = [call for call in open_calls if call.order]
    if one and moving:
        begun = [call for call in moving if call.started]
        call = (begun or moving)[0]
        text = f"rank {rank} {died} in {call.title}{_progress(one, call)}"
        return _sentence(text, job.others(rank)), [rank]
    if open_calls:
        text = f"rank {rank} {died} while it waited in {open_calls[0].title}"
        return _sentence(text, job.others(rank)), [rank]
    return _sentence(f"rank {rank} {died}", job.after(rank), job.others(rank)), [rank]


def _how(ends: Ends, rank: int) -> str:
    code = ends.codes.get(rank)
    if code is None:
        return "ended without leaving the job" if rank == ends.first else "died"
    return f"ended with exit code {code}" if code >= 0 else f"was ended by {_signal_name(-code)}"


def _dead(job: _Job) -> int | None:
    """The rank that died; None if none did, or it is not known."""
    told = [_DIED.search(one.ended) for one in job.of.values()]
    for found in told:
        if found:
            return int(found[1])
    first = job.ends.first
    if first is None:
        return None
    left = first not in job.of or job.of[first].state in (THROUGH, FAILED)
    return first if job.ends.codes.get(first, 0) < 0 or not left else None


def _progress(one: Recording, call: Call) -> str:
    together = [each for each in one.calls if each.operation and each.operation == call.operation]
    leader = together[0] if together else call
    size = sum(each.bytes for each in together)
    if not size or not call.started:
        return ""
    return f" after {_amount(leader.part * size, size)} of {_amount(size, size)}{_unit(size)}"


def _unit(size: float) -> str:
    return " MiB" if size >= _MEBIBYTE else " bytes"


def _amount(number: float, size: float) -> str:
    return f"{number / _MEBIBYTE:.3g}" if size >= _MEBIBYTE else str(round(number))


def _signal_name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


def _failure(job: _Job) -> tuple[str, list[int]] | None:
    """A rank that left for an error of its own, before it was told of another one."""
    left = [
        one
        for one in job.of.values()
        if one.state == FAILED and not (one.told and one.told < one.left)
    ]
    if left:
        one = min(left, key=lambda each: each.left)
        return _sentence(
            f"rank {one.rank} left the job: {_shortened(one.reason)}",
            job.after(one.rank),
            job.others(one.rank),
        ), [one.rank]
    rank = _who_left(job)
    if rank is None or rank in job.of:
        return None
    text = next(one.ended for one in job.of.values() if _LEFT.search(one.ended))
    return _sentence(_shortened(text), job.others(rank), job.after(rank)), [rank]


def _shortened(text: str) -> str:
    return textwrap.shorten(text, _LONGEST, placeholder=" ...")


def _who_left(job: _Job) -> int | None:
    for one in job.of.values():
        found = _LEFT.search(one.ended)
        if found:
            return int(found[1])
    return None


def _early_end(job: _Job) -> tuple[str, list[int]] | None:
    """A rank that had made all its calls, while others still waited for it."""
    rank = _who_left(job)
    if rank is None or not job.waits or job.of[rank].state != THROUGH:
        return None
    text = f"rank {rank} came to its end before the others: {job.of[rank].reason}"
    return _sentence(text, job.after(rank), job.others(rank)), [rank]


def _difference(job: _Job) -> tuple[str, list[int]] | None:
    """A call that some ranks wait in and others have not made."""
    for key in job.oldest():
        lacking = job.lacking(key)
        if not lacking:
            continue
        waiting = job.waits[key]
        call = next(iter(waiting.values()))
        for other in lacking:
            theirs = [
                calls[other]
                for one, calls in job.waits.items()
                if other in calls and one[0] == key[0] and not set(calls) & set(waiting)
            ]
            if theirs:
                number = max(job.last_order(each, key[0]) for each in job.of) + 1
                pair = sorted([min(waiting), other])
                text = f"{named(pair)} disagree from call {number} on"
                return _sentence(
                    f"{text}: {named(waiting)} called {call.title}, rank {other} {theirs[0].title}"
                ), pair
        text = f"{named(lacking)} never called {call.title}, in which {named(waiting)} waited"
        return _sentence(text, job.after(lacking[0])), lacking
    return None


def _stuck(job: _Job) -> tuple[str, list[int]] | None:
    """The rank whose data, in the end, others wait for."""
    awaited: dict[int, tuple[Call, int]] = {}
    for one in job.of.values():
        for call in one.calls:
            if call.order and _is_open(call) and call.awaited is not None:
                awaited.setdefault(one.rank, (call, call.awaited))
    chain = _chain(job, awaited)
    if not chain:
        return None
    waiting, last = chain
    text = f"rank {waiting} waited in {awaited[waiting][0].title} for data of rank {last}"
    return _sentence(text, job.after(last)), [last]


def _chain(job: _Job, awaited: Mapping[int, tuple[Call, int]]) -> tuple[int, int] | None:
    """The last two of a chain of ranks that wait for one another's data; None if it is a ring."""
    # A rank that was stopped may have waited itself just then: what the others saw counts.
    seen = [int(found[1]) for one in job.of.values() if (found := _SILENT.search(one.ended))]
    for rank in awaited:
        if seen and rank != seen[0]:
            return rank, seen[0]
    for rank in awaited:
        chain = [rank]
        while chain[-1] in awaited and awaited[chain[-1]][1] not in chain:
            chain.append(awaited[chain[-1]][1])
        if chain[-1] not in awaited:
            return chain[-2], chain[-1]
    return None  # data is on its way


def _nothing(job: _Job) -> str:
    states = {one.state for one in job.of.values()}
    if states == {THROUGH}:
        return "nothing went wrong: all ranks left the job in order"
    moving = {one.rank for one in job.of.values() if any(_is_open(call) for call in one.calls)}
    if not moving and states == {JOINED}:
        return "no rank waits for another: between two calls all of them were in the program itself"
    return f"{named(moving or job.of)} had not ended, and nothing tells why"


def _rows(job: _Job) -> tuple[Row, ...]:
    orders: dict[tuple[int, int], dict[int, Call]] = {}
    for one in job.of.values():
        for call in one.calls:
            if call.order:
                orders.setdefault((call.set, call.order), {})[one.rank] = call
    # The last ones, in the order in which they were put in order anywhere.
    last = sorted(orders, key=lambda place: min(call.agreed for call in orders[place].values()))[
        -_SHOWN_BEFORE:
    ]
    rows = [_row(job, place[0], place[1], orders[place]) for place in last]
    rows += [_row(job, key[0], 0, job.waits[key]) for key in job.oldest()[:_SHOWN_WAITING]]
    return tuple(rows)


def _row(job: _Job, process_set: int, order: int, calls: Mapping[int, Call]) -> Row:
    ranks: dict[str, list[int]] = {}
    for rank in job.members(process_set):
        if rank in calls:
            state = _state_text(calls[rank])
        else:
            state = _NO_RECORDING if rank in job.without else _NOT_CALLED
        ranks.setdefault(state, []).append(rank)
    return Row(next(iter(calls.values())).title, order, ranks)


def _state_text(call: Call) -> str:
    if call.state == ENDED and call.code != "aborted":
        return ENDED if call.code == "ok" else _FAILED
    if call.started:
        return f"{MOVING}, {call.part:.0%}" if call.part else MOVING
    return AGREED if call.order else WAITING
