"""Cuts what processes print into lines, and reads it from their pipes.

For a rank's keeper (rank_output.py), `tf_hvd run` (terminal.py) and `tf_hvd.run` (job_output.py).
Keepers are run as files by an isolated Python: it knows the standard library alone.
"""

from __future__ import annotations

import codecs
import os
import re
import selectors
import time
from collections.abc import Callable

# A line that a keeper has marked, as --tag-output does.
LABEL = re.compile(r"\[1,(\d+)\]<(?:stdout|stderr)>: ")
PIECE = 1 << 16
"""Bytes that are read at once, and of a line that is kept back until it ends."""
# In seconds: a line that takes longer to end is shown as far as it is.
UNFINISHED = 0.1
_LINE_END = re.compile("([\r\n])")


def decoder(errors: str = "replace") -> Callable[[bytes], str]:
    """What makes text of bytes that come in pieces; an empty one is the end."""
    decode = codecs.getincrementaldecoder("utf-8")(errors).decode
    return lambda piece: decode(piece, final=not piece)


class LineStream:
    """Cuts text into lines, each of which comes with its end: a carriage return, or a newline.

    What it keeps back is bounded, and each letter is looked at once: a line that is longer comes in
    parts, all but the last without an end.

    Args:
        errors: what becomes of bytes that are no text.
        longest: the bound, in letters.
    """

    def __init__(self, errors: str = "replace", longest: int = PIECE) -> None:
        self._decode = decoder(errors)
        self._longest = longest
        self._parts: list[str] = []
        self._length = 0
        self._since: float | None = None  # that the line waits to end, or to be shown

    def feed(self, piece: bytes, now: float = 0.0) -> list[tuple[str, str]]:
        """The lines that a piece brings; an empty one is the end, also of the last line."""
        lines = self.add(self._decode(piece), now)
        return [*lines, (self.take(), "\n")] if not piece and self._length else lines

    def add(self, text: str, now: float = 0.0) -> list[tuple[str, str]]:
        """The same of a text."""
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
        """Whether there is something of a line that has not ended and was not shown."""
        return self._since is not None

    def is_late(self, now: float) -> bool:
        """Whether that is to be shown so far."""
        return self._since is not None and now >= self._since + UNFINISHED

    def so_far(self) -> str:
        """The line that has not ended; it comes again when it has."""
        self._since = None
        return "".join(self._parts)

    def take(self) -> str:
        """The line that has not ended; what follows is another one."""
        line = self.so_far()
        self._parts, self._length = [], 0
        return line


class Reader:
    """Hands on what comes through pipes. For one thread, but for `pipe` and `stop`.

    Args:
        ticks: are called with the time, now and then, as long as one of them returns True: it waits
            for something that does not come.
    """

    def __init__(self, *ticks: Callable[[float], bool]) -> None:
        self._ticks = list(ticks)
        self._waits = False
        # It takes new pipes while another thread waits.
        self._pipes = selectors.EpollSelector()
        self._told, self._over = os.pipe()
        os.set_blocking(self._told, False)
        self._pipes.register(self._told, selectors.EVENT_READ, lambda _: False)

    @property
    def files(self) -> set[int]:
        """The descriptors that are needed to read."""
        read = (key.fd for key in self._pipes.get_map().values())
        return {self._pipes.fileno(), self._over, *read}

    def pipe(
        self, take: Callable[[bytes], bool], tick: Callable[[float], bool] | None = None
    ) -> int:
        """Makes a pipe, and reads from it; returns its other end, for the caller to close.

        Args:
            take: gets what comes, in pieces, at the end an empty one; False if it wants no more.
            tick: one more of those.
        """
        read_end, write_end = os.pipe()
        os.set_blocking(read_end, False)
        self._ticks += [tick] if tick else []
        self._pipes.register(read_end, selectors.EVENT_READ, take)
        return write_end

    def serve(self, to_the_end: bool = False) -> None:
        """Hands on what comes, until `stop`, or until all pipes have ended."""
        while self._told in (pipes := self._pipes.get_map()):
            if to_the_end and len(pipes) == 1:
                break
            self.read()
        self.finish()

    def read(self, seconds: float | None = None) -> None:
        """Hands on what comes next; returns after that time, or before."""
        if self._waits:
            seconds = UNFINISHED if seconds is None else min(seconds, UNFINISHED)
        for key, _ in self._pipes.select(seconds):
            self._read(key)
        now = time.monotonic()
        waits = [tick(now) for tick in self._ticks]
        self._waits = any(waits)

    def stop(self) -> None:
        """Has `serve` return, for now or later; once."""
        os.close(self._over)

    def finish(self) -> None:
        """Hands on what has come by now, and closes the pipes: others may keep their other ends."""
        for key in list(self._pipes.get_map().values()):
            while self._read(key):
                pass
            if self._pipes.get_map().get(key.fd) is key:
                key.data(b"")
                self._close(key)

    def _read(self, key: selectors.SelectorKey) -> bool:
        """Hands on what has come; False if nothing has, or nothing more is wanted."""
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


def write_all(to: int, data: bytes) -> bool:
    """Writes to a descriptor until all is written; False if it takes no more.

    A full disk, or a reader that is gone, must not end a rank.
    """
    try:
        while data:
            data = data[os.write(to, data) :]
    except OSError:
        return False
    return True
