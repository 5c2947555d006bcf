"""Looks on while a job runs: that it starts in time, and whether its ranks ever join each other."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import shlex
import signal
import sys
import textwrap
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tf_hvd.core import contract
from tf_hvd.core.printable import printable
from tf_hvd.core.ranks_text import ranks_text
from tf_hvd.launch.job import shared_memory
from tf_hvd.launch.job.far_agent import FarAgent
from tf_hvd.launch.job.grace import Grace
from tf_hvd.launch.job.session import Session
from tf_hvd.launch.job.signals import Fate
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
NOT_CALLED = (
    "tf_hvd run: no rank had called tf_hvd.init() when the job failed; "
    "a program that is written for Horovod needs --as-horovod"
)
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


@dataclass
class JobWatch:
    """Watches one job, for `supervise`; after its end, says what there is to say about it."""

    session: Session
    ranks: int
    """How many ranks the job has, on all machines."""
    here: int | None
    """How many of them run on this machine; None where that is not known."""
    start_timeout: float | None
    """Seconds in which those must have started; None for any time."""
    family: str = ""
    """The MPI's; empty for none."""
    terminal: Terminal | None = None
    """Reads what ranks and launcher print; None for Slurm's, and for one rank."""
    beside: Beside | None = None
    hosts: Sequence[str] = ()
    agent: Callable[[str], FarAgent] | None = None
    """Gives that of such a machine; None where nothing is known that reaches them."""
    grace: Grace | None = None
    """Where the ranks were asked to end."""
    killed: dict[int, str] = field(default_factory=dict)
    """What ranks had started and left running, which kept the launcher: names by process id."""
    ended_for: str = ""
    """What to say where the job had to be ended: it did not start, or not end, in time."""
    closed: bool = False
    """Whether it had to be ended since the reader of its output is gone."""
    outlived: bool = False
    """Whether it had to be ended since all ranks of this machine had ended, but not it."""

    _shared_free: int | None = field(default_factory=shared_memory.free)
    _launcher: int = 0
    _began: float = field(default_factory=time.monotonic)
    _tell_at: float = _SILENT
    _tensorflow: bool = False
    _since: dict[str, float] = field(default_factory=dict)  # see _held
    _told: set[str] = field(default_factory=set)  # see _say_once

    def started(self, process: int) -> None:
        self._launcher = process
        self._began = time.monotonic()
        self.session.serve()
        if self.terminal:
            self.terminal.serve()

    def look(self) -> float | None:
        self.session.home.settle(_HEARD)
        if self.terminal and self.terminal.closed:
            self.closed = not self.session.state.failed()  # else that is what has ended it
            return None
        passed = time.monotonic() - self._began
        if self._is_late(passed) or self._is_left_over():
            return None
        self._look_at_init()
        pause = _SELDOM
        if not self._tensorflow and not self.session.state.joined():
            self._tensorflow = any(map(proc.has_tensorflow, proc.descendants()))
            # A program that loads TensorFlow does so early, and keeps it.
            pause = min(_SELDOM, _SOON + passed / 20)
        self._tell_apart()
        return min(pause, self.beside.look()) if self.beside else pause

    def end(self) -> bool:
        return self.closed and bool(self._ask(signal.SIGTERM))

    def ended(self) -> None:
        self.session.home.settle()

    def hand_on(self, signum: int, grace: float) -> bool:
        asked = signal.Signals(signum)
        who = self._ask(asked)
        if not who:
            return False
        once_more = {signal.SIGINT: "another Ctrl-C", signal.SIGHUP: "SIGTERM"}.get(
            asked, f"another {asked.name}"
        )
        say(
            f"tf_hvd run: sending {asked.name} to {who} so that they can save their work; the job "
            f"ends in {grace:g} s at the latest (--grace), or at once on {once_more}"
        )
        return True

    def _ask(self, signum: signal.Signals) -> str:
        """Asks the ranks to end; returns who is asked. Empty: nobody."""
        grace = Grace(self.session.home.job, self.hosts, self.agent, signum)
        who = grace.begin()
        self.grace = grace if who else None
        return who

    def grace_is_over(self) -> None:
        if self.grace:
            self.grace.end()

    def trains_apart(self) -> bool:
        """Whether TensorFlow ran in several ranks, and none joined this job or one it started."""
        elsewhere = self.session.state.joined() or contract.INNER in self.session.state.inner
        return self.ranks > 1 and self._tensorflow and not elsewhere

    def shared_memory_text(self) -> str:
        """What to say of /dev/shm when the job has failed; empty if it had room enough."""
        if self.session.state.joined():
            return ""
        return shared_memory.little_text(self.family, self._shared_free, self.here or 0)

    def knows_us(self) -> bool:
        """Whether a rank has called `init`, be it in vain, or has started a job that has."""
        return bool(self.session.state.called) or contract.INNER in self.session.state.inner

    def joined(self) -> bool | None:
        """Whether ranks joined the job; None if no rank ran here, so that nothing is known."""
        if self.session.state.joined():
            return True
        return False if self.here or self.session.state.ranks else None

    def fate(self, process: int) -> Fate:
        """See `supervise`.

        Left alone is what was given a session of its own (`setsid`, `ssh` with ControlPersist), or
        made to ignore SIGHUP (`nohup`): it is meant to go on.
        """
        if self.beside and self.beside.spares(process):
            return Fate.LEFT
        if self.session.is_keeper(process):
            return Fate.ENDS
        # At a start of an elastic job: another start may follow, which has its own.
        if self.beside or proc.name(process) in _DAEMONS:
            return Fate.KILLED
        own = proc.stat(process).session
        apart = own and own not in {os.getsid(0), *self.session.state.sessions}
        # If this process ignores SIGHUP, all of the job do.
        heeded = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
        return Fate.LEFT if apart or (heeded and proc.ignores_hangup(process)) else Fate.KILLED

    def _held(self, what: str, holds: object) -> float:
        """For how many seconds something holds, as far as was looked; -1 if it does not."""
        if not holds:
            self._since.pop(what, None)
            return -1.0
        now = time.monotonic()
        return now - self._since.setdefault(what, now)

    def _say_once(self, what: str, text: str) -> None:
        if what not in self._told:
            self._told.add(what)
            say(f"tf_hvd run: {text}")

    def _tell_apart(self) -> None:
        """Says that ranks seem to train apart; at the job's end it is said for certain."""
        passed = self._held("TensorFlow", self._tensorflow)
        known = self.knows_us() or contract.NESTED in self.session.state.inner
        if passed >= _APART and self.ranks > 1 and self.session.state.ranks and not known:
            self._say_once(
                "apart",
                f"TensorFlow has run for {_APART:g} s, and no rank has called tf_hvd.init(): if "
                f"that is not still to come, {self.ranks} copies of the program train apart",
            )

    def _is_late(self, passed: float) -> bool:
        """Whether ranks have not started in time; says that it takes long, each time it doubles."""
        came = sorted(self.session.state.ranks)
        # A single rank without a launcher is itself the command that was started.
        alone = self.ranks == 1 and not self.family
        if not self.here or alone or len(came) >= self.here:
            return False
        who = f"only {ranks_text(came)}" if came else "none"
        who += f" of {self.here} ranks on this machine"
        if passed >= self._tell_at:
            has = "have" if len(came) > 1 else "has"
            say(
                f"tf_hvd run: after {self._tell_at:g} s {who} {has} started; the MPI launcher, "
                f"process {self._launcher}, is still running (--verbose shows its command, "
                "--start-timeout ends such a job)"
            )
            self._tell_at *= 2
        if self.start_timeout is None or passed < self.start_timeout:
            return False
        self.ended_for = (
            f"tf_hvd run: {who} started within {self.start_timeout:g} s; see what the MPI "
            "launcher waits for with --verbose, or give it longer with --start-timeout"
        )
        return True

    @functools.cached_property
    def _patience(self) -> float:
        """After how many seconds a wait in init is told, as ranks have it; infinity: never."""
        if os.environ.get("HOROVOD_STALL_CHECK_DISABLE") == "1":
            return math.inf
        try:
            return float(os.environ.get("HOROVOD_STALL_CHECK_TIME_SECONDS") or _AWAITED) or math.inf
        except ValueError:  # init refuses it
            return _AWAITED

    def _look_at_init(self) -> None:
        """Says for whom ranks wait in init; ends them if it is for ranks that have ended.

        The ranks do not know: before MPI connects them, each knows of itself alone.
        """
        if self._patience == math.inf:
            return
        awaited, pids = self.session.state.awaited(), self.session.state.ranks
        gone = {number for number in awaited if not proc.is_alive(pids[number])}
        # Where a signal has ended one, MPI's launcher ends the job.
        gone -= set(self.session.state.failed() if gone else ())
        waited, in_vain = self._held("awaited", awaited), self._held("in vain", gone)
        if in_vain >= TO_LET_GO:
            self._end_init(sorted(gone), kill=in_vain >= 2 * TO_LET_GO)
        elif not gone and waited >= self._patience:
            who = [_awaited_text(number, pids[number]) for number in awaited[:_NAMED]]
            if len(awaited) > _NAMED:
                who.append(f"{len(awaited) - _NAMED} more have not either")
            said = f"init() has waited {self._patience:g} s for other ranks; {'; '.join(who)}."
            self._say_once("awaited", f"{said} {_ALL}")

    def _end_init(self, gone: Sequence[int], kill: bool) -> None:
        """Ends the ranks that wait for those; MPICH's launcher lets them wait."""
        has = "has" if len(gone) == 1 else "have"
        who = f"{ranks_text(gone, _NAMED)} {has} ended without calling it"
        self._say_once(who, f"init() can never finish: {who}. {_ALL}")
        for number in self.session.state.in_init():
            proc.send(self.session.state.ranks[number], signal.SIGKILL if kill else signal.SIGTERM)

    def _is_left_over(self) -> bool:
        """A launcher ends the job when a rank has failed, unless something keeps it."""
        failed = self.session.state.failed() if self.here else []
        passed = self._held("failed", failed)
        if passed >= TO_LET_GO:
            self._kill_left_running(failed)
        if passed >= TO_END:
            self._kill_who_stays()
        ended = failed and self.session.state.all_ended(self.here or 0)
        if self._held("ended", ended) < TO_END:
            return False
        self.outlived = True
        return True

    def _kill_who_stays(self) -> None:
        """Kills ranks whose program has raised and does not end: Python waits for its threads.

        Another rank has ended for that. MPICH's launcher leaves the others alone.
        """
        for number, process in self.session.state.raised().items():
            if proc.is_alive(process):
                self._say_once(
                    f"stays {number}",
                    f"rank {number} was killed: its program has raised an exception, and had not "
                    f"ended {TO_END:g} s after another rank, perhaps for a thread",
                )
                proc.send(process, signal.SIGKILL)

    def _kill_left_running(self, failed: Collection[int]) -> None:
        """Kills a data loader, say, that a killed rank has forked.

        MPICH takes it for the rank itself, and both launchers wait until its output ends.
        """
        # Ours are those, besides the launcher, that have outlived who started them.
        for process in proc.descendants(without=self._launcher):
            if self.session.rank_of(process) in failed:
                name = proc.name(process)
                if proc.send(process, signal.SIGKILL):
                    self.killed[process] = name


