"""What the ranks of a job and its MPI launcher print, made readable as one.

For `tf_hvd run`, and for `tf_hvd.run` in a notebook (job_output.py).
On standard error lines are marked with their rank once several ranks have spoken. A traceback is
shown in one piece, and one that another rank has shown already is only told of. Log lines that
several ranks print are shown once (log_lines.py). What MPI's launchers say at each failed job is
kept back: tf_hvd run says it better (explain.py).
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

# In seconds: after what pause a traceback is over, and it is told who has printed the same; and how
# long it may be held back at most.
_PAUSE, _TELL, _LONGEST_HELD = 0.4, 1.0, 3.0
# In seconds: for a reader of ours that takes nothing.
_LAST_WORDS = 5.0
# What differs in one traceback from rank to rank: addresses, TensorFlow's numbers of graphs, and
# the names of files that AutoGraph has written.
_OWN = re.compile(r"\b0x[0-9a-f]+|(?<=_)\d+(?=\])|(?<=__autograph_generated_file)\w+")
# A line of a rank that --tag-output has tagged, and perhaps --prefix-output-with-timestamp.
_TAGGED = re.compile(rf"{LABEL.pattern}(\[\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d\] )?")
_RULE = re.compile(r"([-=])\1{19,}$")
# What is in the paragraphs of Open MPI 5 and 4 that only say that a job has failed.
_BANNERS = (
    "detected that one or more processes exited with non-zero status",
    "noticed that process rank",
    "has exited due to process rank",
    "Primary job  terminated normally, but",
    "Primary job terminated normally, but",
)
# MPICH's launcher says it on its standard output.
_MPICHS_BANNER = b"\n" + b"=" * 83 + b"\n=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n"


@dataclass(frozen=True)
class LastWords:
    """What a rank has printed last, in one line."""

    text: str
    raised: bool = False
    """Whether it is the exception of a traceback."""
    place: str = ""
    """The user's own line in that; may be empty."""


class _Speaker:
    """What a rank, or the launcher (None), has said and is not shown yet."""

    def __init__(self, who: int | None) -> None:
        self.who = who
        # The launcher's has lines of ranks on other machines, which must be whole.
        self.line = LineStream(longest=PIECE if who is not None else 4 * PIECE)
        self.at_start = True  # of the screen's line, if that is its own
        self.held: list[str] = []  # a traceback, or the launcher's paragraph
        self.held_since = self.held_last = 0.0


