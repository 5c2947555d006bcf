"""Explanation of a failed job: the rank or event that ended it, and the other ranks' calls.

The explanation is based on the ranks' reports, output and recordings. When the job ends, it is
printed as one paragraph, and the recordings are saved.
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
# Exceptions that a debugger and input() raise at the end of their input.
_NO_INPUT = re.compile("BdbQuit|EOFError: EOF when reading a line")
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT)


@dataclass(frozen=True)
class Explanation:
    """Why a job ended, as far as this machine knows."""

    what: str
    where: str = ""
    cure: str = ""
    code: int = 0
    """The job's exit code; 0 means the launcher's exit code."""
    known: bool = True
    """Whether `what` is a cause; if not, `what` lists the ranks that ran."""
    rank: int | None = None
    """The rank on this machine that failed; None if no rank failed here."""
    host: str = ""
    """The machine of the failed rank; empty if unknown."""
    calls: failure.Failure | None = None
    """The analysis of the recordings; None if there are no recordings."""


def conclude(ending: Ending, state: JobState, watch: JobWatch, ranks: int) -> Explanation:
    """Print why a job failed, and save the recordings from this machine's ranks.

    If the job succeeded, or nothing is known about its ranks, the result has only an exit code.
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
    """Print how a job ended on request, which is not a failure."""
    if watch.grace:
        say(watch.grace.text())
    folder, _ = save(state, None)
    if folder:
        say(f"tf_hvd run: to see the ranks' last calls, run: tf_hvd doctor {folder}")


def apart(code: int, options: argparse.Namespace, watch: JobWatch, program: str) -> int:
    """Print a message if no rank called `init()` but one should have; return the exit code."""
    required = bool(options.require_init)
    if required or (watch.trains_apart() and not code):
        say(job_watch.apart_text(options, required))
        return code or (_FAILED if required else 0)
    aware = options.as_horovod or options.keras or options.np == 1 or watch.knows_us()
    python = watch.trains_apart() or interpreter.is_python(program)
    if code and not aware and python:
        if interpreter.is_for_keras_distribution(options.command):
            say(job_watch.WITHOUT_KERAS)
        elif interpreter.is_for_horovod(options.command):
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
    """Find the cause of a job's end.

    Args:
        ending: how the launcher ended.
        state: the ranks on this machine.
        screen: the parsed output of the ranks.
        ranks: number of ranks on all machines.
        recordings: the recordings found on this machine (default: none).
        outlived: whether the launcher was killed because it outlived all ranks on this machine
            (default: False).
    """
    if outlived:
        found = _outlived(state, screen)
    elif ending.code == 0:
        found = _caught_end(state, recordings) or _cut_short(state)
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
    # The launcher ends all ranks when a rank ends that has not called `init`.
    first = _first_ended(state, all_here=len(state.ranks) >= ranks and not before)
    first, later = _before_launcher(first, ending, state)
    if ending.signum and later:
        how = _signal_text(ending.signum)
        cure = "" if ending.signum in _CRASHES else _where_to_look(-ending.signum, state)
        return Explanation(f"the MPI launcher was ended by {how}, and its ranks with it", cure=cure)
    if asked := sorted(state.said(contract.ASKED)):
        return Explanation(
            f"{ranks_text(asked)} received a termination signal, saved and exited cleanly",
            cure="start the job again: it continues from the saved state",
            code=contract.START_AGAIN,
        )
    if inside := state.ended_inside():
        return Explanation(
            f"{ranks_text(inside)} ended with exit code 0 without leaving the job",
            _where(inside[0], state),
            "call hvd.shutdown() first: os._exit skips Python's exit handlers",
            rank=inside[0],
        )
    if excluded := state.ranks_with_alone_set():
        return Explanation(
            f"{ranks_text(excluded)} had TF_HVD_ALONE=1, which keeps a rank out of the job",
            cure="unset TF_HVD_ALONE",
        )
    if found := _blamed(first, state, screen):
        return found
    # Launchers use these signals to end the other ranks, and often their keepers too.
    ended = first is None or first[1] in (-signal.SIGTERM, -signal.SIGKILL)
    if ended and (found := _caught_end(state, recordings)):
        return found
    if first:
        return _failed(*first, state, screen)
    if before:
        return Explanation(
            f"{ranks_text(before)} ended with exit code 0 without calling hvd.init(), in which "
            "other ranks waited",
            _where(before[0], state),
            "call hvd.init() on all ranks",
        )
    return _elsewhere(state, screen, ranks)


