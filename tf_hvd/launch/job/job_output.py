"""Where the output of `tf_hvd.run`'s ranks goes: to the caller's own, or into a notebook's cell."""

import importlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from tf_hvd.launch.job.log_lines import LogLines, label
from tf_hvd.launch.machine.lines import LABEL, PIECE, UTF_8, LineStream, Reader

# In seconds: a bar that is redrawn more often is shown that often.
_REDRAWN = 0.1


def options() -> list[str]:
    """Options of `tf_hvd run` for output that goes to a cell."""
    return ["--tag-output"] if _is_notebook() else []


def start(command: Sequence[str], ranks: int = 0) -> tuple[subprocess.Popen[bytes], Reader]:
    """Starts a job, without input and in a session of its own: an interrupt is not for it.

    Args:
        command: of `tf_hvd run`.
        ranks: see `LogLines`.

    Returns:
        Its process, and the reader that takes its output to the present `sys.stdout` and
        `sys.stderr`.
    """
    bar = Bar(_display) if _is_notebook() else None
    reader = Reader()
    pipes: list[int | None] = [None, None]
    streams = ((sys.stdout, sys.__stdout__), (sys.stderr, sys.__stderr__))
    for number, (to, own) in enumerate(streams):
        if to is not own:
            cell = Cell(to.write, bar, ranks) if bar else None
            take, tick = (cell.take, cell.tick) if cell else (_plain(to.write), None)
            pipes[number] = reader.pipe(take, tick)
    job = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=pipes[0],
        stderr=pipes[1],
        start_new_session=True,
    )
    for pipe in pipes:
        if pipe is not None:
            os.close(pipe)
    return job, reader


def _is_notebook() -> bool:
    """Whether what is printed here goes to a cell: of Jupyter, or of what uses its kernel."""
    # Spyder and others make classes of their own from ipykernel's.
    return any(each.__module__.startswith("ipykernel.") for each in type(sys.stdout).__mro__)


def _plain(write: Callable[[str], Any]) -> Callable[[bytes], bool]:
    decoder = UTF_8("replace")

    def take(piece: bytes) -> bool:
        write(decoder.decode(piece, final=not piece))
        return True

    return take


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
    are left out. Log lines that several ranks print are shown once.

    Args:
      write: takes the text.
      bar: shows the line that rank 0 redraws.
      ranks: see `LogLines`.
    """

    def __init__(self, write: Callable[[str], Any], bar: Bar, ranks: int = 0) -> None:
        self._write = write
        self._bar = bar
        self._log_lines = LogLines(ranks, lambda who, line: write(f"{label(who)}{line}\n"))
        self._lines = LineStream(longest=4 * PIECE)  # lines of ranks are shorter
        # What stands there, and whether it has replaced another text, by rank and stream.
        self._drawn: dict[str, tuple[str, bool]] = {}

    def take(self, piece: bytes) -> bool:
        """Hands a piece on; empty at the end."""
        for line, end in self._lines.feed(piece):
            if end and (tag := LABEL.match(line)):
                self._show(tag, line[tag.end() :], ends=end == "\n")
            else:  # the launcher's own words
                self._write(line + end)
        if not piece:
            self._log_lines.finish()
            self._bar.finish()
        return True

    def tick(self, now: float) -> bool:
        """Shows what has waited long enough; True if something waits."""
        return self._log_lines.tick(now)

    def _show(self, tag: re.Match[str], line: str, ends: bool) -> None:
        who = int(tag[1])
        first = who == 0
        before, redrawn = self._drawn.pop(tag[0], ("", False))
        redrawn = redrawn or not line.startswith(before)
        if not ends:
            self._drawn[tag[0]] = line, redrawn
            if redrawn and first:
                self._bar.draw(line)
            return
        if redrawn and first:
            self._bar.finish(line)
        if not redrawn and self._log_lines.take(who, line, time.monotonic()):
            return
        if first or not redrawn:
            self._log_lines.flush(who)
            self._write(f"{label([who])}{line}\n")


def _display(text: str) -> Callable[[str], None]:
    """Shows a text in the cell."""
    display = importlib.import_module("IPython.display").display
    handle = display({"text/plain": text}, raw=True, display_id=True)

    def replace(other: str) -> None:
        handle.update({"text/plain": other}, raw=True)

    return replace
