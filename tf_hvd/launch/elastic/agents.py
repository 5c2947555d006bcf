"""The part of `tf_hvd run` that controls the agents (agent.py) on an elastic job's hosts.

This machine's agent is a part of `tf_hvd run`, so it always answers and never ends early.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tf_hvd.launch.job import far_agent
from tf_hvd.launch.job.far_agent import FarAgent
from tf_hvd.launch.machine.commits import Commits


class Agents:
    """The agents of all hosts that a job has used.

    Args:
        job: the job's name.
        commits: the commits stored by this process.
        reach: takes a host's name and a command; returns the local command that runs it there.
        is_here: takes a host's name; returns whether it refers to this machine.
        python: path of the Python that runs an agent.
    """

    def __init__(
        self,
        job: str,
        commits: Commits,
        reach: Callable[[str, Sequence[str]], Sequence[str]],
        is_here: Callable[[str], bool],
        python: str,
    ) -> None:
        self._job, self._commits, self._python = job, commits, python
        self._reach, self._is_here = reach, is_here
        self._links: dict[str, FarAgent] = {}  # by host, excluding this machine
        self._round, self._notice = 0, 0  # the current start, and the notice to its ranks
        self._revived: set[str] = set()  # hosts with a restarted agent that has not answered yet

    def start(self, names: Sequence[str]) -> list[str]:
        """Start missing agents and return the hosts without a working agent."""
        for name in names:
            if not self._start(name) and name in self._links:
                self._links[name].ask()
        links = {name: self._links[name] for name in names if name in self._links}
        return [name for name, link in links.items() if not link.is_ready()]

    def look_for(self, names: Sequence[str]) -> dict[str, bool | None]:
        """Start missing agents without waiting; return whether each host's agent answers.

        A host's value is None until its agent has answered or failed.
        """
        for name in names:
            self._start(name)
        return {name: link.answer() if (link := self._links.get(name)) else True for name in names}

    def revive(self, names: Iterable[str]) -> None:
        """Restart agents that have ended. Running ranks send their data to the new agents."""
        for name in self._links.keys() & set(names):
            link = self._links[name]
            if link.ended and link.is_old():
                self._start(name)
                self._revived.add(name)
            elif name in self._revived and link.answer():
                self._revived.discard(name)
                link.begin(self._round)
                link.notify(self._notice)

    def of(self, name: str) -> FarAgent | None:
        """Return a host's agent; None if the agent is not running or the host is this machine."""
        link = self._links.get(name)
        return link if link and not link.ended else None

    def keep(self, names: Iterable[str]) -> None:
        """End the agents of all hosts that are not in `names`."""
        for name in self._links.keys() - set(names):
            self._links.pop(name).close()

    def begin(self, names: Sequence[str], number: int) -> None:
        """Announce a start of the job to the agents on these hosts."""
        self._round, self._notice = number, 0
        self._revived.clear()
        self._commits.begin(number)
        for name in self._links.keys() & set(names):
            self._links[name].begin(number)

    def notify(self, says: int) -> None:
        self._notice = says
        self._commits.notify(says)
        for link in self._links.values():
            link.notify(says)

    def lost(self, names: Sequence[str]) -> list[str]:
        """Return the hosts in `names` that lost their agent to a machine or network failure."""
        gone = {name for name, link in self._links.items() if link.ended} | self._revived
        return [name for name in names if name in gone]

    def processes(self) -> set[int]:
        """Return the ids of the local processes that connect to the agents."""
        return {link.process.pid for link in self._links.values()}

    def close(self) -> None:
        for link in self._links.values():
            link.close()

    def _start(self, name: str) -> bool:
        """Start the agent on a host unless it is already running; return whether it was started."""
        link = self._links.get(name)
        if self._is_here(name) or (link and not link.ended):
            return False
        if link:
            link.close()
        words = far_agent.command(self._python, name, self._job)
        self._links[name] = FarAgent(name, self._reach(name, words), self._commits.parts)
        return True
