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
from tf_hvd.elastic.store import Inventory, Store
from tf_hvd.elastic.variables import is_same

_FILE = "commit."


@dataclass(frozen=True)
class Contents:
    objects: bytes
    """Pickled, of the program's own: equal on all ranks."""
    arrays: Mapping[str, tuple[str, np.ndarray]]
    """By name, TensorFlow's name of the dtype and the array: equal on all ranks. Where the rank
    writes no file, only what may be its own."""
    own: Mapping[str, Any]
    """What is this rank's own, besides; values that can be pickled."""
    maybe_own: Collection[str]
    """Which of the arrays are this rank's own if anybody has assigned to them: moving statistics,
    but not weights that are frozen."""


@dataclass(frozen=True)
class Found:
    """What the machine of one rank has of earlier commits."""

    parts: frozenset[tuple[int, int]]
    """Rank and commit of each part."""
    files: Mapping[int, tuple[str, int]]
    """By commit, a file that has it, and how many ranks made it."""


class Writer:
    """Writes this rank's commits. Its thread ends with the process.

    Args:
        store: of this machine.
        rank: this one,
        ranks: of so many.
        node: the number of its node; None: another rank of the node writes the file.
        restored: the commit that the job goes on from; 0: from none.
        folder: gets some commits, besides.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        ranks: int,
        node: int | None,
        restored: int = 0,
        folder: CommitFolder | None = None,
    ) -> None:
        self._store = store
        self._rank, self._ranks = rank, ranks
        copies = 0 if node is None else commit_file.COPIES
        files = [store.file(f"{_of_node(node)}{copy}") for copy in range(copies)]
        # What the job goes on from is written over last.
        files.sort(key=lambda file: commit_file.number_of(file) == restored)
        self._files = [(file, commit_file.CommitFile(file)) for file in files]
        self._folder, self._first_node = folder, node == 0
        self._next = 0
        self._still: dict[str, np.ndarray] = {}  # what nobody has assigned to since it was read
        self._queue: queue.Queue[tuple[int, Contents, dict[str, Any], bool]] = queue.Queue(1)
        self._error: BaseException | None = None
        # The last one, with its file, which is not in the folder; of the writer's thread or, when
        # it has nothing to do, of who flushes.
        self._unsaved: tuple[int, bytes, int] | None = None
        threading.Thread(target=self._run, name="tf_hvd commits", daemon=True).start()

    @property
    def writes_file(self) -> bool:
        """Whether this rank writes what is equal on all ranks."""
        return bool(self._files)

    def begin(self, arrays: Mapping[str, np.ndarray]) -> None:
        """What is equal on all ranks by now, of the arrays that may be this rank's own."""
        self._still = dict(arrays)

    def commit(self, number: int, contents: Contents, last: bool = False) -> None:
        """Has a commit written; waits for the one before.

        Args:
            number: of the commit.
            contents: what it is made of.
            last: whether this start makes no more: it goes to the folder then.

        Raises:
            RuntimeError: that one could not be.
        """
        self.flush()
        changed = {}
        for name in contents.maybe_own:
            _, array = contents.arrays[name]
            before = self._still.get(name)
            if before is None or not is_same(before, array):
                self._still.pop(name, None)
                changed[name] = array
        self._queue.put((number, contents, changed, last))

    def flush(self) -> None:
        """Returns when all is written.

        Raises:
            RuntimeError: something could not be.
        """
        self._queue.join()
        if self._error is not None:
            error, self._error = self._error, None
            raise RuntimeError(f"a commit could not be written: {error}") from error

    def save(self) -> None:
        """Returns when all is written, and the last commit is in the folder as well.

        Raises:
            RuntimeError: something could not be.
        """
        self.flush()
        if self._folder is not None and self._unsaved is not None:
            self._write_to_folder(self._folder, *self._unsaved)
            self._unsaved = None

    def _run(self) -> None:
        while True:
            number, contents, changed, last = self._queue.get()
            try:
                self._write(number, contents, changed, last)
            except BaseException as error:  # told by the next commit
                self._error = error
            del contents, changed  # or the variables' memory would be held until the next
            self._queue.task_done()

    def _write(
        self, number: int, contents: Contents, changed: Mapping[str, Any], last: bool
    ) -> None:
        memory = 0
        if self._files:
            memory, file = self._files[self._next % len(self._files)]
            self._next += 1
            file.write(number, self._ranks, contents.objects, contents.arrays)
        own = {**contents.own, "arrays": {name: np.array(a) for name, a in changed.items()}}
        part = pickle.dumps(own, protocol=5)
        self._store.put(self._rank, number, part)
        self._unsaved = number, part, memory
        if self._folder is not None and (last or self._folder.wants(number)):
            self._write_to_folder(self._folder, *self._unsaved)
            self._unsaved = None

    def _write_to_folder(self, folder: CommitFolder, number: int, part: bytes, memory: int) -> None:
        """On disk as well; if that cannot be, training goes on, with what is in memory."""
        try:
            folder.put_part(self._rank, number, part)
            if self._first_node:
                folder.put_file(number, memory)
        except OSError as error:
            log.warn_once(f"commits cannot be written to disk: {error}")


