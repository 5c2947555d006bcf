"""Waits for a rank's program, which it has started, and tells the launcher how it has ended.

A process between the MPI's launcher and the program, for each rank. Part of rank.py and agent.py,
which are run as files by an isolated Python: it knows the standard library alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import os
import resource
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from tf_hvd.core import contract, messages
from tf_hvd.launch.machine import proc
from tf_hvd.launch.machine.lines import lost_text, write_all
from tf_hvd.launch.machine.rank_output import RankOutput

# What a keeper is told (rank_signals.py): to hold its rank's end back, and no longer.
HOLD, RELEASE = signal.SIGRTMIN + 4, signal.SIGRTMIN + 5
_HEARD = frozenset({signal.SIGCHLD, HOLD, RELEASE})
# What is for the program alone, of what comes to both.
_THE_PROGRAMS = frozenset(
    {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
)
# In seconds: between two looks whether the launcher is there, and at what the program makes when it
# is not; and from SIGTERM to SIGKILL.
_LOOK, _SOON, _GRACE = 2.0, 0.05, 5.0
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PMI = "PMI_FD"  # MPICH's, and MPIs that come from it


def watch_child(
    link: messages.Link | None,
    rank: int,
    launcher: int,
    save: Callable[[], None],
    kept: Collection[str],
    output: RankOutput | None,
    alone: bool,
) -> None:
    """Forks: the child returns and becomes the rank, this process tells that it runs, how it ends.

    MPICH's launcher does not say which rank it was that ended the job, and Open MPI's only if
    others ran still. A signal that the launcher sends goes to both, as they are one process group.

    Args:
        link: to the agent; None on another machine.
        rank: whose child it is.
        launcher: the process that has started this one.
        save: called at a bad end.
        kept: files, by number, that `save` needs.
        output: the part of the program's output that this process hands on; None for nothing.
        alone: whether `tf_hvd run` itself is the launcher, and sends signals to this process only.
    """
    # From before the fork on: a keeper that got no core would not be known, or be ended.
    handled = signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD | _THE_PROGRAMS)
    if not alone:
        call_oneself(contract.KEEPER)
    child = os.fork()
    if child == 0:
        call_oneself("python")
        # Without its keeper a program would go on, and MPI's launcher wait for its output.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, handled)
        return
    keeper = _Keeper(child, launcher, alone)
    # The launcher waits for the end of some of these. But MPICH's kills us as well when nobody
    # holds this one any more, before it is told how the rank has ended.
    kept = {os.environ.get(_PMI, ""), *kept, *([str(link.fileno())] if link else [])}
    close_all({*kept, *map(str, output.needs if output else ())})
    # Where `tf_hvd run` itself waits, it need not be told who does.
    tell(link, contract.RUNS, rank, process=child, keeper=0 if alone else os.getpid())
    if output:
        output.start()
    code = keeper.wait()
    tell(link, contract.ENDED, rank, code=code)
    if link is None and code:
        save()
    if output:
        # At a good end MPI's launchers wait for the output of what the program has left running,
        # and a bad one they are to know soon.
        may_go_on = not (code or alone)
        in_time = bool(code) and not alone
        output.finish(lambda: may_go_on and os.getppid() == launcher, in_time)
        if lost := output.lost():
            tell(link, contract.LOST, rank, files=lost)
            if link is None:  # on another machine: the launcher brings it to the user
                with contextlib.suppress(OSError):
                    write_all(2, f"{lost_text(lost)}\n".encode())
    keeper.hold()
    end_as(code)


def end_as(code: int) -> NoReturn:
    """Ends as a program has: with its exit code, or by that signal where it is negative."""
    if code < 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program has left one, if wanted
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)


def tell(link: messages.Link | None, what: str, rank: int, **more: object) -> None:
    """Tells the agent, if there is one, something of a rank."""
    if link is not None:
        with contextlib.suppress(OSError):  # it is gone
            link.send({"do": what, "rank": rank, "time": time.time_ns(), **more})


def call_oneself(name: str) -> None:
    """Gives this process a name, of at most 15 letters."""
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as file:
        file.write(name)


def close_all(kept: Collection[str]) -> None:
    """Closes all files but some, by number, and has /dev/null for the other standard ones.

    Who waits for the end of a program's output would wait for us too.
    """
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > 2 and str(number) not in kept:
            with contextlib.suppress(OSError):  # what has listed them
                os.close(number)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        if str(standard) not in kept:
            os.dup2(null, standard)


class _Keeper:
    """Waits for a rank's program, `child`, which `launcher`, a process, has started.

    The signals that it hears, and those that are for the program, are blocked.
    """

    def __init__(self, child: int, launcher: int, alone: bool) -> None:
        self._child = child
        self._launcher = launcher
        self._alone = alone
        self._over = False  # the program has ended
        self._held = False
        self._segments: set[str] = set()  # that it had when it was to be held
        if not alone:
            for signum in _THE_PROGRAMS:
                signal.signal(signum, signal.SIG_IGN)

    def wait(self) -> int:
        """Waits for the program's end; returns its exit code, or minus the signal.

        Ends it if the launcher's process that has started it is gone, which has not ended it then:
        both were killed.
        """
        orphaned = None
        while True:
            ended, status = os.waitpid(self._child, os.WNOHANG)
            if ended:
                self._over = True
                # It may have been killed, and on another machine nobody else knows of them.
                remove_segments(self._segments)
                return os.waitstatus_to_exitcode(status)
            lost = os.getppid() != self._launcher
            if lost:  # at each look: the program may yet be in MPI_Init, and make some
                remove_segments(contract.segments_in(proc.maps(self._child)))
            if lost and orphaned is None:
                orphaned = time.monotonic()
                with contextlib.suppress(OSError):
                    if self._alone:  # its group is that of the script which has called us
                        os.kill(self._child, signal.SIGTERM)
                    else:  # what it has started as well, its data loaders
                        os.killpg(os.getpgid(self._child), signal.SIGTERM)
            elif orphaned is not None and time.monotonic() - orphaned >= _GRACE:
                os.kill(self._child, signal.SIGKILL)
            self._hear(_SOON if lost else _LOOK)

    def hold(self) -> None:
        """Returns when this end may be known, at which MPI's launchers may kill the other ranks.

        They may be saving a checkpoint, where all are asked to end.
        """
        while self._hear(0.0):
            pass
        while self._held and os.getppid() == self._launcher:
            self._hear(_LOOK)

    def _hear(self, seconds: float) -> bool:
        heard = signal.sigtimedwait(_HEARD | _THE_PROGRAMS, seconds)
        if heard is None:
            return False
        if heard.si_signo in (HOLD, RELEASE):
            self._held = heard.si_signo == HOLD
            if self._held:
                self._segments |= contract.segments_in(proc.maps(self._child))
        elif (
            self._alone  # MPI's launchers and the terminal send theirs to the program too
            and not self._over
            and heard.si_signo != signal.SIGCHLD
            and heard.si_pid == self._launcher == os.getppid()
        ):
            os.kill(self._child, heard.si_signo)
        return True


def options_of(words: Sequence[str]) -> dict[str, Any]:
    """The options of a rank whose command line that is (rank.py); empty if it is none."""
    for file, text in itertools.pairwise(words):
        if os.path.basename(file) == "rank.py":
            with contextlib.suppress(ValueError, RecursionError):
                options = json.loads(text)
                return options if isinstance(options, dict) else {}
    return {}


def number_of(options: Mapping[str, Any], environ: Mapping[str, str]) -> int:
    """Which rank has these options and this environment."""
    names = options["variables"]
    return next((int(environ[name]) for name in names if environ.get(name, "").isdigit()), 0)


def remove_segments(names: Iterable[str]) -> None:
    """Removes those in /dev/shm that are MPI's and nobody else removes; who uses one keeps it."""
    for name in names:
        if name.startswith(contract.MPI_SEGMENTS) and "/" not in name:
            with contextlib.suppress(OSError):
                os.unlink(f"/dev/shm/{name}")
