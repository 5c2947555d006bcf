"""Merge the output from a job's ranks and its MPI launcher into readable text.

`tf_hvd run` uses this module, and so does `tf_hvd.run` in a notebook (job_output.py).

- Once several ranks have printed to standard error, each line there is marked with its rank.
- A traceback is shown in one piece. The same traceback from another rank is only mentioned.
- Log lines that several ranks print are shown once (log_lines.py).
- The standard texts of MPI's launchers about a failed job are held back, because tf_hvd run
  explains the failure (explain.py).
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tf_hvd.core import error_text
from tf_hvd.launch.job.log_lines import CHATTER, LogLines, label
from tf_hvd.launch.machine.lines import (
    LABEL,
    PIECE,
    UNFINISHED,
    UTF_8,
    LineStream,
    Reader,
    Writer,
    is_closed,
)

# In seconds: the pause that ends a traceback; the pause after which ranks with the same traceback
# are listed; and the longest time for which a traceback is held back.
_PAUSE, _TELL, _LONGEST_HELD = 0.4, 1.0, 3.0
# Seconds to wait for a reader of our output that reads nothing.
_LAST_WORDS = 5.0
# Parts of a traceback that differ between ranks: addresses, TensorFlow's graph numbers, and names
# of AutoGraph's generated files.
_OWN = re.compile(r"\b0x[0-9a-f]+|(?<=_)\d+(?=\])|(?<=__autograph_generated_file)\w+")
# The tag of --tag-output on a rank's line, possibly with a time (--prefix-output-with-timestamp).
_TAGGED = re.compile(rf"{LABEL.pattern}(\[\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d\] )?")
_RULE = re.compile(r"([-=])\1{19,}$")
# Phrases in the paragraphs of Open MPI 5 and 4 that only report that a job has failed.
_BANNERS = (
    "detected that one or more processes exited with non-zero status",
    "noticed that process rank",
    "has exited due to process rank",
    "Primary job  terminated normally, but",
    "Primary job terminated normally, but",
)
# MPICH's launcher prints its paragraph to standard output.
_MPICHS_BANNER = b"\n" + b"=" * 83 + b"\n=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n"


@dataclass(frozen=True)
class LastWords:
    """The last line that a rank printed."""

    text: str
    raised: bool = False
    """Whether the line is the exception of a traceback."""
    place: str = ""
    """The line of the user's program in that traceback; empty if unknown."""


class _Speaker:
    """The output of a rank, or of the launcher (None), that has not been shown yet."""

    def __init__(self, who: int | None) -> None:
        self.who = who
        # The launcher's output has lines of ranks on other machines, which must be complete.
        self.line = LineStream(longest=PIECE if who is not None else 4 * PIECE)
        self.at_start = True  # of the screen's line, if that line is this speaker's
        self.held: list[str] = []  # a traceback, or the launcher's paragraph
        self.held_since = self.held_last = 0.0


