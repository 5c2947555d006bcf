"""Messages between the processes of a job, over a socket or a pipe.

Each message is one frame: the length of a text, the text, a payload and a newline. The newline is
needed because srun forwards only whole lines. The text is a JSON object with the keys `do` and
`bytes`. The value of `bytes` is the length of the payload. A message over a socket can carry open
files.

This module uses only the standard library and nothing else from this package. An isolated Python
imports this module when it runs parts of the launcher as files.
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
_LONGEST = 1 << 20  # maximum size of the text in bytes
_FILES = 4  # maximum number of files in one message
_CREDENTIALS = struct.Struct("3i")
_HEARD = 5.0  # seconds that `tell` waits for the agent to read its message

DAMAGE = (
    *(ArithmeticError, LookupError, MemoryError, RecursionError, TypeError, ValueError),
    struct.error,
)
"""The exceptions that a damaged message causes when it is read or processed."""


class Source(Protocol):
    """A stream from which messages are read."""

    def read(self, size: int, /) -> bytes: ...


class Stream(Source, Protocol):
    """A stream from which messages are read and to which they are written."""

    def write(self, data: bytes | memoryview, /) -> int: ...

    def flush(self) -> None: ...


class ProtocolError(ValueError):
    """The received data is not a message."""


def _frame(message: dict[str, Any], load: bytes | memoryview) -> bytes:
    text = json.dumps({**message, "bytes": len(load)}).encode()
    return _LENGTH.pack(len(text)) + text


def send(file: Stream, message: dict[str, Any], load: bytes | memoryview = b"") -> None:
    file.write(_frame(message, load))
    file.write(load)
    file.write(_END)
    file.flush()


def receive(file: Source) -> tuple[dict[str, Any], bytes]:
    """Read one message and return it.

    Raises:
        EOFError: the stream has ended.
        ProtocolError: the data is not a message.
    """
    length = _LENGTH.unpack(_exactly(file, _LENGTH.size))[0]
    if length > _LONGEST:
        raise ProtocolError(f"the message has an invalid length of {length} bytes")
    try:
        message = json.loads(_exactly(file, length))
        size = int(message["bytes"])
        load = _exactly(file, size) if size > 0 else b""
    except DAMAGE as error:
        raise ProtocolError("the data is not a message") from error
    if _exactly(file, len(_END)) != _END:
        raise ProtocolError("the message does not end in a newline")
    return message, load


def _exactly(file: Source, size: int) -> bytes:
    data = file.read(size)
    if len(data) < size:
        raise EOFError
    return data


class Link:
    """One end of a connection between two processes on a machine.

    Only one thread at a time may use it.
    """

    def __init__(self, link: socket.socket) -> None:
        self.socket = link
        self.files: list[int] = []
        """The received descriptors, in order; callers remove those that they use."""
        self._rest = bytearray()

    def fileno(self) -> int:
        """Return the socket's descriptor, for `select`."""
        return self.socket.fileno()

    def send(
        self, message: dict[str, Any], load: bytes | memoryview = b"", files: Sequence[int] = ()
    ) -> None:
        """Send a message with open files; the caller must close their descriptors, `files`."""
        start = memoryview(_frame(message, load))
        if files:
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))
            start = start[self.socket.sendmsg([start], [rights]) :]
        for piece in (start, load, _END):
            self.socket.sendall(piece)

    def receive(self) -> tuple[dict[str, Any], bytes]:
        return receive(self)

    def read(self, size: int, /) -> bytes:
        """Read `size` bytes, or fewer if the stream ends."""
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
        """Return whether received data has not been read yet: a message or a part of a message."""
        return bool(self._rest)

    def close(self) -> None:
        self.socket.close()
        while self.files:
            os.close(self.files.pop())


def address(job: str) -> str:
    """Return the name of the abstract socket on which a job's agent listens for its ranks."""
    return f"\0tf_hvd/{job}"


def connect(job: str) -> Link:
    """Connect to the agent on this machine.

    Raises:
        OSError: this machine has no agent, or the socket belongs to another user.
    """
    link = socket.socket(socket.AF_UNIX)
    try:
        link.connect(address(job))
        if not is_ours(link):
            raise PermissionError("the agent's socket belongs to another user")
    except OSError:
        link.close()
        raise
    return Link(link)


def is_ours(link: socket.socket) -> bool:
    """Return whether this user owns the process at the other end."""
    return peer(link)[1] == os.geteuid()


def peer(link: socket.socket) -> tuple[int, int]:
    """Return the process id and user id of the other end, as reported by the kernel."""
    told = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, _ = _CREDENTIALS.unpack(told)
    return process, user


def tell(job: str, message: dict[str, Any], load: bytes = b"") -> None:
    """Send a message to the agent on this machine, and return when the agent has read it.

    Does nothing if the machine has no agent, for example under another launcher.
    """
    try:
        link = connect(job)
    except OSError:
        return
    link.socket.settimeout(_HEARD)
    try:
        link.send(message, load)
        link.socket.shutdown(socket.SHUT_WR)
        link.socket.recv(1)  # until the agent, which has read it all, closes the connection
    except OSError:
        pass
    finally:
        link.close()
