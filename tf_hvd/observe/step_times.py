"""Division of each step's time into parts, based on the ranks' timelines; pure.

A step begins with the first call that is repeated in every step. Each rank records its
own exposed time (runtime/events/exposure.h). Within that time, a rank first waits for the last rank
to make a call. Then the call's data moves.
"""

from __future__ import annotations

import functools
import itertools
import statistics
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tf_hvd.observe.recording import Call
from tf_hvd.observe.trace_reader import Trace

_SECOND = 1_000_000_000
"""A time longer than the error in compared clocks and shorter than the gap between jobs."""
Key = tuple[int, int]
"""A call's identity on all ranks: its process set and its position in the set's order."""
Interval = tuple[int, int]
"""The start and end of an interval, in nanoseconds on rank 0's clock."""


@dataclass(frozen=True)
class RankStep:
    """A step on one rank; times are in nanoseconds."""

    begin: int
    end: int
    exposed_in: Sequence[Interval]
    """The intervals in which this rank had nothing to compute until a collective ended."""
    moving_in: Sequence[Interval]
    """The parts of `exposed_in` in which data moved."""
    waiting: Mapping[int, int]
    """The time this rank waited for each other rank to make its call, by rank."""

    @property
    def length(self) -> int:
        """The time from the step's first call to the next step's first call."""
        return self.end - self.begin

    @property
    def transfer(self) -> int:
        return sum(until - since for since, until in self.moving_in)

    @property
    def waited(self) -> int:
        return sum(self.waiting.values())

    @property
    def exposed(self) -> int:
        """The time that a step without collectives would save."""
        return self.transfer + self.waited

    @property
    def compute(self) -> int:
        """The rest of the step, used for computing and reading data."""
        return self.length - self.exposed


@dataclass(frozen=True)
class Step:
    number: int
    """The index of the step, from 0."""
    ranks: Mapping[int, RankStep]
    calls: Sequence[Key]

    @property
    def is_in_order(self) -> bool:
        """Whether the timestamps of the step are in order on every rank."""
        return all(one.length >= 0 for one in self.ranks.values())

    @functools.cached_property
    def late(self) -> tuple[int, int] | None:
        """The rank that other ranks waited for the longest, and the longest wait in nanoseconds.

        None if no rank waited.
        """
        most: Counter[int] = Counter()
        for step in self.ranks.values():
            for rank, time in step.waiting.items():
                most[rank] = max(most[rank], time)
        return max(most.items(), key=lambda each: each[1]) if most else None


@dataclass
class Steps:
    steps: list[Step]
    calls: dict[int, dict[Key, Call]]
    """The calls of each rank, by key."""
    last: dict[Key, tuple[int, int]] = field(default_factory=dict)
    """For each call, the last rank to make the call, and the time."""
    left_out: int = 0
    """Number of steps skipped because of wrong times: on some rank they end before they begin."""


def analyse(traces: Sequence[Trace]) -> Steps:
    """Return the steps for a job's largest group of ranks that make calls together."""
    calls = {trace.rank: calls_of(trace) for trace in traces}
    found = Steps([], calls, _last_ones(calls))
    callers: dict[Key, set[int]] = {}
    for rank, its in calls.items():
        for key in its:
            callers.setdefault(key, set()).add(rank)
    groups = {frozenset(ranks) for ranks in callers.values()}
    for group in sorted(groups, key=lambda ranks: (-len(ranks), min(ranks))):
        reference = calls[min(group)]
        common = [call for key, call in reference.items() if callers[key] == group]
        split = _split(sorted(common, key=lambda each: each.submitted))
        if len(split) > 1:
            of = [_Rank(trace, calls[trace.rank]) for trace in traces if trace.rank in group]
            steps = _steps(split, of, found.last)
            found.steps = [each for each in steps if each.is_in_order]
            found.left_out = len(steps) - len(found.steps)
            break
    return found


def _steps(
    split: Sequence[Sequence[Call]], ranks: Sequence[_Rank], last: Mapping[Key, tuple[int, int]]
) -> list[Step]:
    steps = []
    for number, (first, following) in enumerate(itertools.pairwise(split)):
        begin, end = first[0].place, following[0].place
        on = {rank.number: rank.step(begin, end, last) for rank in ranks}
        steps.append(Step(number, on, [call.place for call in first]))
    return steps


def of_one_job(one: Trace, its: Mapping[Key, Call], other: Trace) -> bool:
    """Return whether two ranks' timelines can come from the same job.

    In one job, no rank gets the result of a call before all ranks have made the call.

    Args:
        one: a rank's timeline.
        its: the result of `calls_of(one)`.
        other: another rank's timeline.
    """
    if one.size != other.size:
        return False
    compared = one.clock_error is not None and other.clock_error is not None
    others = calls_of(other)
    for key in its.keys() & others.keys():
        mine, theirs = its[key], others[key]
        apart = max(mine.submitted, theirs.submitted) - min(mine.ended, theirs.ended)
        if mine.name != theirs.name or (compared and apart > _SECOND):
            return False
    return True


