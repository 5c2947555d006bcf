"""Pages in headless Chromium: nothing is fetched, nothing overflows, and all of it can be read."""

from __future__ import annotations

import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
from prove import ROOT, Table

from tf_hvd.bench import measure, page, settings
from tf_hvd.observe import report_page, step_report
from tf_hvd.observe.trace_reader import Span, Trace

MS = 1_000_000
HERE = pathlib.Path(__file__).resolve().parent
IMAGES = ROOT / "docs" / "images"
# The page, and width, height and whether it is dark, of what docs/timeline.md shows.
PICTURES = {
    "timeline-4-ranks.png": ("timeline of 4 ranks", 1000, 1650, False),
    "timeline-512-ranks.png": ("timeline of 512 ranks", 1000, 2210, True),
}
WIDTHS = (360, 1000, 1900)
DARK = "@media (prefers-color-scheme: dark)"
# WCAG's least contrast of text.
CONTRAST = 4.5
# What is measured in the page: (its width, the window's), where it overflows; what SVG's shapes
# reach beyond their picture; colours of texts and what is behind them.
LOOK = """(() => {
  const wide = [...document.querySelectorAll('svg rect, svg circle')].filter(shape => {
    if (shape.closest('defs, clipPath')) return false;
    const own = shape.getBoundingClientRect();
    const all = shape.ownerSVGElement.getBoundingClientRect();
    return own.right > all.right + 1 || own.bottom > all.bottom + 1 || own.left < all.left - 1;
  }).length;
  const back = element => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (!colour.startsWith('rgba(0, 0, 0, 0')) return colour;
    }
    return 'rgb(255, 255, 255)';
  };
  const texts = [...document.querySelectorAll('h1, h2, p, td, th, figcaption, summary, .axis')]
    .filter(each => each.textContent.trim() && each.getClientRects().length)
    .map(each => [getComputedStyle(each).color, back(each), each.textContent.slice(0, 40)]);
  return JSON.stringify({
    width: document.documentElement.scrollWidth, window: window.innerWidth, wide: wide,
    shapes: document.querySelectorAll('svg rect, svg circle, svg path').length, texts: texts,
  });
})()"""


