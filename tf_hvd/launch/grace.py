"""The time that the ranks of a job get when they are asked to end, on whatever machine they run.

Nobody's end may end the others: MPI's launchers kill all ranks when the first has ended. So the
keepers (rank.py) are told to hold their rank's end back, before the ranks are told to end, and are
released when all have. On other machines a deputy (deputy.py), started by ssh, does that.
"""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tf_hvd.launch import deputy, rank
from tf_hvd.launch.culprit import listed

# In seconds: for a machine to answer at first, later, and between two looks.
_REACHED, _ANSWER, _LOOK = 3.0, 2.0, 0.1


@dataclass(frozen=True)
class Elsewhere:
    """The other machines of a job, and how they are reached."""

    hosts: Sequence[str] = ()
    ssh: Sequence[str] | None = None
    """The command before a host's name; None if it is not ssh that reaches them."""
    environ: Mapping[str, str] = field(default_factory=dict)


class Grace:
    """Asks a job's ranks to end, once, and waits until all have. For the thread that supervises.

    Args:
        folder: the job's.
        elsewhere: the machines other than this one.
    """

    def __init__(self, folder: str, elsewhere: Elsewhere) -> None:
        self._here = deputy.Deputy(folder)
        self._folder = folder
        self._elsewhere = elsewhere
        self._hosts = elsewhere.hosts if elsewhere.ssh else ()  # those that can be reached
        self._signum = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask, name="grace", daemon=True)
        # What the thread has found out; read when it has ended.
        self._unreached = [] if elsewhere.ssh else list(elsewhere.hosts)
        self.killed: list[int] = []
        """The ranks that had not ended, and had to be killed."""

    def begin(self, signum: int) -> str:
        """Asks them by that signal; returns who is asked, as a sentence has it. Empty: nobody."""
        here = self._here.ranks()
        who = [listed(here)] * bool(here)
        if self._hosts:
            who.append(f"{'those' if here else 'the ranks'} on {', '.join(self._hosts)}")
        if who:
            self._here.to_keepers(rank.HOLD)
            self._signum = signum
            self._thread.start()
        return " and ".join(who)

    def end(self) -> None:
        """The time is over: who has not ended is killed. Returns when that is done."""
        self._over.set()
        self._thread.join(_REACHED + _ANSWER)

    def text(self) -> str:
        """How it came out, as a sentence has it."""
        self._thread.join(_ANSWER)
        if self.killed:
            how = f"{listed(self.killed)} had not ended yet and had to be killed"
        else:
            how = f"all ranks{' of this machine' * bool(self._unreached)} ended by themselves"
        if self._unreached:
            hosts = ", ".join(self._unreached)
            how += f"; those on {hosts}, not reached by ssh, were ended by the MPI launcher"
        return how

    def _ask(self) -> None:
        links = self._connect()
        self._here.to_programs(self._signum)
        for link in links:
            link.say(deputy.TO_PROGRAMS, self._signum)
        while (alive := self._alive(links)) and not self._over.wait(_LOOK):
            pass
        self.killed = alive
        if alive:
            self._here.to_programs(signal.SIGKILL)
            for link in links:
                link.say(deputy.TO_PROGRAMS, signal.SIGKILL)
        for link in links:
            link.close()  # its keepers are released then
        self._here.to_keepers(rank.RELEASE)
        for link in links:
            link.wait()

    def _connect(self) -> list[_Link]:
        """The machines that are reached, whose ranks hold back their ends by now."""
        links = [_Link(host, self._elsewhere, self._folder) for host in self._hosts]
        for link in links:
            link.say(deputy.TO_KEEPERS, rank.HOLD)
        return self._answering(links, _REACHED)[0]

    def _alive(self, links: list[_Link]) -> list[int]:
        """The ranks that have not ended. Forgets machines that do not answer any more."""
        links[:], there = self._answering(links, _ANSWER)
        return sorted({*self._here.ranks(), *there})

    def _answering(self, links: Sequence[_Link], seconds: float) -> tuple[list[_Link], list[int]]:
        """Those links that say which ranks have not ended, and these ranks."""
        until = time.monotonic() + seconds
        for link in links:
            link.say(deputy.LOOK)
        answering, ranks = [], []
        for link in links:
            found = link.answer(until)
            if found is None:
                link.close()
                self._unreached.append(link.host)
            else:
                answering.append(link)
                ranks += found
        return answering, ranks


class _Link:
    """A deputy on another machine."""

    def __init__(self, host: str, elsewhere: Elsewhere, folder: str) -> None:
        self.host = host
        file = str(Path(deputy.__file__))
        words = [sys.executable, "-I", "-S", file, folder, str(int(rank.RELEASE))]
        self._process = subprocess.Popen(
            [*(elsewhere.ssh or ()), host, f"exec {shlex.join(words)}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env=dict(elsewhere.environ),
            start_new_session=True,  # a second Ctrl-C is for us alone
        )
        assert self._process.stdin
        assert self._process.stdout
        self._to, self._from = self._process.stdin, self._process.stdout
        self._heard = b""

    def say(self, what: str, signum: int = 0) -> None:
        """Tells it something; see `deputy.main`."""
        with contextlib.suppress(OSError):  # it is gone, and will not answer
            self._to.write(f"{what} {int(signum)}\n".encode())

    def answer(self, until: float) -> list[int] | None:
        """The ranks that it tells of, or None if it tells of none until that time."""
        while True:
            *lines, self._heard = self._heard.split(b"\n")
            for line in lines:
                begin, mark, ranks = line.decode(errors="replace").partition(deputy.RANKS)
                if mark and not begin:
                    return [int(number) for number in ranks.split()]
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._from], [], [], left)[0]:
                return None
            piece = os.read(self._from.fileno(), 4096)
            if not piece:
                return None
            self._heard += piece

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._to.close()

    def wait(self) -> None:
        """Waits until it has done what it was told, for a while."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_ANSWER)