def is_mixed(trace: Trace) -> bool:
    """Return whether a rank's timeline has calls from several jobs that wrote to the same file.

    In one job, each call in a process set has a unique position, and positions increase with time.
    """
    placed = [span for span in trace.spans.get("agreement", ()) if span.values.get("order")]
    calls = sorted(calls_of(trace).values(), key=lambda call: call.place)
    return len(calls) < len(placed) or any(
        one.set == following.set and following.agreed < one.agreed - _SECOND
        for one, following in itertools.pairwise(calls)
    )


def _last_ones(calls: Mapping[int, Mapping[Key, Call]]) -> dict[Key, tuple[int, int]]:
    found: dict[Key, tuple[int, int]] = {}
    for rank, its in calls.items():
        for key, call in its.items():
            made = (rank, call.submitted)
            if call.last >= 0 and call.last not in calls:
                made = (call.last, call.agreed)  # that rank has no timeline
            if key not in found or made[1] > found[key][1]:
                found[key] = made
    return found


def calls_of(trace: Trace) -> dict[Key, Call]:
    """Return a rank's ordered calls, by key."""
    ends = {
        operation.values.get("operation"): operation.end
        for spans in trace.spans.values()
        for operation in spans
        if "calls" in operation.values
    }
    found = {}
    for span in trace.spans.get("agreement", []):
        values = span.values
        if not values.get("order"):
            continue  # the call was never ordered
        agreed = span.parts[0].end if span.parts else span.end
        ended = ends.get(values.get("operation"), span.end)
        call = Call(
            name=span.name,
            set=values["set"],
            order=values["order"],
            bytes=values["bytes"],
            tensors=values["tensors"],
            submitted=span.begin,
            agreed=agreed,
            ended=ended,
            last=values.get("last_rank", -1),
        )
        found[call.place] = call
    return found


def _split(calls: Sequence[Call]) -> list[list[Call]]:
    """Split a rank's calls into groups that each begin with a call of the same name."""
    counts = Counter(call.name for call in calls)
    repeated = [call for call in calls if counts[call.name] > 1]
    if not repeated:
        return []
    # The first name among those with the most common number of occurrences begins a step.
    usual = Counter(counts.values())
    often = max((n for n in counts.values() if n > 1), key=lambda n: (usual[n] * n, n))
    anchor = next(call.name for call in repeated if counts[call.name] == often)
    groups: list[list[Call]] = []
    for call in calls:
        if call.name == anchor:
            groups.append([])
        if groups:
            groups[-1].append(call)
    return groups


class _Rank:
    def __init__(self, trace: Trace, its: Mapping[Key, Call]) -> None:
        self.number = trace.rank
        self._its = its
        self._calls = sorted(its.values(), key=lambda each: each.submitted)
        self._submitted = [call.submitted for call in self._calls]
        waits = trace.spans.get("TensorFlow", ())
        self._exposed = _apart((span.begin, span.end) for span in waits)

    def step(self, first: Key, following: Key, last: Mapping[Key, tuple[int, int]]) -> RankStep:
        begin, end = self._its[first].submitted, self._its[following].submitted
        calls = self._calls[bisect_left(self._submitted, begin) : bisect_left(self._submitted, end)]
        places = (bisect_left(self._exposed, (time, 0)) for time in (begin, end))
        exposed = [(since, min(until, end)) for since, until in self._exposed[slice(*places)]]
        moving: list[Interval] = []
        waiting: Counter[int] = Counter()
        for since, until in exposed:
            # Data can move from the time at which the last rank makes a call until the call ends.
            near = [call for call in calls if call.submitted < until and call.ended > since]
            its = _union((max(last[call.place][1], since), min(call.ended, until)) for call in near)
            at = since
            for start, stop in [*its, (until, until)]:
                for awaited, time in _awaited(at, start, near, last):
                    if awaited != self.number:
                        waiting[awaited] += time
                at = stop
            moving += its
        return RankStep(begin, end, exposed, moving, dict(waiting))


def _awaited(
    begin: int, end: int, calls: Sequence[Call], last: Mapping[Key, tuple[int, int]]
) -> Iterable[tuple[int, int]]:
    """Yield each rank that was awaited in an interval without transfer, and for how long.

    At any time, the next rank to make a call is awaited.
    """
    coming = sorted(
        (last[call.place][1], last[call.place][0]) for call in calls if call.ended > begin
    )
    at = begin
    for time, rank in coming:
        if at >= end:
            return
        if time > at:
            yield rank, min(time, end) - at
            at = min(time, end)


def _apart(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the intervals without overlaps, so that no moment counts twice."""
    apart: list[Interval] = []
    for since, until in sorted(intervals):
        begin = max(since, apart[-1][1]) if apart else since
        if begin < until:
            apart.append((begin, until))
    return apart


def _union(intervals: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(each for each in intervals if each[0] < each[1]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], stop))
        else:
            merged.append((start, stop))
    return merged


def median_of(values: Iterable[float]) -> float:
    """Return the median; 0 for no values."""
    known = list(values)
    return statistics.median(known) if known else 0.0


def mean_of(values: Iterable[float]) -> float:
    """Return the mean; 0 for no values. Unlike medians, means of parts add up to the total."""
    known = list(values)
    return statistics.fmean(known) if known else 0.0
