"""A rank's link to what its machine keeps of commits (launch/machine/commits.py)."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import Any

from tf_hvd.core import contract, messages

# In seconds: how long an agent may take to be started again, and between two looks.
_AGAIN, _PAUSE = 30.0, 0.1


class Store:
    """The link. Any thread.

    An agent that was killed is started again by `tf_hvd run`, and gets from its ranks the memory
    that it held; the parts it gets from there.

    Raises:
        OSError: there is no agent.
    """

    def __init__(self, job: str, number: int) -> None:
        self._job, self._round = job, number
        self._link = messages.connect(job)
        self._lock = threading.RLock()  # guards it
        self._files: dict[str, int] = {}  # guarded by _lock

    def file(self, name: str) -> int:
        """The descriptor of the memory of that name, which stays open."""
        with self._lock:
            if name not in self._files:
                self._ask(contract.FILE, name=name)
                self._files[name] = self._link.files.pop(0)
            return self._files[name]

    def put(self, rank: int, commit: int, data: bytes) -> None:
        """Hands in the part of a rank of a commit; returns when it outlives this machine."""
        self._ask(contract.PART, data, rank=rank, commit=commit)

    def inventory(self) -> tuple[frozenset[tuple[int, int]], list[str]]:
        """Rank and commit of each part, and the names of the files."""
        found, _ = self._ask(contract.PARTS)
        return frozenset((rank, commit) for rank, commit in found["parts"]), found["files"]

    def part(self, rank: int, commit: int) -> bytes | None:
        """The part of a rank of a commit; None if it is not here."""
        found, data = self._ask(contract.FETCH, rank=rank, commit=commit)
        return data if found["found"] else None

    def forget(self, after: int, last: int) -> None:
        """Has the store forget the parts of commits after one, until the last that was known."""
        self._ask(contract.FORGET, after=after, last=last)

    def notice(self) -> int:
        """What `tf_hvd run` has told the ranks of this start; 0: nothing."""
        with self._lock:
            notice = os.pread(self.file(contract.NOTICE_FILE), contract.NOTICE.size, 0)
        says: int = contract.NOTICE.unpack(notice)[0]
        return says

    def _ask(self, what: str, load: bytes = b"", **fields: Any) -> tuple[dict[str, Any], bytes]:
        """Asks the agent, another one if the one that was asked has ended.

        Raises:
            OSError: there is none for `_AGAIN` seconds.
        """
        until = time.monotonic() + _AGAIN
        with self._lock:
            while True:
                try:
                    self._link.send({"do": what, "round": self._round, **fields}, load)
                    return self._link.receive()
                except (OSError, EOFError) as error:
                    self._link.close()
                    if time.monotonic() > until:
                        raise ConnectionError("the agent of this machine has ended") from error
                    time.sleep(_PAUSE)
                with contextlib.suppress(OSError, EOFError):
                    self._link = messages.connect(self._job)
                    self._hand_over()

    def _hand_over(self) -> None:
        """Gives an agent that has just begun the memory that this rank has."""
        if (notice := self._files.pop(contract.NOTICE_FILE, None)) is not None:  # it has its own
            os.close(notice)
        for name, file in self._files.items():
            said = {"do": contract.KEEP, "name": name, "round": self._round}
            self._link.send(said, files=[file])
            self._link.receive()
