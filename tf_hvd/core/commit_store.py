"""Keeps the commits of an elastic job on one machine, while its ranks come and go.

`tf_hvd run` starts one on each machine (elastic_driver.py), run as a file by an isolated Python, so
it knows the standard library alone. It ends when its standard input does, and with it all that it
keeps: that lies in memory that has no name. Ranks reach it by an abstract socket; the kernel says
on both sides whose process the other is, and another user's is not heard.

What it keeps: files, which ranks map and write to themselves, and parts, each of one rank and one
commit, which also go to `tf_hvd run`, so that they outlive this machine.
"""

from __future__ import annotations

import array
import contextlib
import errno
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any, Protocol

KEPT = 3
"""How many commits of a rank are kept: when one is here, all ranks have made that before, and what
they made before that one is complete."""
NOTICE = struct.Struct("<qq")
"""What is in the file `notice`: a number that grows with each notice, and what it says."""
NOTICE_FILE = "notice"
JOB_VARIABLE = "TF_HVD_ELASTIC_JOB"
"""By this a rank knows its job's token, and which start of it: `token:number`."""
START_AGAIN = 75
"""The exit code of ranks that are to be started again: EX_TEMPFAIL of sysexits.h."""
REMOVED, ADDED, LEAVE = 1, 2, 4
"""What a notice says, added up: hosts have gone, have come (Horovod's numbers), all are to end."""
# What is asked for, of both sides.
FILE, PART, HAVE, PARTS, FETCH, FORGET, ROUND, NOTIFY, READY, STANDBY = (
    *("file", "part", "have", "parts", "fetch", "forget", "round", "notify", "ready", "standby"),
)
STANDBY_NAME = "tf_hvd_standby"
"""What the standby (elastic/standby.py) is called, as /proc has it."""
GREETING = b"\0tf_hvd commit store\n"
"""What a store writes first: a login may print whatever it likes before."""
_OLD_ENDS = 5.0  # seconds until a store that is killed has ended
_LENGTH = struct.Struct("<I")
_END = b"\n"  # of a message: srun hands on whole lines
_CREDENTIALS = struct.Struct("3i")
_LONGEST = 1 << 20  # bytes of a message without its load
# What a damaged message leads to, where it is read or where it is obeyed.
_DAMAGE = (
    *(ArithmeticError, LookupError, MemoryError, RecursionError, TypeError, ValueError),
    struct.error,
)


class Stream(Protocol):
    """What messages are read from, or written to."""

    def read(self, size: int, /) -> bytes:
        """Reads so many bytes, or what there is until the end."""

    def write(self, data: bytes | memoryview, /) -> int:
        """Writes."""

    def flush(self) -> None:
        """Hands on what was written."""


class ProtocolError(ValueError):
    """What was received is no message."""


def address(token: str) -> str:
    """The name of the socket of the job of that token, on each of its machines."""
    return f"\0tf_hvd_elastic/{token}"


def connect(token: str) -> socket.socket:
    """A connection to this machine's store.

    Raises:
        OSError: there is none, or it is another user's.
    """
    link = socket.socket(socket.AF_UNIX)
    try:
        link.connect(address(token))
        if not is_ours(link):
            raise PermissionError("the commit store is another user's process")
    except OSError:
        link.close()
        raise
    return link


def is_ours(link: socket.socket) -> bool:
    """Whether the process on the other side is this user's."""
    return _peer(link)[1] == os.geteuid()


def _peer(link: socket.socket) -> tuple[int, int]:
    """The process on the other side, and its user."""
    told = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, _ = _CREDENTIALS.unpack(told)
    return process, user


def send(file: Stream, message: dict[str, Any], load: bytes | memoryview = b"") -> None:
    """Writes a message, and what goes with it."""
    text = json.dumps({**message, "bytes": len(load)}).encode()
    file.write(_LENGTH.pack(len(text)) + text)
    file.write(load)
    file.write(_END)
    file.flush()


