"""The agents of an elastic job's hosts (agent.py), seen from `tf_hvd run`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tf_hvd.launch.job import far_agent
from tf_hvd.launch.job.far_agent import FarAgent
from tf_hvd.launch.job.session import Home
from tf_hvd.launch.machine.commits import Commits

_HERE = ""  # what this machine is known by


class Here:
    """The agent of this machine, which is part of `tf_hvd run`. Any thread.

    Args:
        commits: what it keeps.
    """

    ended = False
    process = None

    def __init__(self, commits: Commits) -> None:
        self.begin = commits.begin
        self.notify = commits.notify

    def ask(self) -> None:
        """It is there."""

    def is_ready(self) -> bool:
        """Whether it answers."""
        return True

    def answer(self) -> bool | None:
        """The same without waiting."""
        return True

    def is_old(self) -> bool:
        """Whether it may be started again, if it has ended."""
        return False

    def close(self) -> None:
        """It ends with this process."""


class Agents:
    """Those of all hosts that a job has had.

    Args:
        home: this machine's side of the job.
        reach: makes of a host's name and a command what runs it there.
        is_here: whether a name is this machine's.
        python: the interpreter on other machines.
    """

    def __init__(
        self,
        home: Home,
        reach: Callable[[str, Sequence[str]], Sequence[str]],
        is_here: Callable[[str], bool],
        python: str,
    ) -> None:
        self._job, self._parts = home.job, home.parts
        self._reach, self._is_here, self._python = reach, is_here, python
        self._links: dict[str, FarAgent | Here] = {_HERE: Here(home.commits)}
        self._round, self._notice = 0, (0, 0)  # the start that runs, and what its ranks were told
        self._revived: set[str] = set()  # those started again, which have not answered yet

    def start(self, names: Sequence[str]) -> list[str]:
        """Starts those that are not there; returns the hosts whose agent cannot be."""
        for name in names:
            if not self._start(name):
                self._links[self._key(name)].ask()
        return [name for name in names if not self._links[self._key(name)].is_ready()]

    def look_for(self, names: Sequence[str]) -> dict[str, bool | None]:
        """The same without waiting: by host whether its agent answers; None: not known yet."""
        for name in names:
            self._start(name)
        return {name: self._links[self._key(name)].answer() for name in names}

    def revive(self, names: Iterable[str]) -> None:
        """Starts those again that have ended; ranks that still run give them what they had."""
        for name in names:
            key = self._key(name)
            link = self._links[key]
            if link.ended and link.is_old() and self._start(name):
                self._revived.add(key)
            elif key in self._revived and link.answer():
                self._revived.discard(key)
                link.begin(self._round)
                link.notify(*self._notice)

    def of(self, name: str) -> FarAgent | None:
        """That of a host, if it runs; None also of this machine."""
        link = self._links.get(self._key(name))
        return link if isinstance(link, FarAgent) and not link.ended else None

    def keep(self, names: Iterable[str]) -> None:
        """Ends those of all other hosts."""
        for key in self._links.keys() - {_HERE, *map(self._key, names)}:
            self._drop(key)

    def begin(self, names: Sequence[str], number: int) -> None:
        """A start of the job on these hosts begins."""
        self._round, self._notice = number, (0, 0)
        self._revived.clear()
        for key in dict.fromkeys(map(self._key, names)):
            self._links[key].begin(number)

    def notify(self, number: int, says: int) -> None:
        """Tells all ranks something."""
        self._notice = number, says
        for link in self._links.values():
            link.notify(number, says)

    def lost(self, names: Sequence[str]) -> list[str]:
        """Of these hosts, those whose agent has ended: with its machine, or the way to it."""
        return [
            name
            for name in names
            if self._links[self._key(name)].ended or self._key(name) in self._revived
        ]

    def processes(self) -> set[int]:
        """The processes here that are ways to them."""
        return {link.process.pid for link in self._links.values() if link.process}

    def close(self) -> None:
        """Ends all."""
        for link in self._links.values():
            link.close()

    def _start(self, name: str) -> bool:
        """Starts that of a host, if there is none, or it has ended; whether it did."""
        key = self._key(name)
        if key in self._links and not self._links[key].ended:
            return False
        if key in self._links:
            self._drop(key)
        self._links[key] = FarAgent(name, self._command(name), self._parts)
        return True

    def _drop(self, key: str) -> None:
        self._links.pop(key).close()

    def _key(self, name: str) -> str:
        return _HERE if self._is_here(name) else name

    def _command(self, name: str) -> Sequence[str]:
        return self._reach(name, far_agent.command(self._python, name, self._job))
