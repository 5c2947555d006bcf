"""Rank 0's output: a growing table on a terminal, plain lines in other output, or JSON."""

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table

from tf_hvd.bench.measure import Measurement
from tf_hvd.bench.training import StepTimes

REFERENCE = "tf_hvd"
"""The peer that all other peers are compared with."""
JSON_VERSION = 1
HEADINGS = (
    "workload", "peer", "median", "p10 to p90", "algorithm GB/s", "bus GB/s", "than tf_hvd",
    "cores apart",
)  # fmt: skip
_WIDTHS = (34, 13, 9, 18, 14, 9, 13, 12)
_EVEN = 1.005
"""Two times are displayed as equal if their ratio is below this value."""
_GIGA = 1e9


def duration(seconds: float) -> str:
    """Return a duration as text, with at least three digits and a suitable unit."""
    for limit, factor, unit in ((1e-3, 1e6, "us"), (1.0, 1e3, "ms")):
        if seconds < limit:
            return f"{seconds * factor:.1f} {unit}"
    return f"{seconds:.2f} s"


def between(low: float, high: float) -> str:
    """Return a range of durations as text; a common unit appears only once."""
    first, last = duration(low), duration(high)
    unit = last[last.index(" ") :]
    return f"{first.removesuffix(unit)} to {last}"


def compared(seconds: float, reference: float) -> str:
    """Return a comparison of a time with a reference time, such as `2.50 x faster`."""
    ratio = max(seconds, reference) / min(seconds, reference)
    if ratio < _EVEN:
        return "the same"
    size = f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"
    return f"{size} x {'faster' if seconds < reference else 'slower'}"


def cells(measurement: Measurement, reference: float | None) -> tuple[str, ...]:
    """Return a row of the table without its last column.

    Args:
      measurement: the measurement of one peer.
      reference: the median time of the peer REFERENCE in seconds; None if it was not measured.
    """
    bus = measurement.bus_bandwidth
    is_reference = measurement.peer == REFERENCE
    return (
        str(measurement.workload),
        measurement.peer,
        duration(measurement.median),
        between(*measurement.spread),
        f"{measurement.algorithm_bandwidth / _GIGA:.2f}",
        "" if bus is None else f"{bus / _GIGA:.2f}",
        "" if reference is None or is_reference else compared(measurement.median, reference),
    )


def cores_apart(measurement: Measurement) -> str:
    """Return the latency between the ranks' cores before and after the timing, as text."""
    found = measurement.core_latencies
    return "" if found is None else f"{found[0]:.2f}, {found[1]:.2f} us"


def rows(measurements: Sequence[Measurement]) -> Iterator[tuple[str, ...]]:
    """Yield the table's rows for one workload; only the first row has the workload's name."""
    times = {each.peer: each.median for each in measurements if not each.missing}
    name = str(measurements[0].workload) if measurements else ""
    apart = next((cores_apart(each) for each in measurements if not each.missing), "")
    for each in measurements:
        if each.missing:
            yield (name, each.peer, f"no: {each.missing}", *[""] * (len(HEADINGS) - 3))
        else:
            yield (name, *cells(each, times.get(REFERENCE))[1:], apart)
            apart = ""
        name = ""


def heading(about: Mapping[str, Any]) -> str:
    hosts = dict.fromkeys(about["hosts"])
    cores = "; ".join(f"rank {rank}: {_span(of)}" for rank, of in enumerate(about["cores"]))
    mpi = about["mpi"] or "no MPI"
    return (
        f"tf_hvd {about['tf_hvd']}, TensorFlow {about['tensorflow']}, {mpi}; {about['ranks']} "
        f"ranks on {len(hosts)} machine{'s' * (len(hosts) > 1)}; cores: {cores}"
    )


def _span(cores: Sequence[int]) -> str:
    whole = len(cores) > 2 and cores[-1] - cores[0] == len(cores) - 1
    return f"{cores[0]}-{cores[-1]}" if whole else ",".join(map(str, cores))


