"""What a job leaves on this machine is removed at its end, also where `tf_hvd run` is killed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from pathlib import Path
from typing import NoReturn

import psutil

from tf_hvd.launch import keeper, processes, rank

# In seconds, after a `tf_hvd run` that was killed: what ends meanwhile may still write.
_PASSES = (0.0, 0.5, 2.0, 6.0)
# The MPIs' launchers and their daemons, as /proc has it: 15 letters.
_LAUNCHERS = ("prterun", "prte", "prted", "mpiexec.hydra", "hydra_pmi_proxy")


class Traces:
    """A job's folder, and what killed ranks leave of MPI's in shared memory.

    A process of its own waits for the end of this one. Make it before threads are started.

    Args:
        folder: the job's; in it ranks name their shared memory.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        heard, self._told = os.pipe()
        child = os.fork()
        if child == 0:
            # Nobody's child, and in no process group that is killed.
            os.setsid()
            if os.fork() == 0:
                self._wait_for_end(heard)
            os._exit(0)
        os.waitpid(child, 0)
        os.close(heard)

    def clear(self) -> None:
        """Removes all."""
        with contextlib.suppress(OSError):  # somebody has killed it
            os.write(self._told, b"0")
        os.close(self._told)
        _clear(self._folder)

    def _wait_for_end(self, heard: int) -> NoReturn:
        try:
            for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(signum, signal.SIG_IGN)
            null = os.open(os.devnull, os.O_RDWR)
            for standard in (0, 1, 2):
                os.dup2(null, standard)
            # Also what others wait for the end of, and the end of the pipe that tells ours.
            for number in map(int, os.listdir("/proc/self/fd")):
                if number > 2 and number != heard:
                    with contextlib.suppress(OSError):
                        os.close(number)
            if not os.read(heard, 1):
                for seconds in _PASSES:
                    time.sleep(seconds)
                    if seconds:  # at first they have just been told to end
                        _kill_launchers(str(self._folder))
                    _clear(self._folder)
        finally:
            os._exit(0)


def _kill_launchers(folder: str) -> None:
    """Ends the MPI's launcher, which waits for deaf ranks; who watches a rank ends it then."""
    for process in psutil.pids():
        own = processes.environment(process).get(rank.FOLDER_VARIABLE) == folder
        if own and processes.name(process) in _LAUNCHERS:
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)


def _clear(folder: Path) -> None:
    for file in folder.glob(f"{rank.JOINED}*"):
        with contextlib.suppress(OSError):
            keeper.remove_segments(file.read_text(errors="replace").splitlines())
    shutil.rmtree(folder, ignore_errors=True)
