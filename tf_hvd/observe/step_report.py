"""Summary of timelines: the parts of a step's time, late ranks, and advice. Functions are pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tf_hvd.core.ranks_text import ranks_text
from tf_hvd.observe.step_times import Step, Steps, analyse, mean_of
from tf_hvd.observe.trace_reader import Trace

_MS = 1e6
_ROWS = 16
"""Maximum number of ranks in the printed table."""
_NAMED = 10
"""Maximum number of ranks that a sentence names."""
_SMALL = 1 << 20
"""Operations with fewer bytes than this are small on any transport; buckets should be larger."""
_WORTH = 0.05
"""The smallest fraction of a step that is worth optimizing."""
_ALL = 0
"""The process set of all ranks."""
_FEW = 3
"""If a job has at most this number of steps, the first step is also counted."""


@dataclass(frozen=True)
class RankRow:
    """Mean times over a rank's steps, in milliseconds."""

    rank: int
    host: str
    step: float
    compute: float
    transfer: float
    waiting: float
    waits_for: int | None
    """The rank that this rank waits for the longest over all steps; None if it never waits."""
    late: int
    """Number of steps in which the other ranks waited longest for this rank."""
    behind: float
    """Mean delay of this rank in the steps counted in `late`, in milliseconds."""


@dataclass(frozen=True)
class Report:
    steps: Steps
    rows: Sequence[RankRow]
    first: int
    """Number of the first step counted; a job's first step includes tracing and compiling."""
    missing: Sequence[int]
    """Ranks without a timeline."""
    apart: Sequence[int]
    """Ranks with a timeline but without calls in these steps."""
    lacking: Sequence[int]
    """The ranks in `apart` that must have made calls because every rank makes these calls."""
    dropped: int
    clock_error: float | None
    """Maximum error in times compared between ranks, in milliseconds; None if unknown."""
    advice: str
    faults: Sequence[str]
    """One sentence for each fault in the files."""

    @property
    def count(self) -> int:
        return len(self.steps.steps)

    @property
    def counted(self) -> Sequence[Step]:
        return self.steps.steps[self.first :]


def report(traces: Sequence[Trace]) -> Report:
    """Summarize the timelines of one job, one timeline per rank."""
    size = max((trace.size for trace in traces), default=0)
    ranks = [trace.rank for trace in traces]
    steps = analyse(traces)
    first = 1 if len(steps.steps) > _FEW else 0
    there = set(steps.steps[0].ranks) if steps.steps else set(ranks)
    apart = set(ranks) - there
    counted = steps.steps[first:]
    rows = [_row(trace, counted) for trace in traces if counted and trace.rank in there]
    errors = [trace.clock_error for trace in traces]
    known = [each for each in errors if each is not None]
    return Report(
        steps,
        rows,
        first,
        sorted(set(range(size)) - set(ranks)),
        sorted(apart),
        sorted(apart) if steps.steps and steps.steps[0].calls[0][0] == _ALL else [],
        sum(trace.dropped for trace in traces),
        max(known, default=0) / _MS if len(known) == len(errors) else None,
        _advice(counted, steps, rows),
        _faults(traces, steps),
    )


def _faults(traces: Sequence[Trace], steps: Steps) -> list[str]:
    # A file may contain the timelines of several ranks.
    said = dict.fromkeys(fault for trace in traces for fault in trace.faults)
    if steps.left_out:
        left_out = plural(steps.left_out, "step")
        said[f"{left_out} skipped: on some rank the step ends before it starts."] = None
    return list(said)


def _row(trace: Trace, steps: Sequence[Step]) -> RankRow:
    mine = [step.ranks[trace.rank] for step in steps]
    waits: Counter[int] = Counter()
    for each in mine:
        waits.update(each.waiting)
    late = [step.late[1] for step in steps if step.late and step.late[0] == trace.rank]
    return RankRow(
        trace.rank,
        trace.host,
        mean_of(each.length for each in mine) / _MS,
        mean_of(each.compute for each in mine) / _MS,
        mean_of(each.transfer for each in mine) / _MS,
        mean_of(each.waited for each in mine) / _MS,
        waits.most_common(1)[0][0] if waits else None,
        len(late),
        mean_of(late) / _MS,
    )


def _advice(counted: Sequence[Step], steps: Steps, rows: Sequence[RankRow]) -> str:
    if not rows and not any(steps.calls.values()):
        return (
            "The timelines contain no collectives, and therefore no steps: no collective ended "
            "while they were recorded, or the files were truncated."
        )
    step = mean_of(row.step for row in rows)
    if not step:
        if rows or steps.left_out:
            return "The times are wrong, so there are no steps to analyze."
        return "No collective is called twice, so there are no steps to analyze."
    waiting = mean_of(row.waiting for row in rows)
    transfer = mean_of(row.transfer for row in rows)
    exposed = (waiting + transfer) / step
    if exposed < _WORTH:
        return f"Nothing to improve: collectives are exposed for {100 * exposed:.1f} % of a step."
    late = _of_the_late(rows, len(counted))
    if waiting >= transfer:
        return late
    advice = _of_transfer(counted, steps, transfer / step)
    return f"{advice} {late}" if waiting / step >= _WORTH else advice