@dataclass
class Screen:
    """Puts pieces of output in a readable order. Only one thread may use it."""

    write: Callable[[str], object]
    banners: bool = False
    """Whether to show the launcher's paragraphs about a failed job immediately."""
    labels: bool = True
    """Whether lines of the launcher may begin with the label of a rank."""
    ranks: int = 0
    """The number of ranks in the job; 0 if unknown."""
    marked: bool = False
    """Whether lines are already marked with their rank."""
    banner: list[str] = field(default_factory=list)
    """The launcher's lines that were held back."""
    last_words: dict[int, LastWords] = field(default_factory=dict)
    """The last line of each rank that may explain its end."""
    first_error: tuple[int, str] | None = None
    """The first rank that printed a traceback, and the traceback's exception."""
    _speakers: dict[int | None, _Speaker] = field(default_factory=dict)
    _current: _Speaker | None = None  # the speaker of the unfinished line on the screen
    _shown: dict[tuple[str, ...], int] = field(default_factory=dict)  # tracebacks, and their ranks
    # By rank, the other ranks that printed its traceback; and since when they wait to be listed.
    _same: dict[int, list[int]] = field(default_factory=dict)
    _same_since: float = 0.0
    _bears_mark: dict[int, bool] = field(default_factory=dict)  # whether a rank's last line does
    # By rank, the rank that has shown its last traceback.
    _shown_by: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._log_lines = LogLines(self.ranks, self._show_of)

    def add(self, who: int | None, text: str, now: float) -> None:
        """Take a piece of output from a rank, or from the launcher (None)."""
        for line, end in self._speaker(who).line.add(text, now):
            tag = _TAGGED.match(line) if who is None and self.labels else None
            speaker = self._speaker(int(tag[1]) if tag else who)
            line = line[tag.end() :] if tag else line
            if not end:  # too long to be kept, even if a line of another rank is unfinished
                self._release(speaker, now)
                self._show_part(speaker, line)
            elif end == "\n":
                self._finish(speaker, line, now)
            elif speaker.who is not None and not speaker.held:
                self._redraw(speaker, line)

    def _speaker(self, who: int | None) -> _Speaker:
        if who not in self._speakers:
            self._speakers[who] = _Speaker(who)
            self.marked |= len(self._speakers.keys() - {None}) > 1
        return self._speakers[who]

    def tick(self, now: float) -> bool:
        """Show output that has waited long enough; return whether any output still waits."""
        for speaker in self._speakers.values():
            over = min(speaker.held_last + _PAUSE, speaker.held_since + _LONGEST_HELD)
            if speaker.held and now >= over:
                self._release(speaker, now)
            # An unfinished line of the launcher may still turn out to be a rank's.
            shows = not speaker.held and (speaker.who is not None or not self.labels)
            if shows and self._current in (None, speaker) and speaker.line.is_late(now):
                self._show_part(speaker, speaker.line.take())
        if self._same and now >= self._same_since + _TELL:
            self._tell_same()
        waits = any(each.held or each.line.waits() for each in self._speakers.values())
        return self._log_lines.tick(now) or waits or bool(self._same)

    def end(self, who: int | None, now: float) -> None:
        """Show the remaining output from a rank, or from the launcher, that has ended.

        The rank's log lines may still wait for other ranks' log lines.
        """
        if speaker := self._speakers.get(who):
            if speaker.line.so_far():
                self.add(who, "\n", now)
            self._release(speaker, now)

    def finish(self) -> None:
        """Show all remaining output, after all ranks and the launcher have ended."""
        for who in list(self._speakers):
            self.end(who, 0.0)
        self._log_lines.finish()
        self._tell_same()
        self._end_line()

    def shown(self, who: int) -> tuple[int, bool]:
        """Return the rank under which a rank's last lines were shown, and whether they are marked.

        If another rank showed the same traceback first, the result is that rank.
        """
        stands = self._shown_by.get(who, who)
        return stands, self.marked and self._bears_mark.get(stands, False)

    def _finish(self, speaker: _Speaker, line: str, now: float) -> None:
        held = speaker.held
        if speaker.who is None:
            starts = ends = bool(_RULE.match(line))
        else:
            # A program with a syntax error has only one frame.
            frame = not held and error_text.FRAME.match(line)
            starts = speaker.at_start and (line == error_text.TRACEBACK or bool(frame))
            ends = False
            if starts and held and not _is_chained(held):
                self._release(speaker, now)
        if not speaker.held and not starts:
            who = speaker.who
            if who is not None and speaker.at_start and self._log_lines.take(who, line, now):
                return self._note(who, [line])
            return self._let_through(speaker, [line])
        if not speaker.held:
            speaker.held_since, ends = now, False
        speaker.held.append(line)
        speaker.held_last = now
        if ends:
            self._release(speaker, now)

    def _let_through(self, speaker: _Speaker, lines: Sequence[str]) -> None:
        """Show lines, unless they are the launcher's banner."""
        if speaker.who is not None:
            self._note(speaker.who, lines)
        elif not self.banners and _is_banner(lines):
            self.banner += lines
            return
        self._show(speaker, lines)

    def _release(self, speaker: _Speaker, now: float) -> None:
        """Show the held lines, unless another rank has shown the same lines."""
        who, held, speaker.held = speaker.who, speaker.held, []
        if not held:
            return
        if who is None:
            return self._let_through(speaker, held)
        error, place = error_text.printed(held)
        if error_text.TRACEBACK in held or place:
            self.last_words[who] = LastWords(error, True, place)
            self.first_error = self.first_error or (who, error)
        else:
            self._note(who, held)
        first = self._shown.setdefault(tuple(_OWN.sub("", line) for line in held), who)
        if first == who:
            self._show(speaker, held)
        else:
            self._log_lines.flush(who)
            self._same.setdefault(first, []).append(who)
            self._same_since = now
            self._shown_by[who] = first

    def _note(self, who: int, lines: Iterable[str]) -> None:
        for line in lines:
            if line.strip() and not CHATTER.match(line):
                self.last_words[who] = LastWords(line.strip())

    def _tell_same(self) -> None:
        for first, others in self._same.items():
            self._end_line()
            self.write(f"{label(sorted(set(others)))}the same traceback as rank {first}'s\n")
        self._same = {}

    def _show(self, speaker: _Speaker, lines: Iterable[str]) -> None:
        if speaker.who is not None:
            self._bears_mark[speaker.who] = self.marked
            self._shown_by.pop(speaker.who, None)
        for line in lines:
            self._show_part(speaker, f"{line}\n")
            self._current, speaker.at_start = None, True

    def _show_part(self, speaker: _Speaker, text: str) -> None:
        """Show a part of a line, after ending another speaker's unfinished line."""
        if speaker.who is not None:
            self._log_lines.flush(speaker.who)
        if self._current is not speaker:
            self._end_line()
        new = self._current is None or speaker.at_start
        if new and self.marked and speaker.who is not None:
            text = label([speaker.who]) + text
        self.write(text)
        self._current, speaker.at_start = speaker, False

    def _redraw(self, speaker: _Speaker, line: str) -> None:
        """Show a line that the rank's next line will replace, unless another line is unfinished."""
        if self._current not in (None, speaker):
            return
        if line:
            self._show_part(speaker, line)
        if self._current:
            self.write("\r")
        speaker.at_start = True

    def _end_line(self) -> None:
        if self._current:
            self.write("\n")
            self._current.at_start = True
            self._current = None

    def _show_of(self, ranks: Sequence[int], line: str) -> None:
        self._end_line()
        self.write(f"{label(ranks) if self.marked else ''}{line}\n")
        self._bears_mark |= dict.fromkeys(ranks, self.marked)


