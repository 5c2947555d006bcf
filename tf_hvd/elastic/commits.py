"""Writes a rank's commits in a separate thread, and finds the commit to continue from.

A commit consists of files and parts. A file has the values that all ranks share. The first
rank on each node writes one (commit_file.py), so every node has a copy. A part has one rank's own
values. The rank sends its part to the store of its machine, which sends it on to `tf_hvd run`. A
commit therefore survives the loss of a node. Ranks do not wait for each other. A commit is complete
when the parts of all ranks and at least one file exist.
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
    """The program's Python values, pickled. Only those of rank 0 are stored, in its part."""
    arrays: Mapping[str, np.ndarray]
    """Values of variables by name, the same on all ranks.

    On a rank that writes no file, only those in `maybe_own`.
    """
    own: Mapping[str, Any]
    """Other values of this rank; they must be picklable."""
    maybe_own: Collection[str] = ()
    """The names of arrays that become this rank's own once the program assigns to them.

    Moving statistics are such arrays; frozen weights are not.
    """


class Writer:
    """The writer of this rank's commits. Its thread ends with the process.

    Args:
        store: the store of this machine.
        rank: this rank's number.
        ranks: number of ranks in the job.
        place: index of this rank among those that write files into this store; None if this rank
            writes no files.
        restored: number of the commit that the job continues from; 0 for none.
        folder: the folder for commits on disk, or None.
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
        # Overwrite the commit that the job continues from last.
        files.sort(key=lambda file: commit_file.number_of(file) == restored)
        self._files = [(file, commit_file.CommitFile(file)) for file in files]
        self.writes_file = bool(files)
        """Whether this rank writes the file of values that are the same on all ranks."""
        self._folder = folder
        self._next = 0
        self._still: dict[str, np.ndarray] = {}  # variables that were not assigned to since `begin`
        self._queue: queue.Queue[tuple[int, Contents, dict[str, Any], bool]] = queue.Queue(1)
        self._error: BaseException | None = None
        # The last commit, if it is not in the folder, with its file. Used by the writer's thread,
        # or by the thread that has flushed.
        self._unsaved: tuple[int, bytes, int] | None = None
        threading.Thread(target=self._run, name="tf_hvd commits", daemon=True).start()

    def begin(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Set the initial values of the `maybe_own` arrays, which are the same on all ranks now."""
        self._still = dict(arrays)

    def commit(self, number: int, contents: Contents, last: bool = False) -> None:
        """Wait until the previous commit is written, then queue this commit for writing.

        If `last` is true, no commit follows in this start of the job, and the commit is written to
        the folder too. Raises RuntimeError if the previous commit could not be written.
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
        """Wait until all commits are written; raise RuntimeError if one could not be written."""
        self._queue.join()
        if self._error is not None:
            error, self._error = self._error, None
            raise RuntimeError(f"a commit could not be written: {error}") from error

    def save(self) -> None:
        """Wait until all commits are written, and write the last one to the folder too."""
        self.flush()
        self._write_to_folder()

    def _run(self) -> None:
        while True:
            number, contents, changed, last = self._queue.get()
            try:
                self._write(number, contents, changed)
                if last or (self._folder is not None and self._folder.wants(number)):
                    self._write_to_folder()
            except BaseException as error:  # the next commit raises this error
                self._error = error
            del contents, changed  # to release the variables' memory
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
        """Write the last commit to disk. If this fails, log a warning and continue without it."""
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
    """The earlier commits that one rank's machine has stored."""

    parts: frozenset[tuple[int, int]]
    """The rank and the commit number of each part."""
    files: Mapping[int, tuple[str, int]]
    """For each commit number, the name of its file and the number of ranks that made it."""

    def newest(self) -> int:
        """Return the highest number of any commit, complete or not; 0 if there is none."""
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
    """Return the complete commits with their numbers of ranks, newest first."""
    parts = frozenset[tuple[int, int]]().union(*(one.parts for one in found))
    files = {number: ranks for one in found for number, (_, ranks) in one.files.items()}
    return [
        (number, ranks)
        for number, ranks in sorted(files.items(), reverse=True)
        if all((rank, number) in parts for rank in range(ranks))
    ]
