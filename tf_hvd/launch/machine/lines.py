"""Read the pipes that processes print to, and split the output into lines.

A rank's keeper (rank_output.py), `tf_hvd run` (terminal.py) and `tf_hvd.run` (job_output.py) use
this module. It imports only the standard library, because an isolated Python runs keepers as files.
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

# The label of a line that a keeper has marked, in the form of --tag-output.
LABEL = re.compile(r"\[1,(\d+)\]<(?:stdout|stderr)>: ")
PIECE = 1 << 16
"""Maximum bytes per read. A longer line is passed on before it ends."""
# Pieces read from a pipe at the end; a pipe holds at most 1 MiB. A process that never stops
# printing must not delay the end of a job.
_MOST_PIECES = 16
# Seconds after which an unfinished line is shown.
UNFINISHED = 0.1
_NAMED = 4  # maximum number of files in a line about lost output
_LINE_END = re.compile("([\r\n])")


STANDARD = {1: "standard output", 2: "standard error"}
"""User-visible names of these descriptors."""

UTF_8 = codecs.getincrementaldecoder("utf-8")
"""Creates an incremental decoder."""


class LineStream:
    """Splits text into lines, each with its end: a carriage return or a newline.

    Memory use is bounded, and processing time is linear. A line that is too long is
    returned in parts; only the last part has an end.

    Args:
        errors: the decoder's error handler for bytes that are not UTF-8.
        longest: maximum number of characters to keep from an unfinished line.
    """

    def __init__(self, errors: str = "replace", longest: int = PIECE) -> None:
        self._decoder = UTF_8(errors)
        self._longest = longest
        self._parts: list[str] = []
        self._length = 0
        self._since: float | None = None  # when the unfinished line got new text; None for none

    def feed(self, piece: bytes, now: float = 0.0) -> list[tuple[str, str]]:
        """Return the lines that a piece completes; an empty piece completes the last line."""
        lines = self.add(self._decoder.decode(piece, final=not piece), now)
        return [*lines, (self.take(), "\n")] if not piece and self._length else lines

    def add(self, text: str, now: float = 0.0) -> list[tuple[str, str]]:
        """Return the lines that a text completes."""
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
        """Return whether the unfinished line has text that has not been returned yet."""
        return self._since is not None

    def is_late(self, now: float) -> bool:
        """Return whether the text of the unfinished line has waited long enough to be shown."""
        return self._since is not None and now >= self._since + UNFINISHED

    def so_far(self) -> str:
        """Return the unfinished line, and keep it until it ends."""
        self._since = None
        return "".join(self._parts)

    def take(self) -> str:
        """Return and drop the unfinished line, so that further text begins a new line."""
        line = self.so_far()
        self._parts, self._length = [], 0
        return line


class Reader:
    """Reads pipes. Only one thread may use it; other threads may call only `pipe` and `stop`.

    Args:
        ticks: functions that are called with the time: after each read, and every 0.1 s while any
            of them returns True.
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
        """Create a pipe to read from; return its writing end, which the caller must close.

        Args:
            take: called with each piece of output, and with an empty piece at the end. It returns
                False to stop reading.
            tick: an additional function for `ticks` (default: None).
        """
        read_end, write_end = os.pipe()
        os.set_blocking(read_end, False)
        self._ticks += [tick] if tick else []
        self._pipes.register(read_end, selectors.EVENT_READ, take)
        return write_end

    def serve(self, to_the_end: bool = False) -> None:
        """Read until `stop` is called or, with `to_the_end`, until all pipes have ended."""
        while self._told in (pipes := self._pipes.get_map()):
            if to_the_end and len(pipes) == 1:
                break
            self.read()
        self.finish()

    def read(self, seconds: float | None = None) -> None:
        """Wait for output, for at most `seconds` if given, and read once."""
        if self._waits:
            seconds = UNFINISHED if seconds is None else min(seconds, UNFINISHED)
        for key, _ in self._pipes.select(seconds):
            self._read(key)
        now = time.monotonic()
        waits = [tick(now) for tick in self._ticks]
        self._waits = any(waits)

    def stop(self) -> None:
        """Make `serve` return. Call it only once."""
        os.close(self._over)

    def finish(self) -> None:
        """Read the output written so far, and close the pipes."""
        for key in list(self._pipes.get_map().values()):
            for _ in range(_MOST_PIECES):
                if not self._read(key):
                    break
            if self._pipes.get_map().get(key.fd) is key:
                key.data(b"")
                self._close(key)

    def _read(self, key: selectors.SelectorKey) -> bool:
        """Read a piece of output; return False if there is none or the pipe was closed."""
        try:
            piece = os.read(key.fd, PIECE)
        except BlockingIOError:
            return False
        more = key.data(piece) and bool(piece)
        if not more:
            self._close(key)
        return more

    def _close(self, key: selectors.SelectorKey) -> None:
        self._pipes.unregister(key.fd)
        os.close(key.fd)


class Writer:
    """Writes output, and records output that could not be written. Any thread may use it.

    A full disk or a closed reader must not end a rank. The loss is reported when the job ends.
    """

    def __init__(self) -> None:
        self.lost: dict[str, int] = {}
        """The errno of the first failed write, by the name of the file."""

    def write(self, to: int, data: bytes) -> None:
        """Write all data to a descriptor; if writing fails, record the loss."""
        try:
            write_all(to, data)
        except OSError as error:
            self.lost.setdefault(_name(to), error.errno or 0)


def write_all(to: int, data: bytes) -> None:
    """Write all data to a descriptor.

    Raises:
        OSError: a write failed.
    """
    while data:
        try:
            data = data[os.write(to, data) :]
        except BlockingIOError:  # another process has made the shared file non-blocking
            select.select([], [to], [])


def is_closed(lost: Mapping[str, int]) -> bool:
    """Return whether the reader of standard output or error, such as `head`, is gone."""
    return any(lost.get(name) == errno.EPIPE for name in STANDARD.values())


def lost_text(lost: Mapping[str, int]) -> str:
    """Return the message about lost output (`Writer.lost`), which names only a few files."""
    named = [f"{name}: {os.strerror(why)}" for name, why in list(lost.items())[:_NAMED]]
    more = [f"{len(lost) - _NAMED} more files"] if len(lost) > _NAMED else []
    return f"tf_hvd run: output was lost: {'; '.join([*named, *more])}"


def _name(to: int) -> str:
    """Return the name of a descriptor for users, such as the path of its file."""
    if to in STANDARD:
        return STANDARD[to]
    try:
        return os.readlink(f"/proc/self/fd/{to}")
    except OSError:
        return f"file descriptor {to}"
