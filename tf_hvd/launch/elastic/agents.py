"""The agents of an elastic job's hosts (agent.py), seen from `tf_hvd run`.

That of this machine is a part of `tf_hvd run` itself: it answers, and never ends before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tf_hvd.launch.job import far_agent
from tf_hvd.launch.job.far_agent import FarAgent
from tf_hvd.launch.machine.commits import Commits


class Agents:
    """Those of all hosts that a job has had.

    Args:
        reach: makes of a host's name and a command what runs it there.
        is_here: whether a name is this machine's.
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
        self._links: dict[str, FarAgent] = {}  # by host, without this machine
        self._round, self._notice = 0, 0  # the start that runs, and what its ranks were told
        self._revived: set[str] = set()  # those started again, which have not answered yet

    def start(self, names: Sequence[str]) -> list[str]:
        """Starts those that are not there; returns the hosts whose agent cannot be."""
        for name in names:
            if not self._start(name) and name in self._links:
                self._links[name].ask()
        links = {name: self._links[name] for name in names if name in self._links}
        return [name for name, link in links.items() if not link.is_ready()]

    def look_for(self, names: Sequence[str]) -> dict[str, bool | None]:
        """The same without waiting: by host whether its agent answers; None: not known yet."""
        for name in names:
            self._start(name)
        return {name: link.answer() if (link := self._links.get(name)) else True for name in names}

    def revive(self, names: Iterable[str]) -> None:
        """Starts those again that have ended; ranks that still run give them what they had."""
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
        """That of a host, if it runs; None also of this machine."""
        link = self._links.get(name)
        return link if link and not link.ended else None

    def keep(self, names: Iterable[str]) -> None:
        """Ends those of all other hosts."""
        for name in self._links.keys() - set(names):
            self._links.pop(name).close()

    def begin(self, names: Sequence[str], number: int) -> None:
        """A start of the job on these hosts begins."""
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
        """Of these hosts, those whose agent has ended: with its machine, or the way to it."""
        gone = {name for name, link in self._links.items() if link.ended} | self._revived
        return [name for name in names if name in gone]

    def processes(self) -> set[int]:
        """The processes here that are ways to them."""
        return {link.process.pid for link in self._links.values()}

    def close(self) -> None:
        for link in self._links.values():
            link.close()

    def _start(self, name: str) -> bool:
        """Starts that of a host, if there is none, or it has ended; whether it did."""
        link = self._links.get(name)
        if self._is_here(name) or (link and not link.ended):
            return False
        if link:
            link.close()
        words = far_agent.command(self._python, name, self._job)
        self._links[name] = FarAgent(name, self._reach(name, words), self._commits.parts)
        return True
