"""Watch a running job: check that it starts in time and that its ranks join each other."""

from __future__ import annotations

import argparse
import contextlib
import functools
import math
import os
import re
import shlex
import signal
import sys
import textwrap
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tf_hvd.core import contract, files
from tf_hvd.core.printable import printable
from tf_hvd.core.ranks_text import ranks_text
from tf_hvd.launch.job import shared_memory
from tf_hvd.launch.job.far_agent import FarAgent
from tf_hvd.launch.job.grace import Grace
from tf_hvd.launch.job.session import Session
from tf_hvd.launch.job.signals import Fate
from tf_hvd.launch.job.terminal import Terminal
from tf_hvd.launch.machine import proc, task

_WIDTH = 78
_SOON, _SELDOM = 0.25, 5.0
# In seconds: the time for processes that a failed rank started to end; for the launcher to end
# after all ranks on this machine; and for other ranks to report, and end, after the function of
# `tf_hvd.run` has failed on a rank.
TO_LET_GO, TO_END, TO_REPORT = 3.0, 15.0, 5.0
# Seconds until a message that not all ranks have started; that TensorFlow runs but no rank has
# called init; and that ranks wait in init for other ranks.
_SILENT, _APART, _AWAITED = 15.0, 60.0, 30.0
_HEARD = 0.1  # seconds to wait for pending messages of ranks before each look
_NAMED = 8  # maximum number of ranks that a line names
_LONGEST = 1000  # bytes of a report that a function failed
_ALL = "All ranks of the job must call hvd.init()"
NOT_CALLED = (
    "tf_hvd run: no rank had called tf_hvd.init() when the job failed; "
    "if the program is written for Horovod, add --as-horovod"
)
WITHOUT_KERAS = (
    "tf_hvd run: no rank had called tf_hvd.init() when the job failed, and the program uses "
    "keras.distribution: add --keras"
)
# Daemons that launchers start, by their names in /proc, which have at most 15 characters.
_DAEMONS = ("hydra_pmi_proxy", "prted", "orted")


class Observer(Protocol):
    """The elastic driver's hooks into one start of its job."""

    number: int
    """The number of the start, counted from 0."""

    def look(self) -> float:
        """Check the job's hosts; return the seconds until the next call."""

    def spares(self, process: int) -> bool:
        """Return whether a process belongs to the whole job and outlives this start."""

    def agent(self, host: str) -> FarAgent | None:
        """Return the agent on another machine, or None if no agent runs there."""