def _is_chained(held: Sequence[str]) -> bool:
    """Return whether the next traceback continues this one, as after `raise ... from ...`."""
    told = next((line for line in reversed(held) if line), "")
    return told.endswith((" exception occurred:", "direct cause of the following exception:"))


def _is_banner(lines: Sequence[str]) -> bool:
    text = " ".join(lines)
    return any(phrase in text for phrase in _BANNERS)


class _Output:
    """The standard output of MPICH's launcher, forwarded without the banner at its end."""

    def __init__(self, write: Callable[[bytes], object], screen: Screen) -> None:
        self._write, self._screen = write, screen
        self._rest = b""  # the banner, or possibly its beginning
        self._since = 0.0

    def take(self, piece: bytes) -> bool:
        """Forward a piece of output; an empty piece marks the end."""
        text, self._since = self._rest + piece, time.monotonic()
        start = text.find(_MPICHS_BANNER)
        if start < 0:  # hold back a possible beginning of the banner
            ends = range(max(0, len(text) - len(_MPICHS_BANNER)), len(text) if piece else 0)
            found = (at for at in ends if _MPICHS_BANNER.startswith(text[at:]))
            start = next(found, len(text))
        text, self._rest = text[:start], text[start:]
        if not piece:
            self._screen.banner += self._rest.decode(errors="replace").splitlines()
        self._write(text)
        return True

    def tick(self, now: float) -> bool:
        """Forward held text that turned out not to be the banner; return True while undecided."""
        waits = bool(self._rest) and not self._rest.startswith(_MPICHS_BANNER)
        if waits and now >= self._since + UNFINISHED:
            rest, self._rest = self._rest, b""
            self._write(rest)
        return waits


