"""Explanation of a job's failure, based on its flight recordings. All functions are pure.

The job may still be running, recordings may be missing, and exit codes may be unknown.
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
# Matches reports about ranks that do not answer (runtime/agreement/stall_text.cc,
# runtime/execution/cycle.cc).
_UNANSWERED = re.compile(
    r"\bno answer from (rank \d+ \([^()]*\)(?:(?:, | or )rank \d+ \([^()]*\))*)"
)
# Matches reports about a lost rank (docs/errors.md). It is a lookahead, because a report may quote
# another report.
_LOST = re.compile(r"(?=\brank (\d+) \(([^()]*)\) (died\b.*|left: (.*)))")
_SHOWN_BEFORE = 6  # number of ordered calls to show before the first difference
_SHOWN_WAITING = 20  # maximum number of unordered calls to show, oldest first
_MEBIBYTE = 1 << 20
_LONGEST = 160  # maximum characters of a reason in the sentence


@dataclass(frozen=True)
class Row:
    """One call, with its state on each rank."""

    title: str
    order: int
    """Position in the agreed order of the process set; 0 if the call is not ordered yet."""
    ranks: dict[str, list[int]]


@dataclass(frozen=True)
class Failure:
    sentence: str
    ranks: tuple[int, ...] = ()
    """The ranks that caused the failure; empty if no rank did."""
    rows: tuple[Row, ...] = ()
    """The calls around the first difference between ranks, in order."""


class Lost(NamedTuple):
    """A rank that died or left, as reported to the other ranks."""

    rank: int
    host: str
    how: str
    """How the rank was lost, such as "died: its process ended" or "left: ValueError: no data"."""
    why: str | None
    """Why the rank left; None if it died."""


def lost(text: str) -> list[Lost]:
    """Return the lost ranks named in a reported error or in the exception that followed.

    If rank A left because rank B had left, rank B comes last.
    """
    lines = (error_text.AFTER.sub("", line) for line in text.splitlines())
    found = (each for line in lines for each in _LOST.finditer(line))
    return [Lost(int(each[1]), each[2], each[3], each[4]) for each in found]


def of_one_job(recordings: Sequence[Recording], first: int | None) -> list[Recording]:
    """Return the recordings from one job if a launcher's ranks form several jobs.

    `init(comm=...)` forms such jobs.

    Args:
        recordings: the recordings from all jobs.
        first: the launcher's number for a rank in the wanted job. If None or in no job, a job with
            a failed call is selected or, if no call failed, the largest job.
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
    running: bool = False,
) -> Failure:
    """Explain what went wrong in a job.

    Args:
        recordings: at least one recording, all from the same job.
        first: the launcher's number of the rank that failed first; None (default) if unknown.
        codes: each failed rank's exit code, or minus its signal, by the launcher's number.
        told: text that the user has already seen; exceptions in it are not repeated.
        running: whether the job was running when the recordings were saved (default: False).
    """
    job = _Job(recordings, first, codes or {}, told, running)
    for look in _LOOKS:
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
        running: bool,
    ) -> None:
        self.told = told
        self.running = running
        self.lost = {one.rank: lost(one.ended) for one in recordings}
        ends_badly = [one.told for one in recordings if one.told and not self.tells_of_leaving(one)]
        end = min(ends_badly, default=0)
        self.of = {one.rank: self._until(end, one) for one in recordings}
        numbers = {one.launched: one.rank for one in recordings}
        self.first = None if first is None else numbers.get(first, first)
        self.codes = {numbers.get(each, each): code for each, code in codes.items()}
        self.size = max(one.size for one in recordings)
        self.silent = _silent(recordings)
        # Calls that are not ordered yet, by key and rank.
        self.waits: dict[tuple[int, str], dict[int, Call]] = {}
        for one in self.of.values():
            for call in one.calls:
                if not call.order and _is_open(call):
                    self.waits.setdefault(call.key, {}).setdefault(one.rank, call)

    def gone(self, died: bool) -> int | None:
        """Return the rank that reportedly died (or, if `died` is False, left), or None."""
        gone = (each for told in self.lost.values() for each in told)
        return next((each.rank for each in gone if (each.why is None) is died), None)

    def tells_of_leaving(self, one: Recording) -> bool:
        return any(each.why is not None for each in self.lost[one.rank])

    def _until(self, end: int, one: Recording) -> Recording:
        """Return a recording without calls made after the job's failure; no rank could join them.

        A rank that was stopped, and then resumed when the launcher killed it, may not know about
        the failure. If another rank exited normally, the calls are kept because this rank still
        needed them.
        """
        if not end or (one.told and self.tells_of_leaving(one)):
            return one
        return replace(one, calls=tuple(call for call in one.calls if call.submitted <= end))

    def calls(self, rank: int) -> tuple[Call, ...]:
        """Return the calls of a rank; empty if the rank has no recording."""
        return self.of[rank].calls if rank in self.of else ()

    def members(self, process_set: int) -> list[int]:
        """Return the known ranks of a process set."""
        if process_set == _WORLD:
            return list(range(self.size))
        return sorted(
            rank
            for rank, one in self.of.items()
            if any(call.set == process_set for call in one.calls)
        )

    def lacking(self, key: tuple[int, str]) -> list[int]:
        """Return the ranks that have not made the call that other ranks wait in."""
        waiting = self.waits[key]
        joined = {
            rank
            for other, calls in self.waits.items()
            for rank, call in calls.items()
            if other[0] == key[0] and call.kind == "join"
        }
        # The waiting ranks may not know yet that other ranks are further ahead in the order.
        learnt = max(self.last_order(each, key[0]) for each in waiting)
        called = {
            rank
            for rank, one in self.of.items()
            if any(call.key == key and call.order > learnt for call in one.calls)
        }
        return [each for each in self.members(key[0]) if each not in {*waiting, *joined, *called}]

    def waited(self, ranks: int) -> str:
        """Return the form of "wait" for a number of ranks; present tense for a running job."""
        if self.running:
            return "waits" if ranks == 1 else "wait"
        return "waited"

    def last_order(self, rank: int, process_set: int) -> int:
        """Return the position of the last ordered call in a process set that a rank knows about."""
        orders = (call.order for call in self.calls(rank) if call.set == process_set)
        return max(orders, default=0)

    def oldest(self) -> list[tuple[int, str]]:
        """Return the calls that ranks wait in, oldest first. `join` is last because it may wait."""

        def age(key: tuple[int, str]) -> tuple[bool, int]:
            calls = self.waits[key].values()
            joins = any(call.kind == "join" for call in calls)
            return joins, min(call.submitted for call in calls)

        return sorted(self.waits, key=age)

    def after(self, rank: int) -> str:
        """Return a clause about the last call that the rank's program made."""
        one = self.of.get(rank)
        if one is None:
            return f"there is no recording of rank {rank}"
        if one.last is None:
            return "it had made no calls"
        last = next((call for call in reversed(one.calls) if not call.own), None)
        if last is None:
            return f"of its {one.made} calls, the recorded ones were all tf_hvd's own"
        return f"its last call, number {last.number}, was {last.title}"

    def others(self, rank: int) -> str:
        """Return a clause about the call in which the other ranks waited, or "" if none did."""
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


