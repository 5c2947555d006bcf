"""Looks on while a job runs: that it starts in time, and whether its ranks ever join each other."""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import signal
import sys
import textwrap
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from tf_hvd.core.printable import printable
from tf_hvd.core.ranks_text import ranks_text
from tf_hvd.launch.job import culprit, processes, recordings, shared_memory
from tf_hvd.launch.job.far_agent import FarAgent
from tf_hvd.launch.job.grace import Elsewhere, Grace
from tf_hvd.launch.job.session import Session
from tf_hvd.launch.job.supervise import Fate
from tf_hvd.launch.job.terminal import Terminal
from tf_hvd.launch.machine import proc

_WIDTH = 78
_SOON, _SELDOM = 0.25, 5.0
# How long what ranks have started may take to end when one of them has failed, and the launcher
# when all ranks of this machine have ended.
TO_LET_GO, TO_END = 3.0, 15.0
# Seconds until something is said: without all ranks; of TensorFlow without a call of init; of ranks
# in init without the others.
_SILENT, _APART, _AWAITED = 15.0, 60.0, 30.0
_HEARD = 0.1  # seconds that ranks may take to be heard, before each look
_NAMED = 8  # ranks, at most, in a line about those
_ALL = "All ranks of the job must call hvd.init()"
# What launchers start for themselves, as /proc has it: 15 letters.
_DAEMONS = ("hydra_pmi_proxy", "prted", "orted")


class Beside(Protocol):
    """Looks on at a start of an elastic job as well."""

    number: int
    """Which start it is, from 0."""

    def look(self) -> float:
        """Looks on; returns seconds until the next time."""

    def spares(self, process: int) -> bool:
        """Whether a process is the job's for all of its starts, and outlives one."""

    def agent(self, host: str) -> FarAgent | None:
        """That of another machine, if it runs."""