@dataclass
class JobWatch:
    """The callbacks of `supervise` for one job, and the findings to report at the job's end."""

    session: Session
    ranks: int
    """Number of ranks on all machines."""
    here: int | None
    """Number of ranks on this machine; None if unknown."""
    start_timeout: float | None
    """Seconds within which the ranks on this machine must start; None for no limit."""
    family: str = ""
    """The MPI family; empty without MPI."""
    terminal: Terminal | None = None
    """Reads the output of the ranks and the launcher; None with Slurm and for a single rank."""
    observer: Observer | None = None
    """The elastic driver's hooks; None if the job is not elastic."""
    hosts: Sequence[str] = ()
    """The other machines that run ranks."""
    agent: Callable[[str], FarAgent] | None = None
    """Returns the agent on a machine in `hosts`; None if no way to reach them is known."""
    calls: Path | None = None
    """The folder of `tf_hvd.run`, in which a rank reports that its function failed."""
    grace: Grace | None = None
    """The shutdown in progress, once the ranks were asked to end."""
    killed: dict[int, str] = field(default_factory=dict)
    """Names of killed processes that ranks left running and the launcher awaited, by process id."""
    ended_for: str = ""
    """The message for a job that was ended because it did not start or end in time."""
    closed: bool = False
    """Whether the job was ended because the reader of its output is gone."""
    outlived: bool = False
    """Whether the job was ended because the launcher outlived all ranks on this machine."""

    _shared_free: int | None = field(default_factory=shared_memory.free)
    _launcher: int = 0
    _began: float = field(default_factory=time.monotonic)
    _tell_at: float = _SILENT
    _tensorflow: bool = False
    _since: dict[str, float] = field(default_factory=dict)  # see _held
    _told: set[str] = field(default_factory=set)  # see _say_once
    # Ranks on which the function failed, the first one first, and how. These ended the job.
    _failed_calls: dict[int, str] = field(default_factory=dict)

    def started(self, process: int) -> None:
        self._launcher = process
        self._began = time.monotonic()
        self.session.serve()
        if self.terminal:
            self.terminal.serve()

    def look(self) -> float | None:
        self.session.home.settle(_HEARD)
        if self.terminal and self.terminal.closed:
            self.closed = not self.session.state.failed()  # a failed rank is the cause otherwise
            return None
        passed = time.monotonic() - self._began
        if self._is_late(passed) or self._is_left_over() or self._has_failed_call():
            return None
        self._look_at_init()
        pause = _SELDOM
        if not self._tensorflow and not self.session.state.joined():
            self._tensorflow = any(map(proc.has_tensorflow, proc.descendants()))
            # A program that uses TensorFlow loads it early and keeps it loaded.
            pause = min(_SELDOM, _SOON + passed / 20)
        self._tell_apart()
        return min(pause, self.observer.look()) if self.observer else pause

    def end(self) -> bool:
        if not (self.closed or self._failed_calls):
            return False
        who = self._ask(signal.SIGTERM)
        if self._failed_calls:
            first, how = next(iter(self._failed_calls.items()))
            say(f"tf_hvd run: rank {first} {how}" + (f"; ending {who}" if who else ""))
        return bool(who)

    def ended(self) -> None:
        self.session.home.settle()

    def hand_on(self, signum: int, grace: float) -> bool:
        asked = signal.Signals(signum)
        who = self._ask(asked)
        if not who:
            return False
        it, its = ("it", "its") if re.fullmatch(r"rank \d+", who) else ("they", "their")
        once_more = {signal.SIGINT: "another Ctrl-C", signal.SIGHUP: "SIGTERM"}.get(
            asked, f"another {asked.name}"
        )
        say(
            f"tf_hvd run: sending {asked.name} to {who} so that {it} can save {its} work; the job "
            f"ends within {grace:g} s (--grace), or immediately on {once_more}"
        )
        return True

    def _ask(self, signum: signal.Signals) -> str:
        """Ask the ranks to end; return a text that names them, or "" if there are no ranks."""
        grace = Grace(self.session.home.job, self.hosts, self.agent, signum)
        who = grace.begin(unnamed=self._failed_calls)
        self.grace = grace if who else None
        return who

    def grace_is_over(self) -> None:
        if self.grace:
            self.grace.end()

    def trains_apart(self) -> bool:
        """Return whether several ranks ran TensorFlow without joining this job or starting one."""
        elsewhere = self.session.state.joined() or contract.INNER in self.session.state.inner
        return self.ranks > 1 and self._tensorflow and not elsewhere

    def shared_memory_text(self) -> str:
        """Return the message about /dev/shm for a failed job, or "" if it had enough room."""
        if self.session.state.joined():
            return ""
        return shared_memory.little_text(self.family, self._shared_free, self.here or 0)

    def knows_us(self) -> bool:
        """Return whether a rank has called `init`, in this job or in a job that a rank started.

        Failed calls count, too.
        """
        return bool(self.session.state.called) or contract.INNER in self.session.state.inner

    def joined(self) -> bool | None:
        """Return whether ranks joined the job; None (unknown) if no rank ran on this machine."""
        if self.session.state.joined():
            return True
        return False if self.here or self.session.state.ranks else None

    def fate(self, process: int) -> Fate:
        """Decide how to treat a process that outlived the launcher; see `supervise`.

        A process that has its own session (`setsid`, `ssh` with ControlPersist) or ignores SIGHUP
        (`nohup`) is meant to outlive the job and is kept.
        """
        if self.observer and self.observer.spares(process):
            return Fate.LEFT
        if self.session.is_keeper(process):
            return Fate.ENDS
        # In an elastic job another start may follow, which starts its own processes.
        if self.observer or proc.name(process) in _DAEMONS:
            return Fate.KILLED
        own = proc.stat(process).session
        apart = own and own not in {os.getsid(0), *self.session.state.sessions}
        # If this process ignores SIGHUP, all processes of the job inherit that.
        heeded = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
        return Fate.LEFT if apart or (heeded and proc.ignores_hangup(process)) else Fate.KILLED

    def _held(self, what: str, holds: object) -> float:
        """Return how many seconds a condition has held; -1 if it does not hold."""
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
        """Warn that ranks seem to train independently. Only the job's end makes this certain."""
        passed = self._held("TensorFlow", self._tensorflow)
        known = self.knows_us() or contract.NESTED in self.session.state.inner
        if passed >= _APART and self.ranks > 1 and self.session.state.ranks and not known:
            self._say_once(
                "apart",
                f"no rank has called tf_hvd.init() although TensorFlow has run for {_APART:g} s; "
                f"without that call, {self.ranks} copies of the program train independently",
            )

    def _is_late(self, passed: float) -> bool:
        """Return whether ranks have missed the start timeout; until then, warn occasionally."""
        came = sorted(self.session.state.ranks)
        # A single rank without a launcher is itself the command that was started.
        single = self.ranks == 1 and not self.family
        if not self.here or single or len(came) >= self.here:
            return False
        who = f"only {ranks_text(came)}" if came else "none"
        who += f" of {self.here} ranks on this machine"
        if passed >= self._tell_at:
            has = "have" if len(came) > 1 else "has"
            say(
                f"tf_hvd run: after {self._tell_at:g} s {who} {has} started; the MPI launcher, "
                f"process {self._launcher}, is still running (--verbose shows its command, "
                "--start-timeout limits the wait)"
            )
            self._tell_at *= 2
        if self.start_timeout is None or passed < self.start_timeout:
            return False
        self.ended_for = (
            f"tf_hvd run: {who} started within {self.start_timeout:g} s; check the launcher's "
            "command with --verbose, or raise --start-timeout"
        )
        return True

    @functools.cached_property
    def _patience(self) -> float:
        """Seconds until a wait in init is reported, as set for the ranks; infinity for never."""
        if os.environ.get("HOROVOD_STALL_CHECK_DISABLE") == "1":
            return math.inf
        try:
            return float(os.environ.get("HOROVOD_STALL_CHECK_TIME_SECONDS") or _AWAITED) or math.inf
        except ValueError:  # init reports it
            return _AWAITED

    def _look_at_init(self) -> None:
        """Report the ranks that others wait for in init; end the wait if those ranks have ended.

        The waiting ranks cannot report this, because a rank has no information about other ranks
        before MPI connects them.
        """
        if self._patience == math.inf:
            return
        awaited, pids = self.session.state.awaited(), self.session.state.ranks
        gone = {number for number in awaited if not proc.is_alive(pids[number])}
        # If a signal ended a rank, MPI's launcher ends the job.
        gone -= set(self.session.state.failed() if gone else ())
        waited, hopeless = self._held("awaited", awaited), self._held("hopeless", gone)
        if hopeless >= TO_LET_GO:
            self._end_init(sorted(gone), kill=hopeless >= 2 * TO_LET_GO)
        elif not gone and waited >= self._patience:
            who = [_awaited_text(number, pids[number]) for number in awaited[:_NAMED]]
            if len(awaited) > _NAMED:
                who.append(f"{len(awaited) - _NAMED} more have not called it either")
            said = f"init() has waited {self._patience:g} s for other ranks; {'; '.join(who)}."
            self._say_once("awaited", f"{said} {_ALL}")

    def _end_init(self, gone: Sequence[int], kill: bool) -> None:
        """End the ranks that wait for ended ranks, because MPICH's launcher would not end them."""
        has = "has" if len(gone) == 1 else "have"
        who = f"{ranks_text(gone, _NAMED)} {has} ended without calling it"
        self._say_once(who, f"init() can never finish: {who}. {_ALL}")
        for number in self.session.state.in_init():
            proc.send(self.session.state.ranks[number], signal.SIGKILL if kill else signal.SIGTERM)

    def _is_left_over(self) -> bool:
        """Return whether the launcher outlived its ranks too long; kill what it may wait for."""
        failed = self.session.state.failed() if self.here else []
        passed = self._held("failed", failed)
        if passed >= TO_LET_GO:
            self._kill_left_running(failed)
        if passed >= TO_END:
            self._kill_lingering()
        ended = failed and self.session.state.all_ended(self.here or 0)
        if self._held("ended", ended) < TO_END:
            return False
        self.outlived = True
        return True

    def _has_failed_call(self) -> bool:
        """Return whether the function of `tf_hvd.run` failed on a rank some time ago.

        Other ranks may not notice, because MPICH's launcher and the rank that leaves its job wait
        for them. An elastic job is restarted instead.
        """
        failed = list(self.calls.glob(f"{task.FAILED}*")) if self.calls else []
        if self.observer or self._held("failed call", failed) < TO_REPORT:
            return False
        with contextlib.suppress(OSError, ValueError):
            failed.sort(key=lambda file: file.stat().st_mtime_ns)
            for file in failed:
                how = printable(files.read(file, _LONGEST).decode(errors="replace"))
                self._failed_calls[int(file.name.removeprefix(task.FAILED))] = how
        return bool(self._failed_calls)

    def _kill_lingering(self) -> None:
        """Kill ranks that raised an exception but still run because Python waits for their threads.

        This applies when another rank has ended because of the exception. MPICH's launcher does not
        end the remaining ranks.
        """
        for number, process in self.session.state.raised().items():
            if proc.is_alive(process):
                self._say_once(
                    f"stays {number}",
                    f"rank {number} was killed: it raised an exception but was still running "
                    f"{TO_END:g} s after another rank ended; a non-daemon thread may keep it alive",
                )
                proc.send(process, signal.SIGKILL)

    def _kill_left_running(self, failed: Collection[int]) -> None:
        """Kill processes that a killed rank left running, such as a forked data loader.

        MPICH mistakes such a process for the rank, and both MPIs' launchers wait for its output to
        end.
        """
        # Our descendants, besides the launcher, are the processes that outlived their parents.
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
    with contextlib.suppress(OSError):  # the reader is gone
        print(text, file=sys.stderr, flush=True)


