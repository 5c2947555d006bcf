"""Reads timelines (docs/timeline.md), which are Chrome's JSON, line by line.

Knows the standard library and tf_hvd/core alone. A file may be of a rank that was killed, or be no
timeline at all: what is whole of it counts, and of the rest it is told how much there is.
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
"""Bytes of a file. What they hold takes four times as much memory."""
_LONGEST = 1 << 16
"""Bytes of a line: names are cut long before."""
_FOREIGN = 1000
"""Lines without an event of ours, in a file that has not as many with one: it is none of ours."""
_RANKS = 1 << 20
_LARGEST_NUMBER = (1 << 63) - 1
_NUMBERS = {"set", "order", "bytes", "tensors", "operation", "calls", "last_rank"}
"""What is calculated with, of a span's values."""
_OF_A_CALL = {"set", "bytes", "tensors"}
"""What a span has beside an order."""
_MICROSECONDS = re.compile(r"(-?)(\d{1,16})(?:\.(\d{1,9}))?")
_DAMAGE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What a damaged line leads to, where it is read or where it is taken."""


class TraceError(ValueError):
    """It is no timeline of tf_hvd's."""


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
    """By the name of their track, in the order of their beginnings."""
    counters: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """Times and values, by name."""
    several: bool = False
    """Another process of this rank is in the file as well."""
    faults: list[str] = field(default_factory=list)
    """What is wrong with the files, a sentence each."""

    def describe(self, size: int, host: str, process: int) -> None:
        """Takes what a file says of itself; of a file that was continued, again."""
        self.several |= self.size > 0 and process != self.process
        self.size, self.host, self.process = size, host, process

    def is_of_process(self, other: Trace) -> bool:
        """Whether both are of one process, which is a rank of one job."""
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
        """By how much times may be off, nanoseconds; None if nobody knows."""
        error = self.counters.get("error of the clock", [(0, 0)])[-1][1]
        return None if error < 0 else error


def read(path: str | Path) -> list[Trace]:
    """The timelines in a file: one for each rank.

    Raises:
      TraceError: there is none in it, or there are several of a rank.
      OSError: it cannot be read.
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
            f"{path} is not a timeline that tf_hvd has written, or was cut at its beginning: no "
            "line of it says which rank it is of"
        )
    if not found or reader.foreign > _FOREIGN + reader.events:
        what = "is not a timeline that tf_hvd has written" if size else "is empty"
        raise TraceError(f"{path} {what}")
    for trace in found:
        trace.file = str(path)
        trace.faults += [f"{path} {fault}" for fault in reader.faults()]
        if trace.several:
            raise TraceError(
                f"{path} has several timelines of rank {trace.rank}, as of a job that started "
                "again: read those of each start by themselves"
            )
        for spans in trace.spans.values():
            spans.sort(key=lambda each: (each.begin, -each.end))
        for values in trace.counters.values():
            values.sort()
    return sorted(found, key=lambda each: each.rank)


def _lines(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Of what the file has now. The last line has perhaps no end, or is too long to be looked at.

    What comes behind a line that is too long is not read: of a hole of zeros that may be much.
    """
    while size > 0 and (line := file.readline(_LONGEST)):
        size -= len(line)
        yield line
        if not line.endswith(b"\n"):
            return


def _nested(spans: Sequence[Span]) -> list[Span]:
    """Of spans of one track those that no other holds, and all calls; they have what they hold."""
    top: list[Span] = []
    open_: list[Span] = []
    for span in sorted(spans, key=lambda each: (each.begin, -each.end)):
        while open_ and (open_[-1].end <= span.begin or open_[-1].end < span.end):
            open_.pop()
        (open_[-1].parts if open_ and "order" not in span.values else top).append(span)
        open_.append(span)
    return top


class _Reader:
    """Takes the lines of a file, one event each; the array that they are in is never closed."""

    def __init__(self) -> None:
        self.events = 0
        """Lines with an event such as ours."""
        self.foreign = 0
        """Lines with another, or with none."""
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
            # The last one may be half a line.
            whole = line.endswith(b"\n")
            self._damaged += whole
            self._cut |= not whole

    def traces(self) -> list[Trace]:
        for track, its in self._spans.items():
            trace = self._traces[track[0]]
            if track in self._names:
                trace.spans.setdefault(self._names[track], []).extend(_nested(its))
            else:  # the line that names it was damaged
                self._damaged += len(its)
        return list(self._traces.values())

    def faults(self) -> list[str]:
        """What is wrong with the file; call it after `traces`."""
        found = ["ends in the middle of a line: its rank was killed, or still runs."] * self._cut
        if self._damaged:
            lines = f"{self._damaged} line{'s' * (self._damaged > 1)}"
            found.append(f"has {lines} that cannot be read.")
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
            # Each line has the same names anew, which would take most of the memory.
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
    """Exact: as text a number has all its digits."""
    found = _MICROSECONDS.fullmatch(str(microseconds))
    if not found:
        raise ValueError(microseconds)
    sign, whole, rest = found.groups("")
    return int(f"{sign}{whole}{rest.ljust(3, '0')[:3]}")