def _silent(recordings: Sequence[Recording]) -> dict[int, tuple[str, list[int]]]:
    """Return for each rank the ranks that did not answer it, as in its error text and as numbers.

    Errors are omitted if other ranks did not make the call or if the rank itself was silent.
    """
    silent = {}
    for one in recordings:
        found = _UNANSWERED.search(one.ended)
        if found and "; missing rank" not in one.ended:
            ranks = [int(each) for each in re.findall(r"rank (\d+) \(", found[1])]
            if one.rank not in ranks:
                silent[one.rank] = found[1], ranks
    return silent


def _is_open(call: Call) -> bool:
    """Return whether the call was unfinished when the job ended or the file was read."""
    return call.state != ENDED or call.code == "aborted"


def _sentence(*clauses: str) -> str:
    return "; ".join(filter(None, clauses))


def _disagreement(job: _Job) -> tuple[str, list[int]] | None:
    """Return a sentence and ranks if a call failed and no successful call followed it."""
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
    else:  # the error names the rank, except on that rank itself
        told = _OF_RANK.match(text)
        ranks = [int(told[1]) if told else rank]
        text = _OF_RANK.sub("", text)
        where = f"rank {ranks[0]} made an invalid call"
    return f"{where}, {call.title}: {text}", ranks


def _death(job: _Job) -> tuple[str, list[int]] | None:
    """Return a sentence and the rank if a rank is known to have died."""
    rank, first = job.gone(died=True), job.first
    if rank is None and first is not None:
        left = first not in job.of or job.of[first].state in (THROUGH, FAILED)
        rank = first if job.codes.get(first, 0) < 0 or not left else None
    return None if rank is None else _died(job, rank)


def _gone(job: _Job) -> tuple[str, list[int]] | None:
    """Return a sentence and the rank if the rank that failed first has no recording."""
    return None if job.first is None or job.first in job.of else _died(job, job.first)


def _died(job: _Job, rank: int) -> tuple[str, list[int]]:
    code = job.codes.get(rank)
    if code is None:
        how = "ended without leaving the job" if rank == job.first else "died"
    elif code >= 0:
        how = f"ended with exit code {code}"
    else:
        names = {int(each): f" ({each.name})" for each in signal.Signals}
        how = f"was killed by signal {-code}{names.get(-code, '')}"
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
    """Return a sentence and the rank if a rank's own error made it leave before any other error."""
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
    """Return a sentence and the rank if a rank finished while other ranks waited for it."""
    rank = job.gone(died=False)
    if rank is None or not job.waits or job.of[rank].state != THROUGH:
        return None
    text = f"rank {rank} finished before the others: {job.of[rank].reason}"
    return _sentence(text, job.after(rank), job.others(rank)), [rank]


