"""Supervise one child: forward signals to it and end all its descendants. Linux only.

This module also handles signals between two starts of an elastic job, when no child is running.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Protocol

from tf_hvd.launch.machine import proc

# linux/prctl.h and asm-generic/siginfo.h
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_SI_KERNEL = 0x80

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that ask a job to end."""
# Signals that launchers forward to ranks, which may save a checkpoint. MPICH's launcher forwards
# only the first one.
_FOR_RANKS = (signal.SIGUSR1, signal.SIGUSR2)
_WATCHED = (*ENDING, _FOR_RANKS[0], signal.SIGCHLD)
_ALL = (*ENDING, *_FOR_RANKS, signal.SIGCHLD, signal.SIGTSTP)
# In seconds: the time for killed processes to be gone; and the time in which a repeated signal
# counts as the same signal.
_PATIENCE, _AGAIN = 5.0, 0.3


@dataclass(frozen=True)
class Ending:
    """How a command ended: its exit code, and whether a signal to this process ended it."""

    code: int
    """The command's exit code; 128 plus the number of the signal that ended it or this process."""
    asked: bool = False
    """Whether a signal to this process ended the command."""
    signum: int = 0
    """The signal that ended the command, unless this process sent it; else 0."""
    time_ns: int = 0
    """The time at which the command ended, in ns since the epoch; 0 if this process ended it."""
    own: int = 0
    """If `asked`, the command's exit code; 128 plus the signal's number if a signal ended it."""


class Fate(enum.Enum):
    """How to treat a process that is still running when the command ends."""

    KILLED = enum.auto()
    ENDS = enum.auto()
    """The process ends soon on its own."""
    LEFT = enum.auto()
    """The process is meant to outlive the command."""


class Watch(Protocol):
    """Callbacks about a running command, called by the thread that waits for it."""

    def started(self, process: int) -> None:
        """Note that the command was started with this process id. Threads may be started now."""

    def look(self) -> float | None:
        """Check the command; return the seconds until the next call, or None to end the command."""

    def end(self) -> bool:
        """Ask the ranks to end; return False if the command must get SIGTERM instead."""

    def ended(self) -> None:
        """Receive pending messages after the command has ended and before anything is killed."""

    def hand_on(self, signum: int, grace: float) -> bool:
        """Forward a signal to the ranks; return False if the command must get it instead."""

    def grace_is_over(self) -> None:
        """Kill the ranks, because the grace period is over or the user has asked again."""

    def fate(self, process: int) -> Fate:
        """Return how to treat a descendant that has outlived the command."""


def supervise(
    command: Sequence[str],
    environ: Mapping[str, str],
    *,
    watch: Watch,
    stdin: int | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
    grace: float,
    apart: bool = False,
) -> Ending:
    """Run a command and wait for it and all its descendants.

    SIGINT, SIGTERM and SIGHUP are forwarded to the ranks if `watch` can reach them, else to the
    command. The command and its descendants are killed if they are still running `grace` seconds
    later. A second such signal also kills them, unless it is a SIGHUP that follows a SIGHUP. Once
    the command has ended after such a signal, this process ignores further ones and cleans up.
    SIGUSR1 is forwarded to the command and has no other effect.

    Descendants that outlive the command are killed, unless `watch` decides otherwise. The command
    gets SIGTERM if this process is killed.

    Args:
        command: a program, found on the PATH of `environ`, and its arguments.
        environ: the environment of the command.
        watch: called regularly. It may end the command, as a signal does, and decides how to treat
            each descendant that outlives the command.
        stdin: the command's standard input; None for this process's input.
        stdout: the command's standard output; closed here once the command has it.
        stderr: the command's standard error; closed here as well.
        grace: seconds between a forwarded signal and SIGKILL.
        apart: whether the command gets its own process group. Only this process then gets the
            terminal's signals. This is needed because MPI's launchers end their ranks on Ctrl-C.
            The command then cannot read from the terminal.
    """
    # Makes orphans of the launcher our children, so that we can find them.
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # In a shared process group the terminal stops this process together with the command.
    watched = [*_WATCHED, signal.SIGTSTP] if apart else [*_WATCHED]
    if (
        signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    ):  # nohup; a blocked SIGHUP would be received
        watched.remove(signal.SIGHUP)
    with deaf(watched) as inherited:

        def before_exec() -> None:
            if apart:
                os.setpgid(0, 0)
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
            signal.pthread_sigmask(signal.SIG_SETMASK, inherited)

        child = subprocess.Popen(
            command,
            env=dict(environ),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            preexec_fn=before_exec,
        )
        for handed in (stdout, stderr):
            if handed is not None:
                os.close(handed)
        watch.started(child.pid)
        running = _Running(child, apart, watch, grace)
        code = running.wait(watched)
        watch.ended()
        ended_ns = time.time_ns()
        running.kill_descendants(watch.fate)
        # Obey a signal that arrived meanwhile; then no signal interrupts the clean-up.
        late = signal.sigtimedwait(set(ENDING).intersection(watched), 0)
        ended_by = running.ended_by or (late.si_signo if late else 0)
        if ended_by:
            for signum in ENDING:
                signal.signal(signum, signal.SIG_IGN)
    if ended_by:
        return Ending(128 + ended_by, asked=True, own=exit_code(code))
    if running.over:
        return Ending(128 + signal.SIGTERM)
    return Ending(exit_code(code), signum=max(0, -code), time_ns=ended_ns)


def exit_code(code: int) -> int:
    """Return the exit code that a shell would report for an exit code or minus a signal."""
    return code if code >= 0 else 128 - code


