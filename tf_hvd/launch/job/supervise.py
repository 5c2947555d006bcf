"""Runs one child to its end, hands signals on to it, leaves none of its descendants. Linux only."""

from __future__ import annotations

import contextlib
import ctypes
import enum
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tf_hvd.launch.job.processes import descendants

# linux/prctl.h and asm-generic/siginfo.h
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_SI_KERNEL = 0x80

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals by which a job is asked to end."""
# What launchers hand on to their ranks, which may save a checkpoint then: all that MPICH's does.
_FOR_RANKS = signal.SIGUSR1
_WATCHED = (*ENDING, _FOR_RANKS, signal.SIGCHLD)


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


_LIVING = (Fate.ENDS, Fate.LEFT)


class Watch(Protocol):
    """Who is asked about a running command, by the thread that waits for it."""

    def started(self, process: int) -> None:
        """The command runs, under that id: from now on threads may be started."""

    def look(self) -> float | None:
        """Looks on. Returns seconds until the next time, or None: the command must end."""

    def hand_on(self, signum: int, grace: float) -> bool:
        """Hands a signal to end on to the ranks, which have `grace` seconds.

        False where that cannot be done: the command gets it then.
        """

    def grace_is_over(self) -> None:
        """The ranks have not ended in time, or not soon enough for who waits: kill them."""

    def fate(self, process: int) -> Fate:
        """What becomes of a descendant that has outlived the command."""


def supervise(
    command: Sequence[str],
    environ: Mapping[str, str],
    *,
    watch: Watch | None = None,
    stdin: int | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
    grace: float = 10.0,
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
        command: the program, found on the PATH of `environ`, and its arguments.
        environ: the environment of the command.
        watch: is asked now and then; it may end the command, as a signal would. At the end it
            is asked about each descendant that is left.
        stdin: the command's standard input; None for this process's own.
        stdout: the same of its standard output; closed here when the command has it.
        stderr: and of its standard error.
        grace: seconds between a handed-on signal and SIGKILL.
        apart: whether the command gets a process group of its own, so that what the terminal sends
            comes to this process alone: MPI's launchers end their ranks at a Ctrl-C. The
            command cannot read from the terminal then.

    Returns:
        How it ended.
    """
    _prctl(
        _PR_SET_CHILD_SUBREAPER, 1
    )  # orphans of the launcher become our children, so that we can find them
    others = frozenset(descendants())  # of a script that has become us by exec
    # Together with the command the terminal stops this process too.
    watched = (*_WATCHED, signal.SIGTSTP) if apart else _WATCHED
    inherited = signal.pthread_sigmask(signal.SIG_BLOCK, watched)

    def before_exec() -> None:
        if apart:
            os.setpgid(0, 0)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_SETMASK, inherited)

    try:
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
        if watch:
            watch.started(child.pid)
        code, ended_by, over = _wait(_Child(child, apart, watched), grace, watch, others)
        ended_ns = time.time_ns()
        _kill_descendants(child, others, watch)
        # What came meanwhile is obeyed as well, and from now on nothing disturbs the clean-up.
        late = signal.sigtimedwait(ENDING, 0)
        ended_by = ended_by or (late.si_signo if late else 0)
        if ended_by:
            for signum in ENDING:
                signal.signal(signum, signal.SIG_IGN)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, inherited)
    if ended_by:
        return Ending(128 + ended_by, asked=True)
    if over:
        return Ending(128 + signal.SIGTERM)
    return Ending(exit_code(code), signum=max(0, -code), time_ns=ended_ns)


def exit_code(code: int) -> int:
    """The exit code as shells have it, of a code or minus a signal."""
    return code if code >= 0 else 128 - code


@contextlib.contextmanager
def ending_with_parent(folder: Path) -> Iterator[None]:
    """Gets this process SIGTERM when its parent is gone, whose folder it then removes."""
    parent = os.getppid()
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    try:
        yield
    finally:
        if os.getppid() != parent:
            shutil.rmtree(folder, ignore_errors=True)


