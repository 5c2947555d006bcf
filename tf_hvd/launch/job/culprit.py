"""Which rank, or what else, brought a failed job down: said in one paragraph at the job's end."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import socket
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tf_hvd.core import contract, error_text
from tf_hvd.core.printable import printable
from tf_hvd.core.ranks_text import ranks_text
from tf_hvd.launch.job import processes
from tf_hvd.launch.job.job_state import JobState
from tf_hvd.launch.job.recordings import NO_EVIDENCE, Evidence
from tf_hvd.launch.job.supervise import Ending, exit_code
from tf_hvd.launch.job.terminal import Screen
from tf_hvd.observe.recording import Recording

_WIDTH = 100
_RAISED = 1  # the exit code of a job whose error a program caught
# What ranks are told of one that is gone (docs/errors.md). Ahead: one may tell of another.
_GONE = re.compile(r"(?=\brank (\d+) \(([^()]+)\) (left: (?P<why>.*)|died\b.*))")
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT)


@dataclass(frozen=True)
class Culprit:
    """What brought a job down, as far as this machine knows."""

    what: str
    where: str = ""
    cure: str = ""
    """What to do, or where to look."""
    code: int | None = None
    """The exit code of a rank that is to be the job's; None for the launcher's."""
    known: bool = True
    """Whether it is one; or else only what ran."""
    rank: int | None = None
    """Whose end it was, if it was that of a rank of this machine."""
    host: str = ""
    """Where that rank, or the one on another machine, ran; empty if it is not known."""


def find(
    ending: Ending,
    state: JobState,
    screen: Screen,
    ranks: int,
    recorded: Sequence[Recording] = (),
) -> Culprit:
    """Finds out what brought a job down.

    Args:
        ending: how the MPI's launcher ended.
        state: what the ranks of this machine have reported.
        screen: what ranks and launcher have printed.
        ranks: how many ranks the job had, on all machines.
        recorded: what its ranks of this machine have recorded.
    """
    before = state.ended_before()
    # At the end of one that has not called `init` the launcher ends the others.
    first = first_ended(state, all_here=len(state.ranks) >= ranks and not before)
    first, later = _before_launcher(first, ending, state)
    if ending.signum and later:
        how = _signal_text(ending.signum)
        cure = "" if ending.signum in _CRASHES else _who_sent(ending.signum, state)
        return Culprit(f"the MPI launcher was ended by {how}, and its ranks with it", cure=cure)
    if asked := state.asked():
        return Culprit(
            f"a rank was asked to end, by a signal: {ranks_text(asked)} saved and ended in order",
            cure="start the job again: it goes on from there",
            code=contract.START_AGAIN,
        )
    if inside := state.ended_inside():
        return Culprit(
            f"{ranks_text(inside)} ended with exit code 0 without leaving the job",
            _where(inside[0], state),
            "call hvd.shutdown() first: os._exit skips Python's exit handlers",
            rank=inside[0],
        )
    if alone := state.told_to_be_alone():
        return Culprit(
            f"{ranks_text(alone)} had TF_HVD_ALONE=1, which keeps a rank out of the job",
            cure="unset it",
        )
    if found := _blamed(first, state, screen):
        return found
    # By these the launchers end the others, and often who was to say so with them.
    ended = first is None or first[1] in (-signal.SIGTERM, -signal.SIGKILL)
    if ended and (found := got_over(state, recorded)):
        return found
    if first:
        return _first(*first, state, screen)
    if before:
        return Culprit(
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


def outlived(state: JobState, screen: Screen | None, seconds: float) -> Culprit:
    """The same where all ranks of this machine have ended, but not the launcher, for so long."""
    first = first_ended(state, all_here=False)
    if first:
        found = _first(*first, state, screen)
    else:
        found = Culprit("all ranks of this machine have ended, at least one of them with an error")
    cure = (
        f"the MPI launcher had not ended {seconds:g} s after them, and was killed: it may have "
        "waited for a machine that cannot be reached"
    )
    return replace(found, cure=cure)


def first_ended(state: JobState, all_here: bool) -> tuple[int, int] | None:
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


def first_text(number: int, code: int, why: str, again: bool = False) -> str:
    """The sentence about that rank.

    Args:
        number: of the rank.
        code: its exit code, or minus its signal.
        why: may be empty.
        again: it is a rank of an elastic job, whose end was not its doing.
    """
    how = _signal_text(-code) if code < 0 else f"exit code {code}"
    ended = "ended to be started again" if again else "was the first to end with an error"
    return f"rank {number} {ended} ({how})" + (f": {why}" if why else "")


def reason(number: int, state: JobState) -> str:
    """The exception that ended a rank inside the job, in one line; empty if none did."""
    text = state.exception(number)[1]
    return error_text.short(text) if text else ""


def end_text(code: int, culprit: Culprit, evidence: Evidence = NO_EVIDENCE) -> str:
    """The paragraph for a job that failed."""
    parts = {
        "what": culprit.what,
        "where": culprit.where,
        "calls": evidence.sentence,
        "next": culprit.cure,
        "more": f"tf_hvd doctor {shlex.quote(evidence.folder)}" if evidence.folder else "",
        "dump": evidence.error and f"the recordings could not be saved: {evidence.error}",
    }
    lines = [f"tf_hvd run: the job ended with exit code {code}"]
    for name, text in parts.items():
        if text:
            lines += _wrapped(f"  {name + ':':7}{text}", " " * 9)
    return "\n".join(lines)


def cut_short(ranks: Sequence[int]) -> Culprit:
    """What is known of a job that the launcher ended without calling that a failure."""
    return Culprit(
        "the MPI launcher ended with exit code 0, but on this machine "
        f"{ranks_text(ranks)} did not exit by themselves with code 0; Open MPI does this when it "
        "loses another machine"
    )


def _elsewhere(state: JobState, screen: Screen, ranks: int) -> Culprit:
    """What is known where no rank of this machine has ended badly by itself."""
    if screen.first_error and screen.first_error[0] not in state.ranks:
        number, error = screen.first_error
        return Culprit(
            f"rank {number}, on another machine, was the first to print an exception: {error}",
            cure=_see_above(number, screen),
        )
    pids = state.ranks
    what = ", ".join(f"rank {number} was process {pids[number]}" for number in sorted(pids))
    elsewhere = "it is not known which rank failed: none on this machine did so by itself"
    cure = elsewhere if len(pids) < ranks else ""
    return Culprit(what, cure=cure, known=False)


def _blamed(first: tuple[int, int] | None, state: JobState, screen: Screen) -> Culprit | None:
    """Another rank than one of this machine that failed by itself, if an exception names it."""
    told = state.exception(first[0])[1] if first else (screen.first_error or (0, ""))[1]
    # One that left since another one had left tells of that one last.
    lines = (error_text.AFTER.sub("", line) for line in told.splitlines())
    gone = [found for line in lines for found in _GONE.finditer(line)]
    if not gone:
        return None
    number, host, why = int(gone[-1][1]), gone[-1][2], gone[-1]["why"]
    if number in state.ranks:
        return _blamed_here(number, why, first, state, screen)
    said = screen.last_words.get(number)
    what = f"rank {number}, on {host}, "
    if why is None:
        what += gone[-1][3]
    elif why.startswith(error_text.PROGRAM_ENDED):
        what += "was the first to end" + (f": its last line is {said.text!r}" if said else "")
    else:
        what += f"was the first to leave the job: {why}"
    what = error_text.shorten(what)
    return Culprit(what, cure=_see_above(number, screen) if said else "", host=host)


def got_over(state: JobState, recorded: Sequence[Recording]) -> Culprit | None:
    """An end of the job, a stall for one, that a program caught; None if there was none.

    A rank that goes on to its own end then leaves MPI as it is, for which the MPI's launcher ends
    the others.
    """
    codes = state.codes()
    caught = [
        one
        for one in recorded
        if one.lost_call and one.launched not in codes and not _GONE.search(one.ended)
    ]
    if not caught:
        return None
    one = min(caught, key=lambda each: each.told)
    return Culprit(
        f"the job had come to its end before: {error_text.shorten(one.ended)}",
        _where(one.launched, state),
        f"rank {one.rank} caught the error and went on; the MPI launcher then ended the others",
        _RAISED,
    )


def _blamed_here(
    number: int, why: str | None, first: tuple[int, int] | None, state: JobState, screen: Screen
) -> Culprit | None:
    """The same of a rank of this machine; None if that is the one that was told of it."""
    code = state.codes().get(number)
    # One that died may be noted after who was told of it; and of a rank that SIGTERM has ended
    # it is not known here whose that was, where ranks run on other machines.
    if code is not None and (why is None or code == -signal.SIGTERM):
        return _first(number, code, state, screen)
    if not first or code is not None or why is None:
        return None
    if not why.startswith(error_text.PROGRAM_ENDED):
        return None
    waits = error_text.shorten(why.removeprefix(error_text.PROGRAM_ENDED))
    # As by sys.exit("no data"): Python prints that before the others are told of the end.
    said = screen.last_words.get(number)
    last = f", its last line being {said.text!r}" if said else ""
    return Culprit(
        f"rank {number} came to the end of its program before rank {first[0]} did{last}{waits}",
        _where(number, state),
        "all ranks must make the same collective calls; " + _see_above(first[0], screen),
    )


def _first(number: int, code: int, state: JobState, screen: Screen | None) -> Culprit:
    place, _ = state.exception(number)
    why = reason(number, state)
    # A program's own exception has another code, and its own code no exception.
    again = code == contract.START_AGAIN and bool(why)
    said = screen.last_words.get(number) if screen else None
    # What a program prints last is its reason if it ends by itself: sys.exit("no data"), abort().
    by_itself = code > 0 or -code == signal.SIGABRT
    if not why and said and by_itself:
        quoted = f"its last line is {said.text!r}"[: error_text.LONGEST]
        # From `init` on a rank tells of the exception that ends it: what it prints may be another.
        last = said.raised and not state.has_called(number)
        why, place = (said.text, said.place) if last else (quoted, place)
    cure = ""
    if place or (code > 0 and said):
        cure = _see_above(number, screen)
    elif code > 0:
        cure = "it raised no exception: look where the program calls sys.exit or os._exit"
    elif -code in _CRASHES:
        cure = "a crash of native code: PYTHONFAULTHANDLER=1 shows the Python line it happened in"
    elif code < 0:
        cure = _who_sent(-code, state)
    where = "; ".join(filter(None, [place, _where(number, state)]))
    return Culprit(
        first_text(number, code, why, again),
        where,
        cure,
        exit_code(code),
        rank=number,
        host=socket.gethostname(),
    )


def _who_sent(signum: int, state: JobState) -> str:
    """Where to look for the sender of a signal that ended a rank, or the launcher."""
    if signum != signal.SIGKILL:
        return "find out who sent it: tf_hvd run did not"
    before, now = state.killed_before, processes.killed_for_memory()
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


def _see_above(number: int, screen: Screen | None) -> str:
    shown, marked = screen.shown(number) if screen else (number, False)
    where = "above" + (f", marked [{shown}]" if marked else "")
    if shown != number:
        return f"read the traceback of rank {shown}, {where}: rank {number} has printed the same"
    return f"read what rank {number} has printed, {where}"


def _where(number: int, state: JobState) -> str:
    process = state.ranks.get(number)
    return f"process {process} on {socket.gethostname()}" if process else ""


def _signal_text(signum: int) -> str:
    return f"signal {signum}, {signal.strsignal(signum)}"


def _wrapped(text: str, indent: str) -> list[str]:
    columns = shutil.get_terminal_size((_WIDTH, 0)).columns if _on_terminal() else _WIDTH
    lines = textwrap.wrap(
        text,
        max(40, min(columns - 1, _WIDTH)),
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [printable(line) for line in lines]


def _on_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()
