"""Which rank, or what else, brought a failed job down, and what the others were doing.

From what ranks have said, printed and recorded. Says it in one paragraph at the job's end, and
saves what they have recorded.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import re
import shlex
import shutil
import signal
import socket
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tf_hvd.core import contract, error_text
from tf_hvd.core.printable import printable
from tf_hvd.core.ranks_text import ranks_text
from tf_hvd.launch.job import interpreter, job_watch
from tf_hvd.launch.job.job_state import JobState
from tf_hvd.launch.job.job_watch import TO_END, JobWatch, say
from tf_hvd.launch.job.signals import Ending, exit_code
from tf_hvd.launch.job.terminal import Screen
from tf_hvd.launch.machine import proc, rank
from tf_hvd.observe import failure, recording
from tf_hvd.observe.recording import Recording

_WIDTH = 100
_FAILED = 1
# What a debugger and input() raise that meet the end of their input.
_NO_INPUT = re.compile("BdbQuit|EOFError: EOF when reading a line")
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT)


@dataclass(frozen=True)
class Explanation:
    """What brought a job down, as far as this machine knows."""

    what: str
    where: str = ""
    cure: str = ""
    code: int = 0
    """The job's exit code; of a cause that has none of its own, 0 at first: the launcher's."""
    known: bool = True
    """Whether it is one; or else only what ran."""
    rank: int | None = None
    """Whose end it was, if it was that of a rank of this machine."""
    host: str = ""
    """Where that rank, or the one on another machine, ran; empty if it is not known."""
    calls: failure.Failure | None = None
    """What the recordings tell; None where there are none."""


def conclude(ending: Ending, state: JobState, watch: JobWatch, ranks: int) -> Explanation:
    """Says why a job has come to a bad end, and saves what its ranks of this machine have recorded.

    Nothing but the exit code is known of one that has ended well, or of whose ranks nothing is.
    """
    terminal = watch.terminal
    reported = terminal is not None and bool(state.ranks)
    if not (watch.outlived or (reported if ending.code else state.cut_short())):
        if ending.code and terminal:
            terminal.show_banner()
        return Explanation("", code=ending.code, known=False)
    screen = terminal.heard if terminal else Screen(lambda text: None)
    found = explain(ending, state, screen, ranks, recorded(state), watch.outlived)
    if terminal and not found.known:
        terminal.show_banner()
    say(paragraph(found, *save(state, found.rank)))
    if little := watch.shared_memory_text():
        say(little)
    return found


def interrupted(state: JobState, watch: JobWatch) -> None:
    """Says how a job has ended that was asked to: nothing need be wrong with it."""
    if watch.grace:
        say(watch.grace.text())
    folder, _ = save(state, None)
    if folder:
        say(f"tf_hvd run: what the ranks did last: tf_hvd doctor {folder}")


def apart(code: int, options: argparse.Namespace, watch: JobWatch, program: str) -> int:
    """Says that no rank has called `init()`, if one should have; returns the job's exit code."""
    required = bool(options.require_init)
    if required or (watch.trains_apart() and not code):
        say(job_watch.apart_text(options.np, options.command, options.as_horovod, required))
        return code or (_FAILED if required else 0)
    aware = options.as_horovod or options.np == 1 or watch.knows_us()
    python = watch.trains_apart() or interpreter.is_python(program)
    if code and not aware and python and interpreter.is_for_horovod(options.command):
        say(job_watch.NOT_CALLED)
    return code


def explain(
    ending: Ending,
    state: JobState,
    screen: Screen,
    ranks: int,
    recordings: Sequence[Recording] = (),
    outlived: bool = False,
) -> Explanation:
    """Finds out what ended a job with this number of `ranks` on all machines.

    `outlived`: the launcher had to be killed, when all ranks of this machine had ended.
    """
    if outlived:
        found = _outlived(state, screen)
    elif ending.code == 0:
        found = _got_over(state, recordings) or _cut_short(state)
    else:
        found = _find(ending, state, screen, ranks, recordings)
    if recordings:
        job = failure.of_one_job(recordings, found.rank)
        calls = failure.explain(job, found.rank, state.codes(), found.what)
        found = replace(found, calls=calls)
    return replace(found, code=found.code or ending.code)


