"""Runs one child to its end, hands signals on to it, leaves none of its descendants. Linux only.

And how signals are obeyed between two starts of an elastic job, when there is no child.
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
"""The signals by which a job is asked to end."""
# What launchers hand on to their ranks, which may save a checkpoint then: MPICH's the first alone.
_FOR_RANKS = (signal.SIGUSR1, signal.SIGUSR2)
_WATCHED = (*ENDING, _FOR_RANKS[0], signal.SIGCHLD)
_ALL = (*ENDING, *_FOR_RANKS, signal.SIGCHLD, signal.SIGTSTP)
# In seconds: for what was killed to be gone; and in which a signal that comes again is no other.
_PATIENCE, _AGAIN = 5.0, 0.3


@dataclass(frozen=True)
class Ending:
    """How a command ended: its exit code, and whether that was what we were told to do."""

    code: int
    """The command's; 128 plus the signal's number if a signal ended it or us."""
    asked: bool = False
    """Whether a signal to this process ended the command."""
    signum: int = 0
    """The signal that ended the command, if one did that was not ours; else 0."""
    time_ns: int = 0
    """When the command ended; 0 where it was ended."""


class Fate(enum.Enum):
    """What becomes of a process that is left when the command has ended."""

    KILLED = enum.auto()
    ENDS = enum.auto()
    """It soon ends by itself."""
    LEFT = enum.auto()
    """It is meant to outlive the command."""


class Watch(Protocol):
    """Who is asked about a running command, by the thread that waits for it."""

    def started(self, process: int) -> None:
        """The command runs, as this process: from now on threads may be started."""

    def look(self) -> float | None:
        """Looks on. Returns seconds until the next time, or None: the command must end."""

    def end(self) -> bool:
        """It must: asks the ranks to. False if that is not for them: the command gets SIGTERM."""

    def ended(self) -> None:
        """The command has ended, and nothing of it was killed yet: hears what it has said."""

    def hand_on(self, signum: int, grace: float) -> bool:
        """Hands a signal to end on to the ranks; False if none is known: the command gets it."""

    def grace_is_over(self) -> None:
        """The ranks have not ended in time, or not soon enough for who waits: kill them."""

    def fate(self, process: int) -> Fate:
        """What becomes of a descendant that has outlived the command."""


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
    """Runs a command and waits for it and all its descendants.

    SIGINT, SIGTERM and SIGHUP are handed on, to the ranks if `watch` can reach them, else to the
    command; it and its descendants are killed if they have not ended `grace` seconds later, or
    when a second such signal comes, except another SIGHUP. SIGUSR1 is handed on to the command, no
    more. Descendants that outlive the command are killed, unless `watch` knows better, and the
    command gets SIGTERM if this process is killed. After such a signal this process ignores
    further ones: it is to clean up and end.

    Args:
        command: a program, found on the PATH of `environ`, and its arguments.
        environ: the environment of the command.
        watch: is asked now and then; it may end the command, as a signal would. At the end it
            is asked about each descendant that is left.
        stdin: the command's standard input; None for this process's own.
        stdout: its standard output; closed here when the command has it, as is `stderr`.
        stderr: its standard error.
        grace: seconds between a handed-on signal and SIGKILL.
        apart: whether the command gets a process group of its own, so that what the terminal sends
            comes to this process alone: MPI's launchers end their ranks at a Ctrl-C. The
            command cannot read from the terminal then.
    """
    # Orphans of the launcher become our children, so that we can find them.
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Together with the command the terminal stops this process too.
    watched = [*_WATCHED, signal.SIGTSTP] if apart else [*_WATCHED]
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # by nohup; blocked it would be heard
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
        # What came meanwhile is obeyed as well, and from now on nothing disturbs the clean-up.
        late = signal.sigtimedwait(set(ENDING).intersection(watched), 0)
        ended_by = running.ended_by or (late.si_signo if late else 0)
        if ended_by:
            for signum in ENDING:
                signal.signal(signum, signal.SIG_IGN)
    if ended_by:
        return Ending(128 + ended_by, asked=True)
    if running.over:
        return Ending(128 + signal.SIGTERM)
    return Ending(exit_code(code), signum=max(0, -code), time_ns=ended_ns)


def exit_code(code: int) -> int:
    """The exit code as shells have it, of a code or minus a signal."""
    return code if code >= 0 else 128 - code


@contextlib.contextmanager
def ending_with_parent(folder: Path) -> Iterator[None]:
    """Gets this process SIGTERM when its parent is gone, whose folder it then removes."""
    parent = os.getppid()
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    try:
        yield
    finally:
        if os.getppid() != parent:
            shutil.rmtree(folder, ignore_errors=True)


@dataclass
class _Running:
    """The command, while it runs. See `supervise`."""

    child: subprocess.Popen[bytes]
    apart: bool
    watch: Watch
    grace: float
    ended_by: int = 0
    """The signal that we were ended by; 0 if none."""
    over: bool = False
    """Whether `watch` has ended the command."""
    deadline: float = float("inf")
    asked: float = 0.0
    """When the ranks had been told that we were asked to end."""

    def __post_init__(self) -> None:
        self._began = proc.stat(self.child.pid).began

    def wait(self, watched: Sequence[signal.Signals]) -> int:
        """Returns the command's exit code, or minus the signal."""
        while (code := self._reap()) is None:
            # SIGCHLDs merge while they are pending: wake up now and then and look.
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
        elif signum == signal.SIGTSTP:  # Ctrl-Z: until this process goes on, neither does the child
            self.child.send_signal(signal.SIGTSTP)
            os.kill(os.getpid(), signal.SIGSTOP)
            self.child.send_signal(signal.SIGCONT)
        elif signum not in ENDING:
            return
        elif self.ended_by or self.over:
            # The time is over; but a closed terminal and its shell send two, and who passes on what
            # the terminal has sent to all (timeout, make) sends it again.
            again = self.ended_by == signum
            if not (again and (signum == signal.SIGHUP or time.monotonic() < self.asked + _AGAIN)):
                self.deadline = 0.0
        else:
            self.deadline = time.monotonic() + self.grace
            handed_on = self.watch.hand_on(signum, self.grace)
            # The terminal has sent it to the child as well, unless that is apart.
            if not handed_on and (self.apart or told.si_code != _SI_KERNEL):
                self.child.send_signal(signum)
            self.asked = time.monotonic()
        if signum in ENDING:
            self.ended_by = self.ended_by or signum

    def _reap(self) -> int | None:
        """Collects all children that have ended, also the adopted ones."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if pid == self.child.pid:
                    self.child.returncode = os.waitstatus_to_exitcode(status)
        return self.child.returncode

    def kill_descendants(self, fate: Callable[[int], Fate]) -> None:
        """Kills what runs below this process, by its fate; gives up on what does not end."""
        began = time.monotonic()
        while (passed := time.monotonic() - began) < _PATIENCE:
            # What is older is of a script that has become us by exec.
            ours = [pid for pid in proc.descendants() if proc.stat(pid).began >= self._began]
            fates = {pid: fate(pid) for pid in ours}
            for pid in fates:
                if fates[pid] is Fate.KILLED:
                    proc.send(pid, signal.SIGKILL)
            kinds = set(fates.values())
            # A keeper may wait for the output of what its rank has left running.
            copies = passed >= 1 and Fate.LEFT in kinds and Fate.KILLED not in kinds
            if kinds <= {Fate.LEFT} or copies:
                return
            time.sleep(0.01)
            self._reap()


class Asked(BaseException):
    """A signal asks this process to end; like KeyboardInterrupt, no error."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


@contextlib.contextmanager
def obeyed() -> Iterator[None]:
    """Within it a signal to end raises `Asked`, once; those for ranks do nothing: there are none.

    By handlers, which no child inherits. What is ignored stays so, as by nohup.
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
        signal.signal(each, _nothing)  # what follows is the clean-up
    raise Asked(signum)


def _nothing(signum: int, frame: FrameType | None) -> None:
    pass


@contextlib.contextmanager
def deaf(to: Sequence[signal.Signals] = _ALL) -> Iterator[set[int]]:
    """Blocks signals, also for threads that begin within it; gives those that were blocked before.

    The main thread waits for them in `supervise`. Other threads would get those that come while it
    does not wait.
    """
    inherited = signal.pthread_sigmask(signal.SIG_BLOCK, to)
    try:
        yield inherited
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, inherited)


def unblock() -> None:
    """Before the exec of a child, which is to hear all signals, whoever has started it."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


_LIBC = ctypes.CDLL(None)  # not in a child that was forked beside threads