def receive(file: Stream) -> tuple[dict[str, Any], bytes]:
    """Reads one.

    Raises:
        EOFError: there are no more.
        ProtocolError: it is none.
    """
    length = _LENGTH.unpack(_exactly(file, _LENGTH.size))[0]
    if length > _LONGEST:
        raise ProtocolError(f"a message of {length} bytes")
    try:
        message = json.loads(_exactly(file, length))
        size = int(message["bytes"])
        load = _exactly(file, size) if size > 0 else b""
    except _DAMAGE as error:
        raise ProtocolError("no message") from error
    if _exactly(file, len(_END)) != _END:
        raise ProtocolError("a message without an end")
    return message, load


def find_greeting(file: Stream) -> None:
    """Reads until a store begins to speak.

    Raises:
        EOFError: none does.
    """
    seen = b""
    while not seen.endswith(GREETING):
        seen = seen[-len(GREETING) :] + _exactly(file, 1)


def _exactly(file: Stream, size: int) -> bytes:
    data = file.read(size)
    if len(data) < size:
        raise EOFError
    return data


class Parts:
    """The newest parts of each rank. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parts: dict[int, dict[int, bytes]] = {}  # by rank and commit; guarded by _lock

    def put(self, rank: int, commit: int, data: bytes) -> None:
        """Keeps one, and forgets the oldest."""
        with self._lock:
            of_rank = self._parts.setdefault(rank, {})
            of_rank[commit] = data
            for old in sorted(of_rank)[:-KEPT]:
                del of_rank[old]

    def forget(self, after: int, last: int) -> None:
        """Forgets what no job goes on from: commits after one, until the last that was known."""
        with self._lock:
            for of_rank in self._parts.values():
                for commit in [each for each in of_rank if after < each <= last]:
                    del of_rank[commit]

    def get(self, rank: int, commit: int) -> bytes | None:
        """One of them; None if it is not here."""
        with self._lock:
            return self._parts.get(rank, {}).get(commit)

    def newest(self, ranks: int) -> int:
        """The newest commit of which the parts of so many ranks are here; 0: none."""
        with self._lock:
            kept = [set(self._parts.get(rank, ())) for rank in range(ranks)]
        return max(set.intersection(*kept), default=0) if kept else 0

    def listed(self) -> list[tuple[int, int]]:
        """Rank and commit of each."""
        with self._lock:
            return [(rank, commit) for rank, found in self._parts.items() for commit in found]


class Store:
    """What is kept on this machine.

    Args:
        up: where parts go besides, for `tf_hvd run`.
    """

    def __init__(self, up: Stream) -> None:
        self._up = up
        self._up_lock = threading.Lock()  # guards what is written to it
        self._lock = threading.Lock()
        self._files: dict[str, int] = {}  # guarded by _lock
        self._round = 0  # only ranks of it are heard
        self._standby: subprocess.Popen[bytes] | None = None  # guarded by _lock
        # What `tf_hvd run` does not have yet, by rank and commit; guarded by _lock.
        self._awaited: dict[tuple[int, int], threading.Event] = {}
        self.parts = Parts()

    def obey(self, source: Stream) -> None:
        """Does what `tf_hvd run` says, until it says no more."""
        with contextlib.suppress(EOFError, *_DAMAGE):
            while True:
                message, load = receive(source)
                what = message.get("do")
                if what == PART:
                    self.parts.put(message["rank"], message["commit"], load)
                elif what == HAVE:
                    with self._lock:
                        awaited = self._awaited.pop((message["rank"], message["commit"]), None)
                    if awaited is not None:
                        awaited.set()
                elif what == ROUND:
                    # What the ranks of the start before were told is done.
                    os.pwrite(self._file(NOTICE_FILE), NOTICE.pack(0, 0), 0)
                    self._round = message["number"]
                elif what == READY:
                    self.tell({"do": READY})
                elif what == NOTIFY:
                    notice = NOTICE.pack(message["number"], message["says"])
                    os.pwrite(self._file(NOTICE_FILE), notice, 0)

    def tell(self, message: dict[str, Any], load: bytes = b"") -> None:
        """Tells `tf_hvd run`."""
        with self._up_lock:
            try:
                send(self._up, message, load)
            except OSError:
                os._exit(1)  # it is gone

    def serve(self, link: socket.socket) -> None:
        """Answers one rank, until it ends."""
        over = contextlib.suppress(EOFError, OSError, *_DAMAGE)
        with over, link, link.makefile("rwb") as file:
            while True:
                self._answer(link, file, *receive(file))

    def _answer(
        self, link: socket.socket, file: Stream, message: dict[str, Any], load: bytes
    ) -> None:
        if message["round"] != self._round:
            raise ProtocolError("a rank of another round")
        what = message["do"]
        if what == FILE:
            descriptors = array.array("i", [self._file(str(message["name"]))])
            link.sendmsg([b"f"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
        elif what == PART:
            rank, commit = int(message["rank"]), int(message["commit"])
            self.parts.put(rank, commit, load)
            self._hand_on(rank, commit, load)
            send(file, {"do": HAVE})
        elif what == FORGET:
            after, last = int(message["after"]), int(message["last"])
            self.parts.forget(after, last)
            self.tell({"do": FORGET, "after": after, "last": last})
        elif what == PARTS:
            send(file, {"parts": self.parts.listed(), "files": sorted(self._files)})
        elif what == FETCH:
            part = self.parts.get(message["rank"], message["commit"])
            send(file, {"found": part is not None}, part or b"")
        elif what == STANDBY:
            self._start_standby(json.loads(load))

    def _hand_on(self, rank: int, commit: int, load: bytes) -> None:
        """Returns when `tf_hvd run` has it: what counts as written outlives this machine."""
        with self._lock:
            there = self._awaited.setdefault((rank, commit), threading.Event())
        self.tell({"do": PART, "rank": rank, "commit": commit}, load)
        there.wait()

    def _start_standby(self, asked: dict[str, Any]) -> None:
        """Starts it, if there is none. It ends with its standard input, that is, with us."""
        with self._lock:
            if self._standby is not None and self._standby.poll() is None:
                return
            try:
                self._standby = subprocess.Popen(
                    asked["command"],
                    env=asked["environ"],
                    cwd=asked["folder"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            except OSError:
                return  # no processes left, say: then restarts are cold
            to = self._standby.stdin
        assert to is not None
        with contextlib.suppress(OSError):
            to.write(json.dumps(asked["about"]).encode() + b"\n")
            to.flush()

    def _file(self, name: str) -> int:
        """The memory of that name, empty at first."""
        with self._lock:
            if name not in self._files:
                self._files[name] = os.memfd_create(f"tf_hvd_commit.{name}", os.MFD_CLOEXEC)
            return self._files[name]


def _bind(listener: socket.socket, token: str, name: str) -> None:
    """Takes the job's address, also from a store that was here when the machine could be reached.

    Of a network that is silent it may hear no end for hours.

    Raises:
        OSError: it is taken, by a store of this machine under another name, or another user.
    """
    until = time.monotonic() + _OLD_ENDS
    while True:
        try:
            return listener.bind(address(token))
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > until:
                raise
        with contextlib.suppress(OSError), connect(token) as link:
            old, _ = _peer(link)
            with open(f"/proc/{old}/cmdline", "rb") as file:
                ours = os.fsdecode(file.read()).split("\0")[-3:-1] == [name, token]
            if ours:
                os.kill(old, signal.SIGKILL)
        time.sleep(0.02)


def main(arguments: Iterable[str]) -> None:
    """Keeps commits until the standard input ends.

    Args:
        arguments: what `tf_hvd run` calls this machine, and the job's token.
    """
    name, token = arguments
    # It ends with its input, and not with ranks that are asked to end.
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    store = Store(sys.stdout.buffer)
    listener = socket.socket(socket.AF_UNIX)
    _bind(listener, token, name)
    listener.listen(socket.SOMAXCONN)

    def accept() -> None:
        while True:
            link, _ = listener.accept()
            if is_ours(link):
                threading.Thread(target=store.serve, args=(link,), daemon=True).start()
            else:
                link.close()

    threading.Thread(target=accept, daemon=True).start()
    sys.stdout.buffer.write(GREETING)
    store.tell({"do": READY})
    store.obey(sys.stdin.buffer)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
