"""What a job leaves on this machine is removed at its end, also where `tf_hvd run` is killed."""

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

# In seconds, after a `tf_hvd run` that was killed: what ends meanwhile may still write.
_PASSES = (0.0, 0.5, 2.0, 6.0)
_CLEARED = "."  # what was noted up to now was cleared
# The MPIs' launchers and their daemons, as /proc has it: 15 letters.
_LAUNCHERS = ("prterun", "prte", "prted", "mpiexec.hydra", "hydra_pmi_proxy")


class Traces:
    """The folder of a job's start, and what killed ranks leave of MPI's in shared memory.

    A process of its own waits for the end of this one, and clears what was noted and not cleared.
    Make it before threads are started.
    """

    def __init__(self, job: str) -> None:
        self._noted: list[str] = []
        heard, self._told = os.pipe()
        child = os.fork()
        if child == 0:
            # Nobody's child, and in no process group that is killed.
            os.setsid()
            if os.fork() == 0:
                _wait_for_end(job, heard)
            os._exit(0)
        os.waitpid(child, 0)
        os.close(heard)

    def note(self, names: Iterable[str]) -> None:
        """What may be left: folders, by paths, and MPI's shared memory, by names in /dev/shm."""
        new = [name for name in names if name not in self._noted]
        self._noted += new
        with contextlib.suppress(OSError):  # somebody has killed it
            os.write(self._told, os.fsencode("".join(f"{name}\0" for name in new)))

    def clear(self) -> None:
        """Removes all that was noted: a start is over."""
        _clear(self._noted)
        self.note([_CLEARED])
        self._noted = []

    def close(self) -> None:
        os.close(self._told)


def _wait_for_end(job: str, heard: int) -> None:
    try:
        for signum in ENDING:
            signal.signal(signum, signal.SIG_IGN)
        # Also the end of the pipe that tells ours.
        keeper.close_all({str(heard)})
        with open(heard, "rb") as told:
            noted = os.fsdecode(told.read()).split("\0")[:-1]
        while _CLEARED in noted:
            noted = noted[noted.index(_CLEARED) + 1 :]
        for seconds in _PASSES if noted else ():
            time.sleep(seconds)
            if seconds:  # at first they have just been told to end
                _kill_launchers(job)
            _clear(noted)
    finally:
        os._exit(0)


def _kill_launchers(job: str) -> None:
    """Ends the MPI's launcher, which waits for deaf ranks; who watches a rank ends it then."""
    for process in proc.all_stats():
        own = proc.environment(process).get(contract.JOB) == job
        if own and proc.name(process) in _LAUNCHERS:
            proc.send(process, signal.SIGKILL)


def _clear(noted: Iterable[str]) -> None:
    keeper.remove_segments(noted)
    for name in noted:
        if os.path.isabs(name):
            shutil.rmtree(name, ignore_errors=True)
