"""Finds the ranks of a job on one machine, and gives them and their keepers signals.

Used by `tf_hvd run` for its own machine (grace.py), and by the agents of the others (agent.py),
which know the standard library alone. A keeper is the process that waits for a rank's program
(keeper.py).
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from tf_hvd.core import contract
from tf_hvd.launch.machine import keeper, proc

# In seconds: until keepers that have nothing to wait for have ended, and between two looks.
_PATIENCE, _PAUSE = 3.0, 0.02


class Ranks:
    """The ranks of one job that run on this machine by now. One thread at a time."""

    def __init__(self, job: str) -> None:
        there = proc.all_stats()
        self._keepers = {pid: number for pid in there if (number := _kept(pid, job)) >= 0}
        above = {pid: its.parent for pid, its in there.items()}
        self._programs = {pid: above[pid] for pid in there if above[pid] in self._keepers}

    def alive(self) -> list[int]:
        """Those whose program has not ended."""
        return sorted(self._keepers[self._programs[pid]] for pid in self._alive())

    def to_keepers(self, signum: int) -> None:
        for pid in self._keepers:
            if proc.name(pid) == contract.KEEPER:
                proc.send(pid, signum)

    def to_programs(self, signum: int) -> None:
        """Sends a signal to the programs that have not ended, and to what runs below them.

        As a terminal does: a shell hands none on to the Python that it waits for. Only within a
        program's process group, and not to what it has started to outlive it, by `nohup`.
        """
        there = proc.all_stats()
        # In this order: `there` has all that are alive.
        alive = self._alive()
        for pid in there:
            if _is_with(pid, alive, there):
                proc.send(pid, signum)

    def wait_for_keepers(self) -> None:
        """Returns when those whose program has ended have ended, too, which takes no time.

        Then nothing of theirs is left, and MPI's launcher may be killed, which kills them.
        """
        until = time.monotonic() + _PATIENCE
        idle = self._keepers.keys() - {self._programs[pid] for pid in self._alive()}
        while any(map(proc.is_alive, idle)) and time.monotonic() <= until:
            time.sleep(_PAUSE)

    def _alive(self) -> set[int]:
        now = {pid: proc.stat(pid) for pid in self._programs}
        return {pid for pid, its in now.items() if its.alive and its.parent == self._programs[pid]}


def _is_with(process: int, programs: set[int], there: Mapping[int, proc.Stat]) -> bool:
    """Whether a process is one of those programs, or below one of them and to end with it."""
    program = process
    while program and program not in programs:
        program = there.get(program, proc.Stat()).parent
    if program in (0, process):
        return program == process
    stays = proc.ignores_hangup(process) and not proc.ignores_hangup(program)
    return there[process].group == there[program].group and not stays


def _kept(process: int, job: str) -> int:
    """The number of the rank that a process is the keeper of; -1 if it is none of this job."""
    if proc.name(process) != contract.KEEPER:
        return -1
    options = keeper.options_of(proc.arguments(process))
    if options.get("job") != job:
        return -1
    return keeper.number_of(options, proc.environment(process))