class JobWatch:
    """Watches one job; after its end, says what there is to say about it.

    Args:
        session: what the ranks of this machine report to.
        ranks: how many ranks the job has, on all machines.
        here: how many of them run on this machine; None where that is not known.
        start_timeout: seconds in which those must have started; None for any time.
        family: the MPI's; empty for none.
        terminal: reads what they print.
        beside: looks on as well, at a start of an elastic job.
    """

    def __init__(
        self,
        session: Session,
        ranks: int,
        here: int | None,
        start_timeout: float | None,
        family: str = "",
        terminal: Terminal | None = None,
        beside: Beside | None = None,
    ) -> None:
        self._session, self._state = session, session.state
        self._ranks = ranks
        self.here = here
        """How many ranks run on this machine; None where that is not known."""
        self._start_timeout = start_timeout
        self._began = time.monotonic()
        self._family = family
        self.terminal = terminal
        """What reads what ranks and launcher print; None for Slurm's, and for one rank."""
        self.beside = beside
        """Who looks on as well."""
        self._shared_free = shared_memory.free()
        self._tell_at = _SILENT
        self._told_apart = False
        self._tensorflow = False
        self._tensorflow_since = 0.0
        self._launcher = 0
        self._ignores_hangup = proc.ignores_hangup(os.getpid())  # then all of us do
        # Since when a rank of this machine has failed, and all of them have ended.
        self._failed: float | None = None
        self._ended: float | None = None
        # Since when ranks have waited in init, and have done so for ranks that have ended.
        self._awaiting: float | None = None
        self._in_vain: float | None = None
        self._told_awaited = False
        self._told_gone: Sequence[int] = ()
        self._patience = _stall_check(os.environ)
        self.killed: dict[int, str] = {}
        """What ranks had started and left running, which kept the launcher: names by process id."""
        self.ended_for = ""
        """What to say where the job had to be ended: it did not start, or not end, in time."""
        self.code = 1
        """The exit code then."""
        self.elsewhere = Elsewhere()
        """The job's other machines."""
        self._stayed: set[int] = set()  # ranks that had to be killed for a thread of theirs
        self._asked = ""  # by which signal to end
        self._grace: Grace | None = None

    def started(self, process: int) -> None:
        """The launcher runs."""
        self._launcher = process
        self._began = time.monotonic()
        self._session.serve()
        if self.terminal:
            self.terminal.serve()

    def look(self) -> float | None:
        """Looks on; None if the job must end."""
        wanted = self._look()
        if wanted is None or self.beside is None:
            return wanted
        return min(wanted, self.beside.look())

    def _look(self) -> float | None:
        self._session.home.settle(_HEARD)
        passed = time.monotonic() - self._began
        self._tell_of_start(passed)
        if self._is_late(passed) or self._is_left_over():
            return None
        self._look_at_init()
        self._tell_apart()
        if self._tensorflow or self._state.joined():
            return _SELDOM
        self._tensorflow = any(map(processes.has_tensorflow, processes.descendants()))
        self._tensorflow_since = time.monotonic()
        # A program that loads TensorFlow does so early, and keeps it.
        return min(_SELDOM, _SOON + passed / 20)

    def hand_on(self, signum: int, grace: float) -> bool:
        """Hands a signal to end on to the ranks; False if none is known."""
        asked = Grace(self._session.home.job, self.elsewhere)
        who = asked.begin(signum)
        if not who:
            return False
        self._grace = asked
        self._asked = signal.Signals(signum).name
        once_more = {signal.SIGINT: "another Ctrl-C", signal.SIGHUP: "SIGTERM"}.get(
            signal.Signals(signum), f"another {self._asked}"
        )
        say(
            f"tf_hvd run: sending {self._asked} to {who} so that they can save their work; the job "
            f"ends in {grace:g} s at the latest (--grace), or at once on {once_more}"
        )
        return True

    def grace_is_over(self) -> None:
        """Kills the ranks that have not ended."""
        if self._grace:
            self._grace.end()

    def asked_text(self) -> str:
        """The line for a job that was asked to end."""
        if not self._grace:
            return ""
        return f"tf_hvd run: the job was ended by {self._asked}; {self._grace.text()}"

    def trains_apart(self) -> bool:
        """Whether TensorFlow ran in several ranks, and none joined this job or one it started."""
        elsewhere = self._state.joined() or self._state.started_jobs()
        return self._ranks > 1 and self._tensorflow and not elsewhere

    def shared_memory_text(self) -> str:
        """What to say of /dev/shm when the job has failed; empty if it had room enough."""
        if self._state.joined():
            return ""
        return shared_memory.little_text(self._family, self._shared_free, self.here or 0)

    def knows_us(self) -> bool:
        """Whether a rank has called `init`, be it in vain, or has started a job that has."""
        return self._state.called() or self._state.started_jobs()

    def joined(self) -> bool | None:
        """Whether ranks joined the job; None if no rank ran here, so that nothing is known."""
        if self._state.joined():
            return True
        return False if self.here or self._state.ranks else None

    def fate(self, process: int) -> Fate:
        """What becomes of a process that has outlived the job.

        Left alone is what was given a session of its own (`setsid`, `ssh` with ControlPersist), or
        made to ignore SIGHUP (`nohup`): it is meant to go on.
        """
        if self.beside and self.beside.spares(process):
            return Fate.LEFT
        if self._session.is_copier(process):
            return Fate.ENDS
        if self.beside:  # another start may follow, which has its own
            return Fate.KILLED
        if processes.name(process) in _DAEMONS:
            return Fate.KILLED
        own = processes.session(process)
        apart = own is not None and own not in {os.getsid(0), *self._state.sessions}
        nohup = not self._ignores_hangup and proc.ignores_hangup(process)
        return Fate.LEFT if apart or nohup else Fate.KILLED

    def _tell_of_start(self, passed: float) -> None:
        """Says that the start takes long, and how far it is, each time it has doubled."""
        came = sorted(self._state.ranks)
        if passed < self._tell_at or not self.here or len(came) >= self.here:
            return
        so_far = "none" if not came else f"only {ranks_text(came)}"
        has = "have" if len(came) > 1 else "has"
        say(
            f"tf_hvd run: after {self._tell_at:g} s {so_far} of {self.here} ranks on this machine "
            f"{has} started; the MPI launcher, process {self._launcher}, is still running "
            "(--verbose shows its command, --start-timeout ends such a job)"
        )
        self._tell_at *= 2

    def _tell_apart(self) -> None:
        """Says, once, that ranks seem to train apart; at the job's end it is said for certain."""
        passed = time.monotonic() - self._tensorflow_since
        if self._told_apart or not self._tensorflow or passed < _APART:
            return
        self._told_apart = True
        known = self.knows_us() or self._state.starts_jobs()
        if self._ranks > 1 and not known and self._state.ranks:
            say(
                f"tf_hvd run: TensorFlow has run for {_APART:g} s, and no rank has called "
                f"tf_hvd.init(): if that is not still to come, {self._ranks} copies of the program "
                "train apart"
            )

    def _is_late(self, passed: float) -> bool:
        if self._start_timeout is None or not self.here or passed < self._start_timeout:
            return False
        came = sorted(self._state.ranks)
        if len(came) >= self.here:
            self._start_timeout = None
            return False
        who = f"only {ranks_text(came)}" if came else "none"
        self.ended_for = (
            f"tf_hvd run: {who} of {self.here} ranks on this machine started within "
            f"{self._start_timeout:g} s; see what the MPI launcher waits for with --verbose, or "
            "give it longer with --start-timeout"
        )
        return True

    def _look_at_init(self) -> None:
        """Says, once, for whom ranks wait in init; ends them if it is for ranks that have ended.

        The ranks do not know: before MPI connects them, each knows of itself alone.
        """
        if self._patience == math.inf:
            return
        now, awaited = time.monotonic(), self._state.awaited()
        gone = self._gone(awaited)
        self._awaiting = (self._awaiting or now) if awaited else None
        self._in_vain = (self._in_vain or now) if gone else None
        if self._in_vain and now - self._in_vain >= TO_LET_GO:
            self._end_init(gone, kill=now - self._in_vain >= 2 * TO_LET_GO)
        elif self._awaiting and not gone and now - self._awaiting >= self._patience:
            self._tell_awaited(awaited)

    def _end_init(self, gone: Sequence[int], kill: bool) -> None:
        """Ends the ranks that wait for those; MPICH's launcher lets them wait."""
        if gone != self._told_gone:
            self._told_gone = gone
            has = "has" if len(gone) == 1 else "have"
            who = f"{ranks_text(gone, _NAMED)} {has} ended without calling it"
            say(f"tf_hvd run: init() can never finish: {who}. {_ALL}")
        for number in self._state.in_init():
            with contextlib.suppress(OSError):
                os.kill(self._state.ranks[number], signal.SIGKILL if kill else signal.SIGTERM)

    def _gone(self, awaited: Iterable[int]) -> list[int]:
        """Those that have ended; where a signal has ended one, MPI's launcher ends the job."""
        pids = self._state.ranks
        ended = {number for number in awaited if not processes.is_alive(pids[number])}
        return sorted(ended.difference(self._state.failed())) if ended else []

    def _tell_awaited(self, awaited: Sequence[int]) -> None:
        if self._told_awaited:
            return
        self._told_awaited = True
        who = []
        for number in awaited[:_NAMED]:
            process = self._state.ranks[number]
            if processes.is_stopped(process):
                how = "is stopped (SIGSTOP, or a debugger)"
            else:
                how = "has not called it yet (still importing, or stuck before it)"
            who.append(f"rank {number}, process {process} ({_command(process)}), {how}")
        if len(awaited) > _NAMED:
            who.append(f"{len(awaited) - _NAMED} more have not either")
        say(
            f"tf_hvd run: init() has waited {self._patience:g} s for other ranks; "
            f"{'; '.join(who)}. {_ALL}"
        )

    def _is_left_over(self) -> bool:
        """A launcher ends the job when a rank has failed, unless something keeps it."""
        failed = self._state.failed() if self.here else []
        if not self.here or not failed:
            self._failed = self._ended = None
            return False
        now = time.monotonic()
        self._failed = self._failed or now
        if now - self._failed >= TO_LET_GO:
            self._kill_left_running(failed)
        if now - self._failed >= TO_END:
            self._kill_who_stays()
        if not self._state.all_ended(self.here):
            return False
        self._ended = self._ended or now
        if now - self._ended < TO_END:
            return False
        screen = self.terminal.heard if self.terminal else None
        found = culprit.outlived(self._state, screen, TO_END)
        self.code = found.code or self.code
        recorded = recordings.read(self._state)
        evidence = recordings.take(self._state, found.rank, os.environ, recorded)
        self.ended_for = culprit.end_text(self.code, found, evidence)
        return True

    def _kill_who_stays(self) -> None:
        """Kills ranks whose program has raised and does not end: Python waits for its threads.

        Another rank has ended for that. MPICH's launcher leaves the others alone.
        """
        for number, process in self._state.raised().items():
            if processes.is_alive(process) and number not in self._stayed:
                self._stayed.add(number)
                say(
                    f"tf_hvd run: rank {number} was killed: its program has raised an exception, "
                    f"and had not ended {TO_END:g} s after another rank, perhaps for a thread"
                )
                with contextlib.suppress(OSError):
                    os.kill(process, signal.SIGKILL)

    def _kill_left_running(self, failed: Collection[int]) -> None:
        """Kills a data loader, say, that a killed rank has forked.

        MPICH takes it for the rank itself, and both launchers wait until its output ends.
        """
        # Ours are those, besides the launcher, that have outlived who started them.
        for process in processes.descendants(without=self._launcher):
            if self._session.rank_of(process) not in failed:
                continue
            name = processes.name(process)
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
                self.killed[process] = name


