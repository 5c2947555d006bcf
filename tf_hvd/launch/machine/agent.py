"""Hears what the ranks of one machine say, at one socket without a file.

`tf_hvd run` has one for its own machine. On the other machines of an elastic job, and of any job
that is asked to end, this file is run, by an isolated Python, so it knows the standard library
alone: it keeps the commits of its ranks and gives the ranks signals, speaks to `tf_hvd run` over
its standard input and output, and ends when the input does.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import socket
import sys
import threading
import time
import types
from collections.abc import Iterable
from typing import Any

if __name__ == "__main__":  # a package without __init__.py, which loads TensorFlow
    package = types.ModuleType("tf_hvd")
    sys.modules["tf_hvd"] = package
    package.__path__ = [os.path.join(os.path.dirname(__file__), "..", "..")]

from tf_hvd.core import contract, messages
from tf_hvd.launch.machine import keeper, proc
from tf_hvd.launch.machine.commits import Answer, Commits, Parts
from tf_hvd.launch.machine.rank_signals import Ranks

SETTLED = 2.0
"""Seconds that what was said may take to be heard, at the end of a start."""
# In seconds: between two looks; where nobody can be heard for a moment; and until an agent that is
# killed has ended.
_LOOK, _PAUSE, _OLD_ENDS = 0.002, 0.1, 5.0
_GREETING = b"\0tf_hvd agent\n"  # what it writes first: a login may print whatever it likes before


class Agent:
    """The socket of one job, and a thread for each connection to it.

    Args:
        job: its name.
        hear: takes a message and its load, in the thread of its link, over which it may answer;
            at the link's end it gets `GONE`.
        instead_of: what `tf_hvd run` calls this machine, where an agent that has lost it may be
            here still, and is killed: of a network that is silent it may hear no end for hours.

    Raises:
        OSError: the name is taken, by another job or by this machine under another name.
    """

    def __init__(self, job: str, hear: Answer, instead_of: str = "") -> None:
        self._hear = hear
        self._lock = threading.Lock()
        # Guarded by _lock. What is heard from a link is heard by the holder of the link's lock.
        self._links: dict[messages.Link, threading.Lock] = {}
        self._closed = False
        self._thread = threading.Thread(target=self._accept, name="agent", daemon=True)
        self._listener = socket.socket(socket.AF_UNIX)
        try:
            self._listener.bind(messages.address(job))
        except OSError as error:
            if not instead_of or error.errno != errno.EADDRINUSE:
                raise
            _bind_instead(self._listener, job, instead_of)
        self._listener.listen(socket.SOMAXCONN)

    def serve(self) -> None:
        """Begins to hear the ranks, if it has not yet. Starts threads."""
        if self._thread.ident is None:
            self._thread.start()

    def settle(self, seconds: float = SETTLED) -> None:
        """Returns when all that was said by now has been heard; gives up after so many seconds."""
        until = time.monotonic() + seconds
        while self._has_unheard() and time.monotonic() < until:
            time.sleep(_LOOK)

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(OSError):  # wakes the thread that accepts
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                _is_readable([self._listener.fileno()], wait=True)
                with self._lock:
                    accepted, _ = self._listener.accept()
                    link = messages.Link(accepted)
                    if not messages.is_ours(accepted):
                        link.close()
                        continue
                    lock = self._links[link] = threading.Lock()
                threading.Thread(target=self._serve, args=(link, lock), daemon=True).start()
            except (OSError, RuntimeError, ValueError):  # no descriptors or threads are left, say
                time.sleep(_PAUSE)

    def _serve(self, link: messages.Link, lock: threading.Lock) -> None:
        with contextlib.suppress(EOFError, OSError, *messages.DAMAGE):
            while True:
                _is_readable([link.fileno()], wait=True)
                with lock:
                    self._hear(link, *link.receive())
                    while link.has_rest():
                        self._hear(link, *link.receive())
        # Who settles waits for this too: the link stays in the list until then.
        with lock, contextlib.suppress(OSError, *messages.DAMAGE):
            self._hear(link, {"do": contract.GONE}, b"")
        with self._lock:
            del self._links[link]
            link.close()

    def _has_unheard(self) -> bool:
        """Whether a message waits to be heard, or is being heard."""
        with self._lock:
            for lock in self._links.values():
                if not lock.acquire(blocking=False):
                    return True
                lock.release()
            files = (self._listener.fileno(), *(each.fileno() for each in self._links))
            return _is_readable(file for file in files if file >= 0)  # those not closed meanwhile


def _is_readable(files: Iterable[int], wait: bool = False) -> bool:
    """Whether there is something to read from any of these, or an end; or waits for that."""
    events = select.poll()
    for file in files:
        events.register(file, select.POLLIN)
    return bool(events.poll(None if wait else 0))


def _bind_instead(listener: socket.socket, job: str, instead_of: str) -> None:
    until = time.monotonic() + _OLD_ENDS
    while True:
        with contextlib.suppress(OSError):
            link = messages.connect(job)
            old, _ = messages.peer(link.socket)
            link.close()
            if proc.arguments(old)[-2:] == [instead_of, job]:
                os.kill(old, signal.SIGKILL)
        time.sleep(0.02)
        try:
            return listener.bind(messages.address(job))
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > until:
                raise


def find_greeting(file: messages.Source) -> None:
    """Reads until an agent begins to speak; EOFError if none does."""
    seen = b""
    while not seen.endswith(_GREETING):
        piece = file.read(1)
        if not piece:
            raise EOFError
        seen = seen[-len(_GREETING) :] + piece


class Away:
    """The agent of another machine than that of `tf_hvd run`.

    Args:
        job: the job's name.
        to: the way to `tf_hvd run`.
        machine: see `Agent`; empty for one that does not hear its ranks.
    """

    def __init__(self, job: str, to: messages.Stream, machine: str = "") -> None:
        self._job, self._to = job, to
        self._lock = threading.Lock()  # guards what is written to it
        # Who waits until `tf_hvd run` has a part, by rank and commit. Without a lock: who says that
        # it is there must not wait for who writes.
        self._waits: dict[tuple[int, int], messages.Link] = {}
        self._ranks: Ranks | None = None  # once they are to end
        self.commits = Commits(Parts(), self._hand_on)
        self.agent = Agent(job, self._hear, machine) if machine else None

    def _tell(self, message: dict[str, Any], load: bytes = b"") -> None:
        """Tells `tf_hvd run`; ends this process if it is gone."""
        with self._lock:
            try:
                messages.send(self._to, message, load)
            except OSError:
                os._exit(1)

    def _hand_on(self, link: messages.Link, message: dict[str, Any], load: bytes) -> None:
        """Tells `tf_hvd run` what a rank has said, which of a part hears when that is there."""
        if message["do"] == contract.PART:
            self._waits[message["rank"], message["commit"]] = link
        self._tell(message, load)
        if message["do"] != contract.PART:
            link.send({"do": contract.HAVE})

    def obey(self, source: messages.Source) -> None:
        """Does what `tf_hvd run` says, until it says no more."""
        self._tell({"do": contract.READY})
        with contextlib.suppress(EOFError, *messages.DAMAGE):
            while True:
                message, load = messages.receive(source)
                what = message.get("do")
                if what == contract.PART:
                    self.commits.parts.put(message["rank"], message["commit"], load)
                elif what == contract.HAVE:
                    link = self._waits.pop((message["rank"], message["commit"]), None)
                    with contextlib.suppress(OSError):  # the rank has ended
                        if link:
                            link.send({"do": contract.HAVE})
                elif what == contract.ROUND:
                    self.commits.begin(message["number"])
                elif what == contract.READY:
                    self._tell({"do": contract.READY})
                elif what == contract.NOTIFY:
                    self.commits.notify(message["says"])
                else:
                    self._signal(what, message)
        if self._ranks is not None:
            self._ranks.to_keepers(keeper.RELEASE)
            self._ranks.wait_for_keepers()

    def _signal(self, what: object, message: dict[str, Any]) -> None:
        """Gives the ranks of this machine a signal, or tells which of them have not ended."""
        self._ranks = self._ranks or Ranks(self._job)
        if what == contract.TO_KEEPERS:
            self._ranks.to_keepers(int(message["signal"]))
        elif what == contract.TO_PROGRAMS:
            self._ranks.to_programs(int(message["signal"]))
        elif what == contract.LOOK:
            self._tell({"do": contract.LOOK, "ranks": self._ranks.alive()})

    def _hear(self, link: messages.Link, message: dict[str, Any], load: bytes) -> None:
        if message["do"] == contract.BEGINS:
            link.send({"do": contract.BEGINS, "hands": None})
        elif "round" in message:
            self.commits.answer(link, message, load)


def main(arguments: Iterable[str]) -> None:
    """Does what `tf_hvd run` says, until the standard input ends.

    Args:
        arguments: what `tf_hvd run` calls this machine (see `Away`), and the job's name.
    """
    machine, job = arguments
    # It ends with its input, and not with ranks that are asked to end.
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    away = Away(job, sys.stdout.buffer, machine)
    sys.stdout.buffer.write(_GREETING)
    sys.stdout.buffer.flush()
    if away.agent:
        away.agent.serve()
    away.obey(sys.stdin.buffer)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
