"""The time that the ranks of a job get when they are asked to end, on whatever machine they run.

Nobody's end may end the others: MPI's launchers kill all ranks when the first has ended. So the
keepers (keeper.py) are told to hold their rank's end back, before the ranks are told to end, and
are released when all have. On other machines their agent, started by ssh or srun, does that.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Sequence

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


class Grace:
    """Asks a job's ranks to end, once, and waits until all have. For the thread that supervises.

    Args:
        hosts: the machines other than this one.
        agent: gives that of such a machine, which is started if it does not run; None where
            nothing is known that reaches them.
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
        # What the thread has found out; read when it has ended: the hosts that were not reached,
        # and the ranks that had not ended, and had to be killed.
        self._unreached = [] if agent else list(hosts)
        self._killed: list[int] = []

    def begin(self) -> str:
        """Asks them; returns who is asked, as a sentence has it. Empty: nobody."""
        here = self._here.alive()
        who = [ranks_text(here)] * bool(here)
        if self._agent and self._hosts:
            who.append(f"{'those' if here else 'the ranks'} on {', '.join(self._hosts)}")
        if who:
            self._here.to_keepers(keeper.HOLD)
            self._thread.start()
        return " and ".join(who)

    def end(self) -> None:
        """The time is over: who has not ended is killed. Returns when that is done."""
        self._over.set()
        self._thread.join(_DONE)

    def text(self) -> str:
        self._thread.join(_DONE)
        if self._killed:
            how = f"{ranks_text(self._killed)} had not ended yet and had to be killed"
        else:
            how = f"all ranks{' of this machine' * bool(self._unreached)} ended by themselves"
        if self._unreached:
            hosts = ", ".join(self._unreached)
            how += f"; those on {hosts}, not reached in time, were ended by the MPI launcher"
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
        # One keeper's end has MPI's launcher kill the others, which by now have nothing to do.
        # Those of this machine come last: others clear what their ranks have left here.
        for link in links:
            link.close()  # its keepers are released then
        for link in links:
            link.wait()
        self._here.to_keepers(keeper.RELEASE)

    def _silent(self, links: list[FarAgent], until: float) -> list[FarAgent]:
        """Has machines look which ranks have not ended; takes out, and returns, who is silent."""
        for link in links:
            link.look()
        silent = [link for link in links if not link.has_looked(until, self._over)]
        links[:] = [link for link in links if link not in silent]
        return silent

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
        silent = self._silent(links, time.monotonic() + _ANSWER)
        if self._over.is_set():  # they are told what the others are
            links += silent
        else:
            self._give_up(silent)
        there = (number for link in links for number in link.ranks)
        return sorted({*self._here.alive(), *there})
