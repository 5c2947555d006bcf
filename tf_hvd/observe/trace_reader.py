"""Reading of timelines (docs/timeline.md), which are Chrome trace JSON, line by line.

This module imports only the standard library and tf_hvd/core. A file may be truncated because its
rank was killed, or may not be a timeline. Intact lines are used, and damaged lines are counted.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from tf_hvd.core import files
from tf_hvd.core.printable import printable

_LARGEST = 4 * 10**9
"""Maximum size of a file in bytes. Its contents need four times as much memory."""
_LONGEST = 1 << 16
"""Maximum length of a line in bytes. Names are truncated to far less."""
_FOREIGN = 1000
"""A file is not a timeline if it has this many more foreign lines than events."""
_RANKS = 1 << 20
_LARGEST_NUMBER = (1 << 63) - 1
_NUMBERS = {"set", "order", "bytes", "tensors", "operation", "calls", "last_rank"}
"""The names of span values that must be numbers."""
_OF_A_CALL = {"set", "bytes", "tensors"}
"""The names of values that a span with an order must have."""
_MICROSECONDS = re.compile(r"(-?)(\d{1,16})(?:\.(\d{1,9}))?")
_DAMAGE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""The exceptions that a damaged line can cause."""


class TraceError(ValueError):
    """The file is not a timeline that tf_hvd wrote."""


@dataclass(slots=True)
class Span:
    name: str
    begin: int
    end: int
    values: dict[str, Any] = field(default_factory=dict)
    parts: list[Span] = field(default_factory=list)


@dataclass
class Trace:
    rank: int = -1
    size: int = 0
    host: str = ""
    process: int = 0
    file: str = ""
    spans: dict[str, list[Span]] = field(default_factory=dict)
    """The spans by the name of their track, sorted by start time."""
    counters: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """The times and values of each counter, by name."""
    several: bool = False
    """Whether the file also contains another process with the same rank."""
    faults: list[str] = field(default_factory=list)
    """One sentence for each fault in the files."""

    def describe(self, size: int, host: str, process: int) -> None:
        """Store the values of the file's header line. A continued file has several header lines."""
        self.several |= self.size > 0 and process != self.process
        self.size, self.host, self.process = size, host, process

    def is_of_process(self, other: Trace) -> bool:
        """Return whether both traces come from the same process, and therefore from one rank."""
        return (self.host, self.process) == (other.host, other.process)

    def continue_with(self, later: Trace) -> None:
        self.faults += later.faults
        for name, spans in later.spans.items():
            self.spans.setdefault(name, []).extend(spans)
        for name, values in later.counters.items():
            self.counters.setdefault(name, []).extend(values)

    @property
    def dropped(self) -> int:
        return sum(value for _, value in self.counters.get("events dropped", [])[-1:])

    @property
    def clock_error(self) -> int | None:
        """Maximum error in the times, in nanoseconds; None if unknown."""
        error = self.counters.get("error of the clock", [(0, 0)])[-1][1]
        return None if error < 0 else error


def read(path: str | Path) -> list[Trace]:
    """Read the timelines in a file, one for each rank.

    Raises:
      TraceError: the file has no timeline, or several timelines from one rank.
      OSError: the file cannot be read.
    """
    reader = _Reader()
    with files.opened(path, _LARGEST) as file:
        size = os.fstat(file.fileno()).st_size
        for line in _lines(file, size):
            reader.take(line)
            if reader.foreign > _FOREIGN + reader.events:
                break
    found = [each for each in reader.traces() if each.size]
    if not found and reader.events:
        raise TraceError(
            f"{path} is not a timeline that tf_hvd wrote, or its beginning is missing: no line "
            "names its rank"
        )
    if not found or reader.foreign > _FOREIGN + reader.events:
        what = "is not a timeline that tf_hvd wrote" if size else "is empty"
        raise TraceError(f"{path} {what}")
    for trace in found:
        trace.file = str(path)
        trace.faults += [f"{path} {fault}" for fault in reader.faults()]
        if trace.several:
            raise TraceError(
                f"{path} contains several timelines for rank {trace.rank}, perhaps because the job "
                "was restarted: pass the timelines from a single run"
            )
        for spans in trace.spans.values():
            spans.sort(key=lambda each: (each.begin, -each.end))
        for values in trace.counters.values():
            values.sort()
    return sorted(found, key=lambda each: each.rank)