def apart_text(options: argparse.Namespace, error: bool) -> str:
    ranks, command = options.np, shlex.join(options.command)
    said = "THE PROGRAM DID NOT JOIN A JOB: it never called tf_hvd.init()."
    if ranks > 1:
        said = (
            f"NO RANK JOINED THE JOB: {ranks} copies of the program ran independently on the same "
            "data. None of them called tf_hvd.init(), so they shared nothing."
        )
    if options.as_horovod:
        cures = [
            "The program did not import tf_hvd as Horovod, in spite of --as-horovod. Check that "
            "tf_hvd is installed in its Python, that no `except ImportError` hides a failed "
            "`import horovod`, and that hvd.init() is reached."
        ]
    elif options.keras:
        cures = [
            "The program set no Keras distribution, in spite of --keras. Call "
            "keras.distribution.initialize(), and then keras.distribution.set_distribution("
            "keras.distribution.DataParallel()) before the model is created."
        ]
    else:
        cures = [
            "If it uses keras.distribution, start it with --keras:",
            f"    tf_hvd run -np {ranks} --keras {command}",
            "If it is written for Horovod, start it with --as-horovod:",
            f"    tf_hvd run -np {ranks} --as-horovod {command}",
            "If it is written for tf_hvd, call tf_hvd.init() before training.",
        ]
    if error:
        cures.append("This is an error because of --require-init.")
    else:
        cures.append("--require-init makes this an error.")
    rule, filled = "=" * _WIDTH, []
    for line in (said, *cures):
        # Keep a command on one line.
        parts = [line] if line.startswith(" ") else textwrap.wrap(line, _WIDTH - 2)
        filled += [f"= {part}" for part in parts]
    return "\n".join(["", rule, *filled, rule])


def killed_text(killed: Mapping[int, str]) -> str:
    names = ", ".join(f"{process} ({name})" for process, name in sorted(killed.items()))
    return (
        "tf_hvd run: killed processes that failed ranks had left running and that kept the job "
        f"from ending: {names}"
    )
