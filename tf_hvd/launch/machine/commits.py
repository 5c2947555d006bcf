"""Keeps what the ranks of one machine have committed, while they come and go.

Files, which ranks map and write to themselves: memory without a name, of which only descriptors are
kept here. And parts, each of one rank and one commit, which also go to `tf_hvd run`, so that they
outlive this machine.

Part of agent.py, which an isolated Python runs as a file on other machines: it knows the standard
library alone.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from tf_hvd.core import contract, messages

Answer = Callable[[messages.Link, dict[str, Any], bytes], None]
"""Takes what a link has brought: a message, and its load."""


class Parts:
    """The newest parts of each rank. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parts: dict[int, dict[int, bytes]] = {}  # by rank and commit; guarded by _lock

    def put(self, rank: int, commit: int, data: bytes) -> None:
        with self._lock:
            of_rank = self._parts.setdefault(rank, {})
            of_rank[commit] = data
            for old in sorted(of_rank)[: -contract.COMMITS_KEPT]:
                del of_rank[old]

    def forget(self, after: int, last: int) -> None:
        """Forgets what no job goes on from: commits after one, until the last that was known."""
        with self._lock:
            for of_rank in self._parts.values():
                for commit in [each for each in of_rank if after < each <= last]:
                    del of_rank[commit]

    def get(self, rank: int, commit: int) -> bytes | None:
        with self._lock:
            return self._parts.get(rank, {}).get(commit)

    def newest(self, ranks: int) -> int:
        """The newest commit of which the parts of so many ranks are here; 0: none."""
        with self._lock:
            kept = [set(self._parts.get(rank, ())) for rank in range(ranks)]
        return max(set.intersection(*kept), default=0) if kept else 0

    def listed(self) -> list[tuple[int, int]]:
        with self._lock:
            return [(rank, commit) for rank, found in self._parts.items() for commit in found]


class Commits:
    """What is kept on one machine. Any thread.

    Args:
        parts: where parts lie here.
        hand_on: gets what a rank has said of parts, with its link, on another machine than that of
            `tf_hvd run`; answers when what was said outlives this machine.
    """

    def __init__(self, parts: Parts, hand_on: Answer | None = None) -> None:
        self.parts = parts
        self._hand_on = hand_on or (lambda link, *_: link.send({"do": contract.HAVE}))
        self._lock = threading.Lock()
        self._files: dict[str, int] = {}  # guarded by _lock
        self._round = -1  # the start that runs; only its ranks are heard

    def begin(self, number: int) -> None:
        """A start of the job begins: what the ranks of the one before were told is done."""
        self.notify(0)
        self._round = number

    def notify(self, says: int) -> None:
        os.pwrite(self._file(contract.NOTICE_FILE), contract.NOTICE.pack(says), 0)

    def answer(self, link: messages.Link, message: dict[str, Any], load: bytes) -> None:
        """Does what a rank says.

        Raises:
            ProtocolError: it is a rank of another start.
        """
        if message["round"] != self._round:
            raise messages.ProtocolError("a rank of another start")
        what = message["do"]
        if what == contract.FILE:
            link.send({"do": contract.FILE}, files=[self._file(str(message["name"]))])
        elif what == contract.KEEP:
            # Memory that a rank has from an agent before this one, unless another has given it.
            self._file(str(message["name"]), link.files.pop(0))
            link.send({"do": contract.HAVE})
        elif what == contract.PART:
            rank, commit = int(message["rank"]), int(message["commit"])
            self.parts.put(rank, commit, load)
            self._hand_on(link, {"do": what, "rank": rank, "commit": commit}, load)
        elif what == contract.FORGET:
            after, last = int(message["after"]), int(message["last"])
            self.parts.forget(after, last)
            self._hand_on(link, {"do": what, "after": after, "last": last}, load)
        elif what == contract.PARTS:
            link.send({"parts": self.parts.listed(), "files": sorted(self._files)})
        elif what == contract.FETCH:
            part = self.parts.get(message["rank"], message["commit"])
            link.send({"found": part is not None}, part or b"")

    def close(self) -> None:
        with self._lock:
            while self._files:
                os.close(self._files.popitem()[1])

    def _file(self, name: str, given: int | None = None) -> int:
        """The memory of that name: what was given first, or else empty."""
        with self._lock:
            if name not in self._files:
                if given is None:
                    given = os.memfd_create(contract.COMMIT_MEMORY + name, os.MFD_CLOEXEC)
                self._files[name] = given
            elif given is not None:
                os.close(given)
            return self._files[name]
