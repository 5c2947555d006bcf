"""What is known of one start of a job: its ranks of this machine, and what each has said.

From it alone follow who brought a job down, what is said at its end, and its exit code.
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
# Minus the signals by which launchers end the others; None: their keepers too.
_KILLED = (None, -signal.SIGTERM, -signal.SIGKILL)


@dataclass
class Rank:
    process: int = 0
    """Its program's; 0: it has not reported."""
    keeper: int = 0
    """The process that waits for its end, and tells it; 0: none does."""
    code: int | None = None
    """How its program ended: the exit code, or minus the signal; None: not known."""
    said: dict[str, int] = field(default_factory=dict)
    """When it said what, in nanoseconds of the clock."""
    segments: list[str] = field(default_factory=list)
    """Of MPI's, in /dev/shm, when it joined."""
    where: str = ""
    """Where its program raised the exception that ended it."""
    exception: str = ""
    """That exception; empty if none did."""


@dataclass
class JobState:
    """The ranks of this machine. Any thread.

    What is asked of it are facts of the moment; ask when the agent has settled.
    """

    job: str = ""
    killed_before: int | None = field(default_factory=proc.killed_for_memory)
    """How many processes the kernel had killed for memory when the job began; None: unknown."""
    recordings: dict[int, int] = field(default_factory=dict)
    """The file in which each such rank's calls are recorded, by rank."""
    sessions: set[int] = field(default_factory=set)
    """The sessions that the launcher has put their processes into."""
    called: set[int] = field(default_factory=set)
    """The processes that have called `init`, be it in vain."""
    inner: set[str] = field(default_factory=set)
    """What was said of jobs that ranks have started."""
    _callers: set[int] = field(default_factory=set)  # ranks that have called `init` for all ranks
    _alone: set[int] = field(default_factory=set)  # processes of `called` that joined no job
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _ranks: dict[int, Rank] = field(default_factory=dict)  # guarded by _lock

    def hear(self, message: dict[str, Any], load: bytes) -> None:
        """Takes what a rank, its keeper or a job that it has started has said."""
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
        """A process says no more. A keeper that has not told how its rank has ended was killed.

        The launcher takes that for the rank's end, and the kernel makes it so (keeper.py).
        """
        with self._lock:
            for rank in self._ranks.values():
                if rank.keeper == process:
                    rank.said.setdefault(contract.ENDED, time.time_ns())

    def take_recording(self, number: int, file: int) -> None:
        """Keeps the file in which a rank's calls are recorded, instead of the one before."""
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
        """What killed ranks may leave of MPI's in /dev/shm."""
        return [name for rank in self._all().values() for name in rank.segments]

    def joined(self) -> bool:
        """Whether a rank of this machine has joined the job, or was told to stay out of it."""
        return bool(self.said(contract.JOINED) or self._alone)

    def codes(self) -> dict[int, int]:
        """The exit code, or minus the signal, of each rank of this machine that has ended badly.

        Of those that an exception has ended it is that of an exception: at the end of another, who
        was told of it, the launcher may end them before they have ended, or kill them. None of
        Slurm's ranks, which start without our help.
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
        """Minus the signal of each rank of this machine that has ended with its keeper.

        MPICH's launcher ends all ranks so when one has failed.
        """
        ranks = self._all()
        ended = [n for n in self.said(contract.ENDED) if ranks[n].code is None]
        return dict.fromkeys(ended, -signal.SIGKILL)

    def began_to_end(self, number: int) -> int:
        """When a rank's program raised, or began to leave the job or, at the latest, has ended.

        Others may be told of it, and end, before it has. In nanoseconds. One that leaves in order
        may then be killed, for the end of another or by somebody: that is a bad end of its own.
        """
        rank, ends = self._all()[number], [contract.RAISED, contract.ENDED]
        if rank.code not in _KILLED:
            ends.append(contract.EXITS)
        return min(rank.said[what] for what in ends if what in rank.said)

    def exception(self, number: int) -> tuple[str, str]:
        """Where a rank's program raised the exception that ended it, and which; empty if none."""
        rank = self._all().get(number, Rank())
        return rank.where, rank.exception

    def raised(self) -> dict[int, int]:
        """The ranks of this machine whose program an exception ends, and their processes."""
        told = self.said(contract.RAISED)
        return {number: pid for number, pid in self.ranks.items() if number in told}

    def cut_short(self) -> list[int]:
        """The ranks of this machine that have not ended well, or not by themselves."""
        return sorted(n for n, rank in self._all().items() if rank.keeper and rank.code != 0)

    def ended_inside(self) -> list[int]:
        """The ranks of this machine that ended with exit code 0 but never left the job."""
        inside = self.said(contract.JOINED) - self.said(contract.LEFT, contract.EXITS)
        return sorted(inside.difference(self.cut_short()))

    def ended_before(self) -> list[int]:
        """The ranks of this machine that ended with exit code 0 and had not called `init`.

        None if no other rank has called it: then nobody waited for them.
        """
        if not self.called:
            return []
        came = self.said(contract.JOINED).union(self.cut_short())
        ranks = self.ranks.items()
        return sorted(n for n, process in ranks if process not in self.called and n not in came)

    def told_to_be_alone(self) -> list[int]:
        """The ranks of this machine that `TF_HVD_ALONE=1` kept out, where others did join or wait.

        None if all were: then nobody waited for them.
        """
        if not self.called - self._alone:
            return []
        return sorted(number for number, process in self.ranks.items() if process in self._alone)

    def in_init(self) -> set[int]:
        """The ranks of this machine that wait in `init` for all others."""
        alive = {each for each, process in self.ranks.items() if proc.is_alive(process)}
        return alive & self._callers - self.said(contract.JOINED)

    def awaited(self) -> list[int]:
        """The ranks of this machine that have not called `init`, or are stopped, where others wait.

        None where `init(comm)` may do without some.
        """
        waiting, ranks = self.in_init(), self.ranks
        stopped = {each for each in waiting if proc.is_stopped(ranks[each])}
        if not waiting - stopped:
            return []
        return sorted(stopped | ranks.keys() - self._callers - self.said(contract.JOINED))

    def failed(self) -> list[int]:
        """The ranks of this machine at whose end the whole job is to end.

        Those that a signal ended, and those that had joined the job and ended with an error,
        unless they had left it by `shutdown()`. For a moment also one that has just ended well.
        """
        ranks = self._all()
        inside = self.said(contract.JOINED) - self.said(contract.LEFT)
        failed = []
        for number in self.cut_short():
            code = ranks[number].code
            # None: it was killed, and with it the process that was to say so.
            if code is None or code < 0 or number in inside:
                failed.append(number)
        return [each for each in failed if not proc.is_alive(ranks[each].process)]

    def all_ended(self, here: int) -> bool:
        """Whether all of this machine's `here` ranks have started, and have ended."""
        pids = list(self.ranks.values())
        return len(pids) >= here and not any(map(proc.is_alive, pids))
