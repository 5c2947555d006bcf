"""Reads timelines (docs/timeline.md), which are Chrome's JSON.

Knows the standard library alone. A file may be of a rank that was killed: what is whole of it
counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class TraceError(ValueError):
    """It is no timeline of tf_hvd's."""


@dataclass
class Span:
    name: str
    begin: int
    end: int
    values: dict[str, Any] = field(default_factory=dict)
    parts: list[Span] = field(default_factory=list)
    """What it holds."""


@dataclass
class Trace:
    rank: int = -1
    size: int = 0
    host: str = ""
    process: int = 0
    file: str = ""
    """The one in which it was found."""
    spans: dict[str, list[Span]] = field(default_factory=dict)
    """By the name of their track, in the order of their beginnings."""
    counters: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """Times and values, by name."""
    several: bool = False
    """Another process of this rank is in the file as well."""

    def describe(self, size: int, host: str, process: int) -> None:
        """Takes what a file says of itself; of a file that was continued, again."""
        self.several |= self.size > 0 and process != self.process
        self.size, self.host, self.process = size, host, process

    def continue_with(self, later: Trace) -> None:
        for name, spans in later.spans.items():
            self.spans.setdefault(name, []).extend(spans)
        for name, values in later.counters.items():
            self.counters.setdefault(name, []).extend(values)

    @property
    def dropped(self) -> int:
        """Events that found no room."""
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
    traces = _read_json(Path(path).read_bytes())
    found = [each for each in traces.values() if each.size]
    if not found:
        raise TraceError(f"{path} is not a timeline that tf_hvd has written")
    for trace in found:
        trace.file = str(path)
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


def _nested(spans: Sequence[Span]) -> list[Span]:
    """Of spans of one track those that no other holds; they have what they hold."""
    top: list[Span] = []
    open_: list[Span] = []
    for span in sorted(spans, key=lambda each: (each.begin, -each.end)):
        while open_ and (open_[-1].end <= span.begin or open_[-1].end < span.end):
            open_.pop()
        (open_[-1].parts if open_ else top).append(span)
        open_.append(span)
    return top


def _read_json(data: bytes) -> dict[int, Trace]:
    traces: dict[int, Trace] = {}
    names: dict[tuple[int, int], str] = {}
    spans: dict[tuple[int, int], list[Span]] = {}
    for event in _events(data.decode(errors="replace")):
        rank = event.get("pid")
        if not isinstance(rank, int):
            continue
        trace = traces.setdefault(rank, Trace(rank))
        track, kind, given = (rank, event.get("tid", 0)), event.get("ph"), event.get("args", {})
        if kind == "M" and event["name"] == "tf_hvd":
            trace.describe(given["size"], given["host"], given["process"])
        elif kind == "M" and event["name"] == "thread_name":
            names[track] = given["name"]
        elif kind == "X":
            begin = _ns(event["ts"])
            one = Span(event["name"], begin, begin + _ns(event["dur"]), given)
            spans.setdefault(track, []).append(one)
        elif kind == "C":
            value = next(iter(given.values()))
            trace.counters.setdefault(event["name"], []).append((_ns(event["ts"]), value))
    for track, its in spans.items():
        name = names.get(track, "")
        traces[track[0]].spans.setdefault(name, []).extend(_nested(its))
    return traces


def _ns(microseconds: str) -> int:
    """Exact: as text a number has all its digits."""
    whole, _, rest = microseconds.partition(".")
    return int(whole) * 1000 + int(rest.ljust(3, "0")[:3])


def _events(text: str) -> Iterator[dict[str, Any]]:
    """Each line has one; the last may be half a line, and the array is never closed."""
    for line in text.splitlines():
        line = line.strip().rstrip(",")
        if line in ("", "[", "]"):
            continue
        try:
            event = json.loads(line, parse_float=str)
        except ValueError:
            continue
        if isinstance(event, dict):
            yield event
