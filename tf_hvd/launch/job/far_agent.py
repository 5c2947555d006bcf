"""The agent of another machine (agent.py), seen from `tf_hvd run`."""

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

# In seconds: until an agent answers, for a login may take long; until one does that has answered
# before, where what its ranks have written goes first; from one start of it to the next, while its
# ranks run; for what it was told to be done; and between two looks.
_READY, _STILL, _AGAIN, _DONE, _LOOK = 20.0, 30.0, 3.0, 5.0, 0.02


def command(python: str, machine: str, job: str) -> list[str]:
    """What starts an agent; `machine` is empty for one that only gives its ranks signals."""
    return [python, "-I", "-S", agent.__file__, machine, job]


class FarAgent:
    """The agent of another machine. Any thread.

    Args:
        host: what `tf_hvd run` calls its machine.
        parts: get what its ranks commit.
        environ: of the command; None for this process's own.
        quiet: whether nothing is shown of what it says on standard error, as ssh does.
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
        self._lock = threading.RLock()  # guards what is written to it, and _has
        self._has: set[tuple[int, int]] = set()
        self._ready = threading.Event()
        self._since = time.monotonic()
        self._until = self._since + _READY
        self.ended = False
        """Whether nothing more comes from it."""
        self.ranks: list[int] = []
        """Those of its machine that had not ended when it looked last."""
        self._looks = self._looked = 0  # how often it was asked to look, and has
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
            threading.Thread(target=self._listen, name="agent of a host", daemon=True).start()

    def ask(self) -> None:
        """Has it answer anew: its machine may be gone, and nobody has said so."""
        self._ready.clear()
        self._until = time.monotonic() + _STILL
        self._tell(contract.READY)

    def is_ready(self) -> bool:
        """Whether it answers; waits for that, and gives up one that does not."""
        self._ready.wait(max(0.0, self._until - time.monotonic()))
        return bool(self.answer())

    def answer(self) -> bool | None:
        """Whether it answers; None: that is not known yet."""
        if self._ready.is_set():
            return not self.ended
        if time.monotonic() < self._until:
            return None
        self.process.kill()
        self.ended = True
        return False

    def begin(self, number: int) -> None:
        """A start of the job begins: only its ranks are heard, and all parts are there."""
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
        """Gives the ranks of its machine a signal: `TO_KEEPERS` or `TO_PROGRAMS`."""
        self._tell(to, signal=int(signum))

    def look(self) -> None:
        """Has it look which ranks have not ended."""
        self._looks += 1
        self._tell(contract.LOOK)

    def has_looked(self, until: float, over: threading.Event) -> bool:
        """Whether `ranks` is what it has seen last, by that time and before nobody waits."""
        while self._looked < self._looks and not self.ended:
            if over.is_set() or time.monotonic() >= until:
                return False
            time.sleep(_LOOK)
        return not self.ended

    def is_old(self) -> bool:
        """Whether it may be started again, if it has ended: its machine may be gone."""
        return time.monotonic() > self._since + _AGAIN

    def close(self) -> None:
        """Ends it, and all that it keeps."""
        with contextlib.suppress(OSError):
            self._to.close()

    def wait(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_DONE)

    def _tell(self, what: str, load: bytes = b"", **fields: int) -> None:
        # If it has ended, `_listen` finds that out.
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