def _awaited_text(number: int, process: int) -> str:
    how = "has not called it yet (still importing, or stuck before it)"
    if proc.is_stopped(process):
        how = "is stopped (SIGSTOP, or a debugger)"
    program, *rest = proc.arguments(process) or [""]
    text = printable(" ".join([os.path.basename(program), *rest]))
    if len(text) > _WIDTH:
        text = f"{text[:20]}...{text[-55:]}"
    return f"rank {number}, process {process} ({text}), {how}"


def say(text: str) -> None:
    with contextlib.suppress(OSError):  # nobody reads it
        print(text, file=sys.stderr, flush=True)


def apart_text(ranks: int, command: Sequence[str], as_horovod: bool, error: bool) -> str:
    said = "THE PROGRAM DID NOT JOIN A JOB: it never called tf_hvd.init()."
    if ranks > 1:
        said = (
            f"NO RANK JOINED THE JOB: {ranks} copies of the program ran, each alone and over the "
            "same data. None of them called tf_hvd.init(), so nothing was shared between them."
        )
    if as_horovod:
        cures = [
            "The program did not use the Horovod that --as-horovod gives it: does its Python "
            "have tf_hvd, is `import horovod` caught by an `except ImportError`, and is "
            "hvd.init() reached?"
        ]
    else:
        cures = [
            "If it is written for Horovod, start it with --as-horovod:",
            f"    tf_hvd run -np {ranks} --as-horovod {shlex.join(command)}",
            "If it is written for tf_hvd, it must call tf_hvd.init() before it trains.",
        ]
    if error:
        cures.append("This is an error because of --require-init.")
    else:
        cures.append("--require-init makes this an error.")
    rule, filled = "=" * _WIDTH, []
    for line in (said, *cures):
        # A command is not to be broken.
        parts = [line] if line.startswith(" ") else textwrap.wrap(line, _WIDTH - 2)
        filled += [f"= {part}" for part in parts]
    return "\n".join(["", rule, *filled, rule])


def killed_text(killed: Mapping[int, str]) -> str:
    names = ", ".join(f"{process} ({name})" for process, name in sorted(killed.items()))
    return (
        "tf_hvd run: killed processes that failed ranks had left behind and that kept the job from "
        f"ending: {names}"
    )
