"""Find a job's ranks on one machine, and send signals to the ranks and their keepers.

`tf_hvd run` uses this module for its own machine (grace.py). Agents use it on other machines
(agent.py), so it imports only the standard library. A keeper is the process that waits for a rank's
program (keeper.py).
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from tf_hvd.core import contract
from tf_hvd.launch.machine import keeper, proc

# In seconds: the time for keepers to end after their programs, and between two looks.
_PATIENCE, _PAUSE = 3.0, 0.02


class Ranks:
    """One job's ranks that are running on this machine. Only one thread at a time may use it."""

    def __init__(self, job: str) -> None:
        there = proc.all_stats()
        self._keepers = {pid: number for pid in there if (number := _kept(pid, job)) >= 0}
        above = {pid: its.parent for pid, its in there.items()}
        self._programs = {pid: above[pid] for pid in there if above[pid] in self._keepers}

    def alive(self) -> list[int]:
        """Return the ranks that have not ended."""
        return sorted(self._keepers[self._programs[pid]] for pid in self._alive())

    def to_keepers(self, signum: int) -> None:
        for pid in self._keepers:
            if proc.name(pid) == contract.KEEPER:
                proc.send(pid, signum)

    def to_programs(self, signum: int) -> None:
        """Send a signal to the programs that have not ended, and to their descendants.

        Descendants get the signal, as from a terminal, because a shell that waits for Python would
        not forward it. Processes outside a program's process group, or started with `nohup`, do not
        get the signal.
        """
        there = proc.all_stats()
        # Read after `there`, which therefore contains all programs that are alive.
        alive = self._alive()
        for pid in there:
            if _is_with(pid, alive, there):
                proc.send(pid, signum)

    def wait_for_keepers(self) -> None:
        """Wait until the keepers of ended programs have ended, which takes little time.

        These keepers have then cleaned up. MPI's launcher may kill the remaining keepers without
        harm.
        """
        until = time.monotonic() + _PATIENCE
        idle = self._keepers.keys() - {self._programs[pid] for pid in self._alive()}
        while any(map(proc.is_alive, idle)) and time.monotonic() <= until:
            time.sleep(_PAUSE)

    def _alive(self) -> set[int]:
        now = {pid: proc.stat(pid) for pid in self._programs}
        return {pid for pid, its in now.items() if its.alive and its.parent == self._programs[pid]}


def _is_with(process: int, programs: set[int], there: Mapping[int, proc.Stat]) -> bool:
    """Return whether a process is one of the programs, or a descendant that must end with it."""
    program = process
    while program and program not in programs:
        program = there.get(program, proc.Stat()).parent
    if program in (0, process):
        return program == process
    stays = proc.ignores_hangup(process) and not proc.ignores_hangup(program)
    return there[process].group == there[program].group and not stays


def _kept(process: int, job: str) -> int:
    """Return the number of a keeper's rank; -1 if the process is not a keeper in this job."""
    if proc.name(process) != contract.KEEPER:
        return -1
    options = keeper.options_of(proc.arguments(process))
    if options.get("job") != job:
        return -1
    return keeper.number_of(options, proc.environment(process))
