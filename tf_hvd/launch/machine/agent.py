"""The agent on a machine, which receives messages from the ranks there. Its socket has no file.

`tf_hvd run` contains the agent for its machine. On other machines, an isolated Python runs this
file in elastic jobs, and in any job that is asked to end. The file imports only the standard
library. An agent stores the commits of its machine's ranks and sends signals to these ranks. It
talks to `tf_hvd run` over its standard input and output, and ends when its input ends.
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

if __name__ == "__main__":  # a package without __init__.py, which would load TensorFlow
    package = types.ModuleType("tf_hvd")
    sys.modules["tf_hvd"] = package
    package.__path__ = [os.path.join(os.path.dirname(__file__), "..", "..")]

from tf_hvd.core import contract, messages
from tf_hvd.launch.machine import keeper, proc
from tf_hvd.launch.machine.commits import Answer, Commits, Parts
from tf_hvd.launch.machine.rank_signals import Ranks

SETTLED = 2.0
"""Maximum seconds for receiving pending messages at the end of a start."""
# In seconds: the time between two looks; after a failed accept; and for a killed agent to end.
_LOOK, _PAUSE, _OLD_ENDS = 0.002, 0.1, 5.0
_GREETING = b"\0tf_hvd agent\n"  # its first output, since a login may print any text before it


class Agent:
    """The socket of one job, and a thread for each connection to it.

    Args:
        job: the job's name.
        hear: called in a link's thread with the link, a message and the message's load. It may
            answer over the link. When the link ends, the message is `GONE`.
        instead_of: this machine's name in `tf_hvd run`. A previous agent with that name is killed,
            because after a network failure it may not notice for hours that `tf_hvd run` is gone.
            If the name is empty, no agent is killed.

    Raises:
        OSError: the socket's name is in use by another job, or by this machine with another name.
    """

    def __init__(self, job: str, hear: Answer, instead_of: str = "") -> None:
        self._hear = hear
        self._lock = threading.Lock()
        # Guarded by _lock. Messages of a link are processed by the holder of the link's lock.
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
        """Start the threads that receive messages, if they are not running yet."""
        if self._thread.ident is None:
            self._thread.start()

    def settle(self, seconds: float = SETTLED) -> None:
        """Wait until all messages sent so far are processed, for at most `seconds`."""
        until = time.monotonic() + seconds
        while self._has_unheard() and time.monotonic() < until:
            time.sleep(_LOOK)

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(OSError):  # to wake the accepting thread
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
            except (OSError, RuntimeError, ValueError):  # such as no descriptors or threads left
                time.sleep(_PAUSE)

    def _serve(self, link: messages.Link, lock: threading.Lock) -> None:
        with contextlib.suppress(EOFError, OSError, *messages.DAMAGE):
            while True:
                _is_readable([link.fileno()], wait=True)
                with lock:
                    self._hear(link, *link.receive())
                    while link.has_rest():
                        self._hear(link, *link.receive())
        # `settle` waits for this call as well, because the link stays in the list until then.
        with lock, contextlib.suppress(OSError, *messages.DAMAGE):
            self._hear(link, {"do": contract.GONE}, b"")
        with self._lock:
            del self._links[link]
            link.close()

    def _has_unheard(self) -> bool:
        """Return whether any message is waiting or being processed."""
        with self._lock:
            for lock in self._links.values():
                if not lock.acquire(blocking=False):
                    return True
                lock.release()
            files = (self._listener.fileno(), *(each.fileno() for each in self._links))
            return _is_readable(file for file in files if file >= 0)  # files not closed meanwhile


def _is_readable(files: Iterable[int], wait: bool = False) -> bool:
    """Return whether any of these files has data or has ended; with `wait`, wait until one does."""
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
    """Read up to the end of an agent's greeting; raise EOFError if there is no greeting."""
    seen = b""
    while not seen.endswith(_GREETING):
        piece = file.read(1)
        if not piece:
            raise EOFError
        seen = seen[-len(_GREETING) :] + piece


class Away:
    """The agent on a machine that does not run `tf_hvd run`.

    Args:
        job: the job's name.
        to: the stream to `tf_hvd run`.
        machine: see `instead_of` of `Agent`; empty for an agent that receives no rank messages.
    """

    def __init__(self, job: str, to: messages.Stream, machine: str = "") -> None:
        self._job, self._to = job, to
        self._lock = threading.Lock()  # guards writing to `tf_hvd run`
        # The links that wait until `tf_hvd run` has a part, by rank and commit. Not guarded: the
        # thread that reports a part must not wait for a thread that writes.
        self._waits: dict[tuple[int, int], messages.Link] = {}
        self._ranks: Ranks | None = None  # set when the first signal is to be sent
        self.commits = Commits(Parts(), self._hand_on)
        self.agent = Agent(job, self._hear, machine) if machine else None

    def _tell(self, message: dict[str, Any], load: bytes = b"") -> None:
        """Send a message to `tf_hvd run`; end this process if sending fails."""
        with self._lock:
            try:
                messages.send(self._to, message, load)
            except OSError:
                os._exit(1)

    def _hand_on(self, link: messages.Link, message: dict[str, Any], load: bytes) -> None:
        """Forward a rank's message to `tf_hvd run`.

        A rank that sends a part waits until the part has arrived.
        """
        if message["do"] == contract.PART:
            self._waits[message["rank"], message["commit"]] = link
        self._tell(message, load)
        if message["do"] != contract.PART:
            link.send({"do": contract.HAVE})

    def obey(self, source: messages.Source) -> None:
        """Carry out commands from `tf_hvd run` until the connection ends."""
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
        """Send a signal to the ranks on this machine, or report which ranks have not ended."""
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
    """Carry out commands from `tf_hvd run` until standard input is closed.

    Args:
        arguments: this machine's name in `tf_hvd run` (see `Away`), and the job's name.
    """
    machine, job = arguments
    # The agent must end with its input, and not by signals for ranks.
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