def _before_launcher(
    first: tuple[int, int] | None, ending: Ending, state: JobState
) -> tuple[tuple[int, int] | None, bool]:
    """Exclude the first rank if this process killed it after the launcher had ended.

    MPICH's launcher kills the keepers when it ends.

    Returns:
        The first rank or None, and whether that rank ended after the launcher; True if None.
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
            "all ranks on this machine have ended, at least one of them with an error",
            code=_FAILED,
        )
    cure = (
        "check that all hosts can be reached: the MPI launcher was still running "
        f"{TO_END:g} s after the ranks, and was killed"
    )
    return replace(found, cure=cure, host="")


def _cut_short(state: JobState) -> Explanation:
    """Explain a job that the launcher ended without reporting a failure."""
    return Explanation(
        "the MPI launcher ended with exit code 0, but on this machine it ended "
        f"{ranks_text(state.cut_short())} early; Open MPI does this when it loses another machine",
        code=_FAILED,
    )


def _caught_end(state: JobState, recordings: Sequence[Recording]) -> Explanation | None:
    """Explain a job's end that a program caught as an error, such as a stall; else return None.

    The rank that caught the error continues to the end of its program but does not finalize MPI,
    so MPI's launcher ends the other ranks.
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
        f"the job had already ended: {error_text.shorten(one.ended)}",
        _where(one.launched, state),
        f"rank {one.rank} caught the error and continued; the MPI launcher then ended the others",
        _FAILED,
    )


def _elsewhere(state: JobState, screen: Screen, ranks: int) -> Explanation:
    """Explain a failed job in which no rank on this machine failed on its own."""
    if screen.first_error and screen.first_error[0] not in state.ranks:
        number, error = screen.first_error
        return Explanation(
            f"rank {number}, on another machine, was the first to print an exception: {error}",
            cure=_see_above(number, screen),
        )
    pids = state.ranks
    what = ", ".join(f"rank {number} was process {pids[number]}" for number in sorted(pids))
    elsewhere = "check the other machines: no rank on this machine failed on its own"
    return Explanation(what, cure=elsewhere if len(pids) < ranks else "", known=False)


def _first_ended(state: JobState, all_here: bool) -> tuple[int, int] | None:
    """Return the first rank that failed on this machine, and its exit code or minus its signal.

    The launcher ends ranks with SIGTERM, or together with their keepers, when a rank on another
    machine fails. Ranks that ended in this way count only if `all_here`: all ranks run on this
    machine, and nothing else made the launcher end them.
    """
    codes = {**(state.lost() if all_here else {}), **state.codes()}
    terminated = -signal.SIGTERM
    ended = [number for number, code in codes.items() if all_here or code != terminated]
    # START_AGAIN: ranks of an elastic job that end because another rank has ended.
    ended = [each for each in ended if codes[each] != contract.START_AGAIN] or ended
    ended.sort(key=lambda number: (state.began_to_end(number), codes[number] == terminated))
    return (ended[0], codes[ended[0]]) if ended else None