def timelines(ranks: int, steps: int, late: int) -> list[Trace]:
    """Of a made-up job: 12 gradients, one rank late by 20 ms in two of three steps."""
    chance = random.Random(1)
    traces = [Trace(rank, ranks, f"node{rank // 8:02d}") for rank in range(ranks)]
    for trace in traces:
        trace.spans = {"agreement": [], "mpi": [], "TensorFlow": []}
        trace.counters["error of the clock"] = [(0, 12000)]
    end = order = 0
    for step in range(steps):
        at = [end + 18 * MS + chance.randint(0, MS // 2) for _ in traces]
        free = 0
        for layer in range(12):
            order += 1
            for rank in range(ranks):
                slow = rank == late and layer == 6 and step % 3
                at[rank] += chance.randint(2 * MS, 3 * MS) + (20 * MS if slow else 0)
            last, size = max(at), 2 ** (22 - layer // 2)
            start = max(last, free)
            free = start + int(size / 1.2) + chance.randint(0, MS // 3)
            about = {
                "order": order, "operation": order, "set": 0, "bytes": size, "tensors": 2,
                "last_rank": at.index(last),
            }  # fmt: skip
            for rank, trace in enumerate(traces):
                agreed = [Span("agree", at[rank], last)]
                call = Span(f"dense_{layer}", at[rank], start, about, agreed)
                trace.spans["agreement"].append(call)
                data = Span("allreduce", start, free, {"operation": order, "calls": 1})
                trace.spans["mpi"].append(data)
        for rank, trace in enumerate(traces):
            trace.spans["TensorFlow"].append(Span("waits for collectives", at[rank], free))
        end = free + MS
    return traces


def benchmark(folder: pathlib.Path) -> str:
    """The page of a made-up `tf_hvd bench`."""
    chance = np.random.default_rng(1)
    plan = settings.Settings(sizes=("4", "64K", "1M", "16M"), gradients=("resnet50",))
    results = [
        [
            measure.Measurement(work, name, True, tuple(chance.gamma(9, factor * 1e-5, 30)))
            for name, factor in (("tf_hvd", 1 + i), ("mpi", 1.4 + i), ("sketch", 0.7 + i))
        ]
        for i, work in enumerate(plan.workloads(4))
    ]
    about = {
        "ranks": 4, "hosts": ["a"] * 4, "cores": [[0], [1], [2], [3]], "mpi": "Open MPI 5.0",
        "tf_hvd": "0.1.0", "tensorflow": "2.21.0",
    }  # fmt: skip
    file = folder / "bench.html"
    page.write(str(file), about, results, None, "tf_hvd bench -np 4 --html bench.html")
    return file.read_text()


def pages(folder: pathlib.Path, short: bool) -> Iterator[tuple[str, str]]:
    """Names and texts."""
    for ranks, steps, late in ((4, 60, 2),) if short else ((4, 60, 2), (512, 40, 137)):
        report = step_report.report(timelines(ranks, steps, late))
        yield f"timeline of {ranks} ranks", report_page.page(report, "trace.pftrace")
    yield "bench", benchmark(folder)


class Browser:
    """Chromium, in a process of its own (browser.py): TensorFlow's libraries do not go with it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "browser.py")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def look(
        self, file: pathlib.Path, width: int, height: int, picture: pathlib.Path | None = None
    ) -> dict[str, Any]:
        """Draws a page; returns what LOOK finds in it, what was `said`, and what was `fetched`."""
        assert self._process.stdin
        assert self._process.stdout
        wanted = {
            "file": str(file), "width": width, "height": height, "look": LOOK,
            "picture": str(picture or ""),
        }  # fmt: skip
        self._process.stdin.write(json.dumps(wanted) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the browser has ended at {file}"
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        """Ends it."""
        assert self._process.stdin
        self._process.stdin.close()
        assert self._process.wait(60) == 0


def _luminance(colour: str) -> float:
    parts = [float(part) / 255 for part in re.findall(r"[\d.]+", colour)[:3]]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(colour: str, behind: str) -> float:
    """As WCAG 2.2 defines it: 1 to 21."""
    low, high = sorted((_luminance(colour), _luminance(behind)))
    return (high + 0.05) / (low + 0.05)


def faults(found: dict[str, Any]) -> list[str]:
    """What is wrong with a page."""
    wrong = [f"console: {text}" for text in found["said"]]
    wrong += [f"fetched {url}" for url in found["fetched"]]
    if found["width"] > found["window"]:
        wrong.append(f"{found['width']} pixels wide in a window of {found['window']}")
    if found["wide"] or not found["shapes"]:
        wrong.append(f"{found['wide']} of {found['shapes']} shapes lie outside of their picture")
    for colour, behind, text in found["texts"]:
        if contrast(colour, behind) < CONTRAST:
            wrong.append(f"{text!r}: {colour} on {behind}")
    return wrong


def prove(short: bool) -> Table:
    """Draws each page in each width, light and dark."""
    table = Table(
        "Pages of made-up jobs in headless Chromium, light and dark: nothing is fetched, the "
        "console stays empty, nothing is wider than the window, shapes lie within their pictures, "
        f"and texts have a contrast of {CONTRAST} at least.",
        ("page", "widths", "shapes", "texts", "least contrast", "faults"),
    )
    browser = Browser()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for title, text in pages(folder, short):
            assert text.count(DARK) == 1
            files = {}
            for dark in (False, True):
                files[dark] = folder / f"{title} {'dark' if dark else 'light'}.html"
                files[dark].write_text(text.replace(DARK, "@media all") if dark else text)
            looks = [browser.look(file, width, 1200) for width in WIDTHS for file in files.values()]
            wrong = [fault for look in looks for fault in faults(look)]
            assert not wrong, f"{title}: " + "\n".join(wrong[:20])
            texts = [each for look in looks for each in look["texts"]]
            least = min(contrast(colour, behind) for colour, behind, _ in texts)
            widths = ", ".join(map(str, WIDTHS))
            shapes = looks[0]["shapes"]
            table.add(title, widths, shapes, len(looks[0]["texts"]), f"{least:.1f}", 0)
            for picture, (of, width, height, dark) in PICTURES.items():
                if of == title and not short:
                    browser.look(files[dark], width, height, IMAGES / picture)
    browser.close()
    return table