def _silence(job: _Job) -> tuple[str, list[int]] | None:
    """Return a sentence and the ranks that did not answer, if no other cause was reported."""
    reports = sorted(job.silent.items(), key=lambda each: job.of[each[0]].told)
    if not reports:
        return None
    rank, (listed, silent) = reports[0]
    call = next((call for call in job.calls(rank) if _is_open(call)), None)
    where = f" in {call.title}" if call else ""
    which = "its machine is" if len(silent) == 1 else "their machines are"
    text = f"rank {rank} {job.waited(1)}{where} for {listed}, which did not answer: "
    text += f"stopped, or {which} unreachable"
    for other in silent:
        back, ranks = job.silent.get(other, ("", []))
        if rank in ranks:  # the network failed, or both were stopped
            return _sentence(text, f"rank {other} had no answer from {back} either"), silent
    return _sentence(text, job.after(silent[0]) if len(silent) == 1 else ""), silent


def _difference(job: _Job) -> tuple[str, list[int]] | None:
    """Return a sentence and the ranks that did not make a call in which other ranks wait."""
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
                return f"{text}: {others}, rank {other} called {theirs[0].title}", pair
        called = "never called"
        if job.running:
            called = f"{'has' if len(lacking) == 1 else 'have'} not called"
        waited = f"{named(waiting)} {job.waited(len(waiting))}"
        text = f"{named(lacking)} {called} {call.title}, in which {waited}"
        return _sentence(text, job.after(lacking[0])), lacking
    return None


def _stuck(job: _Job) -> tuple[str, list[int]] | None:
    """Return a sentence and the last rank in a chain of ranks that wait for data."""
    waits: dict[int, Call] = {}
    for one in job.of.values():
        for call in one.calls:
            if call.order and _is_open(call) and call.awaited is not None:
                waits.setdefault(one.rank, call)
    chain = _chain(job, {rank: call.awaited for rank, call in waits.items()})
    if not chain:
        return None
    waiting, last = chain[-2:]
    where = f"{job.waited(1)} in {waits[waiting].title}"
    text = f"rank {waiting} {where} for data from rank {last}"
    return _sentence(text, job.after(last)), [last]


def _chain(job: _Job, awaited: Mapping[int, int | None]) -> list[int]:
    """Return a chain of ranks in which each rank waits for the next rank's data.

    If the ranks form a ring, which is normal, the chain is empty.
    """
    # A stopped rank may itself have been waiting; the other ranks' reports about it decide.
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


def _reported(job: _Job) -> tuple[str, list[int]] | None:
    """Return a sentence about an error that ended the job but that the calls do not explain."""
    ended = [one for one in job.of.values() if one.ended and (one.lost_call or one.state == FAILED)]
    if not ended or all(one.state == THROUGH for one in job.of.values()):
        return None
    first = min(ended, key=lambda each: each.told)
    known = first.reason and first.reason in job.told
    why = "; the recordings do not show why" if known else f": {_shortened(first.ended)}"
    return f"{named(one.rank for one in ended)} failed{why}", []


def _nothing(job: _Job) -> str:
    states = {one.state for one in job.of.values()}
    if states == {THROUGH}:
        return "nothing went wrong: all ranks left the job normally"
    moving = {one.rank for one in job.of.values() if any(_is_open(call) for call in one.calls)}
    if not moving and states == {JOINED}:
        return "no rank was waiting for another: all ranks were between two calls"
    if job.running:
        are = "is" if len(moving or job.of) == 1 else "are"
        return f"{named(moving or job.of)} {are} still running; the recordings show no fault"
    return f"{named(moving or job.of)} had not ended; the recordings do not show why"


_LOOKS = (
    *(_death, _disagreement, _failure, _gone, _early_end),
    *(_silence, _difference, _stuck, _reported),
)


def _rows(job: _Job) -> tuple[Row, ...]:
    orders: dict[tuple[int, int], dict[int, Call]] = {}
    for one in job.of.values():
        for call in one.calls:
            if call.order:
                orders.setdefault((call.set, call.order), {})[one.rank] = call
    # tf_hvd's own calls matter only if they failed on some rank.
    for place, calls in list(orders.items()):
        succeeded = all(call.ended and call.code == "ok" for call in calls.values())
        if succeeded and next(iter(calls.values())).own:
            del orders[place]
    # The last calls, sorted by the earliest time at which any rank knew their order.
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
