"""Reads timelines (docs/timeline.md): Chrome's JSON, or Perfetto's packets.

Knows the standard library alone. A file may be of a rank that was killed: what is whole of it
counts.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4  # TrackEvent.Type
_RANK = re.compile(r"rank (\d+) of (\d+), (.*), process (\d+)")


class TraceError(ValueError):
    """It is no timeline of tf_hvd's."""


@dataclass
class Span:
    """Something that lasted. Times are nanoseconds of rank 0's clock."""

    name: str
    begin: int
    end: int
    values: dict[str, Any] = field(default_factory=dict)
    parts: list[Span] = field(default_factory=list)
    """What it holds."""


@dataclass
class Trace:
    """What one rank's timeline has."""

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
        """Adds what the same rank's next file has."""
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
    data = Path(path).read_bytes()
    text = data[:64].lstrip()
    traces = _read_json(data) if text[:1] in (b"[", b"{") else _read_packets(data)
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
    _add(traces, names, spans)
    return traces


def _add(
    traces: dict[int, Trace],
    names: dict[tuple[int, int], str],
    spans: dict[tuple[int, int], list[Span]],
) -> None:
    for track, its in spans.items():
        name = names.get(track, "")
        traces[track[0]].spans.setdefault(name, []).extend(_nested(its))


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


def _fields(data: memoryview) -> Iterator[tuple[int, Any]]:
    """Numbers and values of a message's fields; ends where it is not whole."""
    at = 0
    while at < len(data):
        try:
            key, at = _varint(data, at)
            kind = key & 7
            if kind == 0:
                value, at = _varint(data, at)
                yield key >> 3, value
            elif kind == 1:
                yield key >> 3, struct.unpack_from("<Q", data, at)[0]
                at += 8
            elif kind == 2:
                length, at = _varint(data, at)
                if at + length > len(data):
                    return
                yield key >> 3, data[at : at + length]
                at += length
            elif kind == 5:
                yield key >> 3, struct.unpack_from("<I", data, at)[0]
                at += 4
            else:
                return
        except (IndexError, struct.error):
            return


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _text(data: memoryview) -> str:
    return bytes(data).decode(errors="replace")


def _first(data: memoryview, *wanted: int) -> list[Any]:
    """The last value of each of some fields of a message, or None."""
    found = dict.fromkeys(wanted)
    for number, value in _fields(data):
        if number in found:
            found[number] = value
    return [found[number] for number in wanted]


class _Packets:
    """Puts packets together; the numbers of fields are those of Perfetto's protos."""

    def __init__(self) -> None:
        self.traces: dict[int, Trace] = {}
        self.names: dict[tuple[int, int], str] = {}
        self.spans: dict[tuple[int, int], list[Span]] = {}
        self._open: dict[int, list[Span]] = {}  # by track
        self._interned: dict[tuple[int, int], dict[int, str]] = {}  # by sequence and kind

    def add(self, packet: memoryview) -> None:
        """Takes the next one."""
        time, sequence, event, interned, flags, track = _first(packet, 8, 10, 11, 12, 13, 60)
        if sequence is None:
            return
        if (flags or 0) & 1:
            self._interned = {k: v for k, v in self._interned.items() if k[0] != sequence}
            self._open = {k: v for k, v in self._open.items() if k >> 32 != sequence}
        if track is not None:
            self._describe(track)
        for kind, entry in _fields(interned) if interned is not None else ():
            number, name = _first(entry, 1, 2)
            self._interned.setdefault((sequence, kind), {})[number] = _text(name)
        if event is not None and time is not None:
            self._event(time, sequence, event)

    def _describe(self, track: memoryview) -> None:
        number, name, process = _first(track, 1, 2, 3)
        rank = (number >> 32) - 1
        trace = self.traces.setdefault(rank, Trace(rank))
        if process is not None:
            (title,) = _first(process, 6)
            found = _RANK.fullmatch(_text(title))
            if found:
                trace.describe(int(found[2]), found[3], int(found[4]))
        elif name is not None:
            self.names[rank, number & 0xFFFFFFFF] = _text(name)

    def _event(self, time: int, sequence: int, event: memoryview) -> None:
        kind, numbered, track, text, count = _first(event, 9, 10, 11, 23, 30)
        track = track or 0
        values = dict(
            self._value(sequence, value) for number, value in _fields(event) if number == 4
        )
        name = self._interned.get((sequence, 2), {}).get(numbered, "")
        if text is not None:
            name = _text(text)
        place = ((track >> 32) - 1, track & 0xFFFFFFFF)
        if kind == _BEGIN:
            self._open.setdefault(track, []).append(Span(name, time, time, values))
        elif kind == _END and self._open.get(track):
            one = self._open[track].pop()
            one.end = time
            self.spans.setdefault(place, []).append(one)
        elif kind == _COUNTER and place[0] in self.traces:
            title = self.names.get(place, "")
            counted = self.traces[place[0]].counters.setdefault(title, [])
            counted.append((time, _signed(count or 0)))

    def _value(self, sequence: int, value: memoryview) -> tuple[str, Any]:
        key, whole, text = _first(value, 1, 4, 6)
        name = self._interned.get((sequence, 3), {}).get(key, "")
        return name, _signed(whole or 0) if text is None else _text(text)


def _signed(number: int) -> int:
    """Of 64 bits."""
    return number - (1 << 64) if number >> 63 else number


def _read_packets(data: bytes) -> dict[int, Trace]:
    packets = _Packets()
    for number, packet in _fields(memoryview(data)):
        if number == 1 and isinstance(packet, memoryview):
            packets.add(packet)
    spans = {k: v for k, v in packets.spans.items() if k[0] in packets.traces}
    _add(packets.traces, packets.names, spans)
    return packets.traces