class Report(contextlib.AbstractContextManager["Report"]):
    """A report that prints nothing; used on all ranks except rank 0."""

    def __exit__(self, *_: object) -> None:
        """Do nothing."""

    def begin(self, about: Mapping[str, Any], missing: Mapping[str, str]) -> None:
        """Report the job, and the missing peers with the reasons why they are missing."""

    def add(self, measurements: Sequence[Measurement]) -> None:
        """Report the measurements of all peers for one workload."""

    def add_training(self, times: StepTimes) -> None:
        """Report the times of a training step."""

    def end(self, command: str) -> None:
        """Report the command that repeats the benchmark."""


class Shown(Report):
    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._table = Table(box=box.SIMPLE_HEAD)
        for number, name in enumerate(HEADINGS):
            self._table.add_column(name, justify="left" if number < 2 else "right")
        self._live: Live | None = None

    def __enter__(self) -> "Shown":
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()
            self._live = None

    def _say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, markup=False)

    def begin(self, about: Mapping[str, Any], missing: Mapping[str, str]) -> None:
        self._say(heading(about))
        for name, reason in missing.items():
            self._say(f"without {name}: {reason}")

    def add(self, measurements: Sequence[Measurement]) -> None:
        for row in rows(measurements):
            if self._console.is_terminal:
                self._table.add_row(*row)
            else:
                self._line(row)
        if self._console.is_terminal and self._live is None:
            self._live = Live(self._table, console=self._console, auto_refresh=False)
            self._live.start()
        if self._live:
            self._live.update(self._table, refresh=True)

    def _line(self, row: Sequence[str]) -> None:
        if not self._table.row_count:
            self._say(_aligned(HEADINGS))
            self._table.add_row()  # prints the heading
        self._say(_aligned(row))

    def add_training(self, times: StepTimes) -> None:
        self.__exit__()
        self._say(times.text())

    def end(self, command: str) -> None:
        self.__exit__()
        self._say(f"repeat with: {command}")


def _aligned(row: Sequence[str]) -> str:
    left = [f"{text:{width}}" for text, width in zip(row[:2], _WIDTHS, strict=False)]
    right = [f"{text:>{width}}" for text, width in zip(row[2:], _WIDTHS[2:], strict=True)]
    return " ".join([*left, *right]).rstrip()


class AsJson(Report):
    def __init__(self) -> None:
        self._document: dict[str, Any] = {"version": JSON_VERSION, "results": []}

    def begin(self, about: Mapping[str, Any], missing: Mapping[str, str]) -> None:
        self._document |= {"job": dict(about), "missing": dict(missing)}

    def add(self, measurements: Sequence[Measurement]) -> None:
        self._document["results"] += [as_json(each) for each in measurements]

    def add_training(self, times: StepTimes) -> None:
        self._document["training"] = times.as_json()

    def end(self, command: str) -> None:
        self._document["command"] = command
        json.dump(self._document, sys.stdout, indent=1)
        print(flush=True)


def as_json(measurement: Measurement) -> dict[str, Any]:
    """Return a measurement as a dict, with times in seconds and bandwidths in bytes per second."""
    work = measurement.workload
    values: dict[str, Any] = {
        "operation": work.operation,
        "workload": work.name,
        "dtype": work.dtype,
        "mode": work.mode,
        "tensors": len(work.shapes),
        "bytes": work.size_bytes,
        "peer": measurement.peer,
        "missing": measurement.missing,
    }
    if not measurement.missing:
        values |= {
            "seconds": list(measurement.seconds),
            "median_seconds": measurement.median,
            "algorithm_bandwidth": measurement.algorithm_bandwidth,
            "bus_bandwidth": measurement.bus_bandwidth,
            "core_latency_us": measurement.core_latencies,
        }
    return values
