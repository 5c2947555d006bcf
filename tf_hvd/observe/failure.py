"""What went wrong in a job, from its flight recorders' files; pure.

Also of a job that still runs, of which files are missing, or of which nobody says how it ended.
"""

from __future__ import annotations

import re
import signal
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from tf_hvd.core import error_text
from tf_hvd.core.ranks_text import named
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
_SILENT = re.compile(r"\bno (?:data|answer) from rank (\d+) ")
# What ranks are told of one that is gone (docs/errors.md). Ahead: one may tell of another.
_LOST = re.compile(r"(?=\brank (\d+) \(([^()]*)\) (died\b.*|left: (.*)))")
_SHOWN_BEFORE = 6  # calls that are in order, before the difference
_SHOWN_WAITING = 20  # calls that are not, those that were made first
_MEBIBYTE = 1 << 20
_LONGEST = 160  # characters of a reason in the sentence


@dataclass(frozen=True)
class Row:
    """One call on all ranks."""

    title: str
    order: int
    """Among the calls of its process set; 0: it has none yet."""
    ranks: dict[str, list[int]]


@dataclass(frozen=True)
class Failure:
    sentence: str
    ranks: tuple[int, ...] = ()
    """Whose doing it was; empty if nobody's."""
    rows: tuple[Row, ...] = ()
    """The calls around the difference, in their order."""


class Lost(NamedTuple):
    """A rank that is gone, as others were told of it."""

    rank: int
    host: str
    how: str
    """As "died: its process ended", or "left: ValueError: no data"."""
    why: str | None
    """It left; None: it died."""


def lost(text: str) -> list[Lost]:
    """The ranks that are gone by what a rank was told, or by the exception that it then raised.

    One that left since another one had left tells of that one last.
    """
    lines = (error_text.AFTER.sub("", line) for line in text.splitlines())
    found = (each for line in lines for each in _LOST.finditer(line))
    return [Lost(int(each[1]), each[2], each[3], each[4]) for each in found]


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


def explain(
    recordings: Sequence[Recording],
    first: int | None = None,
    codes: Mapping[int, int] | None = None,
    told: str = "",
) -> Failure:
    """Says what went wrong.

    Args:
        recordings: of one job; at least one.
        first: the rank that was the first to end badly, by the launcher's count; None: not known.
        codes: the exit code, or minus the signal, of ranks that ended badly, by the same.
        told: what the reader has read before; an exception in it is not told again.
    """
    job = _Job(recordings, first, codes or {}, told)
    for look in (_death, _disagreement, _failure, _gone, _early_end, _difference, _stuck):
        if found := look(job):
            sentence, ranks = found
            return Failure(sentence, tuple(ranks), _rows(job))
    return Failure(_nothing(job), (), _rows(job))


class _Job:
    def __init__(
        self,
        recordings: Sequence[Recording],
        first: int | None,
        codes: Mapping[int, int],
        told: str,
    ) -> None:
        self.told = told
        self.lost = {one.rank: lost(one.ended) for one in recordings}
        ends_badly = [one.told for one in recordings if one.told and not self.tells_of_leaving(one)]
        end = min(ends_badly, default=0)
        self.of = {one.rank: self._until(end, one) for one in recordings}
        numbers = {one.launched: one.rank for one in recordings}
        self.first = None if first is None else numbers.get(first, first)
        self.codes = {numbers.get(each, each): code for each, code in codes.items()}
        self.size = max(one.size for one in recordings)
        # By key, and by rank, those that are not in order.
        self.waits: dict[tuple[int, str], dict[int, Call]] = {}
        for one in self.of.values():
            for call in one.calls:
                if not call.order and _is_open(call):
                    self.waits.setdefault(call.key, {}).setdefault(one.rank, call)

    def gone(self, died: bool) -> int | None:
        """The rank that died, or the one that left, as others were told; None: they were not."""
        gone = (each for told in self.lost.values() for each in told)
        return next((each.rank for each in gone if (each.why is None) is died), None)

    def tells_of_leaving(self, one: Recording) -> bool:
        return any(each.why is not None for each in self.lost[one.rank])

    def _until(self, end: int, one: Recording) -> Recording:
        """Without the calls made after a bad end, if there was one: nobody could join in them.

        The rank may not have been told of it: it was stopped, and goes on as it is ended. At an
        orderly end it is told of, the calls after it are what it still wanted.
        """
        if not end or (one.told and self.tells_of_leaving(one)):
            return one
        return replace(one, calls=tuple(call for call in one.calls if call.submitted <= end))

    def calls(self, rank: int) -> tuple[Call, ...]:
        """Empty if there is no recording of it."""
        return self.of[rank].calls if rank in self.of else ()

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
        called = {
            rank
            for rank, one in self.of.items()
            if any(call.key == key and call.order > learnt for call in one.calls)
        }
        return [each for each in self.members(key[0]) if each not in {*waiting, *joined, *called}]

    def last_order(self, rank: int, process_set: int) -> int:
        """The place of the last call of a set that a rank knows to be in order."""
        orders = (call.order for call in self.calls(rank) if call.set == process_set)
        return max(orders, default=0)

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
        were = "was" if len(moving) == 1 else "were"
        return f"{named(moving)} {were} in {next(iter(moving.values())).title}"


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
    return f"{where}, {call.title}: {text}", ranks


