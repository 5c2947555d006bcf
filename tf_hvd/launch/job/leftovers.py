"""Remove a job's files and memory from this machine, even if `tf_hvd run` is killed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Iterable

from tf_hvd.core import contract
from tf_hvd.launch.job.signals import ENDING
from tf_hvd.launch.machine import keeper, proc

# Delays in seconds after `tf_hvd run` was killed, because processes may write files as they end.
_PASSES = (0.0, 0.5, 2.0, 6.0)
_CLEARED = "."  # all names noted before were cleared
# MPI's launchers and their daemons, by their names in /proc, which have at most 15 characters.
_LAUNCHERS = ("prterun", "prte", "prted", "mpiexec.hydra", "hydra_pmi_proxy")


class Traces:
    """The folders for a job's start, and MPI's shared memory that killed ranks leave behind.

    A separate process waits until this process ends. It then removes everything that was noted but
    not cleared. Create this object before any thread is started.
    """

    def __init__(self, job: str) -> None:
        self._noted: list[str] = []
        heard, self._told = os.pipe()
        child = os.fork()
        if child == 0:
            # Without a parent, and outside of any process group that is killed.
            os.setsid()
            if os.fork() == 0:
                _wait_for_end(job, heard)
            os._exit(0)
        os.waitpid(child, 0)
        os.close(heard)

    def note(self, names: Iterable[str]) -> None:
        """Note folders' paths and the names of MPI's segments in /dev/shm, for later removal."""
        new = [name for name in names if name not in self._noted]
        self._noted += new
        with contextlib.suppress(OSError):  # the process was killed
            os.write(self._told, os.fsencode("".join(f"{name}\0" for name in new)))

    def clear(self) -> None:
        """At the end of a start, remove everything that was noted."""
        _clear(self._noted)
        self.note([_CLEARED])
        self._noted = []

    def close(self) -> None:
        os.close(self._told)


def _wait_for_end(job: str, heard: int) -> None:
    try:
        for signum in ENDING:
            signal.signal(signum, signal.SIG_IGN)
        # Including our end of the pipe for writing.
        keeper.close_all({str(heard)})
        with open(heard, "rb") as told:
            noted = os.fsdecode(told.read()).split("\0")[:-1]
        while _CLEARED in noted:
            noted = noted[noted.index(_CLEARED) + 1 :]
        for seconds in _PASSES if noted else ():
            time.sleep(seconds)
            if seconds:  # in the first pass they have only just been asked to end
                _kill_launchers(job)
            _clear(noted)
    finally:
        os._exit(0)


def _kill_launchers(job: str) -> None:
    """Kill MPI's launcher, so that the keepers end ranks that ignore signals."""
    for process in proc.all_stats():
        own = proc.environment(process).get(contract.JOB) == job
        if own and proc.name(process) in _LAUNCHERS:
            proc.send(process, signal.SIGKILL)


def _clear(noted: Iterable[str]) -> None:
    keeper.remove_segments(noted)
    for name in noted:
        if os.path.isabs(name):
            shutil.rmtree(name, ignore_errors=True)
