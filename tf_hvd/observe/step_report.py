"""What timelines say in a few lines: where steps' time goes, who is late, what to change; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tf_hvd.observe.step_times import Key, Step, Steps, analyse, median_of
from tf_hvd.observe.trace_reader import Trace

_MS = 1e6
_ROWS = 16
"""Ranks of which a line is printed."""
_SMALL = 1 << 20
"""Bytes of an operation that is small, whatever moves it."""


@dataclass(frozen=True)
class RankRow:
    """A rank's steps: medians, in milliseconds."""

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
    """By how much then, the median."""


@dataclass(frozen=True)
class Report:
    """What there is to say of a job."""

    steps: Steps
    rows: Sequence[RankRow]
    missing: Sequence[int]
    """Ranks whose timelines are not there."""
    dropped: int
    clock_error: float | None
    """By how much ranks' times may be off, milliseconds; None: nobody knows."""
    advice: str

    @property
    def count(self) -> int:
        """Of steps."""
        return len(self.steps.steps)


def report(traces: Sequence[Trace]) -> Report:
    """Sums up the timelines of one job's ranks.

    Raises:
      ValueError: they are of different jobs, or two are of one rank.
    """
    sizes = {trace.size for trace in traces}
    ranks = [trace.rank for trace in traces]
    if len(sizes) > 1 or len(set(ranks)) < len(ranks):
        raise ValueError("the timelines are not of one job: each rank's is needed once")
    steps = analyse(traces)
    rows = [_row(trace, steps.steps) for trace in traces] if steps.steps else []
    errors = [trace.clock_error for trace in traces]
    known = [each for each in errors if each is not None]
    return Report(
        steps,
        rows,
        sorted(set(range(max(sizes, default=0))) - set(ranks)),
        sum(trace.dropped for trace in traces),
        max(known, default=0) / _MS if len(known) == len(errors) else None,
        _advice(steps, rows),
    )


def _row(trace: Trace, steps: Sequence[Step]) -> RankRow:
    mine = [step.ranks[trace.rank] for step in steps]
    waits: Counter[int] = Counter()
    for each in mine:
        waits.update(each.waiting)
    late = [step.late[1] for step in steps if step.late and step.late[0] == trace.rank]
    return RankRow(
        trace.rank,
        trace.host,
        median_of(each.length for each in mine) / _MS,
        median_of(each.compute for each in mine) / _MS,
        median_of(each.transfer for each in mine) / _MS,
        median_of(sum(each.waiting.values()) for each in mine) / _MS,
        waits.most_common(1)[0][0] if waits else None,
        len(late),
        median_of(late) / _MS,
    )


def _advice(steps: Steps, rows: Sequence[RankRow]) -> str:
    if not rows:
        return "No call comes twice: there are no steps to look at."
    step = median_of(row.step for row in rows)
    waiting = median_of(row.waiting for row in rows)
    transfer = median_of(row.transfer for row in rows)
    if waiting >= max(transfer, 0.05 * step):
        return _of_the_late(rows, len(steps.steps))
    if transfer >= 0.05 * step:
        return _of_transfer(steps, transfer / step)
    exposed = 100 * (waiting + transfer) / step
    return f"Nothing: collectives are exposed for {exposed:.1f} % of a step."


def _of_the_late(rows: Sequence[RankRow], steps: int) -> str:
    worst = max(rows, key=lambda row: row.late * row.behind)
    # By how long it takes: of many ranks one is the last of all in any step, by a little.
    if 2 * worst.late * worst.behind > sum(row.late * row.behind for row in rows):
        return (
            f"Rank {worst.rank} ({worst.host}) comes last in {worst.late} of {steps} steps, by "
            f"{worst.behind:.1f} ms: look at what it reads and computes, and who else uses its "
            "cores."
        )
    return (
        "Ranks take turns at being late: give each the same work in each step (lengths of "
        "samples, input pipelines with prefetch), and cores of its own."
    )


def _of_transfer(steps: Steps, share: float) -> str:
    calls = steps.calls[min(steps.calls)]
    bytes_ = [[calls[key].bytes for key in step.calls] for step in steps.steps]
    often = median_of(len(each) for each in bytes_)
    whole = median_of(sum(each) for each in bytes_)
    last = median_of(calls[_last(step, steps)].bytes for step in steps.steps)
    exposed = f"Data moves for {100 * share:.0f} % of a step with nothing to hide it"
    if often > 8 and whole / often < _SMALL:
        return (
            f"{exposed}, in {often:.0f} calls of {whole / often / 1024:.0f} KiB: raise "
            "TF_HVD_BUCKET_BYTES, so that gradients go together."
        )
    if last > 0.5 * whole and often < 4:
        return (
            f"{exposed}: the last call of a step has {100 * last / whole:.0f} % of its bytes. "
            "Lower TF_HVD_BUCKET_BYTES, so that gradients move while others are computed."
        )
    return f"{exposed}: compression=hvd.Compression.fp16 halves what moves, and larger batches too."


def _last(step: Step, steps: Steps) -> Key:
    return max(step.calls, key=lambda key: steps.last[key][1])


def lines(found: Report) -> list[str]:
    """As `tf_hvd timeline` prints it."""
    size = len(found.rows) + len(found.missing)
    said = [f"{found.count} steps of {size} ranks; medians, in ms"]
    if found.rows:
        said += ["", "rank  step     compute  transfer  waiting  for   last in      by"]
    shown = _shown(found.rows)
    for row in shown:
        awaited = "" if row.waits_for is None else str(row.waits_for)
        late = f"{row.late}" if row.late else ""
        behind = f"{row.behind:.2f}" if row.late else ""
        said.append(
            f"{row.rank:>4}  {row.step:<8.2f} {row.compute:<8.2f} {row.transfer:<9.2f} "
            f"{row.waiting:<8.2f} {awaited:<5} {late:<12} {behind}".rstrip()
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


def notes(report: Report) -> list[str]:
    """What one has to know to trust the figures."""
    said = []
    if report.missing:
        named = ", ".join(map(str, report.missing[:10])) + (", ..." * (len(report.missing) > 10))
        said.append(f"There are no timelines of ranks {named}: of them nothing is known.")
    if report.dropped:
        said.append(f"{report.dropped} events found no room, and are missing.")
    if report.clock_error is None:
        said.append("The ranks' clocks were not compared: who was late is not sure.")
    elif report.clock_error > 0:
        said.append(f"Times of different ranks are right within {report.clock_error:.3f} ms.")
    return said