class Terminal(contextlib.AbstractContextManager["Terminal"]):
    """A context that reads a job's output and shows it on this process's outputs.

    Standard output and standard error have separate threads, so that errors are shown even if
    standard output is not read. Output that cannot be written is dropped, and the loss is recorded.

    Args:
        marks: whether ranks on other machines label their lines for this object. If not, lines are
            shown unchanged.
        banners, ranks: see `Screen`.
    """

    def __init__(self, marks: bool = True, banners: bool = False, ranks: int = 0) -> None:
        self._banners = banners
        self._writer = Writer()
        self._screen = Screen(self._show, banners, labels=marks, ranks=ranks)
        # Tagged lines are shown with their tags; a second, silent screen parses them.
        self._screens = [self._screen] if marks else [self._screen, Screen(lambda text: None)]
        self.heard = self._screens[-1]
        """The screen that has parsed the ranks' output; read it after `finish`."""
        self._reader = Reader(*(screen.tick for screen in self._screens))
        self._output = Reader()
        self._threads = [
            threading.Thread(target=serve, name="terminal", daemon=True)
            for serve in (self._serve, self._output.serve)
        ]

    def __exit__(self, *_: object) -> None:
        if self._threads[0].ident is None:  # the job was not started, so no thread reads
            for reader in (self._reader, self._output):
                reader.stop()
                reader.finish()

    @property
    def lost(self) -> dict[str, int]:
        """Output that could not be shown, in the form of `Writer.lost`."""
        return self._writer.lost

    @property
    def closed(self) -> bool:
        """Whether the reader of an output, such as `head`, is gone."""
        return is_closed(self.lost)

    def errors(self, who: int | None) -> int:
        """Return a pipe for the standard error of a rank, or of the launcher (None).

        Any thread may call this method. The caller closes the pipe after passing it on.
        """
        decoder = UTF_8("replace")

        def take(piece: bytes) -> bool:
            said, now = decoder.decode(piece, final=not piece), time.monotonic()
            for screen in self._screens:
                if said:
                    screen.add(who, said, now)
                if not piece:
                    screen.end(who, now)
            return True

        return self._reader.pipe(take)

    def output(self, family: str) -> int:
        """Return a pipe for the standard output of an MPI family's launcher."""

        def take(piece: bytes) -> bool:
            self._writer.write(1, piece)
            return True

        if family != "mpich" or self._banners:
            return self._output.pipe(take)
        output = _Output(take, self._screen)
        return self._output.pipe(output.take, output.tick)

    def serve(self) -> None:
        """Start the reading threads. Call this method after the last fork."""
        for thread in self._threads:
            thread.start()

    def finish(self, in_time: bool = False) -> None:
        """Show the output written so far, and stop reading.

        With `in_time`, give up after some seconds if the reader of this process's output is stuck.
        """
        if self._threads[0].ident is not None:
            self._reader.stop()
            self._output.stop()
            until = time.monotonic() + _LAST_WORDS
            for thread in self._threads:
                thread.join(max(0.0, until - time.monotonic()) if in_time else None)

    def show_banner(self) -> None:
        """Show the launcher's text about the job's end; call it after `finish`."""
        self._show("".join(f"{line}\n" for line in self._screen.banner))

    def _show(self, text: str) -> None:
        self._writer.write(2, text.encode(errors="replace"))

    def _serve(self) -> None:
        self._reader.serve()
        for screen in self._screens:
            screen.finish()
        if self.heard is not self._screen:
            self.heard.marked = False  # the tags have another form