def _of_the_late(rows: Sequence[RankRow], steps: int) -> str:
    worst = max(rows, key=lambda row: row.late * row.behind)
    # Ranks are weighted by delay, because some rank is last in every step, usually by very little.
    if 3 * worst.late * worst.behind > 2 * sum(row.late * row.behind for row in rows):
        return (
            f"Rank {worst.rank} ({worst.host}) is last in {worst.late} of {steps} steps, by "
            f"{worst.behind:.1f} ms. Check its input pipeline, its computation, and other "
            "processes on its cores."
        )
    return (
        "Different ranks are late in different steps. Give each rank the same work in each step "
        "(samples of similar length, input pipelines with prefetch) and separate cores."
    )


def _of_transfer(counted: Sequence[Step], steps: Steps, share: float) -> str:
    calls = steps.calls[min(counted[0].ranks)]
    lasts = [calls[max(step.calls, key=lambda key: steps.last[key][1])] for step in counted]
    exposed = f"Data transfer that no computation hides takes {100 * share:.0f} % of a step"
    if not any("bucket_" in call.name for call in lasts):
        name = Counter(call.name for call in lasts).most_common(1)[0][0]
        return (
            f"{exposed}, for example in {name}. Replace many calls with one "
            "hvd.grouped_allreduce. For gradients, use hvd.DistributedOptimizer or "
            "hvd.DistributedGradientTape, which reduce them during the backward pass."
        )
    often = mean_of(len(step.calls) for step in counted)
    whole = mean_of(sum(calls[key].bytes for key in step.calls) for step in counted)
    last = mean_of(call.bytes for call in lasts)
    if often > 8 and whole / often < _SMALL:
        return (
            f"{exposed}, in {often:.0f} calls of {whole / often / 1024:.0f} KiB. Raise "
            "TF_HVD_BUCKET_BYTES to send more gradients in one call."
        )
    # A single gradient is never split, so lowering the bucket size would not help it.
    if last > max(0.5 * whole, _SMALL) and often < 4 and all(call.tensors > 1 for call in lasts):
        return (
            f"{exposed}, and the last call sends {100 * last / whole:.0f} % of a step's bytes. "
            "Lower TF_HVD_BUCKET_BYTES to send gradients while other gradients are computed."
        )
    return (
        f"{exposed}. Use compression=hvd.Compression.fp16, which halves the data, or larger "
        "batches."
    )


def lines(found: Report) -> list[str]:
    said = [summary(found)]
    if found.rows:
        said += ["", "rank  step     compute  transfer  waiting  most for  late in      by"]
    shown = _shown(found.rows)
    for row in shown:
        awaited = "" if row.waits_for is None else str(row.waits_for)
        late = plural(row.late, "step") if row.late else ""
        behind = f"{row.behind:.2f}" if row.late else ""
        said.append(
            f"{row.rank:>4}  {row.step:<8.2f} {row.compute:<8.2f} {row.transfer:<9.2f} "
            f"{row.waiting:<8.2f} {awaited:<9} {late:<12} {behind}".rstrip()
        )
    if len(shown) < len(found.rows):
        hidden = plural(len(found.rows) - len(shown), "more rank")
        said.append(f"{hidden} not shown; use --json or --html to see all ranks")
    return [*said, "", *notes(found), found.advice]


def _shown(rows: Sequence[RankRow]) -> list[RankRow]:
    """Return all rows or, if there are many, the ranks that were late or waited longest."""
    if len(rows) <= _ROWS:
        return list(rows)
    late = sorted(rows, key=lambda row: -row.late * row.behind)[: _ROWS // 2]
    waited = sorted(rows, key=lambda row: -row.waiting)[: _ROWS // 2]
    chosen = {row.rank for row in [*late, *waited]}
    return [row for row in rows if row.rank in chosen]


def plural(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def summary(found: Report) -> str:
    size = len(found.rows) + len(found.missing) + len(found.apart)
    head = f"{plural(found.count, 'step')} of {plural(size, 'rank')}"
    if not found.rows:
        return head
    return f"{head}; means in ms{', without the first step' * found.first}"


def notes(report: Report) -> list[str]:
    said = []
    if report.missing:
        who = ranks_text(report.missing, _NAMED)
        said.append(f"No timeline of {who} was found, so waiting times there are unknown.")
    if report.lacking:
        who = ranks_text(report.lacking, _NAMED)
        said.append(
            f"The timelines of {who} have no calls of these steps: they were truncated, or "
            "cover another period."
        )
    elif report.apart:
        who = ranks_text(report.apart, _NAMED)
        said.append(f"{who.capitalize()} made no calls in these steps.")
    if report.dropped:
        said.append(f"{report.dropped} events were dropped because the disk was too slow.")
    if report.clock_error is None:
        said.append("The ranks' clocks were not compared, so late ranks may be misidentified.")
    elif report.clock_error > 0:
        said.append(f"Times of different ranks agree to within {report.clock_error:.3f} ms.")
    return [*said, *report.faults]