def _blamed(first: tuple[int, int] | None, state: JobState, screen: Screen) -> Explanation | None:
    """Blame the rank that an exception reports as lost; None if a local rank failed first."""
    told = state.exception(first[0])[1] if first else (screen.first_error or (0, ""))[1]
    gone = failure.lost(told)
    if not gone:
        return None
    number, _, _, why = gone[-1]
    if number not in state.ranks:
        return _blamed_elsewhere(gone[-1], screen)
    code = state.codes().get(number)
    # The end of a rank that died may be recorded after the ends of ranks that noticed it. If
    # ranks run on other machines, this machine does not know the sender of a rank's SIGTERM.
    if code is not None and (why is None or code == -signal.SIGTERM):
        return _failed(number, code, state, screen)
    if not first or code is not None or not (why or "").startswith(error_text.PROGRAM_ENDED):
        return None  # the named rank only noticed the end of another one
    waits = error_text.shorten((why or "").removeprefix(error_text.PROGRAM_ENDED))
    # After sys.exit("no data"), for example, Python prints the text before other ranks notice.
    said = screen.last_words.get(number)
    last = f" (last line: {said.text!r})" if said else ""
    return Explanation(
        f"rank {number} reached the end of its program before rank {first[0]} did{last}{waits}",
        _where(number, state),
        "make the same collective calls on all ranks; " + _see_above(first[0], screen),
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
    """Explain a rank's failure on this machine, given its exit code or minus its signal."""
    # A program's own exception has another exit code, and its own sys.exit has no exception.
    again = code == contract.START_AGAIN and state.exception(number)[1]
    ended = "ended in order to be restarted" if again else "was the first to end with an error"
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
    """Return why a rank ended, and where in its program; both texts may be empty."""
    place, raised = state.exception(number)
    why = error_text.short(raised) if raised else ""
    said = screen.last_words.get(number)
    if said is None:
        return why, place
    if raised:
        # The text that Python prints may be longer, for example by "Did you mean: 'x'?".
        return said.text if said.raised and said.text.startswith(why) else why, place
    # The last line is the reason if a program ends on its own: sys.exit("no data"), abort().
    if code < 0 and -code != signal.SIGABRT:
        return "", place
    # After `init` a rank reports the exception that ends it; a printed one may be unrelated.
    if said.raised and state.ranks.get(number) not in state.called:
        return said.text, said.place
    return f"its last line is {said.text!r}"[: error_text.LONGEST], place


def _where_to_look(code: int, state: JobState) -> str:
    """Return advice on an exit code, or minus a signal, from a rank or the launcher."""
    if code > 0:
        return "no exception was raised: check where the program calls sys.exit or os._exit"
    if -code in _CRASHES:
        return "native code crashed: set PYTHONFAULTHANDLER=1 to see the Python line"
    if -code != signal.SIGKILL:
        return "check who sent the signal: tf_hvd run did not"
    before, now = state.killed_before, proc.killed_for_memory()
    if before is None or now is None:
        return "check who sent the signal: the kernel's OOM killer (dmesg), a scheduler or a user"
    killed = now - before
    if not killed:
        return "check who sent the signal: a scheduler or a user; the OOM killer did not"
    many = "a process" if killed == 1 else f"{killed} processes"
    return (
        f"memory ran out: the kernel has killed {many} on this machine since the job began (see "
        "dmesg); reduce the memory use of each rank, or give the job more memory"
    )


def _cure(number: int, why: str, screen: Screen) -> str:
    """Return advice for a rank that printed why it ended."""
    if number and _NO_INPUT.match(why):
        return "call breakpoint() or input() on rank 0 only: other ranks have no standard input"
    return _see_above(number, screen)


def _of_open_files(why: str) -> str:
    """Return additional advice if a rank reached its limit of open files, else ""."""
    if os.strerror(errno.EMFILE) not in why or os.strerror(errno.ENFILE) in why:
        return ""
    most = proc.most_files()
    return f"raise the limit of {most} open files per process (ulimit -n {4 * most}); "


def _see_above(number: int, screen: Screen) -> str:
    shown, marked = screen.shown(number)
    where = "above" + (f", marked [{shown}]" if marked else "")
    if shown != number:
        return f"read the traceback of rank {shown}, {where}: rank {number} printed the same"
    return f"read the output of rank {number}, {where}"


def _where(number: int, state: JobState) -> str:
    process = state.ranks.get(number)
    return f"process {process} on {socket.gethostname()}" if process else ""


def _signal_text(signum: int) -> str:
    return f"signal {signum}, {signal.strsignal(signum)}"


def paragraph(found: Explanation, folder: str = "", error: str = "") -> str:
    """Return the paragraph that explains a failed job.

    Args:
        found: the explanation.
        folder: the folder of the saved recordings; empty if there is none.
        error: why the recordings could not be saved; empty if they could.
    """
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
    """Return this machine's recordings and those saved for the job in TF_HVD_DUMP_DIR.

    On other machines, the keepers save recordings in that folder; ranks without a keeper save their
    own.
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
    """Save the recordings from this machine's ranks, if `TF_HVD_DUMP_DIR` is set.

    Returns:
        The folder and an error message; both may be empty.
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