def _find(
    ending: Ending,
    state: JobState,
    screen: Screen,
    ranks: int,
    recordings: Sequence[Recording],
) -> Explanation:
    before = state.ended_before()
    # At the end of one that has not called `init` the launcher ends the others.
    first = _first_ended(state, all_here=len(state.ranks) >= ranks and not before)
    first, later = _before_launcher(first, ending, state)
    if ending.signum and later:
        how = _signal_text(ending.signum)
        cure = "" if ending.signum in _CRASHES else _where_to_look(-ending.signum, state)
        return Explanation(f"the MPI launcher was ended by {how}, and its ranks with it", cure=cure)
    if asked := sorted(state.said(contract.ASKED)):
        return Explanation(
            f"a rank was asked to end, by a signal: {ranks_text(asked)} saved and ended in order",
            cure="start the job again: it goes on from there",
            code=contract.START_AGAIN,
        )
    if inside := state.ended_inside():
        return Explanation(
            f"{ranks_text(inside)} ended with exit code 0 without leaving the job",
            _where(inside[0], state),
            "call hvd.shutdown() first: os._exit skips Python's exit handlers",
            rank=inside[0],
        )
    if alone := state.told_to_be_alone():
        return Explanation(
            f"{ranks_text(alone)} had TF_HVD_ALONE=1, which keeps a rank out of the job",
            cure="unset it",
        )
    if found := _blamed(first, state, screen):
        return found
    # By these the launchers end the others, and often who was to say so with them.
    ended = first is None or first[1] in (-signal.SIGTERM, -signal.SIGKILL)
    if ended and (found := _got_over(state, recordings)):
        return found
    if first:
        return _failed(*first, state, screen)
    if before:
        return Explanation(
            f"{ranks_text(before)} ended with exit code 0 before hvd.init(), where others waited",
            _where(before[0], state),
            "all ranks must call hvd.init()",
        )
    return _elsewhere(state, screen, ranks)


def _before_launcher(
    first: tuple[int, int] | None, ending: Ending, state: JobState
) -> tuple[tuple[int, int] | None, bool]:
    """Leaves out a rank that this process has killed, as it does after the launcher's end.

    And whether it, or any, came to its end after the launcher. MPICH's takes keepers along.
    """
    if first is None:
        return None, True
    number, code = first
    by_launcher = ending.signum != 0 and number in state.lost()
    later = by_launcher or 0 < ending.time_ns < state.began_to_end(number)
    return (None if later and code == -signal.SIGKILL else first), later


def _outlived(state: JobState, screen: Screen) -> Explanation:
    first = _first_ended(state, all_here=False)
    if first:
        found = _failed(*first, state, screen)
    else:
        found = Explanation(
            "all ranks of this machine have ended, at least one of them with an error",
            code=_FAILED,
        )
    cure = (
        f"the MPI launcher had not ended {TO_END:g} s after them, and was killed: it may have "
        "waited for a machine that cannot be reached"
    )
    return replace(found, cure=cure, host="")


def _cut_short(state: JobState) -> Explanation:
    """Of a job that the launcher ended without calling that a failure."""
    return Explanation(
        "the MPI launcher ended with exit code 0, but on this machine "
        f"{ranks_text(state.cut_short())} did not exit by themselves with code 0; Open MPI does "
        "this when it loses another machine",
        code=_FAILED,
    )


def _got_over(state: JobState, recordings: Sequence[Recording]) -> Explanation | None:
    """An end of the job, a stall for one, that a program caught; None if there was none.

    A rank that goes on to its own end then leaves MPI as it is, for which the MPI's launcher ends
    the others.
    """
    codes = state.codes()
    caught = [
        one
        for one in recordings
        if one.lost_call and one.launched in state.recordings and one.launched not in codes
        if not failure.lost(one.ended)
    ]
    if not caught:
        return None
    one = min(caught, key=lambda each: each.told)
    return Explanation(
        f"the job had come to its end before: {error_text.shorten(one.ended)}",
        _where(one.launched, state),
        f"rank {one.rank} caught the error and went on; the MPI launcher then ended the others",
        _FAILED,
    )


def _elsewhere(state: JobState, screen: Screen, ranks: int) -> Explanation:
    """Where no rank of this machine has ended badly by itself."""
    if screen.first_error and screen.first_error[0] not in state.ranks:
        number, error = screen.first_error
        return Explanation(
            f"rank {number}, on another machine, was the first to print an exception: {error}",
            cure=_see_above(number, screen),
        )
    pids = state.ranks
    what = ", ".join(f"rank {number} was process {pids[number]}" for number in sorted(pids))
    elsewhere = "it is not known which rank failed: none on this machine did so by itself"
    return Explanation(what, cure=elsewhere if len(pids) < ranks else "", known=False)


