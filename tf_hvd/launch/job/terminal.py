"""What the ranks of a job and its MPI launcher print, made readable as one.

On standard error lines are marked with their rank once several ranks have spoken. A traceback is
shown in one piece, and one that another rank has shown already is only told of. What MPI's
launchers say at each failed job is kept back: tf_hvd run says it better (explain.py).
"""

from __future__ import annotations

import codecs
import contextlib
import os
import queue
import re
import selectors
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tf_hvd.core import error_text
from tf_hvd.core.ranks_text import runs
from tf_hvd.launch.machine import rank as ranks

_PIECE = 1 << 16
_LINE_END = re.compile("([\r\n])")
# In seconds: after what pause a line that has not ended is shown so far, a traceback is over, and
# it is told who has printed the same; and how long it may be held back at most.
_UNFINISHED, _PAUSE, _TELL, _LONGEST_HELD = 0.1, 0.4, 1.0, 3.0
# In seconds: for a reader of ours that takes nothing.
_LAST_WORDS = 5.0
# What differs in one traceback from rank to rank: addresses, TensorFlow's numbers of graphs, and
# the names of files that AutoGraph has written.
_OWN = re.compile(r"\b0x[0-9a-f]+|(?<=_)\d+(?=\])|(?<=__autograph_generated_file)\w+")
# A line of a rank that --tag-output has tagged, and perhaps --prefix-output-with-timestamp.
_TAGGED = re.compile(rf"{ranks.LABEL.pattern}(\[\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d\] )?")
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
# Lines that are not a rank's reason to end: TensorFlow's of lower levels.
_CHATTER = re.compile(
    r"([IW]\d{4} |WARNING: All log messages before|To enable the following instructions:)|\W*$"
)


@dataclass(frozen=True)
class LastWords:
    """What a rank has printed last, in one line."""

    text: str
    raised: bool = False
    """Whether it is the exception of a traceback."""
    place: str = ""
    """The user's own line in that; may be empty."""


@dataclass
class _Speaker:
    """What a rank, or the launcher, has said and is not shown yet."""

    line: str = ""
    since: float = 0.0  # when `line` began to wait
    at_start: bool = True  # of the screen's line, if that is its own
    held: list[str] = field(default_factory=list)  # a traceback, or the launcher's paragraph
    held_since: float = 0.0
    held_last: float = 0.0


