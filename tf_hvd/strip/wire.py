"""Serialized protocol buffers, as far as it takes to change a part and keep the rest as bytes.

A graph of gigabytes is mostly constants. They are never parsed as a whole nor serialized again:
what does not change is a range of the file that was read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tf_hvd.strip.errors import DamagedError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_FIXED_BYTES = {FIXED64: 8, FIXED32: 4}


class Field(NamedTuple):
    """One field of a message: its tag is at `begin`, its value from `value` to `end`."""

    number: int
    kind: int
    begin: int
    value: int
    end: int


def read_varint(data: bytes | bytearray, at: int, end: int) -> tuple[int, int]:
    """The number at `at`, and where it ends."""
    result = shift = 0
    while at < end:
        byte = data[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, at
        shift += 7
        if shift > 63:
            break
    raise DamagedError("a number does not end")


def fields(data: bytes | bytearray, begin: int, end: int) -> Iterator[Field]:
    """The fields of the message between `begin` and `end`, in order.

    Raises:
      DamagedError: the bytes are not a message.
    """
    at = begin
    while at < end:
        tag, value = read_varint(data, at, end)
        kind = tag & 7
        if kind == BYTES:
            size, value = read_varint(data, value, end)
            after = value + size
        elif kind == VARINT:
            _, after = read_varint(data, value, end)
        elif kind in _FIXED_BYTES:
            after = value + _FIXED_BYTES[kind]
        else:
            raise DamagedError(f"there is no wire type {kind}")
        if after > end or tag < 8:
            raise DamagedError("a field is longer than what holds it")
        yield Field(tag >> 3, kind, at, value, after)
        at = after


def varint(number: int) -> bytes:
    """A number as it is written."""
    result = bytearray()
    while number > 0x7F:
        result.append(number & 0x7F | 0x80)
        number >>= 7
    result.append(number)
    return bytes(result)


class Pieces:
    """A message to be written: bytes of its own, and ranges of the data that was read."""

    def __init__(self, source: bytes | bytearray) -> None:
        self._source = source
        self._parts: list[bytes | tuple[int, int]] = []
        self.size = 0

    def keep(self, begin: int, end: int) -> None:
        """Adds a range of the source; neighbours become one."""
        self.size += end - begin
        if self._parts:
            last = self._parts[-1]
            if isinstance(last, tuple) and last[1] == begin:
                self._parts[-1] = (last[0], end)
                return
        self._parts.append((begin, end))

    def add(self, number: int, message: bytes) -> None:
        """Adds a field with a serialized message."""
        head = varint(number << 3 | BYTES) + varint(len(message))
        self._parts.append(head + message)
        self.size += len(head) + len(message)

    def add_pieces(self, number: int, message: Pieces) -> None:
        """Adds a field with a message that is in pieces of the same source."""
        head = varint(number << 3 | BYTES) + varint(message.size)
        self._parts.append(head)
        self._parts.extend(message._parts)
        self.size += len(head) + message.size

    def chunks(self, limit: int = 1 << 24) -> Iterator[bytes]:
        """The message in order, in parts of about `limit` bytes."""
        waiting: list[bytes] = []
        size = 0
        view = memoryview(self._source)
        for part in self._parts:
            begin, end = part if isinstance(part, tuple) else (0, len(part))
            data = view if isinstance(part, tuple) else memoryview(part)
            while begin < end:
                taken = min(end, begin + limit - size)
                waiting.append(bytes(data[begin:taken]))
                size += taken - begin
                begin = taken
                if size == limit:
                    yield b"".join(waiting)
                    waiting, size = [], 0
        yield b"".join(waiting)

    def to_bytes(self) -> bytes:
        """The whole message."""
        return b"".join(self.chunks())
