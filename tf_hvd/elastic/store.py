"""A rank's connection to the commits that its machine's agent stores."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import Any

from tf_hvd.core import contract, messages

# In seconds: the time limit for a restart of the agent, and the pause between two attempts.
_AGAIN, _PAUSE = 30.0, 0.1


class Store:
    """A connection to the agent on this machine. Any thread may use it.

    `tf_hvd run` restarts a killed agent and sends it the parts of commits. The ranks send it the
    memory that the previous agent held.

    Raises:
        OSError: no agent is running.
    """

    def __init__(self, job: str, number: int) -> None:
        self._job, self._round = job, number
        self._link = messages.connect(job)
        self._lock = threading.RLock()  # guards _link
        self._files: dict[str, int] = {}  # guarded by _lock

    def file(self, name: str) -> int:
        """Return the descriptor of the memory with a name. Do not close it."""
        with self._lock:
            if name not in self._files:
                self._ask(contract.FILE, name=name)
                self._files[name] = self._link.files.pop(0)
            return self._files[name]

    def put(self, rank: int, commit: int, data: bytes) -> None:
        """Store a rank's part of a commit; return once it is safe from the loss of this machine."""
        self._ask(contract.PART, data, rank=rank, commit=commit)

    def inventory(self) -> tuple[frozenset[tuple[int, int]], list[str]]:
        """Return the rank and commit of each stored part, and the names of the files."""
        found, _ = self._ask(contract.PARTS)
        return frozenset((rank, commit) for rank, commit in found["parts"]), found["files"]

    def part(self, rank: int, commit: int) -> bytes | None:
        """Return a rank's part of a commit; None if this machine does not store it."""
        found, data = self._ask(contract.FETCH, rank=rank, commit=commit)
        return data if found["found"] else None

    def forget(self, after: int, last: int) -> None:
        """Delete the parts of commits with numbers in (`after`, `last`]."""
        self._ask(contract.FORGET, after=after, last=last)

    def notice(self) -> int:
        """Return the notice (bits) that `tf_hvd run` sent to the ranks of this start, or 0."""
        with self._lock:
            notice = os.pread(self.file(contract.NOTICE_FILE), contract.NOTICE.size, 0)
        says: int = contract.NOTICE.unpack(notice)[0]
        return says

    def _ask(self, what: str, load: bytes = b"", **fields: Any) -> tuple[dict[str, Any], bytes]:
        """Send a request to the agent, or to the next agent if it has ended, and return the answer.

        Raises:
            OSError: no agent answered for `_AGAIN` seconds.
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
                        raise ConnectionError("the agent on this machine has ended") from error
                    time.sleep(_PAUSE)
                with contextlib.suppress(OSError, EOFError):
                    self._link = messages.connect(self._job)
                    self._hand_over()

    def _hand_over(self) -> None:
        """Send a new agent the memory that this rank holds."""
        if (notice := self._files.pop(contract.NOTICE_FILE, None)) is not None:  # agents create it
            os.close(notice)
        for name, file in self._files.items():
            said = {"do": contract.KEEP, "name": name, "round": self._round}
            self._link.send(said, files=[file])
            self._link.receive()
