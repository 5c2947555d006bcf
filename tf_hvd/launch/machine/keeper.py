"""The keeper of a rank: starts the rank's program, waits for it and reports how it ended.

Each rank has a keeper, a process between MPI's launcher and the program. This module belongs to
rank.py and agent.py, which an isolated Python runs as files. It imports only the standard library.
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

# Signals to a keeper (rank_signals.py): hold back the report of the rank's end, or release it.
HOLD, RELEASE = signal.SIGRTMIN + 4, signal.SIGRTMIN + 5
_HEARD = frozenset({signal.SIGCHLD, HOLD, RELEASE})
# Signals that reach both processes but are meant only for the program.
_THE_PROGRAMS = frozenset(
    {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
)
# In seconds: the time between two checks that the launcher runs; between two looks at the program's
# segments after the launcher's end; and from SIGTERM to SIGKILL.
_LOOK, _SOON, _GRACE = 2.0, 0.05, 5.0
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PMI = "PMI_FD"  # set by MPICH and MPIs derived from it


def watch_child(
    link: messages.Link | None,
    rank: int,
    launcher: int,
    save: Callable[[], None],
    kept: Collection[str],
    output: RankOutput | None,
    without_mpi: bool,
) -> None:
    """Fork: the child returns and becomes the rank; this process reports its start and end.

    MPICH's launcher does not report which rank ended the job. Open MPI's launcher reports that
    rank only if other ranks were still running. Both processes share a process group, so a
    launcher's signal reaches both.

    Args:
        link: the connection to the agent; None on another machine.
        rank: the rank's number.
        launcher: id of the process that started this process.
        save: called if the program fails.
        kept: the file descriptors that `save` needs, as strings.
        output: the part of the program's output that this process forwards; None for nothing.
        without_mpi: whether `tf_hvd run` is the launcher, which sends signals only to this process.
    """
    # Block before the fork, so that the signals do not end a keeper that gets no CPU time.
    handled = signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD | _THE_PROGRAMS)
    if not without_mpi:
        set_process_name(contract.KEEPER)
    child = os.fork()
    if child == 0:
        set_process_name("python")
        # Otherwise the program would outlive its keeper, and the launcher would await its output.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, handled)
        return
    keeper = _Keeper(child, launcher, without_mpi)
    # Close files that the launcher reads until they end. Keep PMI_FD: once no process has it open,
    # MPICH's launcher kills this process, possibly before it reports the rank's end.
    kept = {os.environ.get(_PMI, ""), *kept, *([str(link.fileno())] if link else [])}
    close_all({*kept, *map(str, output.needs if output else ())})
    # If `tf_hvd run` itself waits for this process, it does not need the keeper's id.
    tell(link, contract.RUNS, rank, process=child, keeper=0 if without_mpi else os.getpid())
    if output:
        output.start()
    code = keeper.wait()
    tell(link, contract.ENDED, rank, code=code)
    if link is None and code:
        save()
    if output:
        # After a success, MPI's launchers wait for the output of processes that the program left
        # running. A failure must be reported soon.
        may_wait = not (code or without_mpi)
        in_time = bool(code) and not without_mpi
        output.finish(lambda: may_wait and os.getppid() == launcher, in_time)
        if lost := output.lost():
            tell(link, contract.LOST, rank, files=lost)
            if link is None:  # on another machine; the launcher forwards its output
                with contextlib.suppress(OSError):
                    write_all(2, f"{lost_text(lost)}\n".encode())
    keeper.hold()
    end_as(code)


def end_as(code: int) -> NoReturn:
    """End this process with a program's exit code, or by its signal if the code is negative."""
    if code < 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program has already dumped core
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)


def tell(link: messages.Link | None, what: str, rank: int, **more: object) -> None:
    """Send the agent a message about a rank; do nothing without a link."""
    if link is not None:
        with contextlib.suppress(OSError):  # it is gone
            link.send({"do": what, "rank": rank, "time": time.time_ns(), **more})


def set_process_name(name: str) -> None:
    """Set this process's name. The kernel keeps only the first 15 characters."""
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as file:
        file.write(name)


def close_all(kept: Collection[str]) -> None:
    """Close all file descriptors except `kept`, and replace standard ones with /dev/null.

    Otherwise a reader that waits for the end of a program's output would also wait for this
    process.
    """
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > 2 and str(number) not in kept:
            with contextlib.suppress(OSError):  # the descriptor of the listing itself
                os.close(number)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        if str(standard) not in kept:
            os.dup2(null, standard)


class _Keeper:
    """Waits for a rank's program, the process `child`. `launcher` started this process.

    The keeper's own signals and the program's signals are blocked.
    """

    def __init__(self, child: int, launcher: int, without_mpi: bool) -> None:
        self._child = child
        self._launcher = launcher
        self._without_mpi = without_mpi
        self._over = False  # the program has ended
        self._held = False
        self._segments: set[str] = set()  # of the program, when the hold began
        if not without_mpi:
            for signum in _THE_PROGRAMS:
                signal.signal(signum, signal.SIG_IGN)

    def wait(self) -> int:
        """Wait for the program's end and return its exit code, or minus the signal.

        If the launcher's process is gone, the launcher was killed before it could end the program.
        This method then ends the program.
        """
        orphaned = None
        while True:
            ended, status = os.waitpid(self._child, os.WNOHANG)
            if ended:
                self._over = True
                # The program may have been killed; on other machines, only this process knows its
                # segments.
                remove_segments(self._segments)
                return os.waitstatus_to_exitcode(status)
            lost = os.getppid() != self._launcher
            if lost:  # repeatedly, because a program in MPI_Init may still create segments
                remove_segments(contract.segments_in(proc.maps(self._child)))
            if lost and orphaned is None:
                orphaned = time.monotonic()
                with contextlib.suppress(OSError):
                    if self._without_mpi:  # the script that started tf_hvd run is in its group
                        os.kill(self._child, signal.SIGTERM)
                    else:  # including its own children, such as data loaders
                        os.killpg(os.getpgid(self._child), signal.SIGTERM)
            elif orphaned is not None and time.monotonic() - orphaned >= _GRACE:
                os.kill(self._child, signal.SIGKILL)
            self._hear(_SOON if lost else _LOOK)

    def hold(self) -> None:
        """Wait until it is safe to report that the program has ended.

        After the report, MPI's launchers may kill the other ranks. If all ranks were asked to end,
        the other ranks may still be saving a checkpoint.
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
            self._without_mpi  # MPI's launchers and the terminal signal the program directly
            and not self._over
            and heard.si_signo != signal.SIGCHLD
            and heard.si_pid == self._launcher == os.getppid()
        ):
            os.kill(self._child, heard.si_signo)
        return True


def options_of(words: Sequence[str]) -> dict[str, Any]:
    """Return the options in a rank's command line (rank.py), or {} for other command lines."""
    for file, text in itertools.pairwise(words):
        if os.path.basename(file) == "rank.py":
            with contextlib.suppress(ValueError, RecursionError):
                options = json.loads(text)
                return options if isinstance(options, dict) else {}
    return {}


def number_of(options: Mapping[str, Any], environ: Mapping[str, str]) -> int:
    """Return the number of the rank with these options and this environment."""
    names = options["variables"]
    return next((int(environ[name]) for name in names if environ.get(name, "").isdigit()), 0)


def remove_segments(names: Iterable[str]) -> None:
    """Remove MPI's segments from /dev/shm; processes that have mapped them can still use them."""
    for name in names:
        if name.startswith(contract.MPI_SEGMENTS) and "/" not in name:
            with contextlib.suppress(OSError):
                os.unlink(f"/dev/shm/{name}")
