"""The time that the ranks of a job get when they are asked to end, on whatever machine they run.

Nobody's end may end the others: MPI's launchers kill all ranks when the first has ended. So the
keepers (keeper.py) are told to hold their rank's end back, before the ranks are told to end, and
are released when all have. On other machines their agent, started by ssh or srun, does that.
"""

from __future__ import annotations

import shlex
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tf_hvd.core import contract
from tf_hvd.core.ranks_text import ranks_text
from tf_hvd.launch.job.far_agent import FarAgent
from tf_hvd.launch.machine import keeper
from tf_hvd.launch.machine.rank_signals import Ranks

# In seconds: how long the other ranks are not told yet for a machine that does not answer at first;
# for one to answer later, and between two looks; for what has been told to be done. For who is
# killed to be gone, and between two looks then.
_REACHED, _ANSWER, _LOOK, _DONE = 3.0, 20.0, 0.1, 5.0
_GONE, _SOON = 2.0, 0.02


# Makes of a host's name and a command the command that runs it there.
Reach = Callable[[str, Sequence[str]], list[str]]


@dataclass(frozen=True)
class Elsewhere:
    """The other machines of a job, and how they are reached."""

    hosts: Sequence[str] = ()
    agent: Callable[[str], FarAgent] | None = None
    """Gives that of a host, which is started if it does not run; None where nothing is known that
    reaches them."""


def by_ssh(ssh: Sequence[str]) -> Reach:
    """Reaches hosts by ssh: the command before a host's name."""
    return lambda host, words: [*ssh, host, f"exec {shlex.join(words)}"]


_SRUN = ("srun", "--overlap", "--quiet", "--mpi=none", "--nodes=1", "--ntasks=1")


def by_srun(host: str, words: Sequence[str]) -> list[str]:
    """Reaches the hosts of a Slurm job from within it, beside what runs there."""
    return [*_SRUN, "--cpus-per-task=1", f"--nodelist={host}", *words]


class Grace:
    """Asks a job's ranks to end, once, and waits until all have. For the thread that supervises.

    Args:
        job: its name.
        elsewhere: the machines other than this one.
    """

    def __init__(self, job: str, elsewhere: Elsewhere) -> None:
        self._here = Ranks(job)
        self._elsewhere = elsewhere
        self._hosts = elsewhere.hosts if elsewhere.agent else ()  # those that can be reached
        self._signum = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask, name="grace", daemon=True)
        # What the thread has found out; read when it has ended.
        self._unreached = [] if elsewhere.agent else list(elsewhere.hosts)
        self.killed: list[int] = []
        """The ranks that had not ended, and had to be killed."""

    def begin(self, signum: int) -> str:
        """Asks them by that signal; returns who is asked, as a sentence has it. Empty: nobody."""
        here = self._here.alive()
        who = [ranks_text(here)] * bool(here)
        if self._hosts:
            who.append(f"{'those' if here else 'the ranks'} on {', '.join(self._hosts)}")
        if who:
            self._here.to_keepers(keeper.HOLD)
            self._signum = signum
            self._thread.start()
        return " and ".join(who)

    def end(self) -> None:
        """The time is over: who has not ended is killed. Returns when that is done."""
        self._over.set()
        self._thread.join(_DONE)

    def text(self) -> str:
        """How it came out, as a sentence has it."""
        self._thread.join(_DONE)
        if self.killed:
            how = f"{ranks_text(self.killed)} had not ended yet and had to be killed"
        else:
            how = f"all ranks{' of this machine' * bool(self._unreached)} ended by themselves"
        if self._unreached:
            hosts = ", ".join(self._unreached)
            how += f"; those on {hosts}, not reached in time, were ended by the MPI launcher"
        return how

    def _ask(self) -> None:
        links, late = self._connect()
        self._here.to_programs(self._signum)
        for link in links:
            link.signal(contract.TO_PROGRAMS, self._signum)
        while ((alive := self._alive(links)) or late) and not self._over.wait(_LOOK):
            self._take_late(links, late)
        self._give_up(late)
        self.killed = alive
        if alive:
            self._here.to_programs(signal.SIGKILL)
            for link in links:
                link.signal(contract.TO_PROGRAMS, signal.SIGKILL)
            self._wait_until_gone(links)
        # One keeper's end has MPI's launcher kill the others, which by now have nothing to do.
        # Those of this machine come last: others clear what their ranks have left here.
        for link in links:
            link.close()  # its keepers are released then
        for link in links:
            link.wait()
        self._here.to_keepers(keeper.RELEASE)

    def _wait_until_gone(self, links: list[FarAgent]) -> None:
        until = time.monotonic() + _GONE
        while self._alive(links) and time.monotonic() < until:
            time.sleep(_SOON)

    def _connect(self) -> tuple[list[FarAgent], list[FarAgent]]:
        """The machines that are reached, whose ranks hold back their ends by now, and others."""
        links = []
        if self._elsewhere.agent:
            links = [self._elsewhere.agent(host) for host in self._hosts]
        for link in links:
            link.signal(contract.TO_KEEPERS, keeper.HOLD)
            link.look()
        until = time.monotonic() + _REACHED
        late = [link for link in links if not link.has_looked(until, self._over)]
        return [link for link in links if link not in late], late

    def _take_late(self, links: list[FarAgent], late: list[FarAgent]) -> None:
        """Tells the ranks of machines that are reached by now: a login may take long."""
        for link in list(late):
            if link.has_looked(0.0, self._over):
                link.signal(contract.TO_PROGRAMS, self._signum)
                links.append(link)
            elif link.ended:
                self._give_up([link])
            else:
                continue
            late.remove(link)

    def _give_up(self, links: Sequence[FarAgent]) -> None:
        for link in links:
            link.close()
            self._unreached.append(link.host)

    def _alive(self, links: list[FarAgent]) -> list[int]:
        """The ranks that have not ended. Forgets machines that do not answer any more."""
        until = time.monotonic() + _ANSWER
        for link in links:
            link.look()
        silent = [link for link in links if not link.has_looked(until, self._over)]
        if not self._over.is_set():  # else they are told what the others are
            self._give_up(silent)
            links[:] = [link for link in links if link not in silent]
        there = (number for link in links for number in link.ranks)
        return sorted({*self._here.alive(), *there})
