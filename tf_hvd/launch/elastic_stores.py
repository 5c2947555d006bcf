"""The commit stores of an elastic job's hosts (core/commit_store.py), seen from `tf_hvd run`."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import IO, Any

from tf_hvd.core import commit_store
from tf_hvd.launch import elastic_signals

_READY = 20.0  # seconds until a store answers: a login may take long
_STILL = 30.0  # and one that has answered before: what its ranks have written goes first


class Link:
    """One store. Any thread.

    Args:
        command: starts it.
        parts: get what its ranks commit.
    """

    def __init__(self, command: Sequence[str], parts: commit_store.Parts) -> None:
        self._parts = parts
        self._lock = threading.Lock()  # guards what is written to it, and _has
        self._has: set[tuple[int, int]] = set()
        self._ready = threading.Event()
        self._until = time.monotonic() + _READY
        self.ended = False
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=elastic_signals.unblock,
        )
        with elastic_signals.deaf():
            threading.Thread(target=self._listen, name="commit store", daemon=True).start()

    def ask(self) -> None:
        """Has it answer anew: its machine may be gone, and nobody has said so."""
        self._ready.clear()
        self._until = time.monotonic() + _STILL
        with self._lock:
            self._send({"do": commit_store.READY})

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
            missing = sorted(wanted - self._has)
            for rank, commit in missing:
                data = self._parts.get(rank, commit)
                if data is not None:
                    self._send({"do": commit_store.PART, "rank": rank, "commit": commit}, data)
            self._has |= wanted
            self._send({"do": commit_store.ROUND, "number": number})

    def notify(self, number: int, says: int) -> None:
        """Tells its ranks something."""
        with self._lock:
            self._send({"do": commit_store.NOTIFY, "number": number, "says": says})

    def close(self) -> None:
        """Ends it, and all that it keeps."""
        with contextlib.suppress(OSError):
            self._to.close()

    @property
    def _to(self) -> IO[bytes]:
        assert self.process.stdin is not None
        return self.process.stdin

    def _send(self, message: dict[str, Any], load: bytes = b"") -> None:
        with contextlib.suppress(OSError, ValueError):  # it has ended, which `_listen` finds out
            commit_store.send(self._to, message, load)

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with contextlib.suppress(EOFError, OSError, commit_store.ProtocolError, KeyError):
            commit_store.find_greeting(self.process.stdout)
            while True:
                message, load = commit_store.receive(self.process.stdout)
                if message["do"] == commit_store.READY:
                    self._ready.set()
                elif message["do"] == commit_store.FORGET:
                    self._parts.forget(message["after"], message["last"])
                elif message["do"] == commit_store.PART:
                    rank, commit = message["rank"], message["commit"]
                    self._parts.put(rank, commit, load)
                    with self._lock:
                        self._has.add((rank, commit))
                        self._send({"do": commit_store.HAVE, "rank": rank, "commit": commit})
        self.ended = True
        self._ready.set()


class Stores:
    """Those of all hosts that a job has had.

    Args:
        token: the job's.
        reach: makes of a host's name and a command what runs it there; the command itself on this
            machine.
        python: the interpreter on other machines.
    """

    def __init__(
        self,
        token: str,
        reach: Callable[[str, Sequence[str]], Sequence[str]],
        is_here: Callable[[str], bool],
        python: str,
    ) -> None:
        self._token = token
        self._reach, self._is_here, self._python = reach, is_here, python
        self._links: dict[str, Link] = {}
        self._parts = commit_store.Parts()

    def start(self, names: Sequence[str]) -> list[str]:
        """Starts those that are not there; returns the hosts whose store cannot be started."""
        for name in names:
            if not self._start(name):
                self._links[self._key(name)].ask()
        return [name for name in names if not self._links[self._key(name)].is_ready()]

    def look_for(self, names: Sequence[str]) -> dict[str, bool | None]:
        """The same without waiting: by host whether its store answers; None: not known yet."""
        for name in names:
            self._start(name)
        return {name: self._links[self._key(name)].answer() for name in names}

    def keep(self, names: Iterable[str]) -> None:
        """Ends those of all other hosts."""
        for key in self._links.keys() - set(map(self._key, names)):
            self._drop(key)

    def begin(self, names: Sequence[str], number: int) -> None:
        """A start of the job on these hosts begins."""
        for key in dict.fromkeys(map(self._key, names)):
            self._links[key].begin(number)

    def notify(self, number: int, says: int) -> None:
        """Tells all ranks something."""
        for link in self._links.values():
            link.notify(number, says)

    def newest(self, ranks: int) -> int:
        """The newest commit of which all of so many ranks have written their parts; 0: none."""
        return self._parts.newest(ranks)

    def lost(self, names: Sequence[str]) -> list[str]:
        """Of these hosts, those whose store has ended: with its machine, or the way to it."""
        return [name for name in names if self._links[self._key(name)].ended]

    def processes(self) -> set[int]:
        """The processes here that are stores, or the ways to them."""
        return {link.process.pid for link in self._links.values()}

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
        self._links[key] = Link(self._command(name), self._parts)
        return True

    def _drop(self, key: str) -> None:
        self._links.pop(key).close()

    def _key(self, name: str) -> str:
        return "" if self._is_here(name) else name

    def _command(self, name: str) -> Sequence[str]:
        here = self._is_here(name)
        python = sys.executable if here else self._python
        words = [python, "-I", "-S", commit_store.__file__, self._key(name), self._token]
        return words if here else self._reach(name, words)