@dataclass
class Screen:
    """Puts pieces of output in order. For one thread."""

    write: Callable[[str], object]
    banners: bool = False
    """Whether the launcher's paragraphs about a failed job are shown when they come."""
    labels: bool = True
    """Whether lines of the launcher may begin with the label of a rank."""
    ranks: int = 0
    """How many the job has; 0: that is not known."""
    marked: bool = False
    """Whether lines are marked with their rank by now."""
    banner: list[str] = field(default_factory=list)
    """The lines of the launcher that were kept back."""
    last_words: dict[int, LastWords] = field(default_factory=dict)
    """What each rank has printed last that may say why it ended."""
    first_error: tuple[int, str] | None = None
    """The rank that was the first to print a traceback, and the exception."""
    _speakers: dict[int | None, _Speaker] = field(default_factory=dict)
    _stands: _Speaker | None = None  # whose unfinished line stands there
    _shown: dict[tuple[str, ...], int] = field(default_factory=dict)  # tracebacks, by who
    # Whose traceback others have printed as well; and since when that waits to be told.
    _same: dict[int, list[int]] = field(default_factory=dict)
    _same_since: float = 0.0
    _bears_mark: dict[int, bool] = field(default_factory=dict)  # whether a rank's last line does
    # Who has shown the last traceback of each rank.
    _stands_for: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._log_lines = LogLines(self.ranks, self._show_of)

    def add(self, who: int | None, text: str, now: float) -> None:
        """Takes a piece of a rank's output; None for the launcher's."""
        for line, end in self._speaker(who).line.add(text, now):
            tag = _TAGGED.match(line) if who is None and self.labels else None
            speaker = self._speaker(int(tag[1]) if tag else who)
            line = line[tag.end() :] if tag else line
            if not end:  # too long to be kept, even if a line of another rank stands there
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
        """Shows what has waited long enough; True if something waits."""
        for speaker in self._speakers.values():
            over = min(speaker.held_last + _PAUSE, speaker.held_since + _LONGEST_HELD)
            if speaker.held and now >= over:
                self._release(speaker, now)
            # An unfinished line of the launcher may turn out to be a rank's.
            shows = not speaker.held and (speaker.who is not None or not self.labels)
            if shows and self._stands in (None, speaker) and speaker.line.is_late(now):
                self._show_part(speaker, speaker.line.take())
        if self._same and now >= self._same_since + _TELL:
            self._tell_same()
        waits = any(each.held or each.line.waits() for each in self._speakers.values())
        return self._log_lines.tick(now) or waits or bool(self._same)

    def end(self, who: int | None, now: float) -> None:
        """Shows what is left of a rank, or the launcher: nothing more will come from it.

        Its log lines may wait for those of the others.
        """
        if speaker := self._speakers.get(who):
            if speaker.line.so_far():
                self.add(who, "\n", now)
            self._release(speaker, now)

    def finish(self) -> None:
        """Shows all that is left: nothing more will come from anyone."""
        for who in list(self._speakers):
            self.end(who, 0.0)
        self._log_lines.finish()
        self._tell_same()
        self._end_line()

    def shown(self, who: int) -> tuple[int, bool]:
        """Under which rank a rank's last lines are to be found, and whether that marks them.

        Another where that one has shown the same traceback.
        """
        stands = self._stands_for.get(who, who)
        return stands, self.marked and self._bears_mark.get(stands, False)

    def _finish(self, speaker: _Speaker, line: str, now: float) -> None:
        held = speaker.held
        if speaker.who is None:
            starts = ends = bool(_RULE.match(line))
        else:
            # A program that Python cannot read has no more than one frame.
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
        """Shows lines, unless they are the launcher's banner."""
        if speaker.who is not None:
            self._note(speaker.who, lines)
        elif not self.banners and _is_banner(lines):
            self.banner += lines
            return
        self._show(speaker, lines)

    def _release(self, speaker: _Speaker, now: float) -> None:
        """Shows what was held back, unless another rank has shown the same."""
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
            self._stands_for[who] = first

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
            self._stands_for.pop(speaker.who, None)
        for line in lines:
            self._show_part(speaker, f"{line}\n")
            self._stands, speaker.at_start = None, True

    def _show_part(self, speaker: _Speaker, text: str) -> None:
        """Shows a part of a line; ends the line of another speaker before."""
        if speaker.who is not None:
            self._log_lines.flush(speaker.who)
        if self._stands is not speaker:
            self._end_line()
        new = self._stands is None or speaker.at_start
        if new and self.marked and speaker.who is not None:
            text = label([speaker.who]) + text
        self.write(text)
        self._stands, speaker.at_start = speaker, False

    def _redraw(self, speaker: _Speaker, line: str) -> None:
        """A line that the next one of its rank replaces; not where another's stands."""
        if self._stands not in (None, speaker):
            return
        if line:
            self._show_part(speaker, line)
        if self._stands:
            self.write("\r")
        speaker.at_start = True

    def _end_line(self) -> None:
        if self._stands:
            self.write("\n")
            self._stands.at_start = True
            self._stands = None

    def _show_of(self, ranks: Sequence[int], line: str) -> None:
        self._end_line()
        self.write(f"{label(ranks) if self.marked else ''}{line}\n")
        self._bears_mark |= dict.fromkeys(ranks, self.marked)


def _is_chained(held: Sequence[str]) -> bool:
    """Whether the traceback that follows belongs to this one: `raise ... from ...`."""
    told = next((line for line in reversed(held) if line), "")
    return told.endswith((" exception occurred:", "direct cause of the following exception:"))


def _is_banner(lines: Sequence[str]) -> bool:
    text = " ".join(lines)
    return any(phrase in text for phrase in _BANNERS)


