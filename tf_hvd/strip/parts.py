"""Serialization of large messages in parts. Serializing a whole message takes two more copies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from google.protobuf.message import EncodeError  # type: ignore[import-untyped]

from tf_hvd.strip.errors import StripError

TOO_DEEP = "its messages are nested too deeply for protobuf; save the graph again"
_BYTES = 2
_PART = 1 << 24


def serialized(message: Any) -> bytes:
    """Return a message's serialized bytes. Equal messages have equal bytes.

    Raises:
      StripError: the message's parts are nested more deeply than protobuf can write.
    """
    try:
        result: bytes = message.SerializeToString(deterministic=True)
    except EncodeError:
        raise StripError(TOO_DEEP) from None
    return result


def _head(number: int, size: int) -> bytes:
    """Return the header of a message of `size` bytes in the field `number`, which is below 16."""
    result = bytearray([number << 3 | _BYTES])
    while size > 0x7F:
        result.append(size & 0x7F | 0x80)
        size >>= 7
    result.append(size)
    return bytes(result)


def repeated(number: int, messages: Iterable[Any]) -> list[bytes]:
    """Return messages serialized as the repeated field `number`, in parts of about 16 MiB."""
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
    """Serialize a message as the field `number`. The message and the result are in parts."""
    return [_head(number, sum(map(len, parts))), *parts]
