"""A rank's link to the commit store of its machine (core/commit_store.py)."""

from __future__ import annotations

import os
import socket
import threading
from dataclasses import dataclass

from tf_hvd.core import commit_store, config


@dataclass(frozen=True)
class Inventory:
    """What a machine's store has."""

    parts: frozenset[tuple[int, int]]
    """Rank and commit of each."""
    files: tuple[str, ...]


class Store:
    """The link. Any thread.

    Raises:
        OSError: there is no store.
    """

    def __init__(self, token: str, number: int) -> None:
        self._round = number
        self._link = commit_store.connect(token)
        self._stream = self._link.makefile("rwb")
        self._lock = threading.Lock()  # guards both
        self._files: dict[str, int] = {}  # guarded by _lock

    def file(self, name: str) -> int:
        """The descriptor of the memory of that name, which stays open."""
        with self._lock:
            if name not in self._files:
                self._ask({"do": commit_store.FILE, "name": name})
                _, files, _, _ = socket.recv_fds(self._link, 1, 1)
                if not files:
                    raise ConnectionError("the commit store has ended")
                self._files[name] = files[0]
            return self._files[name]

    def put(self, rank: int, commit: int, data: bytes) -> None:
        """Hands in the part of a rank of a commit; returns when it outlives this machine."""
        with self._lock:
            self._ask({"do": commit_store.PART, "rank": rank, "commit": commit}, data)
            commit_store.receive(self._stream)

    def inventory(self) -> Inventory:
        """What the store has."""
        with self._lock:
            self._ask({"do": commit_store.PARTS})
            found, _ = commit_store.receive(self._stream)
        parts = frozenset((rank, commit) for rank, commit in found["parts"])
        return Inventory(parts, tuple(found["files"]))

    def part(self, rank: int, commit: int) -> bytes | None:
        """The part of a rank of a commit; None if it is not here."""
        with self._lock:
            self._ask({"do": commit_store.FETCH, "rank": rank, "commit": commit})
            found, data = commit_store.receive(self._stream)
        return data if found["found"] else None

    def forget(self, after: int, last: int) -> None:
        """Has the store forget the parts of commits after one, until the last that was known."""
        with self._lock:
            self._ask({"do": commit_store.FORGET, "after": after, "last": last})

    def start_standby(self, asked: bytes) -> None:
        """Has the store start a standby (standby.py)."""
        with self._lock:
            self._ask({"do": commit_store.STANDBY}, asked)

    def notice(self) -> tuple[int, int]:
        """The number of the launcher's last notice, and what it says; zeros: none in this start."""
        data = os.pread(self.file(commit_store.NOTICE_FILE), commit_store.NOTICE.size, 0)
        if len(data) < commit_store.NOTICE.size:
            return 0, 0
        number, says = commit_store.NOTICE.unpack(data)
        return number, says

    def _ask(self, message: dict[str, object], load: bytes = b"") -> None:
        commit_store.send(self._stream, {**message, "round": self._round}, load)


def open_store() -> Store | None:
    """The store of the elastic job that this process is a rank of; None if it is of none.

    Raises:
        RuntimeError: it cannot be reached.
    """
    told = config.elastic_job()
    if told is None:
        return None
    token, number = told
    try:
        return Store(token, number)
    except OSError as error:
        raise RuntimeError(
            f"the commit store of this machine cannot be reached: {error.strerror or error}; "
            "elastic jobs need the tf_hvd run that started this rank"
        ) from error
