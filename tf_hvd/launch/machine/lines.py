"""Reads the pipes into which processes print, and cuts their output into lines.

For a rank's keeper (rank_output.py), `tf_hvd run` (terminal.py) and `tf_hvd.run` (job_output.py).
Keepers are run as files by an isolated Python: it knows the standard library alone.
"""

from __future__ import annotations

import codecs
import errno
import os
import re
import select
import selectors
import time
from collections.abc import Callable, Mapping

# A line that a keeper has marked, as --tag-output does.
LABEL = re.compile(r"\[1,(\d+)\]<(?:stdout|stderr)>: ")
PIECE = 1 << 16
"""Bytes that are read at once; a line that is longer is handed on before it ends."""
# In a pipe, which holds 1 MiB at most: who prints on and on must not keep a job from its end.
_MOST_PIECES = 16
# In seconds: a line that takes longer to end is shown as far as it is.
UNFINISHED = 0.1
_NAMED = 4  # in a line about lost output
_LINE_END = re.compile("([\r\n])")


STANDARD = {1: "standard output", 2: "standard error"}
"""The names of these descriptors, for users."""

UTF_8 = codecs.getincrementaldecoder("utf-8")
"""Makes a decoder of pieces, of which an empty one is the end."""


class LineStream:
    """Cuts text into lines. Each comes with its end, a carriage return or a newline.

    Memory is bounded and time is linear: a line that is too long comes in parts, and only the last
    of them has an end.

    Args:
        errors: how bytes that are not UTF-8 are decoded.
        longest: characters of an unfinished line that are kept.
    """

    def __init__(self, errors: str = "replace", longest: int = PIECE) -> None:
        self._decoder = UTF_8(errors)
        self._longest = longest
        self._parts: list[str] = []
        self._length = 0
        self._since: float | None = None  # the unfinished line has new text

    def feed(self, piece: bytes, now: float = 0.0) -> list[tuple[str, str]]:
        """Returns the lines that a piece completes; an empty piece completes the last line."""
        lines = self.add(self._decoder.decode(piece, final=not piece), now)
        return [*lines, (self.take(), "\n")] if not piece and self._length else lines

    def add(self, text: str, now: float = 0.0) -> list[tuple[str, str]]:
        """Returns the lines that a text completes."""
        *whole, rest = _LINE_END.split(text)
        lines = []
        for line, end in zip(whole[::2], whole[1::2], strict=True):
            self._parts.append(line)
            lines.append((self.take(), end))
        if rest:
            self._parts.append(rest)
            self._length += len(rest)
            self._since = now if self._since is None else self._since
        if self._length >= self._longest:
            lines.append((self.take(), ""))
        return lines

    def waits(self) -> bool:
        """Whether the unfinished line has text that was not returned yet."""
        return self._since is not None

    def is_late(self, now: float) -> bool:
        """Whether that text has waited long enough to be shown."""
        return self._since is not None and now >= self._since + UNFINISHED

    def so_far(self) -> str:
        """Returns the unfinished line, and keeps it until it ends."""
        self._since = None
        return "".join(self._parts)

    def take(self) -> str:
        """Returns the unfinished line; the text that follows begins another one."""
        line = self.so_far()
        self._parts, self._length = [], 0
        return line