@contextlib.contextmanager
def ending_with_parent(folder: Path) -> Iterator[None]:
    """Provide a context in which this process gets SIGTERM when its parent ends.

    This process then also removes the parent's `folder`.
    """
    parent = os.getppid()
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    try:
        yield
    finally:
        if os.getppid() != parent:
            shutil.rmtree(folder, ignore_errors=True)


@dataclass
class _Running:
    """The running command. See `supervise`."""

    child: subprocess.Popen[bytes]
    apart: bool
    watch: Watch
    grace: float
    ended_by: int = 0
    """The signal that asked this process to end; 0 if no signal did."""
    over: bool = False
    """Whether `watch` has ended the command."""
    deadline: float = float("inf")
    asked: float = 0.0
    """The time at which that signal had been forwarded to the ranks."""

    def __post_init__(self) -> None:
        self._began = proc.stat(self.child.pid).began

    def wait(self, watched: Sequence[signal.Signals]) -> int:
        """Wait for the command and return its exit code, or minus the signal."""
        while (code := self._reap()) is None:
            # SIGCHLDs merge while they are pending, so poll as well.
            pause = 1.0
            if not self.ended_by and not self.over:
                wanted = self.watch.look()
                if wanted is None:
                    self.over, self.deadline = True, time.monotonic() + self.grace
                    if not self.watch.end():
                        self.child.send_signal(signal.SIGTERM)
                else:
                    pause = min(pause, wanted)
            left = max(0.0, self.deadline - time.monotonic())
            told = signal.sigtimedwait(watched, min(pause, left))
            if told is not None:
                self._take(told)
            if time.monotonic() >= self.deadline:
                self.watch.grace_is_over()
                self.kill_descendants(lambda _: Fate.KILLED)
        return code

    def _take(self, told: signal.struct_siginfo) -> None:
        signum = told.si_signo
        if signum in _FOR_RANKS:
            self.child.send_signal(signum)
        elif signum == signal.SIGTSTP:  # Ctrl-Z: the child stays stopped while this process is
            self.child.send_signal(signal.SIGTSTP)
            os.kill(os.getpid(), signal.SIGSTOP)
            self.child.send_signal(signal.SIGCONT)
        elif signum not in ENDING:
            return
        elif self.ended_by or self.over:
            # A second signal ends the grace period. But a closed terminal and its shell both send
            # SIGHUP, and timeout and make repeat signals that the terminal sent to all processes.
            again = self.ended_by == signum
            if not (again and (signum == signal.SIGHUP or time.monotonic() < self.asked + _AGAIN)):
                self.deadline = 0.0
        else:
            self.deadline = time.monotonic() + self.grace
            handed_on = self.watch.hand_on(signum, self.grace)
            # The terminal has sent it to the child as well, unless it has its own group.
            if not handed_on and (self.apart or told.si_code != _SI_KERNEL):
                self.child.send_signal(signum)
            self.asked = time.monotonic()
        if signum in ENDING:
            self.ended_by = self.ended_by or signum

    def _reap(self) -> int | None:
        """Collect all children that have ended, including adopted ones."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if pid == self.child.pid:
                    self.child.returncode = os.waitstatus_to_exitcode(status)
        return self.child.returncode

    def kill_descendants(self, fate: Callable[[int], Fate]) -> None:
        """Kill the descendants of this process according to `fate`; give up after a while."""
        began = time.monotonic()
        while (passed := time.monotonic() - began) < _PATIENCE:
            # Older processes belong to a script that has become this process by exec.
            ours = [pid for pid in proc.descendants() if proc.stat(pid).began >= self._began]
            fates = {pid: fate(pid) for pid in ours}
            for pid in fates:
                if fates[pid] is Fate.KILLED:
                    proc.send(pid, signal.SIGKILL)
            kinds = set(fates.values())
            # A keeper may wait for the output of processes that its rank left running.
            copies = passed >= 1 and Fate.LEFT in kinds and Fate.KILLED not in kinds
            if kinds <= {Fate.LEFT} or copies:
                return
            time.sleep(0.01)
            self._reap()


class Asked(BaseException):
    """Raised when a signal asks this process to end; like KeyboardInterrupt, not an error."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


@contextlib.contextmanager
def obeyed() -> Iterator[None]:
    """Provide a context in which the first signal that asks this process to end raises `Asked`.

    Signals that are meant for ranks are ignored, because no ranks run. The context uses handlers,
    which children do not inherit. Signals that were ignored before stay ignored, as under nohup.
    """
    before = {signum: signal.getsignal(signum) for signum in (*ENDING, *_FOR_RANKS)}
    ours = {
        signum: _end if signum in ENDING else _nothing
        for signum, was in before.items()
        if was is not signal.SIG_IGN
    }
    for signum, handler in ours.items():
        signal.signal(signum, handler)
    try:
        yield
    finally:
        for signum, handler in ours.items():
            if signal.getsignal(signum) is handler:  # else the job is asked to end
                signal.signal(signum, before[signum] or signal.SIG_DFL)


def _end(signum: int, frame: FrameType | None) -> None:
    for each in ENDING:
        signal.signal(each, _nothing)  # the clean-up follows
    raise Asked(signum)


def _nothing(signum: int, frame: FrameType | None) -> None:
    pass


@contextlib.contextmanager
def deaf(to: Sequence[signal.Signals] = _ALL) -> Iterator[set[int]]:
    """Provide a context in which signals are blocked; yield the previous mask.

    Threads that are started in the context inherit the mask. The main thread waits for signals in
    `supervise`. Other threads must not get signals that arrive while the main thread is not
    waiting.
    """
    inherited = signal.pthread_sigmask(signal.SIG_BLOCK, to)
    try:
        yield inherited
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, inherited)


def unblock() -> None:
    """Unblock all signals in a child before exec, no matter which thread started the child."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


_LIBC = ctypes.CDLL(None)  # loaded here, not in a child that was forked while threads run
