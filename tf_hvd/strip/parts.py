"""Large messages serialized in parts: as a whole, protobuf would hold each of them twice more."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from google.protobuf.message import EncodeError  # type: ignore[import-untyped]

from tf_hvd.strip.errors import StripError

TOO_DEEP = "its messages are nested too deeply for protobuf; save the graph again"
_BYTES = 2
_PART = 1 << 24


def serialized(message: Any) -> bytes:
    """The bytes of a message, the same for equal messages.

    Raises:
      StripError: it holds messages in messages beyond what protobuf writes.
    """
    try:
        result: bytes = message.SerializeToString(deterministic=True)
    except EncodeError:
        raise StripError(TOO_DEEP) from None
    return result


def _head(number: int, size: int) -> bytes:
    """What is written before a message of `size` bytes in the field `number`, below 16."""
    result = bytearray([number << 3 | _BYTES])
    while size > 0x7F:
        result.append(size & 0x7F | 0x80)
        size >>= 7
    result.append(size)
    return bytes(result)


def repeated(number: int, messages: Iterable[Any]) -> list[bytes]:
    """Messages as the repeated field `number`, in parts of some 16 MiB."""
    parts: list[bytes] = []
    waiting: list[bytes] = []
    size = 0
    for message in messages:
        text = serialized(message)
        waiting += [_head(number, len(text)), text]
        size += len(text)
        if size >= _PART:
            parts.append(b"".join(waiting))
            waiting, size = [], 0
    return [*parts, b"".join(waiting)]


def nested(number: int, parts: list[bytes]) -> list[bytes]:
    """A message that is in parts, as the field `number`."""
    return [_head(number, sum(map(len, parts))), *parts]
