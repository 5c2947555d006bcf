"""Messages between the processes of a job: one frame each, over a socket or a pipe.

A frame is the length of a text, the text (JSON, an object with `do`, and with `bytes`, the length
of the load), the load, and a newline: srun hands on whole lines. Over a socket files may go along.

The standard library alone, and none of this package: an isolated Python that runs a file imports
it.
"""

from __future__ import annotations

import array
import json
import os
import socket
import struct
from collections.abc import Sequence
from typing import Any, Protocol

_LENGTH = struct.Struct("<I")
_END = b"\n"
_LONGEST = 1 << 20  # bytes of the text
_FILES = 4  # that go along with a message, at most
_CREDENTIALS = struct.Struct("3i")
_HEARD = 5.0  # seconds until nobody waits any more for what it has told to be heard

DAMAGE = (
    *(ArithmeticError, LookupError, MemoryError, RecursionError, TypeError, ValueError),
    struct.error,
)
"""What a damaged message leads to, where it is read or where it is obeyed."""


class Source(Protocol):
    """What messages are read from."""

    def read(self, size: int, /) -> bytes: ...


class Stream(Source, Protocol):
    """What they are written to as well."""

    def write(self, data: bytes | memoryview, /) -> int: ...

    def flush(self) -> None: ...


class ProtocolError(ValueError):
    """What was received is no message."""


def _frame(message: dict[str, Any], load: bytes | memoryview) -> bytes:
    text = json.dumps({**message, "bytes": len(load)}).encode()
    return _LENGTH.pack(len(text)) + text


def send(file: Stream, message: dict[str, Any], load: bytes | memoryview = b"") -> None:
    file.write(_frame(message, load))
    file.write(load)
    file.write(_END)
    file.flush()


def receive(file: Source) -> tuple[dict[str, Any], bytes]:
    """Reads one.

    Raises:
        EOFError: there are no more.
        ProtocolError: it is none.
    """
    length = _LENGTH.unpack(_exactly(file, _LENGTH.size))[0]
    if length > _LONGEST:
        raise ProtocolError(f"a message of {length} bytes")
    try:
        message = json.loads(_exactly(file, length))
        size = int(message["bytes"])
        load = _exactly(file, size) if size > 0 else b""
    except DAMAGE as error:
        raise ProtocolError("no message") from error
    if _exactly(file, len(_END)) != _END:
        raise ProtocolError("a message without an end")
    return message, load


def _exactly(file: Source, size: int) -> bytes:
    data = file.read(size)
    if len(data) < size:
        raise EOFError
    return data


class Link:
    """One side of a connection between two processes of a machine. One thread at a time."""

    def __init__(self, link: socket.socket) -> None:
        self.socket = link
        self.files: list[int] = []
        """Descriptors that came with messages, in their order; whoever takes one removes it."""
        self._rest = bytearray()

    def fileno(self) -> int:
        """For `select`."""
        return self.socket.fileno()

    def send(
        self, message: dict[str, Any], load: bytes | memoryview = b"", files: Sequence[int] = ()
    ) -> None:
        """Sends a message; `files` are descriptors, which stay the caller's."""
        start = memoryview(_frame(message, load))
        if files:
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))
            start = start[self.socket.sendmsg([start], [rights]) :]
        for piece in (start, load, _END):
            self.socket.sendall(piece)

    def receive(self) -> tuple[dict[str, Any], bytes]:
        return receive(self)

    def read(self, size: int, /) -> bytes:
        """Reads so many bytes, or what there is until the end."""
        while len(self._rest) < size:
            wanted = max(size - len(self._rest), 1 << 12)
            data, rights, _, _ = self.socket.recvmsg(
                min(wanted, 1 << 20),
                socket.CMSG_SPACE(_FILES * array.array("i").itemsize),
                socket.MSG_CMSG_CLOEXEC,
            )
            for _, _, numbers in rights:
                files = array.array("i")
                files.frombytes(numbers[: len(numbers) - len(numbers) % files.itemsize])
                self.files += files
            if not data:
                break
            self._rest += data
        data = bytes(self._rest[:size])
        del self._rest[:size]
        return data

    def has_rest(self) -> bool:
        """Whether a message has come, or a part of one, that was not taken yet."""
        return bool(self._rest)

    def close(self) -> None:
        self.socket.close()
        while self.files:
            os.close(self.files.pop())


def address(job: str) -> str:
    """The abstract name of the socket at which a job's agent hears its machine's ranks."""
    return f"\0tf_hvd/{job}"


def connect(job: str) -> Link:
    """A connection to the agent of this machine.

    Raises:
        OSError: there is none, or it is another user's.
    """
    link = socket.socket(socket.AF_UNIX)
    try:
        link.connect(address(job))
        if not is_ours(link):
            raise PermissionError("the agent is another user's process")
    except OSError:
        link.close()
        raise
    return Link(link)


def is_ours(link: socket.socket) -> bool:
    """Whether the process on the other side is this user's."""
    return peer(link)[1] == os.geteuid()


def peer(link: socket.socket) -> tuple[int, int]:
    """The process on the other side, and its user, as the kernel has them."""
    told = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, _ = _CREDENTIALS.unpack(told)
    return process, user


def tell(job: str, message: dict[str, Any], load: bytes = b"") -> None:
    """Tells the agent of this machine something; returns when it has heard that.

    Nothing happens where there is none, as on other machines and under another launcher.
    """
    try:
        link = connect(job)
    except OSError:
        return
    link.socket.settimeout(_HEARD)
    try:
        link.send(message, load)
        link.socket.shutdown(socket.SHUT_WR)
        link.socket.recv(1)  # its end: the agent closes what it has heard to the end
    except OSError:
        pass
    finally:
        link.close()
