"""Plots of measurements: times and bandwidths by size, and bar charts for gradient sets."""

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from tf_hvd.bench.errors import BenchError
from tf_hvd.bench.measure import Measurement
from tf_hvd.core import files

_WIDTH, _HEIGHT = 11.0, 4.0  # inches per row of panels
_LABELS = 8  # maximum number of sizes below an axis
_MILLI, _MICRO, _GIGA = 1e3, 1e6, 1e9


def write(path: str, measurements: Sequence[Measurement]) -> None:
    """Draw a row of panels for each operation, type and mode, and save it as a .png or .svg file.

    Args:
      path: path of the file.
      measurements: the measurements for all workloads and peers.

    Raises:
      BenchError: the file cannot be written.
    """
    figure = drawn(measurements)
    try:
        with files.writing(path) as file:
            figure.savefig(file, format=path.rpartition(".")[2])
    except OSError as error:
        raise BenchError(f"--plot {path}: {error.strerror}") from error


def drawn(measurements: Sequence[Measurement]) -> Any:
    rows: dict[str, list[Measurement]] = {}
    for each in measurements:
        if not each.missing:
            work = each.workload
            what = work.name if len(work.shapes) > 1 else "sizes"
            rows.setdefault(f"{work.operation} {work.dtype} {work.mode}, {what}", []).append(each)
    make = importlib.import_module("matplotlib.figure").Figure
    figure = make(figsize=(_WIDTH, _HEIGHT * len(rows)), layout="constrained")
    grid = figure.add_gridspec(max(len(rows), 1), 2)
    for number, (title, row) in enumerate(rows.items()):
        if len(row[0].workload.shapes) > 1:
            axes = figure.add_subplot(grid[number, :])
            _bars(axes, row)
        else:
            axes, beside = (figure.add_subplot(grid[number, place]) for place in (0, 1))
            _curves(axes, row)
            _bandwidths(beside, row)
            # The legend is outside the axes, where it covers no line.
            place = {"loc": "center left", "bbox_to_anchor": (1.02, 0.5)}
            beside.legend(*axes.get_legend_handles_labels(), **place, frameon=False)
        axes.set_title(title, loc="left")
    return figure


def _by_peer(measurements: Sequence[Measurement]) -> dict[str, list[Measurement]]:
    found: dict[str, list[Measurement]] = {}
    for each in sorted(measurements, key=lambda one: one.workload.size_bytes):
        found.setdefault(each.peer, []).append(each)
    return {peer: found[peer] for peer in dict.fromkeys(each.peer for each in measurements)}


def _curves(axes: Any, measurements: Sequence[Measurement]) -> None:
    """Plot the medians and the range between the percentiles shown in the table."""
    for number, (peer, its) in enumerate(_by_peer(measurements).items()):
        sizes = [each.workload.size_bytes for each in its]
        medians = [each.median * _MICRO for each in its]
        axes.plot(sizes, medians, marker="o", label=peer, color=f"C{number}")
        spreads = [each.spread for each in its]
        low, high = (np.multiply(times, _MICRO) for times in zip(*spreads, strict=True))
        axes.fill_between(sizes, low, high, color=f"C{number}", alpha=0.15, linewidth=0)
    axes.set_yscale("log")
    axes.set_ylabel("us")
    _finish(axes, measurements)


def _bandwidths(axes: Any, measurements: Sequence[Measurement]) -> None:
    for number, its in enumerate(_by_peer(measurements).values()):
        known = [(each.workload.size_bytes, each.bus_bandwidth / _GIGA) for each in its
                 if each.bus_bandwidth is not None]  # fmt: skip
        if known:
            axes.plot(*zip(*known, strict=True), marker="o", color=f"C{number}")
    axes.set_ylim(bottom=0)
    axes.set_ylabel("bus GB/s")
    _finish(axes, measurements)


def _finish(axes: Any, measurements: Sequence[Measurement]) -> None:
    names = {each.workload.size_bytes: each.workload.name for each in measurements}
    every = -(-len(names) // _LABELS)
    ticks = sorted(names)[::every]
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [names[tick] for tick in ticks])
    axes.set_xlabel("bytes")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _bars(axes: Any, measurements: Sequence[Measurement]) -> None:
    medians = [each.median * _MILLI for each in measurements]
    spreads = np.multiply([each.spread for each in measurements], _MILLI)
    reach = np.abs(spreads.T - medians)
    names = [each.peer for each in measurements]
    drawn = axes.barh(names, medians, xerr=reach, error_kw={"alpha": 0.6, "capsize": 3})
    axes.bar_label(drawn, fmt="%.1f", padding=3)
    axes.invert_yaxis()
    axes.set_xlabel("ms")
    axes.spines[["top", "right"]].set_visible(False)