class _Output:
    """The standard output of MPICH's launcher, to be handed on but for its banner at the end."""

    def __init__(self, write: Callable[[bytes], object], screen: Screen) -> None:
        self._write, self._screen = write, screen
        self._rest = b""  # what may be the banner's beginning, or the banner
        self._since = 0.0

    def take(self, piece: bytes) -> bool:
        """Hands a piece on; empty at the end."""
        text, self._since = self._rest + piece, time.monotonic()
        start = text.find(_MPICHS_BANNER)
        if start < 0:  # all but what may be its beginning
            ends = range(max(0, len(text) - len(_MPICHS_BANNER)), len(text) if piece else 0)
            found = (at for at in ends if _MPICHS_BANNER.startswith(text[at:]))
            start = next(found, len(text))
        text, self._rest = text[:start], text[start:]
        if not piece:
            self._screen.banner += self._rest.decode(errors="replace").splitlines()
        self._write(text)
        return True

    def tick(self, now: float) -> bool:
        """Shows what turned out not to be the banner's beginning; True if that is not known yet."""
        waits = bool(self._rest) and not self._rest.startswith(_MPICHS_BANNER)
        if waits and now >= self._since + UNFINISHED:
            rest, self._rest = self._rest, b""
            self._write(rest)
        return waits


class Terminal(contextlib.AbstractContextManager["Terminal"]):
    """Reads what a job prints and shows it on this process's outputs. A context.

    Each has a thread of its own: where nobody reads the output, errors are shown all the same. What
    cannot be written is dropped, and kept in mind.

    Args:
        marks: whether ranks on other machines label their lines for this; if not, lines are shown
            as they come.
        banners, ranks: see `Screen`.
    """

    def __init__(self, marks: bool = True, banners: bool = False, ranks: int = 0) -> None:
        self._banners = banners
        self._writer = Writer()
        self._screen = Screen(self._show, banners, labels=marks, ranks=ranks)
        # What ranks say in lines with tags is shown with these, and overheard.
        self._screens = [self._screen] if marks else [self._screen, Screen(lambda text: None)]
        self.heard = self._screens[-1]
        """What the ranks have said; for who has called `finish`."""
        self._reader = Reader(*(screen.tick for screen in self._screens))
        self._output = Reader()
        self._threads = [
            threading.Thread(target=serve, name="terminal", daemon=True)
            for serve in (self._serve, self._output.serve)
        ]

    def __exit__(self, *_: object) -> None:
        if self._threads[0].ident is None:  # the job was refused: nobody reads
            for reader in (self._reader, self._output):
                reader.stop()
                reader.finish()

    @property
    def lost(self) -> dict[str, int]:
        """What could not be shown, as `Writer` has it."""
        return self._writer.lost

    @property
    def closed(self) -> bool:
        """Whether the reader of an output is gone, as `head` is when it has seen enough."""
        return is_closed(self.lost)

    def errors(self, who: int | None) -> int:
        """The standard error for a rank, or None: the launcher.

        Any thread may call it. The caller closes it when it has handed it on.
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
        """The same of the standard output for the launcher of that MPI."""

        def take(piece: bytes) -> bool:
            self._writer.write(1, piece)
            return True

        if family != "mpich" or self._banners:
            return self._output.pipe(take)
        output = _Output(take, self._screen)
        return self._output.pipe(output.take, output.tick)

    def serve(self) -> None:
        """Begins to read. Starts threads: call it when nothing will be forked."""
        for thread in self._threads:
            thread.start()

    def finish(self, in_time: bool = False) -> None:
        """Shows what has been written up to now, and reads no more.

        With `in_time` it gives up on a reader that takes nothing for some seconds.
        """
        if self._threads[0].ident is not None:
            self._reader.stop()
            self._output.stop()
            until = time.monotonic() + _LAST_WORDS
            for thread in self._threads:
                thread.join(max(0.0, until - time.monotonic()) if in_time else None)

    def show_banner(self) -> None:
        """Shows what the launcher has said of the job's end; for who has called `finish`."""
        self._show("".join(f"{line}\n" for line in self._screen.banner))

    def _show(self, text: str) -> None:
        self._writer.write(2, text.encode(errors="replace"))

    def _serve(self) -> None:
        self._reader.serve()
        for screen in self._screens:
            screen.finish()
        if self.heard is not self._screen:
            self.heard.marked = False  # the tags have another form