class Reader:
    """Reads pipes. For one thread, except `pipe` and `stop`.

    Args:
        ticks: functions that are called with the time, after each read and every 0.1 s while one of
            them returns True.
    """

    def __init__(self, *ticks: Callable[[float], bool]) -> None:
        self._ticks = list(ticks)
        self._waits = False
        # Another thread may add a pipe while this one waits.
        self._pipes = selectors.EpollSelector()
        self._told, self._over = os.pipe()
        os.set_blocking(self._told, False)
        self._pipes.register(self._told, selectors.EVENT_READ, lambda _: False)

    @property
    def files(self) -> set[int]:
        read = (key.fd for key in self._pipes.get_map().values())
        return {self._pipes.fileno(), self._over, *read}

    def pipe(
        self, take: Callable[[bytes], bool], tick: Callable[[float], bool] | None = None
    ) -> int:
        """Makes a pipe and reads from it. Returns its other end, which the caller closes.

        Args:
            take: gets the output in pieces, and an empty one at the end; returns False to stop.
            tick: another one of `ticks`.
        """
        read_end, write_end = os.pipe()
        os.set_blocking(read_end, False)
        self._ticks += [tick] if tick else []
        self._pipes.register(read_end, selectors.EVENT_READ, take)
        return write_end

    def serve(self, to_the_end: bool = False) -> None:
        """Reads until `stop`, or until all pipes have ended."""
        while self._told in (pipes := self._pipes.get_map()):
            if to_the_end and len(pipes) == 1:
                break
            self.read()
        self.finish()

    def read(self, seconds: float | None = None) -> None:
        """Reads once. Waits for output, at most that long."""
        if self._waits:
            seconds = UNFINISHED if seconds is None else min(seconds, UNFINISHED)
        for key, _ in self._pipes.select(seconds):
            self._read(key)
        now = time.monotonic()
        waits = [tick(now) for tick in self._ticks]
        self._waits = any(waits)

    def stop(self) -> None:
        """Makes `serve` return. To be called once."""
        os.close(self._over)

    def finish(self) -> None:
        """Reads what was written up to now, and closes the pipes."""
        for key in list(self._pipes.get_map().values()):
            for _ in range(_MOST_PIECES):
                if not self._read(key):
                    break
            if self._pipes.get_map().get(key.fd) is key:
                key.data(b"")
                self._close(key)

    def _read(self, key: selectors.SelectorKey) -> bool:
        """Reads a piece; False if there is none, or no more is wanted."""
        try:
            piece = os.read(key.fd, PIECE)
        except BlockingIOError:
            return False
        goes_on = key.data(piece) and bool(piece)
        if not goes_on:
            self._close(key)
        return goes_on

    def _close(self, key: selectors.SelectorKey) -> None:
        self._pipes.unregister(key.fd)
        os.close(key.fd)


class Writer:
    """Writes output, and keeps in mind what could not be written. Any thread.

    A full disk, or a reader that is gone, must not end a rank; the user is told at the job's end.
    """

    def __init__(self) -> None:
        self.lost: dict[str, int] = {}
        """The number of the first error, by the name of what could not be written to."""

    def write(self, to: int, data: bytes) -> None:
        """Writes all of it to a descriptor, if that takes it."""
        try:
            write_all(to, data)
        except OSError as error:
            self.lost.setdefault(_name(to), error.errno or 0)


def write_all(to: int, data: bytes) -> None:
    """Writes to a descriptor until all is written.

    Raises:
        OSError: it takes no more.
    """
    while data:
        try:
            data = data[os.write(to, data) :]
        except BlockingIOError:  # another process that shares it wants not to wait
            select.select([], [to], [])


def is_closed(lost: Mapping[str, int]) -> bool:
    """Whether the reader of a standard file is gone, as `head` is when it has seen enough."""
    return any(lost.get(name) == errno.EPIPE for name in STANDARD.values())


def lost_text(lost: Mapping[str, int]) -> str:
    """The line about output that could not be written, as `Writer` has it: of many files a few."""
    named = [f"{name}: {os.strerror(why)}" for name, why in list(lost.items())[:_NAMED]]
    more = [f"{len(lost) - _NAMED} more files"] if len(lost) > _NAMED else []
    return f"tf_hvd run: output was lost: {'; '.join([*named, *more])}"


def _name(to: int) -> str:
    """What a descriptor is called: a file by its path."""
    if to in STANDARD:
        return STANDARD[to]
    try:
        return os.readlink(f"/proc/self/fd/{to}")
    except OSError:
        return f"file descriptor {to}"