class Screen:
    """Puts pieces of output in order. For one thread.

    Args:
        write: shows a text.
        banners: whether the launcher's paragraphs about a failed job are shown when they come.
    """

    def __init__(self, write: Callable[[str], object], banners: bool = False) -> None:
        self._write = write
        self._shows_banners = banners
        self._speakers: dict[int | None, _Speaker] = {}
        self.marked = False
        """Whether lines are marked with their rank by now."""
        self._owner: int | None = None  # whose unfinished line stands there
        self._unfinished = False  # whether one does
        self._shown: dict[tuple[str, ...], int] = {}  # tracebacks, and who showed them
        self._same: dict[int, list[int]] = {}  # whose traceback others have printed as well
        self._same_since = 0.0
        self._bears_mark: dict[int, bool] = {}  # whether a rank's last line on the screen does
        self._stands_for: dict[int, int] = {}  # who has shown the last traceback of each rank
        self.banner: list[str] = []
        """The lines of the launcher that were kept back."""
        self.last_words: dict[int, LastWords] = {}
        """What each rank has printed last that may say why it ended."""
        self.first_error: tuple[int, str] | None = None
        """The rank that was the first to print a traceback, and the exception."""

    def add(self, who: int | None, text: str, now: float) -> None:
        """Takes a piece of a rank's output; None for the launcher's."""
        speaker = self._speakers.setdefault(who, _Speaker())
        self.marked = self.marked or len(self._speakers.keys() - {None}) > 1
        if not speaker.line:
            speaker.since = now
        *whole, speaker.line = _LINE_END.split(speaker.line + text)
        for line, end in zip(whole[::2], whole[1::2], strict=True):
            if end == "\r" and who is not None and not speaker.held:
                self._redraw(who, speaker, line)
            elif end == "\n":
                self._finish(who, speaker, line, now)
        if whole:
            speaker.since = now

    def wait(self, now: float) -> float | None:
        """Seconds until `tick` has something to do; None if nothing waits for it."""
        due = [s.since + _UNFINISHED for s in self._speakers.values() if s.line and not s.held]
        due += [self._release_at(s) for s in self._speakers.values() if s.held]
        if self._same:
            due.append(self._same_since + _TELL)
        return max(0.0, min(due) - now) if due else None

    def tick(self, now: float) -> None:
        """Shows what has waited long enough."""
        for who, speaker in self._speakers.items():
            if speaker.held and now >= self._release_at(speaker):
                self._release(who, speaker, now)
            if speaker.line and not speaker.held and now >= speaker.since + _UNFINISHED:
                self._show_unfinished(who, speaker, now)
        if self._same and now >= self._same_since + _TELL:
            self._tell_same()

    def end(self, who: int | None, now: float) -> None:
        """Shows all that is left of a rank, or the launcher: nothing more will come from it."""
        speaker = self._speakers.get(who)
        if speaker is None:
            return
        if speaker.line:
            line, speaker.line = speaker.line, ""
            self._finish(who, speaker, line, now)
        self._release(who, speaker, now)

    def finish(self) -> None:
        """Shows all that is left: nothing more will come from anyone."""
        for who in list(self._speakers):
            self.end(who, 0.0)
        self._tell_same()
        if self._unfinished:
            self._write("\n")
            self._unfinished = False

    def shown(self, who: int) -> tuple[int, bool]:
        """Under which rank a rank's last lines are to be found, and whether that marks them.

        Another where that one has shown the same traceback.
        """
        stands = self._stands_for.get(who, who)
        return stands, self.marked and self._bears_mark.get(stands, False)

    def _release_at(self, speaker: _Speaker) -> float:
        return min(speaker.held_last + _PAUSE, speaker.held_since + _LONGEST_HELD)

    def _finish(self, who: int | None, speaker: _Speaker, line: str, now: float) -> None:
        if who is None:
            self._take_launchers(speaker, line, now)
            return
        # A program that Python cannot read has no more than one frame.
        frame = not speaker.held and error_text.FRAME.match(line)
        starts = speaker.at_start and (line == error_text.TRACEBACK or bool(frame))
        if starts and speaker.held and not _is_chained(speaker.held):
            self._release(who, speaker, now)
        if speaker.held or starts:
            self._hold(speaker, line, now)
            return
        self._note(who, [line])
        self._show(who, speaker, [line])

    def _hold(self, speaker: _Speaker, line: str, now: float) -> None:
        if not speaker.held:
            speaker.held_since = now
        speaker.held.append(line)
        speaker.held_last = now

    def _take_launchers(self, speaker: _Speaker, line: str, now: float) -> None:
        """Shows a line of the launcher, or keeps its paragraph back."""
        rule = bool(_RULE.match(line))
        if speaker.held or rule:
            closes = bool(speaker.held) and rule
            self._hold(speaker, line, now)
            if closes:
                self._release(None, speaker, now)
        elif self._shows_banners or not _is_banner([line]):
            self._show(None, speaker, [line])
        else:
            self.banner.append(line)

    def _release(self, who: int | None, speaker: _Speaker, now: float) -> None:
        """Shows what was held back, unless it is the launcher's banner or was shown already."""
        held, speaker.held = speaker.held, []
        if not held:
            return
        if who is None:
            if self._shows_banners or not _is_banner(held):
                self._show(None, speaker, held)
            else:
                self.banner += held
            return
        error, place = error_text.printed(held)
        if error_text.TRACEBACK in held or place:
            self.last_words[who] = LastWords(error, True, place)
            self.first_error = self.first_error or (who, error)
        else:
            self._note(who, held)
        first = self._shown.setdefault(tuple(_OWN.sub("", line) for line in held), who)
        if first == who:
            self._show(who, speaker, held)
        else:
            self._same.setdefault(first, []).append(who)
            self._same_since = now
            self._stands_for[who] = first

    def _note(self, who: int, lines: Iterable[str]) -> None:
        for line in lines:
            if line.strip() and not _CHATTER.match(line):
                self.last_words[who] = LastWords(line.strip())

    def _tell_same(self) -> None:
        for first, others in self._same.items():
            self._end_line()
            self._write(f"{_label(sorted(set(others)))}the same traceback as rank {first}'s\n")
        self._same = {}

    def _show(self, who: int | None, speaker: _Speaker, lines: Iterable[str]) -> None:
        label = self._label(who)
        if who is not None:
            self._bears_mark[who] = bool(label)
            self._stands_for.pop(who, None)
        for line in lines:
            own = self._unfinished and self._owner == who
            if not own:
                self._end_line()
            self._write((label if not own or speaker.at_start else "") + line + "\n")
            self._unfinished, speaker.at_start = False, True

    def _show_unfinished(self, who: int | None, speaker: _Speaker, now: float) -> None:
        if self._unfinished and self._owner != who:
            speaker.since = now  # until that line has ended, or this one
            return
        text, speaker.line = speaker.line, ""
        self._continue(who, speaker, text)
        speaker.at_start = False

    def _redraw(self, who: int, speaker: _Speaker, line: str) -> None:
        """A line that the next one of its rank replaces; not where another's stands."""
        if self._unfinished and self._owner != who:
            return
        if line:
            self._continue(who, speaker, line)
        if self._unfinished:
            self._write("\r")
        speaker.at_start = True

    def _continue(self, who: int | None, speaker: _Speaker, text: str) -> None:
        new = not self._unfinished or speaker.at_start
        self._write((self._label(who) if new else "") + text)
        self._unfinished, self._owner = True, who

    def _end_line(self) -> None:
        if self._unfinished:
            self._write("\n")
            self._unfinished = False
            self._speakers[self._owner].at_start = True

    def _label(self, who: int | None) -> str:
        return _label([who]) if self.marked and who is not None else ""