class _Child:
    """The command, and how signals reach it."""

    def __init__(
        self, process: subprocess.Popen[bytes], apart: bool, watched: Sequence[signal.Signals]
    ) -> None:
        self.process = process
        self.watched = watched
        self._apart = apart

    def hand_on(self, told: signal.struct_siginfo) -> None:
        """Hands a signal on, unless the terminal has sent it to the child as well."""
        if self._apart or told.si_code != _SI_KERNEL:
            self.process.send_signal(told.si_signo)

    def take_part(self, signum: int) -> None:
        """A signal to this process concerns the child as well, and ends neither."""
        if signum == _FOR_RANKS:
            self.process.send_signal(signum)
        elif signum == signal.SIGTSTP:
            self._stop_with_us()

    def _stop_with_us(self) -> None:
        """Ctrl-Z: until this process goes on, neither does the child."""
        self.process.send_signal(signal.SIGTSTP)
        os.kill(os.getpid(), signal.SIGSTOP)
        self.process.send_signal(signal.SIGCONT)


def _wait(
    command: _Child, grace: float, watch: Watch | None, others: frozenset[int]
) -> tuple[int, int, bool]:
    """Waits for the child.

    Returns:
        Its code, the signal that we were ended by, 0 if none, and whether `watch` has ended it.
    """
    child, ended_by, over = command.process, 0, False
    deadline = float("inf")
    while True:
        _reap(child)
        if child.returncode is not None:
            return child.returncode, ended_by, over
        # SIGCHLDs merge while they are pending: wake up now and then and look.
        pause = 1.0
        if not ended_by and not over:
            wanted = watch.look() if watch else pause
            if wanted is None:
                over, deadline = True, time.monotonic() + grace
                child.send_signal(signal.SIGTERM)
            else:
                pause = min(pause, wanted)
        told = signal.sigtimedwait(
            command.watched, min(pause, max(0.0, deadline - time.monotonic()))
        )
        if told is not None and told.si_signo in ENDING:
            if ended_by or over:
                deadline = _after_another(told.si_signo, ended_by, deadline)
            else:
                deadline = time.monotonic() + grace
                _hand_on(told, command, grace, watch)
            ended_by = ended_by or told.si_signo
        elif told is not None:
            command.take_part(told.si_signo)
        if time.monotonic() >= deadline:
            if watch:
                watch.grace_is_over()
            _kill_descendants(child, others)


def _hand_on(
    told: signal.struct_siginfo, command: _Child, grace: float, watch: Watch | None
) -> None:
    """Hands a signal to end on, to the ranks or, where that cannot be done, to the command."""
    if not (watch and watch.hand_on(told.si_signo, grace)):
        command.hand_on(told)


def _after_another(signum: int, ended_by: int, deadline: float) -> float:
    """The deadline after another signal: now, but a closed terminal and its shell send two."""
    return deadline if ended_by == signum == signal.SIGHUP else 0.0


def _reap(child: subprocess.Popen[bytes]) -> None:
    """Collects all children that have ended, also the adopted ones."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            if pid == child.pid:
                child.returncode = os.waitstatus_to_exitcode(status)


def _kill_descendants(
    child: subprocess.Popen[bytes],
    others: frozenset[int],
    watch: Watch | None = None,
    patience: float = 5.0,
) -> None:
    """Kills all descendants of this process but `others` and those that `watch` lets live.

    Gives up on those that do not end.
    """
    began = time.monotonic()
    while (passed := time.monotonic() - began) < patience:
        fates = {pid: watch.fate(pid) if watch else Fate.KILLED for pid in descendants()}
        fates = {pid: fate for pid, fate in fates.items() if pid not in others}
        for pid, fate in fates.items():
            if fate is Fate.KILLED:
                with contextlib.suppress(OSError):  # it has ended, or is another user's
                    os.kill(pid, signal.SIGKILL)
        kinds = set(fates.values())
        # What copies the output of a process that lives on does not end before that.
        if kinds <= {Fate.LEFT} or (Fate.LEFT in kinds and passed >= 1 and kinds <= {*_LIVING}):
            return
        time.sleep(0.01)
        _reap(child)


_LIBC = ctypes.CDLL(None)  # not in a child that was forked beside threads


def _prctl(option: int, value: int) -> None:
    _LIBC.prctl(option, value, 0, 0, 0)
