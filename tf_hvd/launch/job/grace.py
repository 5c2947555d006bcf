"""The grace period of a job: the time that ranks on all machines get to end when asked to.

MPI's launchers kill all ranks when the first rank has ended. Therefore the keepers (keeper.py)
first get a signal to hold back reports of their ranks' ends. Then the ranks are asked to end. When
all ranks have ended, the keepers are released. On each other machine, an agent started by ssh or
srun does this.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Collection, Sequence

from tf_hvd.core import contract
from tf_hvd.core.ranks_text import ranks_text
from tf_hvd.launch.job.far_agent import FarAgent
from tf_hvd.launch.machine import keeper
from tf_hvd.launch.machine.rank_signals import Ranks

# In seconds: the time that machines get to answer before any rank is asked to end; the time for a
# later answer; between two looks; for a command to be carried out. The time for killed ranks to be
# gone, and between two looks then.
_REACHED, _ANSWER, _LOOK, _DONE = 3.0, 20.0, 0.1, 5.0
_GONE, _SOON = 2.0, 0.02


class Grace:
    """Asks a job's ranks to end, and waits for them. Only the supervising thread may use it.

    Args:
        job: the job's name.
        hosts: the other machines of the job.
        agent: takes the name of such a machine, starts an agent there if none is running, and
            returns the agent. None if no way to reach these machines is known.
        signum: the signal that asks the ranks to end.
    """

    def __init__(
        self,
        job: str,
        hosts: Sequence[str],
        agent: Callable[[str], FarAgent] | None,
        signum: signal.Signals,
    ) -> None:
        self._here = Ranks(job)
        self._hosts, self._agent, self._signum = hosts, agent, signum
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask, name="grace", daemon=True)
        # Results of the thread, read when the thread has ended: the hosts that were not reached,
        # and the ranks that were killed because they had not ended.
        self._unreached = [] if agent else list(hosts)
        self._killed: list[int] = []

    def begin(self, unnamed: Collection[int] = ()) -> str:
        """Ask the ranks to end; return a text that names them, or "" if there are no ranks.

        The text omits the `unnamed` ranks if other ranks are running on this machine.
        """
        here = self._here.alive()
        here = [each for each in here if each not in unnamed] or here
        who = [ranks_text(here)] * bool(here)
        if self._agent and self._hosts:
            who.append(f"{'those' if here else 'the ranks'} on {', '.join(self._hosts)}")
        if who:
            self._here.to_keepers(keeper.HOLD)
            self._thread.start()
        return " and ".join(who)

    def end(self) -> None:
        """End the grace period: kill the ranks that have not ended and wait for their end."""
        self._over.set()
        self._thread.join(_DONE)

    def killed(self) -> list[int]:
        """Return the ranks that were killed because they did not end in time."""
        self._thread.join(_DONE)
        return self._killed

    def text(self) -> str:
        if self.killed():
            how = f"{ranks_text(self._killed)} did not end in time and got SIGKILL"
        else:
            how = f"all ranks{' on this machine' * bool(self._unreached)} ended on their own"
        if self._unreached:
            hosts = ", ".join(self._unreached)
            how += f"; {hosts} did not answer in time, so the MPI launcher ended the ranks there"
        return f"tf_hvd run: the job was ended by {self._signum.name}; {how}"

    def _ask(self) -> None:
        links = [self._agent(host) for host in self._hosts] if self._agent else []
        for link in links:
            link.signal(contract.TO_KEEPERS, keeper.HOLD)
        late = self._silent(links, time.monotonic() + _REACHED)
        self._here.to_programs(self._signum)
        for link in links:
            link.signal(contract.TO_PROGRAMS, self._signum)
        while ((alive := self._alive(links)) or late) and not self._over.wait(_LOOK):
            self._take_late(links, late)
        self._give_up(late)
        self._killed = alive
        if alive:
            self._here.to_programs(signal.SIGKILL)
            for link in links:
                link.signal(contract.TO_PROGRAMS, signal.SIGKILL)
            until = time.monotonic() + _GONE
            while self._alive(links) and time.monotonic() < until:
                time.sleep(_SOON)
        # MPI's launcher kills all keepers when one ends; by now the keepers have nothing left to
        # do. This machine's keepers come last, so that the others can clean up first.
        for link in links:
            link.close()  # this releases its keepers
        for link in links:
            link.wait()
        self._here.to_keepers(keeper.RELEASE)

    def _silent(self, links: list[FarAgent], until: float) -> list[FarAgent]:
        """Ask the agents which ranks still run; remove and return the agents that do not answer."""
        for link in links:
            link.look()
        silent = [link for link in links if not link.has_looked(until, self._over)]
        links[:] = [link for link in links if link not in silent]
        return silent

    def _take_late(self, links: list[FarAgent], late: list[FarAgent]) -> None:
        """Ask the ranks to end on machines that answered late, for example after a slow login."""
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
        """Return the ranks that have not ended, and give up machines that no longer answer."""
        silent = self._silent(links, time.monotonic() + _ANSWER)
        if self._over.is_set():  # they get the same signals as the other machines
            links += silent
        else:
            self._give_up(silent)
        there = (number for link in links for number in link.ranks)
        return sorted({*self._here.alive(), *there})
