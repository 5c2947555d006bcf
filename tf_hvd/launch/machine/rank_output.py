"""Forward a rank's output: mark lines with the rank or the time, and copy them to files.

This module belongs to the rank's keeper (keeper.py), which an isolated Python runs as a file. It
imports only the standard library.
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
# In seconds: the time between two calls of `may_wait`, and the limit for a reader that is stuck.
_LOOK, _LAST_WORDS = 2.0, 5.0


class RankOutput:
    """The output of a program that is about to be forked.

    Args:
        labels: by descriptor, the text before each forwarded line; the text may be empty.
        folder: folder for copies of the output, the files `stdout` and `stderr`; empty for no
            copies.
        adds: whether to append to these files.
        timestamps: whether each line begins with the time, also in the files.
        without_mpi: whether the output bypasses MPI's launcher. The program is then notified if
            the reader is gone.

    Raises:
        OSError: a file cannot be opened.
    """

    def __init__(
        self,
        labels: Mapping[int, str],
        folder: str,
        adds: bool,
        timestamps: bool,
        without_mpi: bool,
    ) -> None:
        if folder:
            os.makedirs(folder, exist_ok=True)
        kept = {
            to: files.stream(os.path.join(folder, STREAMS[to]), adds) for to in labels if folder
        }
        self._writer, self._without_mpi = Writer(), without_mpi
        copies = {
            to: Copy(to, label, kept.get(to), timestamps, self._writer, without_mpi)
            for to, label in labels.items()
        }
        self._reader = Reader()
        self._ends = {to: self._reader.pipe(copy.take, copy.tick) for to, copy in copies.items()}
        self.needs = {*labels, *kept.values(), *self._reader.files}
        """The descriptors that this object needs after the fork, in the keeper."""

    def lost(self) -> dict[str, int]:
        """Output that could not be written, in the form of `Writer.lost`; call it after `finish`.

        Output to MPI's launcher is not included: such writes fail when the launcher is gone.
        """
        lost = self._writer.lost.items()
        return {
            name: why for name, why in lost if self._without_mpi or name not in STANDARD.values()
        }

    def become(self) -> None:
        """Make the pipes the standard output and error of this process, the program."""
        for to, end in self._ends.items():
            os.dup2(end, to)

    def start(self) -> None:
        """Start forwarding, after the keeper has closed all files except `needs`."""
        # Forward in a separate thread, because a slow reader must not block the keeper.
        self._thread = threading.Thread(target=self._reader.serve, args=(True,), daemon=True)
        self._thread.start()

    def finish(self, may_wait: Callable[[], bool], in_time: bool) -> None:
        """Forward the output printed so far; while `may_wait()` is true, wait until the pipes end.

        With `in_time`, give up after some seconds if the reader is stuck.
        """
        while self._thread.is_alive() and may_wait():
            self._thread.join(_LOOK)
        self._reader.stop()
        self._thread.join(_LAST_WORDS if in_time else None)


class Copy:
    """Forwards one stream: unchanged, or in complete lines marked with the rank or the time.

    A line that is redrawn, such as a progress bar, ends with a carriage return. After a while, an
    unfinished line is shown as if it were redrawn, and shown again when it ends. Each line is
    written in one piece, because launchers mix the ranks' output wherever a write ends.
    """

    def __init__(
        self,
        to: int,
        label: str,
        file: int | None,
        timestamps: bool,
        writer: Writer | None = None,
        without_mpi: bool = False,
    ) -> None:
        self._to = to
        self._writer = writer or Writer()
        self._without_mpi = without_mpi
        self._label = label
        self._file = file
        self._timestamps = timestamps
        self._lines = LineStream("surrogateescape")
        self._drawn = ""  # the line on the screen after a carriage return
        self._at_line_start = True

    def tick(self, now: float) -> bool:
        """Show the unfinished line if it is late; return whether an unfinished line still waits."""
        if self._lines.is_late(now):
            self._send_lines([(self._lines.so_far(), "\r")])
        return self._lines.waits()

    def take(self, piece: bytes) -> bool:
        """Forward a piece of output, empty at the end; return False if the reader is gone."""
        if self._file is not None:
            self._writer.write(self._file, self._stamped(piece))
        if self._label or self._timestamps:
            self._send_lines(self._lines.feed(piece, time.monotonic()))
        else:
            self._send(piece)
        why = self._writer.lost.get(STANDARD.get(self._to, ""))
        return not (self._without_mpi and why == errno.EPIPE)

    def _send_lines(self, lines: list[tuple[str, str]]) -> None:
        start = (self._label + _stamp() * self._timestamps).encode()
        pieces = [b""]
        for text, end in lines:
            shown = text.rstrip("\b")  # Keras also redraws lines with backspaces
            if end != "\r":
                shown, self._drawn = shown or self._drawn, ""
            elif shown:
                self._drawn = shown
            else:
                continue
            line = start + (shown + (end or "\n")).encode(errors="surrogateescape")
            # A write to a pipe is atomic up to this size.
            if len(pieces[-1]) + len(line) > select.PIPE_BUF:
                pieces.append(b"")
            pieces[-1] += line
        for piece in pieces:
            self._send(piece)

    def _send(self, data: bytes) -> None:
        self._writer.write(self._to, data)

    def _stamped(self, piece: bytes) -> bytes:
        """Return the piece of output with the time at the start of each line."""
        if not self._timestamps or not piece:
            return piece
        start = _stamp().encode()
        ends = piece.endswith(b"\n")
        text = piece.removesuffix(b"\n").replace(b"\n", b"\n" + start) + b"\n" * ends
        at_start, self._at_line_start = self._at_line_start, ends
        return start * at_start + text


def _stamp() -> str:
    return time.strftime("[%Y-%m-%d %H:%M:%S] ")