def _stall_check(environ: Mapping[str, str]) -> float:
    """After how many seconds a wait in init is told, as ranks have it; infinity: never."""
    if environ.get("HOROVOD_STALL_CHECK_DISABLE") == "1":
        return math.inf
    try:
        return float(environ.get("HOROVOD_STALL_CHECK_TIME_SECONDS") or _AWAITED) or math.inf
    except ValueError:  # init refuses it
        return _AWAITED


def _command(process: int) -> str:
    """What a process runs, in a few words."""
    program, *rest = proc.arguments(process) or [""]
    text = printable(" ".join([os.path.basename(program), *rest]))
    return text if len(text) <= _WIDTH else f"{text[:20]}...{text[-55:]}"


def say(text: str) -> None:
    """Prints a line for the user."""
    with contextlib.suppress(OSError):  # nobody reads it
        print(text, file=sys.stderr, flush=True)


def apart_text(ranks: int, command: Sequence[str], as_horovod: bool, error: bool) -> str:
    """The paragraph for a job whose ranks never joined each other."""
    program = shlex.join(command)
    if ranks == 1:
        said = ["THE PROGRAM DID NOT JOIN A JOB: it never called tf_hvd.init()."]
    else:
        said = [
            f"NO RANK JOINED THE JOB: {ranks} copies of the program ran, each alone and over the "
            "same data. None of them called tf_hvd.init(), so nothing was shared between them."
        ]
    if as_horovod:
        cures = [
            "The program did not use the Horovod that --as-horovod gives it: does its Python "
            "have tf_hvd, is `import horovod` caught by an `except ImportError`, and is "
            "hvd.init() reached?"
        ]
    else:
        cures = [
            "If it is written for Horovod, start it with --as-horovod:",
            f"    tf_hvd run -np {ranks} --as-horovod {program}",
            "If it is written for tf_hvd, it must call tf_hvd.init() before it trains.",
        ]
    if error:
        cures.append("This is an error because of --require-init.")
    else:
        cures.append("--require-init makes this an error.")
    return _paragraph([*said, *cures])


def failed_text() -> str:
    """The line for a job that failed before any rank had joined it."""
    return (
        "tf_hvd run: no rank had called tf_hvd.init() when the job failed; "
        "a program that is written for Horovod needs --as-horovod"
    )


def killed_text(killed: Mapping[int, str]) -> str:
    """The line for processes that had to be killed for the job to end."""
    names = ", ".join(f"{process} ({name})" for process, name in sorted(killed.items()))
    return (
        "tf_hvd run: killed processes that failed ranks had left behind and that kept the job from "
        f"ending: {names}"
    )


def _paragraph(lines: Iterable[str]) -> str:
    rule = "=" * _WIDTH
    filled = []
    for line in lines:
        if line.startswith(" "):  # a command: not to be broken
            filled.append(f"= {line}")
        else:
            filled += [f"= {part}" for part in textwrap.wrap(line, _WIDTH - 2)]
    return "\n".join(["", rule, *filled, rule])