def _of_node(node: int | None) -> str:
    return f"{_FILE}{node}."


def files_of_others(store: Store, nodes: Collection[int]) -> list[str]:
    """What there is on this machine of commits, of the numbers of other nodes and from a folder.

    Args:
        store: of this machine.
        nodes: the numbers that it has now.
    """
    names = [name for name in store.inventory().files if name.startswith(_FILE)]
    return [name for name in names if not name.startswith(tuple(map(_of_node, nodes)))]


def look(store: Store) -> Found:
    inventory: Inventory = store.inventory()
    files: dict[int, tuple[str, int]] = {}
    for name in inventory.files:
        if name.startswith(_FILE):
            with contextlib.suppress(commit_file.CommitError):
                index = commit_file.read_index(store.file(name))
                files.setdefault(index.number, (name, index.ranks))
    return Found(inventory.parts, files)


@dataclass(frozen=True)
class Choice:
    """A commit that a job can go on from."""

    number: int
    ranks: int
    """Of the job that made it."""
    roots: tuple[int, ...]
    """Ranks on whose machine a file of it is."""
    holders: tuple[int, ...]
    """For each rank of the job that made it, one on whose machine its part is."""


def candidates(found: Sequence[Found]) -> list[Choice]:
    """The commits that are complete, the newest first; pure.

    Args:
        found: what each rank has.
    """
    sizes: dict[int, int] = {}
    for one in found:
        for number, (_, ranks) in one.files.items():
            sizes[number] = ranks
    choices = []
    for number in sorted(sizes, reverse=True):
        holders = [
            next((at for at, one in enumerate(found) if (rank, number) in one.parts), None)
            for rank in range(sizes[number])
        ]
        known = [at for at in holders if at is not None]
        if len(known) == len(holders):
            roots = tuple(at for at, one in enumerate(found) if number in one.files)
            choices.append(Choice(number, sizes[number], roots, tuple(known)))
    return choices


def newest(found: Sequence[Found]) -> int:
    """The highest number that any commit has, be it not complete; 0 if there is none."""
    numbers = [number for one in found for number in one.files]
    return max([*numbers, *(number for one in found for _, number in one.parts)], default=0)


@dataclass(frozen=True)
class Shared:
    """What is equal on all ranks, of one commit."""

    index: commit_file.Index
    arrays: Mapping[str, np.ndarray]
    """Bytes."""


def read_shared(store: Store, name: str) -> Shared:
    """Reads a file whole.

    Raises:
        CommitError: it is damaged.
    """
    file = store.file(name)
    index = commit_file.read_index(file)
    arrays = {
        each: commit_file.read_array(file, each, entry) for each, entry in index.arrays.items()
    }
    return Shared(index, arrays)