def _first_ended(state: JobState, all_here: bool) -> tuple[int, int] | None:
    """The rank of this machine that was the first to end badly, and its code or minus its signal.

    One that SIGTERM has ended, or that has ended with its keeper, is it only where all ranks run
    here, `all_here`, and nothing else made the launcher send that signal, as it does when a rank on
    another machine has failed.
    """
    codes = {**(state.lost() if all_here else {}), **state.codes()}
    terminated = -signal.SIGTERM
    ended = [number for number, code in codes.items() if all_here or code != terminated]
    # Ranks of an elastic job that end for the end of another one.
    ended = [each for each in ended if codes[each] != contract.START_AGAIN] or ended
    ended.sort(key=lambda number: (state.began_to_end(number), codes[number] == terminated))
    return (ended[0], codes[ended[0]]) if ended else None


def _blamed(first: tuple[int, int] | None, state: JobState, screen: Screen) -> Explanation | None:
    """Another rank than one of this machine that failed by itself, if an exception names it."""
    told = state.exception(first[0])[1] if first else (screen.first_error or (0, ""))[1]
    gone = failure.lost(told)
    if not gone:
        return None
    number, _, _, why = gone[-1]
    if number not in state.ranks:
        return _blamed_elsewhere(gone[-1], screen)
    code = state.codes().get(number)
    # One that died may be noted after who was told of it; and of a rank that SIGTERM has ended
    # it is not known here whose that was, where ranks run on other machines.
    if code is not None and (why is None or code == -signal.SIGTERM):
        return _failed(number, code, state, screen)
    if not first or code is not None or not (why or "").startswith(error_text.PROGRAM_ENDED):
        return None  # that is the one that was told of it
    waits = error_text.shorten((why or "").removeprefix(error_text.PROGRAM_ENDED))
    # As by sys.exit("no data"): Python prints that before the others are told of the end.
    said = screen.last_words.get(number)
    last = f", its last line being {said.text!r}" if said else ""
    return Explanation(
        f"rank {number} came to the end of its program before rank {first[0]} did{last}{waits}",
        _where(number, state),
        "all ranks must make the same collective calls; " + _see_above(first[0], screen),
    )


def _blamed_elsewhere(one: failure.Lost, screen: Screen) -> Explanation:
    said, how = screen.last_words.get(one.rank), one.how
    if one.why is not None and one.why.startswith(error_text.PROGRAM_ENDED):
        how = "was the first to end" + (f": its last line is {said.text!r}" if said else "")
    elif one.why is not None:
        how = f"was the first to leave the job: {one.why}"
    what = error_text.shorten(f"rank {one.rank}, on {one.host}, {how}")
    return Explanation(what, cure=_see_above(one.rank, screen) if said else "", host=one.host)


def _failed(number: int, code: int, state: JobState, screen: Screen) -> Explanation:
    """Of a rank of this machine, by its exit code or minus its signal."""
    # A program's own exception has another code, and its own code no exception.
    again = code == contract.START_AGAIN and state.exception(number)[1]
    ended = "ended to be started again" if again else "was the first to end with an error"
    why, place = _reason(number, code, state, screen)
    how = f"exit code {code}" if code > 0 else _signal_text(-code)
    shown = place or (code > 0 and number in screen.last_words)
    cure = _cure(number, why, screen) if shown else _where_to_look(code, state)
    return Explanation(
        f"rank {number} {ended} ({how})" + (f": {why}" if why else ""),
        "; ".join(filter(None, [place, _where(number, state)])),
        _of_open_files(why) + cure,
        exit_code(code),
        rank=number,
        host=socket.gethostname(),
    )


def _reason(number: int, code: int, state: JobState, screen: Screen) -> tuple[str, str]:
    """Why a rank ended, and the place in its program; both may be empty."""
    place, raised = state.exception(number)
    why = error_text.short(raised) if raised else ""
    said = screen.last_words.get(number)
    if said is None:
        return why, place
    if raised:
        # Python adds to what it prints: "Did you mean: 'x'?"
        return said.text if said.raised and said.text.startswith(why) else why, place
    # What a program prints last is its reason if it ends by itself: sys.exit("no data"), abort().
    if code < 0 and -code != signal.SIGABRT:
        return "", place
    # From `init` on a rank tells of the exception that ends it: what it prints may be another.
    if said.raised and state.ranks.get(number) not in state.called:
        return said.text, said.place
    return f"its last line is {said.text!r}"[: error_text.LONGEST], place


