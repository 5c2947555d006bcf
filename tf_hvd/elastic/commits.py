"""A rank's commits: what is written, by a thread of its own, and which one a job goes on from.

A commit has two parts. What is equal on all ranks, in a file that the first rank of each node
writes (commit_file.py): every node has it. What is the rank's own, which goes to the store of its
machine and from there to `tf_hvd run`. So all is there when a node is gone. No rank waits for
another: a commit counts when the parts of all ranks and one file of it are there.
"""

from __future__ import annotations

import contextlib
import pickle
import queue
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tf_hvd.core import log
from tf_hvd.elastic import commit_file
from tf_hvd.elastic.commit_folder import CommitFolder
from tf_hvd.elastic.store import Store
from tf_hvd.elastic.variables import is_same

_FILE = "commit."


@dataclass(frozen=True)
class Contents:
    objects: bytes
    """Pickled, of the program's own: those of rank 0 count, and are in its part."""
    arrays: Mapping[str, np.ndarray]
    """By name: equal on all ranks. Where the rank writes no file, only what may be its own."""
    own: Mapping[str, Any]
    """What is this rank's own, besides; values that can be pickled."""
    maybe_own: Collection[str] = ()
    """Which of the arrays are this rank's own if anybody has assigned to them: moving statistics,
    but not weights that are frozen."""


class Writer:
    """Writes this rank's commits. Its thread ends with the process.

    Args:
        place: which of the ranks that write a file into the machine's store; None: it writes none.
        restored: the commit that the job goes on from; 0: from none.
        folder: gets some commits, besides.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        ranks: int,
        place: int | None,
        restored: int = 0,
        folder: CommitFolder | None = None,
    ) -> None:
        self._store = store
        self._rank, self._ranks = rank, ranks
        copies = 0 if place is None else commit_file.COPIES
        files = [store.file(f"{_FILE}{place}.{copy}") for copy in range(copies)]
        # What the job goes on from is written over last.
        files.sort(key=lambda file: commit_file.number_of(file) == restored)
        self._files = [(file, commit_file.CommitFile(file)) for file in files]
        self.writes_file = bool(files)
        """Whether this rank writes what is equal on all ranks."""
        self._folder = folder
        self._next = 0
        self._still: dict[str, np.ndarray] = {}  # what nobody has assigned to since it was read
        self._queue: queue.Queue[tuple[int, Contents, dict[str, Any], bool]] = queue.Queue(1)
        self._error: BaseException | None = None
        # The last one, with its file, which is not in the folder; of the writer's thread or, when
        # it has nothing to do, of who flushes.
        self._unsaved: tuple[int, bytes, int] | None = None
        threading.Thread(target=self._run, name="tf_hvd commits", daemon=True).start()

    def begin(self, arrays: Mapping[str, np.ndarray]) -> None:
        """What is equal on all ranks by now, of the arrays that may be this rank's own."""
        self._still = dict(arrays)

    def commit(self, number: int, contents: Contents, last: bool = False) -> None:
        """Has a commit written; waits for the one before, and raises what `flush` does.

        The last one of a start goes to the folder as well.
        """
        self.flush()
        changed = {}
        for name in contents.maybe_own:
            array, before = contents.arrays[name], self._still.get(name)
            if before is None or not is_same(before, array):
                self._still.pop(name, None)
                changed[name] = array
        self._queue.put((number, contents, changed, last))

    def flush(self) -> None:
        """Returns when all is written; RuntimeError if something could not be."""
        self._queue.join()
        if self._error is not None:
            error, self._error = self._error, None
            raise RuntimeError(f"a commit could not be written: {error}") from error

    def save(self) -> None:
        """The same; and the last commit is in the folder as well."""
        self.flush()
        self._write_to_folder()

    def _run(self) -> None:
        while True:
            number, contents, changed, last = self._queue.get()
            try:
                self._write(number, contents, changed)
                if last or (self._folder is not None and self._folder.wants(number)):
                    self._write_to_folder()
            except BaseException as error:  # told by the next commit
                self._error = error
            del contents, changed  # or the variables' memory would be held until the next
            self._queue.task_done()

    def _write(self, number: int, contents: Contents, changed: Mapping[str, Any]) -> None:
        memory = 0
        if self._files:
            memory, file = self._files[self._next % len(self._files)]
            self._next += 1
            file.write(number, self._ranks, contents.arrays)
        own = {**contents.own, "arrays": {name: np.array(a) for name, a in changed.items()}}
        if self._rank == 0:
            own["objects"] = contents.objects
        part = pickle.dumps(own, protocol=5)
        self._store.put(self._rank, number, part)
        self._unsaved = number, part, memory

    def _write_to_folder(self) -> None:
        """On disk as well; if that cannot be, training goes on, with what is in memory."""
        if self._folder is None or self._unsaved is None:
            return
        number, part, memory = self._unsaved
        try:
            self._folder.put_part(self._rank, number, part)
            if self._rank == 0:
                self._folder.put_file(number, memory)
        except OSError as error:
            log.warn_once(f"commits cannot be written to disk: {error}")
        self._unsaved = None


@dataclass(frozen=True)
class Found:
    """What the machine of one rank has of earlier commits."""

    parts: frozenset[tuple[int, int]]
    """Rank and commit of each part."""
    files: Mapping[int, tuple[str, int]]
    """By commit, a file that has it, and how many ranks made it."""

    def newest(self) -> int:
        """The highest number that any commit has, be it not complete; 0 if there is none."""
        return max([*self.files, *(number for _, number in self.parts)], default=0)


def look(store: Store) -> Found:
    parts, names = store.inventory()
    files: dict[int, tuple[str, int]] = {}
    for name in names:
        if name.startswith(_FILE):
            with contextlib.suppress(commit_file.CommitError):
                index = commit_file.read_index(store.file(name))
                files.setdefault(index.number, (name, index.ranks))
    return Found(parts, files)


def complete(found: Sequence[Found]) -> list[tuple[int, int]]:
    """The commits that are complete, and how many ranks made each, the newest first; pure."""
    parts = frozenset[tuple[int, int]]().union(*(one.parts for one in found))
    files = {number: ranks for one in found for number, (_, ranks) in one.files.items()}
    return [
        (number, ranks)
        for number, ranks in sorted(files.items(), reverse=True)
        if all((rank, number) in parts for rank in range(ranks))
    ]
