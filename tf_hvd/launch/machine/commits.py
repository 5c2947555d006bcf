"""Storage that keeps the commits from one machine's ranks across restarts.

Commits consist of files and parts. Files are unnamed memory that ranks map and write; this module
keeps only their descriptors. A part belongs to one rank and one commit. Each part is also sent
to `tf_hvd run`, so that the part survives the loss of this machine.

This module belongs to agent.py, which an isolated Python runs as a file on other machines. It
imports only the standard library.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from tf_hvd.core import contract, messages

Answer = Callable[[messages.Link, dict[str, Any], bytes], None]
"""Processes a link's message and its load."""


class Parts:
    """The newest parts of each rank. Any thread may use it."""

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
        """Delete the commits with numbers in (`after`, `last`], which no job will resume."""
        with self._lock:
            for of_rank in self._parts.values():
                for commit in [each for each in of_rank if after < each <= last]:
                    del of_rank[commit]

    def get(self, rank: int, commit: int) -> bytes | None:
        with self._lock:
            return self._parts.get(rank, {}).get(commit)

    def newest(self, ranks: int) -> int:
        """Return the newest commit with parts from all ranks 0 to `ranks` - 1, or 0 if none."""
        with self._lock:
            kept = [set(self._parts.get(rank, ())) for rank in range(ranks)]
        return max(set.intersection(*kept), default=0) if kept else 0

    def listed(self) -> list[tuple[int, int]]:
        with self._lock:
            return [(rank, commit) for rank, found in self._parts.items() for commit in found]


class Commits:
    """The commits stored on one machine. Any thread may use it.

    Args:
        parts: the parts stored on this machine.
        hand_on: forwards a rank's message about parts to `tf_hvd run` on another machine. It
            answers on the rank's link as soon as the part can survive the loss of this machine.
    """

    def __init__(self, parts: Parts, hand_on: Answer | None = None) -> None:
        self.parts = parts
        self._hand_on = hand_on or (lambda link, *_: link.send({"do": contract.HAVE}))
        self._lock = threading.Lock()
        self._files: dict[str, int] = {}  # guarded by _lock
        self._round = -1  # the current start; messages from ranks of other starts are rejected

    def begin(self, number: int) -> None:
        """Begin a start of the job, and reset the notice for the ranks in the previous start."""
        self.notify(0)
        self._round = number

    def notify(self, says: int) -> None:
        os.pwrite(self._file(contract.NOTICE_FILE), contract.NOTICE.pack(says), 0)

    def answer(self, link: messages.Link, message: dict[str, Any], load: bytes) -> None:
        """Carry out a rank's request.

        Raises:
            ProtocolError: the rank belongs to another start.
        """
        if message["round"] != self._round:
            raise messages.ProtocolError("message from a rank of another start")
        what = message["do"]
        if what == contract.FILE:
            link.send({"do": contract.FILE}, files=[self._file(str(message["name"]))])
        elif what == contract.KEEP:
            # Memory that the rank got from a previous agent, unless another rank has sent it.
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
        """Return the memory with this name: the first memory given for the name, or new memory."""
        with self._lock:
            if name not in self._files:
                if given is None:
                    given = os.memfd_create(contract.COMMIT_MEMORY + name, os.MFD_CLOEXEC)
                self._files[name] = given
            elif given is not None:
                os.close(given)
            return self._files[name]
