"""Draws what was measured: times over sizes, and a bar for each peer of a gradient set."""

import importlib
from collections.abc import Sequence
from typing import Any

from tf_hvd.bench.errors import BenchError
from tf_hvd.bench.measure import Measurement

CURE = "--plot needs matplotlib: pip install 'tf_hvd[bench]'"
_WIDTH, _HEIGHT = 8.0, 5.0  # inches, of each panel
_MICRO = 1e6


def check() -> None:
    """Says at once what would fail at the end.

    Raises:
      BenchError: matplotlib is not there.
    """
    _figure_type()


def _figure_type() -> Any:
    try:
        return importlib.import_module("matplotlib.figure").Figure
    except ImportError as error:
        raise BenchError(CURE) from error


def write(path: str, measurements: Sequence[Measurement]) -> None:
    """Draws a panel for each operation, type and mode.

    Args:
      path: of a .png or .svg file, which is overwritten.
      measurements: of all workloads.

    Raises:
      BenchError: matplotlib is not there, or the file cannot be written.
    """
    figure = drawn(measurements)
    try:
        figure.savefig(path)
    except OSError as error:
        raise BenchError(f"--plot {path}: {error.strerror}") from error


def drawn(measurements: Sequence[Measurement]) -> Any:
    """The figure of `write`."""
    panels: dict[str, list[Measurement]] = {}
    for each in measurements:
        if not each.missing:
            work = each.workload
            what = work.name if len(work.shapes) > 1 else "sizes"
            panels.setdefault(f"{work.operation} {work.dtype} {work.mode}, {what}", []).append(each)
    figure = _figure_type()(figsize=(_WIDTH, _HEIGHT * len(panels)), layout="constrained")
    for number, (title, panel) in enumerate(panels.items(), 1):
        axes = figure.add_subplot(len(panels), 1, number)
        axes.set_title(title)
        if len(panel[0].workload.shapes) > 1:
            _bars(axes, panel)
        else:
            _curves(axes, panel)
    return figure


def _curves(axes: Any, measurements: Sequence[Measurement]) -> None:
    for peer in dict.fromkeys(each.peer for each in measurements):
        of_peer = [each for each in measurements if each.peer == peer]
        points = sorted((each.workload.size_bytes, each.median * _MICRO) for each in of_peer)
        axes.plot(*zip(*points, strict=True), marker="o", label=peer)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("bytes")
    axes.set_ylabel("us")
    axes.grid(alpha=0.3)
    # Beside the lines, of which it would cover one.
    axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False)


def _bars(axes: Any, measurements: Sequence[Measurement]) -> None:
    names = [each.peer for each in measurements]
    drawn = axes.barh(names, [each.median * 1000 for each in measurements])
    axes.bar_label(drawn, fmt="%.1f", padding=3)
    axes.invert_yaxis()
    axes.set_xlabel("ms")
