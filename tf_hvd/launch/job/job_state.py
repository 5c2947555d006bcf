"""The state of one start of a job: the ranks on this machine and their messages.

The explanation of a failure and the job's exit code are derived from this state.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from tf_hvd.core import contract
from tf_hvd.launch.machine import proc

_RAISED = 1  # the exit code of a program that an exception ends
# Minus the signals by which launchers end other ranks; None if the keeper was killed as well.
_KILLED = (None, -signal.SIGTERM, -signal.SIGKILL)


@dataclass
class Rank:
    process: int = 0
    """Process id of the rank's program; 0 if the rank has not reported."""
    keeper: int = 0
    """Process id of the rank's keeper, which reports the rank's end; 0 without a keeper."""
    code: int | None = None
    """The program's exit code, or minus its signal; None if unknown."""
    said: dict[str, int] = field(default_factory=dict)
    """The rank's messages, and the time of each in nanoseconds since the epoch."""
    segments: list[str] = field(default_factory=list)
    """MPI's segments in /dev/shm when the rank joined."""
    where: str = ""
    """The place in the program that raised the exception that ended the rank."""
    exception: str = ""
    """The exception that ended the rank; empty if none did."""


@dataclass
class JobState:
    """The ranks on this machine and their messages. Any thread may use it.

    Methods return the current state; call them after the agent has settled.
    """

    job: str = ""
    killed_before: int | None = field(default_factory=proc.killed_for_memory)
    """Number of processes that the OOM killer had killed when the job began; None if unknown."""
    recordings: dict[int, int] = field(default_factory=dict)
    """The file descriptor of each rank's recording, by rank."""
    sessions: set[int] = field(default_factory=set)
    """The sessions into which the launcher put the ranks' processes."""
    called: set[int] = field(default_factory=set)
    """Ids of the processes that have called `init`, even if the call failed."""
    inner: set[str] = field(default_factory=set)
    """Messages from jobs that ranks have started: NESTED, INNER."""
    _callers: set[int] = field(default_factory=set)  # ranks that have called `init` for all ranks
    _alone: set[int] = field(default_factory=set)  # processes of `called` that joined no job
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _ranks: dict[int, Rank] = field(default_factory=dict)  # guarded by _lock

    def hear(self, message: dict[str, Any], load: bytes) -> None:
        """Process a message from a rank, from its keeper, or from a job that the rank started."""
        what = message["do"]
        with self._lock:
            if what == contract.CALLED:
                self.called.add(int(message["process"]))
                if message["rank"] is not None:
                    self._callers.add(int(message["rank"]))
            elif what == contract.ALONE:
                self._alone.add(int(message["process"]))
            elif what in (contract.NESTED, contract.INNER):
                self.inner.add(what)
            else:
                self._hear_of_rank(what, message, load)

    def _hear_of_rank(self, what: str, message: dict[str, Any], load: bytes) -> None:
        rank = self._ranks.setdefault(int(message["rank"]), Rank())
        rank.said[what] = int(message["time"])
        if what == contract.RUNS:
            rank.process, rank.keeper = int(message["process"]), int(message["keeper"])
            rank.code = None
            self.sessions.add(proc.stat(rank.process).session)
        elif what == contract.ENDED:
            rank.code = int(message["code"])
        elif what == contract.JOINED:
            rank.segments = [name for name in map(str, message["segments"]) if "/" not in name]
            for later in (contract.LEFT, contract.EXITS):
                rank.said.pop(later, None)
        elif what == contract.RAISED:
            rank.where = str(message["where"])
            rank.exception = load.decode(errors="replace")

    def hear_end(self, process: int) -> None:
        """Process the end of a connection.

        A keeper that has not reported its rank's end was killed. The launcher mistakes the keeper's
        end for the rank's end, and the kernel then kills the rank (keeper.py).
        """
        with self._lock:
            for rank in self._ranks.values():
                if rank.keeper == process:
                    rank.said.setdefault(contract.ENDED, time.time_ns())

    def take_recording(self, number: int, file: int) -> None:
        """Keep the file of a rank's recording, and close the rank's previous file."""
        with self._lock:
            if number in self.recordings:
                os.close(self.recordings[number])
            self.recordings[number] = file

    def close(self) -> None:
        with self._lock:
            while self.recordings:
                os.close(self.recordings.popitem()[1])

    def _all(self) -> dict[int, Rank]:
        with self._lock:
            return dict(self._ranks)

    @property
    def ranks(self) -> dict[int, int]:
        """The process id of each rank that has reported, by rank."""
        return {number: rank.process for number, rank in self._all().items() if rank.process}

    def said(self, *what: str) -> set[int]:
        return {n for n, rank in self._all().items() if any(each in rank.said for each in what)}

    def segments(self) -> list[str]:
        """MPI's segments that killed ranks may leave in /dev/shm."""
        return [name for rank in self._all().values() for name in rank.segments]

    def joined(self) -> bool:
        """Return whether a rank here joined the job or was kept out of it by TF_HVD_ALONE=1."""
        return bool(self.said(contract.JOINED) or self._alone)

    def codes(self) -> dict[int, int]:
        """Return the exit code, or minus the signal, of each failed rank on this machine.

        A rank that raised an exception always gets the exit code for an exception, because the
        launcher may kill the rank before it exits. Slurm's ranks have no keeper and are not
        included.
        """
        codes = {}
        for number, rank in self._all().items():
            raised = contract.RAISED in rank.said
            if raised and rank.code in _KILLED:
                codes[number] = _RAISED
            elif rank.code:
                codes[number] = rank.code
        return codes

    def lost(self) -> dict[int, int]:
        """Return minus the signal of each rank on this machine that ended with its keeper.

        MPICH's launcher ends all ranks this way when one has failed.
        """
        ranks = self._all()
        ended = [n for n in self.said(contract.ENDED) if ranks[n].code is None]
        return dict.fromkeys(ended, -signal.SIGKILL)

    def began_to_end(self, number: int) -> int:
        """Return when a rank's program raised, began to leave or ended, whichever came first.

        The time is in nanoseconds since the epoch. Other ranks may notice the event, and end,
        before this rank ends. If a rank was killed while it was leaving, the time of the kill
        counts.
        """
        rank, ends = self._all()[number], [contract.RAISED, contract.ENDED]
        if rank.code not in _KILLED:
            ends.append(contract.EXITS)
        return min(rank.said[what] for what in ends if what in rank.said)

    def exception(self, number: int) -> tuple[str, str]:
        """Return the place and the text of the exception that ended a rank; "" for no exception."""
        rank = self._all().get(number, Rank())
        return rank.where, rank.exception

    def raised(self) -> dict[int, int]:
        """Return the process ids, by rank, of this machine's ranks that raised an exception."""
        told = self.said(contract.RAISED)
        return {number: pid for number, pid in self.ranks.items() if number in told}

    def cut_short(self) -> list[int]:
        """Return the ranks on this machine that have not ended with exit code 0."""
        return sorted(n for n, rank in self._all().items() if rank.keeper and rank.code != 0)

    def start_again(self) -> bool | None:
        """Return whether all ranks on this machine ended with exit code START_AGAIN.

        Returns None if unknown: no rank ran here, or the ranks have no keepers (Slurm).
        """
        kept = [rank for rank in self._all().values() if rank.keeper]
        return all(rank.code == contract.START_AGAIN for rank in kept) if kept else None

    def ended_inside(self) -> list[int]:
        """Return this machine's ranks that ended with exit code 0 but without leaving the job."""
        inside = self.said(contract.JOINED) - self.said(contract.LEFT, contract.EXITS)
        return sorted(inside.difference(self.cut_short()))

    def ended_before(self) -> list[int]:
        """Return this machine's ranks that ended with exit code 0 without calling `init`.

        The list is empty if no rank has called `init`, because then no rank waited for them.
        """
        if not self.called:
            return []
        came = self.said(contract.JOINED).union(self.cut_short())
        ranks = self.ranks.items()
        return sorted(n for n, process in ranks if process not in self.called and n not in came)

    def ranks_with_alone_set(self) -> list[int]:
        """Return this machine's ranks that `TF_HVD_ALONE=1` kept out of the job.

        The list is empty if no other rank joined or waited, because then no rank waited for them.
        """
        if not self.called - self._alone:
            return []
        return sorted(number for number, process in self.ranks.items() if process in self._alone)

    def in_init(self) -> set[int]:
        """Return the ranks on this machine that wait in `init` for the other ranks."""
        alive = {each for each, process in self.ranks.items() if proc.is_alive(process)}
        return alive & self._callers - self.said(contract.JOINED)

    def awaited(self) -> list[int]:
        """Return this machine's ranks for which other ranks wait in `init`.

        They have not called `init` yet, or are stopped. Calls to `init(comm)`, which may need only
        some ranks, do not count as waiting.
        """
        waiting, ranks = self.in_init(), self.ranks
        stopped = {each for each in waiting if proc.is_stopped(ranks[each])}
        if not waiting - stopped:
            return []
        return sorted(stopped | ranks.keys() - self._callers - self.said(contract.JOINED))

    def failed(self) -> list[int]:
        """Return the ended ranks on this machine that must end the whole job.

        A signal ended these ranks, or they joined the job and ended with an error without first
        calling `shutdown()`. A rank that has just ended with code 0 is briefly included.
        """
        inside = self.said(contract.JOINED) - self.said(contract.LEFT)
        cut_short, ranks = self.cut_short(), self._all()  # in this order: ranks may start meanwhile
        failed = []
        for number in cut_short:
            code = ranks[number].code
            # None: the rank was killed together with its keeper, which would have reported it.
            if code is None or code < 0 or number in inside:
                failed.append(number)
        return [each for each in failed if not proc.is_alive(ranks[each].process)]

    def all_ended(self, here: int) -> bool:
        """Return whether all `here` ranks on this machine have started and ended."""
        pids = list(self.ranks.values())
        return len(pids) >= here and not any(map(proc.is_alive, pids))
