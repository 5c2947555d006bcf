"""Hands on the output of a rank: marks its lines with the rank or the time, and copies it to files.

A part of the rank's keeper (keeper.py), which is run as a file by an isolated Python: it knows the
standard library alone.
"""

from __future__ import annotations

import errno
import os
import select
import threading
import time
from collections.abc import Callable, Mapping

from tf_hvd.core import files
from tf_hvd.launch.machine.lines import STANDARD, LineStream, Reader, Writer

STREAMS = {1: "stdout", 2: "stderr"}
# In seconds: between two looks whether more is wanted, and for a reader that takes nothing.
_LOOK, _LAST_WORDS = 2.0, 5.0


class RankOutput:
    """The output of a program that is about to be forked.

    Args:
        labels: by descriptor, the text before each line that is handed on; may be empty.
        folder: gets a copy, in the files `stdout` and `stderr`; empty for none.
        adds: whether the copy is appended to these files.
        timestamps: whether each line begins with the time, also in the files.
        alone: whether nobody else hands it on: the program, too, is to hear if the reader is gone.

    Raises:
        OSError: a file cannot be opened.
    """

    def __init__(
        self, labels: Mapping[int, str], folder: str, adds: bool, timestamps: bool, alone: bool
    ) -> None:
        if folder:
            os.makedirs(folder, exist_ok=True)
        kept = {
            to: files.stream(os.path.join(folder, STREAMS[to]), adds) for to in labels if folder
        }
        self._writer, self._alone = Writer(), alone
        copies = {
            to: Copy(to, label, kept.get(to), timestamps, self._writer, alone)
            for to, label in labels.items()
        }
        self._reader = Reader()
        self._ends = {to: self._reader.pipe(copy.take, copy.tick) for to, copy in copies.items()}
        self.needs = {*labels, *kept.values(), *self._reader.files}
        """The descriptors that this needs after the fork, in the keeper."""

    def lost(self) -> dict[str, int]:
        """What could not be written, as `Writer` has it; for who has called `finish`.

        What MPI's launcher does not take any more is no file: it is gone.
        """
        lost = self._writer.lost.items()
        return {name: why for name, why in lost if self._alone or name not in STANDARD.values()}

    def become(self) -> None:
        """Makes the pipes the standard output and error of this process, the program."""
        for to, end in self._ends.items():
            os.dup2(end, to)

    def start(self) -> None:
        """Begins to hand the output on. The keeper has closed all files except `needs`."""
        # In a thread of its own, because a slow reader must not keep the keeper from its work.
        self._thread = threading.Thread(target=self._reader.serve, args=(True,), daemon=True)
        self._thread.start()

    def finish(self, may_go_on: Callable[[], bool], in_time: bool) -> None:
        """Hands on what was printed up to now, or all until the pipes end while `may_go_on()`.

        With `in_time` it gives up on a reader that takes nothing for some seconds.
        """
        while self._thread.is_alive() and may_go_on():
            self._thread.join(_LOOK)
        self._reader.stop()
        self._thread.join(_LAST_WORDS if in_time else None)


class Copy:
    """One stream on its way out: as it is, or in whole lines that each tell whose they are.

    A line that is redrawn, as a progress bar is, ends with a carriage return. One that its rank
    does not end for a while is shown so far as such a line, and whole when it ends: launchers mix
    the ranks' output wherever a write ends.
    """

    def __init__(
        self,
        to: int,
        label: str,
        file: int | None,
        timestamps: bool,
        writer: Writer | None = None,
        alone: bool = False,
    ) -> None:
        self._to = to
        self._writer = writer or Writer()
        self._alone = alone
        self._label = label
        self._file = file
        self._timestamps = timestamps
        self._lines = LineStream("surrogateescape")
        self._drawn = ""  # the line that stands there after a carriage return
        self._at_line_start = True

    def tick(self, now: float) -> bool:
        """Shows the unfinished line when it is late; True while one waits."""
        if self._lines.is_late(now):
            self._send_lines([(self._lines.so_far(), "\r")])
        return self._lines.waits()

    def take(self, piece: bytes) -> bool:
        """Hands on a piece of output; an empty one is the end. False if the reader is gone."""
        if self._file is not None:
            self._writer.write(self._file, self._stamped(piece))
        if self._label or self._timestamps:
            self._send_lines(self._lines.feed(piece, time.monotonic()))
        else:
            self._send(piece)
        why = self._writer.lost.get(STANDARD.get(self._to, ""))
        return not (self._alone and why == errno.EPIPE)

    def _send_lines(self, lines: list[tuple[str, str]]) -> None:
        start = (self._label + _stamp() * self._timestamps).encode()
        pieces = [b""]
        for text, end in lines:
            shown = text.rstrip("\b")  # Keras goes back by these as well
            if end != "\r":
                shown, self._drawn = shown or self._drawn, ""
            elif shown:
                self._drawn = shown
            else:
                continue
            line = start + (shown + (end or "\n")).encode(errors="surrogateescape")
            # A pipe takes so much in one piece, or nothing of it.
            if len(pieces[-1]) + len(line) > select.PIPE_BUF:
                pieces.append(b"")
            pieces[-1] += line
        for piece in pieces:
            self._send(piece)

    def _send(self, data: bytes) -> None:
        self._writer.write(self._to, data)

    def _stamped(self, piece: bytes) -> bytes:
        """The same with the time at the start of each line."""
        if not self._timestamps or not piece:
            return piece
        start = _stamp().encode()
        ends = piece.endswith(b"\n")
        text = piece.removesuffix(b"\n").replace(b"\n", b"\n" + start) + b"\n" * ends
        at_start, self._at_line_start = self._at_line_start, ends
        return start * at_start + text


def _stamp() -> str:
    return time.strftime("[%Y-%m-%d %H:%M:%S] ")