def _label(who: Sequence[int]) -> str:
    """The same as people write it: [0], or [2-5, 7]."""
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs(who)]
    return f"[{', '.join(texts)}] "


def _is_chained(held: Sequence[str]) -> bool:
    """Whether the traceback that follows belongs to this one: `raise ... from ...`."""
    told = next((line for line in reversed(held) if line), "")
    return told.endswith((" exception occurred:", "direct cause of the following exception:"))


def _is_banner(lines: Sequence[str]) -> bool:
    text = " ".join(lines)
    return any(phrase in text for phrase in _BANNERS)


class _Errors:
    """One standard error: a rank's, or the launcher's with the lines of ranks on other machines."""

    def __init__(self, who: int | None, marks: bool) -> None:
        self.who = who
        """Whose it is; None for the launcher."""
        self._marks = marks
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._rest = ""

    def take(self, piece: bytes) -> list[tuple[int | None, str]]:
        """The text in it, by who has said it; an empty piece is the end."""
        text = self._decoder.decode(piece, final=not piece)
        if self.who is not None or not self._marks:
            return [(self.who, text)] if text else []
        # A line tells whose it is at its start, so that it must be whole.
        *whole, self._rest = _LINE_END.split(self._rest + text)
        if not piece and self._rest:
            whole, self._rest = [*whole, self._rest, "\n"], ""
        found: list[tuple[int | None, str]] = []
        for line, end in zip(whole[::2], whole[1::2], strict=True):
            label = _TAGGED.match(line)
            if label:
                found.append((int(label[1]), line[label.end() :] + end))
            else:
                found.append((None, line + end))
        return found


class _Output:
    """The standard output of MPICH's launcher, to be handed on but for its banner at the end."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._rest = b""  # what may be the banner's beginning, or the banner
        self._since = 0.0

    def take(self, piece: bytes, now: float) -> bool:
        """Hands a piece on; empty at the end. False if nobody takes it."""
        text, self._since = self._rest + piece, now
        start = text.find(_MPICHS_BANNER)
        if start < 0:
            kept = _common_end(text, _MPICHS_BANNER) if piece else 0
            start = len(text) - kept
        text, self._rest = text[:start], text[start:]
        if not piece:
            self._screen.banner += self._rest.decode(errors="replace").splitlines()
        return ranks.write_all(1, text)

    def wait(self, now: float) -> float | None:
        """Seconds until `tick` has something to do; None if it has not."""
        waits = self._rest and not self._rest.startswith(_MPICHS_BANNER)
        return max(0.0, self._since + _UNFINISHED - now) if waits else None

    def tick(self, now: float) -> None:
        """Shows what turned out not to be the banner's beginning."""
        if self.wait(now) == 0:
            rest, self._rest = self._rest, b""
            ranks.write_all(1, rest)


def _common_end(text: bytes, pattern: bytes) -> int:
    """How many bytes at a text's end are the beginning of a pattern."""
    most = min(len(text), len(pattern) - 1)
    return next((n for n in range(most, 0, -1) if text.endswith(pattern[:n])), 0)


def _to_standard_error(text: str) -> None:
    ranks.write_all(2, text.encode(errors="replace"))


