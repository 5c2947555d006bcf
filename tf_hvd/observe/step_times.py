"""Where the time of each step went, from the timelines of its ranks; pure.

A step begins with the first call that comes again in each of them. When a rank has made a step's
last call, nothing hides what is still in flight. Until all ranks have made a call it waits for the
last of them; from then on its data moves.
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tf_hvd.observe.trace_reader import Span, Trace

Key = tuple[int, int]
"""Of a call, on all ranks: its process set, and its place in the order of that."""


@dataclass(frozen=True)
class Call:
    """A call of one rank. Times are nanoseconds of rank 0's clock."""

    name: str
    key: Key
    bytes: int
    submitted: int
    agreed: int
    ended: int


@dataclass(frozen=True)
class RankStep:
    """A step on one rank; nanoseconds."""

    begin: int
    end: int
    transfer: int
    """Data moved, and nothing hid it."""
    waiting: Mapping[int, int]
    """Nothing moved before that rank had made its call, by rank; never this one."""

    @property
    def length(self) -> int:
        """From the step's first call to the next one's."""
        return self.end - self.begin

    @property
    def exposed(self) -> int:
        """What a step without collectives would not have taken."""
        return self.transfer + sum(self.waiting.values())

    @property
    def compute(self) -> int:
        """The rest: what ranks calculate, and read."""
        return self.length - self.exposed


@dataclass(frozen=True)
class Step:
    """A step on all ranks."""

    number: int
    """From 0."""
    ranks: Mapping[int, RankStep]
    calls: Sequence[Key]

    @property
    def late(self) -> tuple[int, int] | None:
        """The rank that the others waited for the longest; None if nobody waited.

        And how long the one that waited most did, nanoseconds.
        """
        most: Counter[int] = Counter()
        for step in self.ranks.values():
            for rank, time in step.waiting.items():
                most[rank] = max(most[rank], time)
        return max(most.items(), key=lambda each: each[1]) if most else None


@dataclass
class Steps:
    """What timelines say of a job."""

    steps: list[Step]
    calls: dict[int, dict[Key, Call]]
    """Of each rank, by what names them on all."""
    last: dict[Key, tuple[int, int]] = field(default_factory=dict)
    """Of each call the rank that made it last, and when."""


def analyse(traces: Sequence[Trace]) -> Steps:
    """Finds the steps.

    Args:
      traces: of ranks of one job; where some are missing, nothing is known of them.
    """
    calls = {trace.rank: _calls(trace) for trace in traces}
    common = set.intersection(*(set(each) for each in calls.values())) if calls else set()
    last = {key: max((its[key].submitted, rank) for rank, its in calls.items()) for key in common}
    found = Steps([], calls, {key: (rank, time) for key, (time, rank) in last.items()})
    reference = [call for key, call in calls[min(calls)].items() if key in common] if calls else []
    groups = _split(sorted(reference, key=lambda each: each.submitted))
    for number, (group, following) in enumerate(itertools.pairwise(groups)):
        ranks = {
            rank: _rank_step(rank, [its[call.key] for call in group], following, its, found.last)
            for rank, its in calls.items()
        }
        found.steps.append(Step(number, ranks, [call.key for call in group]))
    return found


def _calls(trace: Trace) -> dict[Key, Call]:
    ends = {
        operation.values["operation"]: operation.end
        for spans in trace.spans.values()
        for operation in spans
        if "calls" in operation.values
    }
    found = {}
    for span in trace.spans.get("agreement", []):
        values = span.values
        if not values.get("order"):
            continue  # it never came in order
        agreed = span.parts[0].end if span.parts else span.end
        ended = ends.get(values.get("operation"), span.end)
        call = Call(
            span.name, (values["set"], values["order"]), values["bytes"], span.begin, agreed, ended
        )
        found[call.key] = call
    return found


def _split(calls: Sequence[Call]) -> list[list[Call]]:
    """One rank's calls in groups, each of which begins with the same name."""
    counts = Counter(call.name for call in calls)
    repeated = [call for call in calls if counts[call.name] > 1]
    if not repeated:
        return []
    # Of the names that come as often as any does, that which comes first.
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


def _rank_step(
    rank: int,
    calls: Sequence[Call],
    following: Sequence[Call],
    its: Mapping[Key, Call],
    last: Mapping[Key, tuple[int, int]],
) -> RankStep:
    begin, end = calls[0].submitted, its[following[0].key].submitted
    exposed_from = max(call.submitted for call in calls)
    until = max(call.ended for call in calls)
    # Data moves, if any does, from when the last rank has made a call until that has ended.
    moving = _union(
        (max(last[call.key][1], exposed_from), call.ended)
        for call in calls
        if call.ended > exposed_from
    )
    waiting: Counter[int] = Counter()
    at = exposed_from
    for start, stop in [*moving, (until, until)]:
        if start > at:
            for awaited, time in _awaited(at, start, calls, last):
                if awaited != rank:
                    waiting[awaited] += time
        at = max(at, stop)
    transfer = sum(stop - start for start, stop in moving)
    return RankStep(begin, end, transfer, dict(waiting))


def _awaited(
    begin: int, end: int, calls: Sequence[Call], last: Mapping[Key, tuple[int, int]]
) -> Iterable[tuple[int, int]]:
    """Who is waited for in a time in which nothing moves, and how long: whoever comes next."""
    coming = sorted((last[call.key][1], last[call.key][0]) for call in calls if call.ended > begin)
    at = begin
    for time, rank in coming:
        if time <= at:
            continue
        yield rank, min(time, end) - at
        at = min(time, end)
        if at == end:
            return


def _union(intervals: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(each for each in intervals if each[0] < each[1]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], stop))
        else:
            merged.append((start, stop))
    return merged


def median_of(values: Iterable[float]) -> float:
    """0 of none."""
    known = list(values)
    return statistics.median(known) if known else 0.0


def by_track(trace: Trace) -> dict[str, list[Span]]:
    """A rank's operations, by how their data moved."""
    return {
        name: operations
        for name, spans in trace.spans.items()
        if (operations := [span for span in spans if "calls" in span.values])
    }