def _lines(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield the lines of the file's first `size` bytes. The last line may be truncated.

    Reading stops after a line that is too long, because the line may be a huge run of zeros.
    """
    while size > 0 and (line := file.readline(_LONGEST)):
        size -= len(line)
        yield line
        if not line.endswith(b"\n"):
            return


def _nested(spans: Sequence[Span]) -> list[Span]:
    """Nest the spans of one track; return the outermost spans and all calls, with their parts."""
    top: list[Span] = []
    open_: list[Span] = []
    for span in sorted(spans, key=lambda each: (each.begin, -each.end)):
        while open_ and (open_[-1].end <= span.begin or open_[-1].end < span.end):
            open_.pop()
        (open_[-1].parts if open_ and "order" not in span.values else top).append(span)
        open_.append(span)
    return top


class _Reader:
    """A parser for a file with one event per line. The file's JSON array is never closed."""

    def __init__(self) -> None:
        self.events = 0
        """The number of lines with events that tf_hvd could have written."""
        self.foreign = 0
        """The number of other lines."""
        self._damaged = 0
        self._cut = False
        self._decode = json.JSONDecoder(parse_float=str).decode
        self._traces: dict[int, Trace] = {}
        self._names: dict[tuple[int, int], str] = {}
        self._spans: dict[tuple[int, int], list[Span]] = {}

    def take(self, line: bytes) -> None:
        text = line.decode(errors="replace").strip().rstrip(",")
        if text in ("", "[", "]", "[]"):
            self.foreign += 1
            return
        try:
            self._take(self._decode(text))
        except _DAMAGE:
            self.foreign += 1
            # The last line may be truncated.
            whole = line.endswith(b"\n")
            self._damaged += whole
            self._cut |= not whole

    def traces(self) -> list[Trace]:
        for track, its in self._spans.items():
            trace = self._traces[track[0]]
            if track in self._names:
                trace.spans.setdefault(self._names[track], []).extend(_nested(its))
            else:  # the line that names the track was damaged
                self._damaged += len(its)
        return list(self._traces.values())

    def faults(self) -> list[str]:
        """Return the file's faults as predicates for sentences. Call this method after `traces`."""
        found = ["ends in the middle of a line: its rank was killed or is running."] * self._cut
        if self._damaged:
            lines = f"{self._damaged} damaged line{'s' * (self._damaged > 1)}"
            found.append(f"has {lines}, which were skipped.")
        return found

    def _take(self, event: dict[str, Any]) -> None:
        kind, given = event.get("ph"), event.get("args", {})
        if kind not in ("M", "X", "C", "i"):
            self.foreign += 1
            return
        rank, name = _number(event["pid"], 0, _RANKS - 1), event["name"]
        trace, track = self._traces.get(rank) or Trace(rank), (rank, _number(event.get("tid", 0)))
        if kind == "M" and name == "tf_hvd":
            size = _number(given["size"], rank + 1, _RANKS)
            trace.describe(size, printable(given["host"]), _number(given["process"]))
        elif kind == "M" and name == "thread_name":
            self._names[track] = printable(given["name"])
        elif kind == "X":
            begin, length = _ns(event["ts"]), _number(_ns(event["dur"]))
            for each in given.keys() & _NUMBERS:
                _number(given[each])
            if "order" in given and not given.keys() >= _OF_A_CALL:
                raise KeyError("order")
            # Every line repeats the same names; without interning they would take most memory.
            values = {sys.intern(each): value for each, value in given.items()}
            span = Span(sys.intern(printable(name)), begin, begin + length, values)
            self._spans.setdefault(track, []).append(span)
        elif kind == "C":
            (value,) = given.values()
            of_name = trace.counters.setdefault(name, [])
            of_name.append((_ns(event["ts"]), _number(value, -_LARGEST_NUMBER)))
        self._traces[rank] = trace
        self.events += 1


def _number(value: Any, least: int = 0, most: int = _LARGEST_NUMBER) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(value)
    return value


def _ns(microseconds: Any) -> int:
    """Convert a number of microseconds, given as text so that it is exact, to nanoseconds."""
    found = _MICROSECONDS.fullmatch(str(microseconds))
    if not found:
        raise ValueError(microseconds)
    sign, whole, rest = found.groups("")
    return int(f"{sign}{whole}{rest.ljust(3, '0')[:3]}")