class Terminal:
    """Reads what a job prints, in a thread of its own, and shows it on this process's outputs.

    Args:
        marks: whether ranks on other machines mark their lines for this (`rank.LABEL`); if not,
            lines are shown as they come.
        banners: see `Screen`.
    """

    def __init__(self, marks: bool = True, banners: bool = False) -> None:
        self._marks = marks
        self._banners = banners
        self._screen = Screen(_to_standard_error, banners)
        # What ranks say in lines with tags is shown with these, and overheard.
        self._tagged = None if marks else _Errors(None, marks=True)
        self._overheard = Screen(lambda text: None)
        self._new: queue.SimpleQueue[tuple[int, _Errors | _Output]] = queue.SimpleQueue()
        self._lock = threading.Lock()  # guards _wake
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="terminal", daemon=True)

    @property
    def heard(self) -> Screen:
        """What the ranks have said; for who has called `finish`."""
        return self._overheard if self._tagged else self._screen

    def errors(self, who: int | None) -> int:
        """The standard error for a rank, or None: the launcher.

        Any thread may call it. The caller closes it when it has handed it on.
        """
        return self._pipe(_Errors(who, self._marks))

    def output(self) -> int | None:
        """The same of the standard output for MPICH's launcher; None: it may keep its own."""
        return None if self._banners else self._pipe(_Output(self._screen))

    def serve(self) -> None:
        """Begins to read. Starts a thread: call it when nothing will be forked."""
        self._thread.start()

    def finish(self) -> None:
        """Shows what has been written up to now, and reads no more."""
        if not self._thread.is_alive():
            return
        self._over.set()
        self._wake_up()
        self._thread.join(_LAST_WORDS)
        with self._lock:
            os.close(self._wake)
            self._wake = -1

    def show_banner(self) -> None:
        """Shows what the launcher has said of the job's end; for who has called `finish`."""
        _to_standard_error("".join(f"{line}\n" for line in self._screen.banner))

    def _pipe(self, source: _Errors | _Output) -> int:
        read_end, write_end = os.pipe()
        os.set_blocking(read_end, False)
        self._new.put((read_end, source))
        self._wake_up()
        return write_end

    def _wake_up(self) -> None:
        with self._lock, contextlib.suppress(OSError):  # full: then it is awake; or it is over
            os.write(self._wake, b"0")

    def _serve(self) -> None:
        sources = selectors.DefaultSelector()
        sources.register(self._woken, selectors.EVENT_READ)
        while not self._over.is_set():
            outputs = [k.data for k in sources.get_map().values() if isinstance(k.data, _Output)]
            now = time.monotonic()
            waiting: list[Screen | _Output] = [self._screen, *outputs]
            waits = [each.wait(now) for each in waiting]
            for key, _ in sources.select(min((w for w in waits if w is not None), default=None)):
                if key.fd == self._woken:
                    os.read(self._woken, _PIECE)
                    self._register(sources)
                else:
                    self._read(sources, key)
            for each in waiting:
                each.tick(time.monotonic())
        self._register(sources)
        sources.unregister(self._woken)
        os.close(self._woken)
        for key in list(sources.get_map().values()):
            while self._read(sources, key):
                pass
            if isinstance(key.data, _Output):
                key.data.take(b"", 0.0)
        for key in sources.get_map().values():  # others still have their other ends
            os.close(key.fd)
        sources.close()
        self._screen.finish()
        self._overheard.finish()
        self._overheard.marked = False  # the tags have another form

    def _register(self, sources: selectors.BaseSelector) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                read_end, source = self._new.get_nowait()
                sources.register(read_end, selectors.EVENT_READ, source)

    def _read(self, sources: selectors.BaseSelector, key: selectors.SelectorKey) -> bool:
        """Hands on what has come; False if nothing has, or nothing more is wanted."""
        try:
            piece = os.read(key.fd, _PIECE)
        except BlockingIOError:
            return False
        now, source = time.monotonic(), key.data
        if isinstance(source, _Output):
            # Who writes when nobody reads is to hear of it.
            goes_on = source.take(piece, now) and bool(piece)
        else:
            for who, text in source.take(piece):
                self._screen.add(who, text, now)
            for who, text in self._tagged.take(piece) if self._tagged else ():
                if who is not None:
                    self._overheard.add(who, text, now)
            goes_on = bool(piece)
            if not piece:
                self._screen.end(source.who, now)
        if not goes_on:
            sources.unregister(key.fd)
            os.close(key.fd)
        return goes_on