def _death(job: _Job) -> tuple[str, list[int]] | None:
    """A rank that surely died."""
    rank, first = job.gone(died=True), job.first
    if rank is None and first is not None:
        left = first not in job.of or job.of[first].state in (THROUGH, FAILED)
        rank = first if job.codes.get(first, 0) < 0 or not left else None
    return None if rank is None else _died(job, rank)


def _gone(job: _Job) -> tuple[str, list[int]] | None:
    """Who ended first, and badly, has no recording that says why."""
    return None if job.first is None or job.first in job.of else _died(job, job.first)


def _died(job: _Job, rank: int) -> tuple[str, list[int]]:
    code = job.codes.get(rank)
    if code is None:
        how = "ended without leaving the job" if rank == job.first else "died"
    elif code >= 0:
        how = f"ended with exit code {code}"
    else:
        names = {int(each): f" ({each.name})" for each in signal.Signals}
        how = f"was ended by signal {-code}{names.get(-code, '')}"
    open_calls = [call for call in job.calls(rank) if _is_open(call)]
    moving = [call for call in open_calls if call.order]
    if moving:
        call = next((each for each in moving if each.started), moving[0])
        where, after = f" in {call.title}{_progress(job.of[rank], call)}", ""
    elif open_calls:
        where, after = f" while it waited in {open_calls[0].title}", ""
    else:
        where, after = "", job.after(rank)
    return _sentence(f"rank {rank} {how}{where}", after, job.others(rank)), [rank]


def _progress(one: Recording, call: Call) -> str:
    together = [each for each in one.calls if each.operation and each.operation == call.operation]
    size = sum(each.bytes for each in together)
    if not size or not call.started:
        return ""
    done = together[0].part * size
    if size < _MEBIBYTE:
        return f" after {round(done)} of {size} bytes"
    return f" after {done / _MEBIBYTE:.3g} of {size / _MEBIBYTE:.3g} MiB"


def _failure(job: _Job) -> tuple[str, list[int]] | None:
    """A rank that left for an error of its own, before it was told of another one."""
    left = [
        one
        for one in job.of.values()
        if one.state == FAILED and not (one.told and one.told < one.left)
    ]
    if left:
        one = min(left, key=lambda each: each.left)
        why = "" if one.reason in job.told else f": {_shortened(one.reason)}"
        text = f"rank {one.rank} left the job{why}"
        return _sentence(text, job.after(one.rank), job.others(one.rank)), [one.rank]
    rank = job.gone(died=False)
    if rank is None or rank in job.of:
        return None
    text = next(one.ended for one in job.of.values() if job.tells_of_leaving(one))
    return _sentence(_shortened(text), job.others(rank), job.after(rank)), [rank]


def _shortened(text: str) -> str:
    return textwrap.shorten(text, _LONGEST, placeholder=" ...")


def _early_end(job: _Job) -> tuple[str, list[int]] | None:
    """A rank that had made all its calls, while others still waited for it."""
    rank = job.gone(died=False)
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
                others = f"{named(waiting)} called {call.title}"
                return f"{text}: {others}, rank {other} {theirs[0].title}", pair
        text = f"{named(lacking)} never called {call.title}, in which {named(waiting)} waited"
        return _sentence(text, job.after(lacking[0])), lacking
    return None


def _stuck(job: _Job) -> tuple[str, list[int]] | None:
    """The rank whose data, in the end, others wait for."""
    waits: dict[int, Call] = {}
    for one in job.of.values():
        for call in one.calls:
            if call.order and _is_open(call) and call.awaited is not None:
                waits.setdefault(one.rank, call)
    chain = _chain(job, {rank: call.awaited for rank, call in waits.items()})
    if not chain:
        return None
    waiting, last = chain[-2:]
    text = f"rank {waiting} waited in {waits[waiting].title} for data of rank {last}"
    return _sentence(text, job.after(last)), [last]


def _chain(job: _Job, awaited: Mapping[int, int | None]) -> list[int]:
    """Ranks that wait for one another's data; none if they do so in a ring: it is on its way."""
    # A rank that was stopped may have waited itself just then: what the others saw counts.
    seen = [int(found[1]) for one in job.of.values() if (found := _SILENT.search(one.ended))]
    for rank in awaited:
        if seen and rank != seen[0]:
            return [rank, seen[0]]
    for rank in awaited:
        chain = [rank]
        while (last := awaited.get(chain[-1])) is not None and last not in chain:
            chain.append(last)
        if last is None:
            return chain
    return []


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
            state = "not called" if rank in job.of else "no recording"
        ranks.setdefault(state, []).append(rank)
    return Row(next(iter(calls.values())).title, order, ranks)


def _state_text(call: Call) -> str:
    if call.state == ENDED and call.code != "aborted":
        return ENDED if call.code == "ok" else "failed"
    if call.started:
        return f"{MOVING}, {call.part:.0%}" if call.part else MOVING
    return AGREED if call.order else WAITING
