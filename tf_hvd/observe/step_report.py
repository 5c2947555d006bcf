"""What timelines say in a few lines: where steps' time goes, who is late, what to change; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tf_hvd.core.ranks_text import ranks_text
from tf_hvd.observe.step_times import Step, Steps, analyse, mean_of
from tf_hvd.observe.trace_reader import Trace

_MS = 1e6
_ROWS = 16
"""Ranks of which a line is printed."""
_NAMED = 10
"""Ranks that a sentence names."""
_SMALL = 1 << 20
"""Bytes of an operation that is small, whatever moves it; a bucket has as many at least."""
_WORTH = 0.05
"""What of a step is worth a change."""
_ALL = 0
"""The process set of all ranks."""
_FEW = 3
"""Steps, of which none can be left out."""


@dataclass(frozen=True)
class RankRow:
    """A rank's steps: means, in milliseconds."""

    rank: int
    host: str
    step: float
    compute: float
    transfer: float
    waiting: float
    waits_for: int | None
    """Whom it waits for the longest, over all steps."""
    late: int
    """Steps in which the others waited for this one the longest."""
    behind: float
    """By how much then."""


@dataclass(frozen=True)
class Report:
    steps: Steps
    rows: Sequence[RankRow]
    first: int
    """The first step that counts in the rows: the first of all is traced, or compiled."""
    missing: Sequence[int]
    """Ranks whose timelines are not there."""
    apart: Sequence[int]
    """Ranks that have timelines, and no part in these steps."""
    lacking: Sequence[int]
    """Those of them that must have had one, since all ranks make these calls."""
    dropped: int
    clock_error: float | None
    """By how much ranks' times may be off, milliseconds; None: nobody knows."""
    advice: str
    faults: Sequence[str]
    """What is wrong with the files, a sentence each."""

    @property
    def count(self) -> int:
        return len(self.steps.steps)

    @property
    def counted(self) -> Sequence[Step]:
        return self.steps.steps[self.first :]


def report(traces: Sequence[Trace]) -> Report:
    """Sums up the timelines of one job's ranks, one of each rank."""
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
    # A file may have several ranks.
    said = dict.fromkeys(fault for trace in traces for fault in trace.faults)
    if steps.left_out:
        left_out = plural(steps.left_out, "step")
        said[f"{left_out} left out: on some rank its end is before its start."] = None
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
            "The timelines have no collective calls, and so no steps: none ended while they were "
            "written, or the files were cut."
        )
    step = mean_of(row.step for row in rows)
    if not step:
        wrong = "Times are wrong" if rows or steps.left_out else "No call comes twice"
        return f"{wrong}: there are no steps to look at."
    waiting = mean_of(row.waiting for row in rows)
    transfer = mean_of(row.transfer for row in rows)
    exposed = (waiting + transfer) / step
    if exposed < _WORTH:
        return f"Nothing to gain: collectives are exposed for {100 * exposed:.1f} % of a step."
    if waiting >= transfer:
        return _of_the_late(rows, len(counted))
    return _of_transfer(counted, steps, transfer / step)


def _of_the_late(rows: Sequence[RankRow], steps: int) -> str:
    worst = max(rows, key=lambda row: row.late * row.behind)
    # By how long it takes: of many ranks one is the last of all in any step, by a little.
    if 3 * worst.late * worst.behind > 2 * sum(row.late * row.behind for row in rows):
        return (
            f"Rank {worst.rank} ({worst.host}) comes last in {worst.late} of {steps} steps, by "
            f"{worst.behind:.1f} ms: look at what it reads and computes, and who else uses its "
            "cores."
        )
    return (
        "Ranks take turns at being late: give each the same work in each step (lengths of "
        "samples, input pipelines with prefetch), and cores of its own."
    )


def _of_transfer(counted: Sequence[Step], steps: Steps, share: float) -> str:
    calls = steps.calls[min(counted[0].ranks)]
    lasts = [calls[max(step.calls, key=lambda key: steps.last[key][1])] for step in counted]
    exposed = f"Data moves for {100 * share:.0f} % of a step with nothing to hide it"
    if not any("bucket_" in call.name for call in lasts):
        name = Counter(call.name for call in lasts).most_common(1)[0][0]
        return (
            f"{exposed}, such as that of {name}: hvd.grouped_allreduce has one call instead of "
            "many, and hvd.DistributedOptimizer and DistributedGradientTape move gradients while "
            "others are computed."
        )
    often = mean_of(len(step.calls) for step in counted)
    whole = mean_of(sum(calls[key].bytes for key in step.calls) for step in counted)
    last = mean_of(call.bytes for call in lasts)
    if often > 8 and whole / often < _SMALL:
        return (
            f"{exposed}, in {often:.0f} calls of {whole / often / 1024:.0f} KiB: raise "
            "TF_HVD_BUCKET_BYTES, so that gradients go together."
        )
    # A gradient is not cut in pieces.
    if last > max(0.5 * whole, _SMALL) and often < 4 and all(call.tensors > 1 for call in lasts):
        return (
            f"{exposed}: the last call of a step has {100 * last / whole:.0f} % of its bytes. "
            "Lower TF_HVD_BUCKET_BYTES, so that gradients move while others are computed."
        )
    return f"{exposed}: compression=hvd.Compression.fp16 halves what moves, and larger batches too."


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
        said.append(f"{len(found.rows) - len(shown)} more ranks: --json and --html have them all")
    return [*said, "", *notes(found), found.advice]


def _shown(rows: Sequence[RankRow]) -> list[RankRow]:
    """Of many those that were late, and those that waited, the longest."""
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
    return f"{head}; means, in ms{', without the first step' * found.first}"


def notes(report: Report) -> list[str]:
    said = []
    if report.missing:
        who = ranks_text(report.missing, _NAMED)
        said.append(f"No timeline of {who}: how long they waited is not known.")
    if report.lacking:
        who = ranks_text(report.lacking, _NAMED)
        said.append(
            f"No calls of these steps in the timelines of {who}: they were cut, or are of another "
            "time."
        )
    elif report.apart:
        who = ranks_text(report.apart, _NAMED)
        said.append(f"{who.capitalize()} took no part in these steps.")
    if report.dropped:
        said.append(f"{report.dropped} events were dropped: the disk was too slow for them.")
    if report.clock_error is None:
        said.append("The ranks' clocks were not compared: who was late is not certain.")
    elif report.clock_error > 0:
        said.append(f"Times of different ranks agree within {report.clock_error:.3f} ms.")
    return [*said, *report.faults]
