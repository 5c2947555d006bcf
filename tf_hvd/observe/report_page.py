"""Rendering of a job's timelines as one HTML file without scripts or network access; pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

from tf_hvd.observe.recording import Call
from tf_hvd.observe.step_report import Report, notes, plural, summary
from tf_hvd.observe.step_times import Key, Step, mean_of, median_of

_MS = 1e6
_BARS = 240
"""Maximum number of bars; if there are more steps, each bar covers several steps."""
_ROWS = 12
"""Maximum number of ranks in the plot of a step."""
_PARTS = ("compute", "transfer", "waiting")

# Colours follow the browser's preference for light or dark pages.
_STYLE = """
:root { --back: #fff; --text: #1d2329; --faint: #69737d; --line: #d8dee4; --track: #eef1f4;
  --compute: #4c78a8; --transfer: #e8a33d; --waiting: #d1495b; }
@media (prefers-color-scheme: dark) {
  :root { --back: #15191e; --text: #e4e8ec; --faint: #98a3ad; --line: #333b44; --track: #232a31;
    --compute: #6b9bd1; --transfer: #efb65c; --waiting: #ee7183; }
}
body { margin: 0 auto; max-width: 68rem; padding: 1.2rem; background: var(--back);
  color: var(--text); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.35rem; margin: 0 0 .2rem; } h2 { font-size: 1.05rem; margin: 2rem 0 .4rem; }
p { margin: .3rem 0; max-width: 46rem; } .faint, figcaption { color: var(--faint); }
.advice { border-left: 4px solid var(--transfer); padding: .4rem .8rem; background: var(--track); }
figure { margin: .5rem 0; } svg { display: block; width: 100%; }
.wide { overflow-x: auto; max-height: 32rem; overflow-y: auto; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .15rem .7rem; text-align: right; border-bottom: 1px solid var(--line); }
th { position: sticky; top: 0; background: var(--back); font-weight: 600; }
.compute { fill: var(--compute); background: var(--compute); }
.transfer { fill: var(--transfer); background: var(--transfer); }
.waiting { fill: var(--waiting); background: var(--waiting); }
.key {
  display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin: 0 .35em 0 1em;
}
.axis { display: flex; justify-content: space-between; color: var(--faint); font-size: .8rem; }
.row { display: grid; grid-template-columns: 5.5rem 1fr; align-items: center; gap: .5rem;
  font-size: .8rem; margin: 3px 0; }
.row > div { position: relative; height: 18px; background: var(--track); border-radius: 3px;
  overflow: hidden; }
.row span { white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
.row i { position: absolute; top: 0; bottom: 0; } .row i.call { top: auto; height: 5px;
  background: var(--text); opacity: .55; }
summary { cursor: pointer; margin: .4rem 0; } text { fill: var(--faint); font-size: 10px; }
circle { fill: var(--compute); opacity: .75; } line { stroke: var(--line); }
"""


def page(report: Report, title: str = "Timeline") -> str:
    body = [f"<h1>{escape(title)}</h1>", f'<p class="faint">{escape(summary(report))}</p>']
    body.append(f'<p class="advice">{escape(report.advice)}</p>')
    body += [f'<p class="faint">{escape(note)}</p>' for note in notes(report)]
    if report.steps.steps:
        body += ["<h2>Steps over time</h2>", _over_time(report)]
        body += ["<h2>A step in detail</h2>", *_details(report)]
        body += ["<h2>Calls by size and time</h2>", _by_size(report)]
        body += ["<h2>Late ranks</h2>", _imbalance(report)]
        body += ["<h2>Ranks</h2>", _table(report)]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join([*body, "</body>", "</html>", ""])
    )


def _key() -> str:
    return "".join(f'<span class="key {part}"></span>{part}' for part in _PARTS)


def _parts_of(step: Step) -> list[float]:
    """Return the mean time of each part of a step across the ranks, in milliseconds."""
    ranks = step.ranks.values()
    return [
        mean_of(one.compute for one in ranks) / _MS,
        mean_of(one.transfer for one in ranks) / _MS,
        mean_of(one.waited for one in ranks) / _MS,
    ]


def _over_time(report: Report) -> str:
    steps = report.counted
    each = math.ceil(len(steps) / _BARS)
    bins = [steps[at : at + each] for at in range(0, len(steps), each)]
    bars = [[mean_of(values) for values in zip(*map(_parts_of, one), strict=True)] for one in bins]
    top = max(sum(bar) for bar in bars) or 1.0
    shapes = []
    for place, bar in enumerate(bars):
        at = 100.0
        for part, value in zip(_PARTS, bar, strict=True):
            height = 100 * max(value, 0.0) / top
            at -= height
            shapes.append(
                f'<rect class="{part}" x="{place}" y="{at:.2f}" width=".9" height="{height:.2f}"/>'
            )
    of = "" if each == 1 else f"; each bar covers {each} steps"
    return (
        f'<figure><div class="axis"><span>{top:.1f} ms</span></div>'
        f'<svg viewBox="0 0 {len(bars)} 100" height="170" preserveAspectRatio="none" role="img" '
        f'aria-label="time of each step, by part">{"".join(shapes)}</svg>'
        f'<div class="axis"><span>step {steps[0].number}</span>'
        f"<span>step {steps[-1].number}</span></div>"
        f"<figcaption>Means across the ranks{of}.{_key()}</figcaption></figure>"
    )


def _chosen(report: Report) -> list[tuple[str, Step]]:
    steps = report.counted
    lengths = [(median_of(one.length for one in step.ranks.values()), step) for step in steps]
    ordered = [step for _, step in sorted(lengths, key=lambda each: each[0])]
    usual, slow = ordered[len(ordered) // 2], ordered[-1]
    found = [(f"step {usual.number} (median length)", usual)]
    if slow is not usual:
        found.append((f"step {slow.number} (slowest)", slow))
    return found


def _details(report: Report) -> Iterable[str]:
    for place, (title, step) in enumerate(_chosen(report)):
        opened = " open" if place == 0 else ""
        summary = f"<summary>{escape(title)}</summary>"
        yield f"<details{opened}>{summary}{_detail(report, step)}</details>"


def _detail(report: Report, step: Step) -> str:
    hosts = {row.rank: row.host for row in report.rows}
    ranks = _shown_ranks(step)
    begin = min(step.ranks[rank].begin for rank in ranks)
    end = max(step.ranks[rank].end for rank in ranks)
    drawn = []
    for rank in ranks:
        one, calls = step.ranks[rank], report.steps.calls[rank]
        marks = [_mark("compute", one.begin, one.end, begin, end)]
        for kind, intervals in (("waiting", one.exposed_in), ("transfer", one.moving_in)):
            marks += [_mark(kind, since, until, begin, end) for since, until in intervals]
        marks += [_call(calls[key], begin, end) for key in step.calls]
        drawn.append(
            f'<div class="row"><span title="{escape(hosts[rank])}">rank {rank}</span>'
            f"<div>{''.join(marks)}</div></div>"
        )
    left = len(step.ranks) - len(ranks)
    more = f" {plural(left, 'more rank')} not shown." if left else ""
    return (
        f'<figure>{"".join(drawn)}<div class="axis"><span>0</span>'
        f"<span>{(end - begin) / _MS:.2f} ms</span></div>"
        f"<figcaption>Thin lines show calls, from this rank's call to its result.{more}{_key()}"
        "</figcaption></figure>"
    )


def _shown_ranks(step: Step) -> list[int]:
    """Return the ranks to draw: all ranks or, if there are many, the most informative ones.

    These are the first rank, the awaited rank, and the ranks that waited the longest.
    """
    ranks = sorted(step.ranks)
    if len(ranks) <= _ROWS:
        return ranks
    late = [step.late[0]] if step.late else []
    waited = sorted(ranks, key=lambda rank: -sum(step.ranks[rank].waiting.values()))
    return sorted(dict.fromkeys([ranks[0], *late, *waited][:_ROWS]))


def _mark(kind: str, start: int, stop: int, begin: int, end: int) -> str:
    left = 100 * (start - begin) / (end - begin)
    width = 100 * max(stop - start, 0) / (end - begin)
    return f'<i class="{kind}" style="left:{left:.2f}%;width:{width:.2f}%"></i>'


def _call(call: Call, begin: int, end: int) -> str:
    left = 100 * (call.submitted - begin) / (end - begin)
    width = 100 * (call.ended - call.submitted) / (end - begin)
    title = escape(f"{call.name}, {call.bytes / 1e6:.2f} MB")
    return f'<i class="call" title="{title}" style="left:{left:.2f}%;width:{width:.2f}%"></i>'


def _by_size(report: Report) -> str:
    calls = report.steps.calls[min(report.steps.steps[0].ranks)]
    by_name: dict[str, list[tuple[int, float]]] = {}
    for step in report.steps.steps:
        for key in step.calls:
            took = (calls[key].ended - report.steps.last[key][1]) / _MS
            by_name.setdefault(calls[key].name, []).append((calls[key].bytes, took))
    points = [
        (name, median_of(b for b, _ in values), median_of(t for _, t in values))
        for name, values in by_name.items()
    ]
    points = [point for point in points if point[1] > 0 and point[2] > 0]
    if not points:
        return '<p class="faint">No data moved.</p>'
    x, y = _Scale([p[1] for p in points]), _Scale([p[2] for p in points])
    shapes = [
        *(f'<line x1="{x(v):.1f}" x2="{x(v):.1f}" y1="10" y2="200"/>'
          f'<text x="{x(v):.1f}" y="214" text-anchor="middle">{_size(v)}</text>' for v in x.ticks),
        *(f'<line x1="40" x2="440" y1="{210 - y(v) / 2:.1f}" y2="{210 - y(v) / 2:.1f}"/>'
          f'<text x="36" y="{213 - y(v) / 2:.1f}" text-anchor="end">{v:g} ms</text>'
          for v in y.ticks),
    ]  # fmt: skip
    for name, size, took in points:
        rate = size / took / 1e6
        title = escape(f"{name}: {_size(size)}, {took:.3f} ms, {rate:.2f} GB/s")
        shapes.append(
            f'<circle cx="{x(size):.1f}" cy="{210 - y(took) / 2:.1f}" r="4">'
            f"<title>{title}</title></circle>"
        )
    return (
        '<figure style="max-width:44rem"><svg viewBox="0 0 460 220" role="img" '
        f'aria-label="calls by bytes and time">{"".join(shapes)}</svg><figcaption>One point for '
        "each call of a step: its bytes, and its time from the last rank's call to the end. "
        "Medians over the steps.</figcaption></figure>"
    )


class _Scale:
    """A logarithmic scale with coordinates from 40 to 440."""

    def __init__(self, values: Sequence[float]) -> None:
        self._low = math.floor(math.log10(min(values)))
        self._high = max(math.ceil(math.log10(max(values))), self._low + 1)

    def __call__(self, value: float) -> float:
        return 40 + 400 * (math.log10(value) - self._low) / (self._high - self._low)

    @property
    def ticks(self) -> list[float]:
        return [10.0**power for power in range(self._low, self._high + 1)]


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.3g} {unit}"
        count /= 1000
    raise AssertionError


def _imbalance(report: Report) -> str:
    behind: dict[int, list[float]] = {row.rank: [] for row in report.rows}
    for step in report.counted:
        for key in step.calls:
            for rank, time in _after_the_first(report, key):
                behind[rank].append(time)
    means = {rank: mean_of(values) / _MS for rank, values in behind.items()}
    worst = {rank: max(values) / _MS for rank, values in behind.items()}
    top = max(worst.values()) or 1.0
    shapes = []
    for place, rank in enumerate(sorted(means)):
        title = escape(f"rank {rank}: {means[rank]:.2f} ms, at worst {worst[rank]:.2f} ms")
        for kind, value in (("transfer", worst[rank]), ("waiting", means[rank])):
            height = 100 * value / top
            shapes.append(
                f'<rect class="{kind}" x="{place + 0.05}" y="{100 - height:.2f}" width=".9" '
                f'height="{height:.2f}"><title>{title}</title></rect>'
            )
    last = max(means)
    return (
        f'<figure><div class="axis"><span>{top:.2f} ms</span></div>'
        f'<svg viewBox="0 0 {len(means)} 100" height="120" preserveAspectRatio="none" role="img" '
        f'aria-label="how late each rank is">{"".join(shapes)}</svg><div class="axis">'
        f"<span>rank {min(means)}</span><span>rank {last}</span></div>"
        "<figcaption>Delay of each rank's calls after the first rank's:"
        '<span class="key waiting"></span>mean<span class="key transfer"></span>worst'
        "</figcaption></figure>"
    )


def _after_the_first(report: Report, key: Key) -> list[tuple[int, int]]:
    ranks = report.steps.steps[0].ranks
    times = {rank: report.steps.calls[rank][key].submitted for rank in ranks}
    first = min(times.values())
    return [(rank, time - first) for rank, time in times.items()]


def _table(report: Report) -> str:
    titles = ("rank", "host", "step, ms", *_PARTS, "waits most for", "late in", "by, ms")
    head = "".join(f"<th>{title}</th>" for title in titles)
    lines = []
    for row in report.rows:
        cells = [
            str(row.rank), row.host, f"{row.step:.2f}", f"{row.compute:.2f}",
            f"{row.transfer:.2f}", f"{row.waiting:.2f}",
            "" if row.waits_for is None else f"rank {row.waits_for}",
            plural(row.late, "step") if row.late else "", f"{row.behind:.2f}" if row.late else "",
        ]  # fmt: skip
        lines.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(lines)}</table></div>'
