"""Where the output of `tf_hvd.run`'s ranks goes: to the caller's own, or into a notebook's cell."""

import codecs
import importlib
import os
import re
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

_PIECE = 1 << 16
# `tf_hvd run --tag-output` writes these (rank.py).
_LABEL = re.compile(r"\[1,(\d+)\]<(stdout|stderr)>: ")
_LINE_END = re.compile("([\r\n])")
# In seconds: a bar that is redrawn more often is shown that often.
_REDRAWN = 0.1


def is_notebook() -> bool:
    """Whether what is printed here goes to a cell: of Jupyter, or of what uses its kernel."""
    # Spyder and others make classes of their own from ipykernel's.
    return any(each.__module__.startswith("ipykernel.") for each in type(sys.stdout).__mro__)


class OutputForwarder:
    """Takes the output of one job to `sys.stdout` and `sys.stderr`, whatever these are now.

    Not thread-safe: for the thread that waits for the job.
    """

    def __init__(self) -> None:
        self._in_cell = is_notebook()
        self._sources = selectors.DefaultSelector()

    @property
    def options(self) -> list[str]:
        """Options of `tf_hvd run` that this needs."""
        return ["--tag-output"] if self._in_cell else []

    def start(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Starts the job, without input and in a session of its own: an interrupt is not for it."""
        streams = [(sys.stdout, sys.__stdout__), (sys.stderr, sys.__stderr__)]
        files = [None if now is own else subprocess.PIPE for now, own in streams]
        job = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=files[0],
            stderr=files[1],
            start_new_session=True,
        )
        bar = Bar(_display) if self._in_cell else None
        for pipe, (to, _) in zip((job.stdout, job.stderr), streams, strict=True):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)
                stream = Cell(to.write, bar) if bar else Plain(to.write)
                self._sources.register(pipe, selectors.EVENT_READ, stream)
        return job

    def wait(self, seconds: float) -> None:
        """Hands on what comes; returns after that time, or before."""
        if not self._sources.get_map():
            time.sleep(seconds)
            return
        for key, _ in self._sources.select(seconds):
            self._hand_on(key)

    def finish(self) -> None:
        """Hands on what the job had written when it ended; another process may keep the pipe."""
        for key in list(self._sources.get_map().values()):
            while self._hand_on(key):
                pass
            key.data.end()
        self._sources.close()

    def _hand_on(self, key: selectors.SelectorKey) -> bool:
        try:
            piece = os.read(key.fd, _PIECE)
        except BlockingIOError:
            return False
        if piece:
            key.data.add(piece)
        else:
            self._sources.unregister(key.fileobj)
            key.data.end()
        return bool(piece)


class Plain:
    """Hands text on as it comes.

    Args:
      write: takes the text.
    """

    def __init__(self, write: Callable[[str], Any]) -> None:
        self._write = write
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def add(self, piece: bytes) -> None:
        """Hands a piece on."""
        self._write(self._decoder.decode(piece))

    def end(self) -> None:
        """Hands on what is left."""
        self._write(self._decoder.decode(b"", final=True))


class Bar:
    """The one progress bar of a cell, made when it is first drawn.

    Args:
      display: shows a text and returns what replaces it by another.
    """

    def __init__(self, display: Callable[[str], Callable[[str], None]]) -> None:
        self._display = display
        self._replace: Callable[[str], None] | None = None
        self._next = 0.0
        self._late: str | None = None

    def draw(self, text: str) -> None:
        """Shows this instead of what it showed, or a little later."""
        now = time.monotonic()
        if now < self._next:
            self._late = text
            return
        self._next = now + _REDRAWN
        self.finish(text)

    def finish(self, text: str | None = None) -> None:
        """Shows this, or what came too soon after another to be drawn."""
        text = self._late if text is None else text
        self._late = None
        if text is None:
            return
        if self._replace is None:
            self._replace = self._display(text)
        else:
            self._replace(text)


class Cell:
    """Labels lines with their rank, and makes a bar of the one that rank 0 redraws.

    A line is redrawn if what stands there is replaced, not only continued. Those of other ranks
    are left out.

    Args:
      write: takes the text.
      bar: shows the line that rank 0 redraws.
    """

    def __init__(self, write: Callable[[str], Any], bar: Bar) -> None:
        self._write = write
        self._bar = bar
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._rest = ""
        self._unfinished: dict[str, str] = {}  # what stands there, by rank and stream
        self._redrawn: set[str] = set()

    def add(self, piece: bytes) -> None:
        """Hands a piece on."""
        self._take(self._decoder.decode(piece))

    def end(self) -> None:
        """Hands on what is left."""
        self._take(self._decoder.decode(b"", final=True))
        if self._rest:
            self._take("\n")
        self._bar.finish()

    def _take(self, text: str) -> None:
        *whole, self._rest = _LINE_END.split(self._rest + text)
        for line, end in zip(whole[::2], whole[1::2], strict=True):
            label = _LABEL.match(line)
            if label is None:  # the launcher's own words
                self._write(line + end)
            elif end == "\r":
                self._redraw(label, line[label.end() :])
            else:
                self._finish(label, line[label.end() :])

    def _redraw(self, label: re.Match[str], line: str) -> None:
        who = label[0]
        self._note(who, line)
        self._unfinished[who] = line
        if who in self._redrawn and int(label[1]) == 0:
            self._bar.draw(line)

    def _finish(self, label: re.Match[str], line: str) -> None:
        who = label[0]
        self._note(who, line)
        self._unfinished.pop(who, None)
        redrawn = who in self._redrawn
        self._redrawn.discard(who)
        first = int(label[1]) == 0
        if redrawn and first:
            self._bar.finish(line)
        if first or not redrawn:
            self._write(f"[{label[1]}] {line}\n")

    def _note(self, who: str, line: str) -> None:
        before = self._unfinished.get(who)
        if before is not None and not line.startswith(before):
            self._redrawn.add(who)


def _display(text: str) -> Callable[[str], None]:
    """Shows a text in the cell."""
    display = importlib.import_module("IPython.display").display
    handle = display({"text/plain": text}, raw=True, display_id=True)

    def replace(other: str) -> None:
        handle.update({"text/plain": other}, raw=True)

    return replace