def _where_to_look(code: int, state: JobState) -> str:
    """For the reason of an exit code, or minus the signal, of a rank or the launcher."""
    if code > 0:
        return "it raised no exception: look where the program calls sys.exit or os._exit"
    if -code in _CRASHES:
        return "a crash of native code: PYTHONFAULTHANDLER=1 shows the Python line it happened in"
    if -code != signal.SIGKILL:
        return "find out who sent it: tf_hvd run did not"
    before, now = state.killed_before, proc.killed_for_memory()
    if before is None or now is None:
        return "find out who sent it: the kernel (dmesg) as memory ran out, a scheduler, a person"
    killed = now - before
    if not killed:
        return "find out who sent it: a scheduler, or a person; memory had not run out"
    many = "a process" if killed == 1 else f"{killed} processes"
    return (
        f"memory ran out: the kernel has killed {many} on this machine since the job began (dmesg "
        "names them); give each rank less to hold, or the job more memory"
    )


def _cure(number: int, why: str, screen: Screen) -> str:
    """For a rank that has said why it ended."""
    if number and _NO_INPUT.match(why):
        return "only rank 0 has a standard input: call breakpoint() or input() on rank 0 alone"
    return _see_above(number, screen)


def _of_open_files(why: str) -> str:
    """What to add to a cure where a rank could open no more files; else empty."""
    if os.strerror(errno.EMFILE) not in why or os.strerror(errno.ENFILE) in why:
        return ""
    most = proc.most_files()
    return f"a process may open {most} files here: raise that (ulimit -n {4 * most}); "


def _see_above(number: int, screen: Screen) -> str:
    shown, marked = screen.shown(number)
    where = "above" + (f", marked [{shown}]" if marked else "")
    if shown != number:
        return f"read the traceback of rank {shown}, {where}: rank {number} has printed the same"
    return f"read what rank {number} has printed, {where}"


def _where(number: int, state: JobState) -> str:
    process = state.ranks.get(number)
    return f"process {process} on {socket.gethostname()}" if process else ""


def _signal_text(signum: int) -> str:
    return f"signal {signum}, {signal.strsignal(signum)}"


def paragraph(found: Explanation, folder: str = "", error: str = "") -> str:
    """The paragraph for a failed job, with the folder of its recordings, or why there is none."""
    parts = {
        "what": found.what,
        "where": found.where,
        "calls": found.calls.sentence if found.calls and found.calls.ranks else "",
        "next": found.cure,
        "more": f"tf_hvd doctor {shlex.quote(folder)}" if folder else "",
        "dump": f"the recordings could not be saved: {error}" if error else "",
    }
    terminal = sys.stderr is not None and sys.stderr.isatty()
    columns = shutil.get_terminal_size((_WIDTH, 0)).columns if terminal else _WIDTH
    lines = [f"tf_hvd run: the job ended with exit code {found.code}"]
    for name, text in parts.items():
        if text:
            lines += textwrap.wrap(
                f"  {name + ':':7}{text}",
                max(40, min(columns - 1, _WIDTH)),
                subsequent_indent=" " * 9,
                break_long_words=False,
                break_on_hyphens=False,
            )
    return "\n".join(map(printable, lines))


def recorded(state: JobState) -> list[Recording]:
    """What this machine's ranks have recorded, and what was saved where theirs would be.

    Ranks on other machines have it there by their keepers, or by themselves where no keeper is.
    """
    found, wanted = {}, os.environ.get(contract.DUMP_FOLDER)
    with contextlib.suppress(recording.RecordingError, OSError):
        there = recording.read(Path(wanted, state.job)).recordings if wanted else []
        found = {one.launched: one for one in there}
    for file in list(state.recordings.values()):
        with contextlib.suppress(recording.RecordingError, OSError):
            one = recording.parse(os.pread(file, os.fstat(file).st_size, 0))
            found[one.launched] = one
    return [found[number] for number in sorted(found)]


def save(state: JobState, first: int | None) -> tuple[str, str]:
    """Saves what this machine's ranks have recorded, if the user wants that: `TF_HVD_DUMP_DIR`.

    Returns where it lies, and what went wrong; both may be empty.
    """
    folder, wanted = "", os.environ.get(contract.DUMP_FOLDER)
    try:
        for number, file in list(state.recordings.items()):
            if wanted:
                folder = rank.save_recording(file, wanted, state.job, number) or folder
        if folder:
            ends = {"first": first, "codes": state.codes()}
            rank.write_own(folder, recording.ENDS, json.dumps(ends).encode())
    except OSError as error:
        return folder, f"{error.filename or wanted}: {error.strerror}"
    return folder, ""
