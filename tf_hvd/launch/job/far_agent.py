"""Control the agent on another machine (agent.py) from `tf_hvd run`."""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence

from tf_hvd.core import contract, messages
from tf_hvd.launch.job import signals
from tf_hvd.launch.machine import agent
from tf_hvd.launch.machine.commits import Parts

# In seconds: the time for a new agent to answer, because a login may be slow; for an earlier agent
# to answer, because its ranks' data are sent first; between two starts of an agent while its ranks
# run; for a command to be carried out; and between two looks.
_READY, _STILL, _AGAIN, _DONE, _LOOK = 20.0, 30.0, 3.0, 5.0, 0.02


def command(python: str, machine: str, job: str) -> list[str]:
    """Return the command that starts an agent.

    Args:
        python: path of the Python that runs the agent.
        machine: the agent's machine, as named in `tf_hvd run`; empty for an agent that only sends
            signals to ranks.
        job: the job's name.
    """
    return [python, "-I", "-S", agent.__file__, machine, job]


class FarAgent:
    """The agent on another machine. Any thread may use it.

    Args:
        host: the agent's machine, as named in `tf_hvd run`.
        command: the local command that starts the agent on that machine.
        parts: receives the commits from the machine's ranks.
        environ: the command's environment; None for this process's environment.
        quiet: whether to discard the command's standard error, including ssh's messages.
    """

    def __init__(
        self,
        host: str,
        command: Sequence[str],
        parts: Parts,
        environ: Mapping[str, str] | None = None,
        quiet: bool = False,
    ) -> None:
        self.host = host
        self._parts = parts
        self._lock = threading.RLock()  # guards writing to the agent, and _has
        self._has: set[tuple[int, int]] = set()
        self._ready = threading.Event()
        self._since = time.monotonic()
        self._until = self._since + _READY
        self.ended = False
        """Whether the connection to the agent has ended."""
        self.ranks: list[int] = []
        """The ranks on the agent's machine that had not ended at the last look."""
        self._looks = self._looked = 0  # the number of looks requested and reported
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if quiet else None,
            env=None if environ is None else dict(environ),
            start_new_session=True,
            preexec_fn=signals.unblock,
        )
        assert self.process.stdin is not None
        self._to = self.process.stdin
        with signals.deaf():
            threading.Thread(target=self._listen, name="agent on a host", daemon=True).start()

    def ask(self) -> None:
        """Ask the agent to answer again, because its machine may have been lost unnoticed."""
        self._ready.clear()
        self._until = time.monotonic() + _STILL
        self._tell(contract.READY)

    def is_ready(self) -> bool:
        """Wait for the agent's answer up to a time limit; return whether the agent answered."""
        self._ready.wait(max(0.0, self._until - time.monotonic()))
        return bool(self.answer())

    def answer(self) -> bool | None:
        """Return whether the agent answers; None while undecided."""
        if self._ready.is_set():
            return not self.ended
        if time.monotonic() < self._until:
            return None
        self.process.kill()
        self.ended = True
        return False

    def begin(self, number: int) -> None:
        """Announce a start of the job and send the agent all parts.

        The agent then ignores messages from ranks in other starts.
        """
        wanted = set(self._parts.listed())
        with self._lock:
            for rank, commit in sorted(wanted - self._has):
                data = self._parts.get(rank, commit)
                if data is not None:
                    self._tell(contract.PART, data, rank=rank, commit=commit)
            self._has |= wanted
            self._tell(contract.ROUND, number=number)

    def notify(self, says: int) -> None:
        self._tell(contract.NOTIFY, says=says)

    def signal(self, to: str, signum: int) -> None:
        """Send a signal to the agent's ranks: `TO_KEEPERS` or `TO_PROGRAMS`."""
        self._tell(to, signal=int(signum))

    def look(self) -> None:
        """Ask the agent which ranks have not ended."""
        self._looks += 1
        self._tell(contract.LOOK)

    def has_looked(self, until: float, over: threading.Event) -> bool:
        """Wait until `ranks` is up to date, `until` has passed or `over` is set.

        Returns:
            Whether `ranks` is up to date.
        """
        while self._looked < self._looks and not self.ended:
            if over.is_set() or time.monotonic() >= until:
                return False
            time.sleep(_LOOK)
        return not self.ended

    def is_old(self) -> bool:
        """Return whether the last start was long enough ago to start the agent again."""
        return time.monotonic() > self._since + _AGAIN

    def close(self) -> None:
        """End the agent, which deletes everything that it stores."""
        with contextlib.suppress(OSError):
            self._to.close()

    def wait(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_DONE)

    def _tell(self, what: str, load: bytes = b"", **fields: int) -> None:
        # If the agent has ended, `_listen` notices.
        with self._lock, contextlib.suppress(OSError, ValueError):
            messages.send(self._to, {"do": what, **fields}, load)

    def _listen(self) -> None:
        source = self.process.stdout
        assert source is not None
        with contextlib.suppress(EOFError, OSError, *messages.DAMAGE):
            agent.find_greeting(source)
            while True:
                message, load = messages.receive(source)
                if message["do"] == contract.READY:
                    self._ready.set()
                elif message["do"] == contract.LOOK:
                    self.ranks = [int(number) for number in message["ranks"]]
                    self._looked += 1
                elif message["do"] == contract.FORGET:
                    self._parts.forget(message["after"], message["last"])
                elif message["do"] == contract.PART:
                    rank, commit = message["rank"], message["commit"]
                    self._parts.put(rank, commit, load)
                    with self._lock:
                        self._has.add((rank, commit))
                        self._tell(contract.HAVE, rank=rank, commit=commit)
        self.ended = True
        self._ready.set()
