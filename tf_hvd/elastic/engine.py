"""What an elastic job does at its beginning, at each commit, and when it must begin anew.

A job is not mended within its processes: `tf_hvd run` starts all ranks again, on the hosts that
are left or have come, and they go on from the newest commit that is complete.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import pickle
import signal
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf

from tf_hvd.collectives import collectives
from tf_hvd.collectives.objects import Title, allgather_object, broadcast_object
from tf_hvd.core import _native, basics, config, contract, log
from tf_hvd.elastic import commits
from tf_hvd.elastic.commit_file import CommitError
from tf_hvd.elastic.commit_folder import CommitFolder
from tf_hvd.elastic.store import Store
from tf_hvd.training import preemption

_OBJECTS = "objects"
"""In the part of rank 0, where there are several nodes: each node's file has its own values."""
# Slurm's --signal names one; where a program has no handler they would be the death of a rank.
_ASK_TO_END = (*preemption.ENDING, signal.SIGUSR1, signal.SIGUSR2)


@dataclasses.dataclass(frozen=True)
class Restored:
    """What a commit gives back to one rank."""

    objects: bytes
    """Of rank 0."""
    arrays: Mapping[str, np.ndarray]
    """Bytes, by the name of the variable."""
    own: Mapping[str, Any] | None
    """What was its own; None for a rank that there was not before."""
    same_size: bool
    """Whether the job has as many ranks as that which made the commit."""


class Engine:
    """Of a rank of an elastic job. The thread that trains.

    Args:
        store: of this machine.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._writer: commits.Writer | None = None
        self._folder = _folder()
        self._number = 0  # of the last commit
        self._made = 0  # in this start
        self._old: list[str] = []  # memory of this machine that nobody writes to any more
        self._leaves = False  # whether all are to leave after the next commit
        self._together = preemption.Together("elastic: signals, and hosts that come or go")
        self._signals = preemption.listen(_ASK_TO_END)

    def restore(self) -> Restored | None:
        """Finds the commit to go on from, on all ranks; None if there is none."""
        found = self._look()
        restored, last = self._newest(found), commits.newest(found)
        if restored is None and self._folder is not None:
            if basics.rank() == 0:
                self._store.forget(0, last)  # parts of what is not complete
                self._load(self._folder)
            found = self._look()
            restored, last = self._newest(found), max(last, commits.newest(found))
        if restored is None and last and basics.rank() == 0:
            log.warning("no commit is complete: the training begins anew")
        self._store.forget(self._number, last)
        self._begin(self._number)
        # Numbers of commits that were not complete are not used again.
        self._number = max(self._number, last)
        return restored

    def _load(self, folder: CommitFolder) -> None:
        """Takes the newest commit on disk that is whole; says what was found besides.

        Raises:
            ValueError: one is damaged, and that is to be an error.
        """
        try:
            loaded = folder.load(self._store, config.COMMIT_DIR_DAMAGED.read() == "error")
        except CommitError as error:
            raise ValueError(
                f"TF_HVD_COMMIT_DIR has a damaged commit: {error}; nothing in it was changed. "
                "TF_HVD_COMMIT_DIR_DAMAGED=warn goes on from an older one"
            ) from error
        for text in loaded.damaged:
            log.warning("a commit of TF_HVD_COMMIT_DIR is not used: %s", text)
        if loaded.number:
            log.warning("going on from commit %d of TF_HVD_COMMIT_DIR", loaded.number)
        elif loaded.aside:
            log.warning("no commit of TF_HVD_COMMIT_DIR is whole: the training begins anew")
        if loaded.aside:
            log.warning("unused commits of TF_HVD_COMMIT_DIR are in %s now", loaded.aside)

    def _newest(self, found: list[commits.Found]) -> Restored | None:
        """The newest commit that is complete, and undamaged."""
        for choice in commits.candidates(found):
            restored = self._read(choice, found)
            if restored is not None:
                self._number = choice.number
                return restored
        return None

    def _look(self) -> list[commits.Found]:
        return allgather_object(
            commits.look(self._store), name=Title("elastic: commits that are found")
        )

    def _read(self, choice: commits.Choice, found: list[commits.Found]) -> Restored | None:
        """A commit, on all ranks; None if nobody has it undamaged."""
        rank, name = basics.rank(), Title("elastic: the last commit")
        mine = None
        if rank in choice.roots:
            try:
                mine = commits.read_shared(self._store, found[rank].files[choice.number][0])
            except (CommitError, OSError):
                mine = None
        have = allgather_object(mine is not None, name=name)
        if not any(have):
            return None
        files = {each: found[each].files[choice.number][0] for each in choice.roots if have[each]}
        first = min(files, key=lambda each: files[each])
        if not all(have):
            sent = broadcast_object(mine, first, name=name)
            mine = mine or sent
        assert mine is not None
        part = self._part(choice, found, rank)
        own = None if part is None else pickle.loads(part)
        objects = mine.index.objects if own is None else own.get(_OBJECTS, mine.index.objects)
        objects = broadcast_object(objects, 0, name=name)
        return Restored(objects, mine.arrays, own, choice.ranks == basics.size())

    def _part(self, choice: commits.Choice, found: list[commits.Found], rank: int) -> bytes | None:
        """The part of this rank; sent by another one where this machine does not have it."""
        own = None
        for each, holder in enumerate(choice.holders[: basics.size()]):
            here = (each, choice.number) in found[each].parts
            if here and each == rank:
                own = self._store.part(each, choice.number)
            elif not here:
                part = self._store.part(each, choice.number) if holder == rank else None
                part = broadcast_object(
                    part, holder, name=Title("elastic: a part of the last commit")
                )
                own = part if each == rank else own
        return own

    def _begin(self, restored: int) -> None:
        node = basics.cross_rank() if basics.local_rank() == 0 else None
        self._writer = commits.Writer(
            self._store, basics.rank(), basics.size(), node, restored, self._folder
        )
        # Ranks that take themselves for two machines may share a store.
        memory = os.fstat(self._store.file(contract.NOTICE_FILE)).st_ino
        places = allgather_object((memory, node), name=Title("elastic: memory of each machine"))
        if node is not None:
            here = [each for where, each in places if where == memory and each is not None]
            self._old = commits.files_of_others(self._store, here)

    @property
    def writer(self) -> commits.Writer:
        """Of this rank; there when `restore` has been called."""
        assert self._writer is not None
        return self._writer

    def commit(self, contents: commits.Contents) -> None:
        self._number += 1
        if basics.rank() == 0 and basics.cross_size() > 1:
            own = {**contents.own, _OBJECTS: contents.objects}
            contents = dataclasses.replace(contents, own=own)
        self.writer.commit(self._number, contents, last=self._leaves)
        self._made += 1
        if self._made > contract.COMMITS_KEPT:  # there are newer ones
            for name in self._old:
                os.ftruncate(self._store.file(name), 0)
            self._old = []

    def heard(self) -> int:
        """What a rank or `tf_hvd run` was told, on all ranks at the same call; 0: nothing.

        All ranks have come to the last call of `say` by then.
        """
        said = self._together.heard()
        self._leaves = bool(said)
        return said

    def say(self, mine: int) -> None:
        """Tells all ranks what this one was told; they hear it at their next `heard`.

        Args:
            mine: by the program.
        """
        _, says = self._store.notice()
        self._together.say(mine | says | preemption.is_asked_to_end() * contract.LEAVE)

    def finish(self) -> None:
        """The training is through."""
        self.writer.flush()
        self._together.finish()
        self.stop_listening()
        if self._folder is not None:
            collectives.barrier()  # all have written what they were to write
            if basics.rank() == 0:
                self._folder.clear()

    def stop_listening(self) -> None:
        """From now on signals do again what they did before."""
        preemption.do_not_listen(self._signals)

    def leave_in_order(self) -> NoReturn:
        """Ends this process, as all ranks do at the same commit; `tf_hvd run` starts it again."""
        self._together.heard()
        self.writer.save()
        preemption.leave_in_order()

    def leave_for(self, error: BaseException) -> NoReturn:
        """Ends this process for the end of the job; `tf_hvd run` starts it again."""
        basics.ends_by(error, error.__traceback__)
        if self._writer is not None:  # it may end while commits are looked for
            with contextlib.suppress(RuntimeError):  # which is not why it ends
                self._writer.flush()
        raise SystemExit(contract.START_AGAIN)


def _folder() -> CommitFolder | None:
    """Where commits are written to disk, if that is asked for.

    Raises:
        ValueError: it cannot be used.
    """
    path = config.COMMIT_DIR.read()
    if not path:
        return None
    try:
        name = config.launcher_job().encode()
        job = hashlib.sha256(name).hexdigest() if basics.rank() == 0 else ""
        return CommitFolder(path, config.COMMIT_DIR_EVERY.read(), job)
    except OSError as error:
        raise ValueError(f"TF_HVD_COMMIT_DIR cannot be used: {error}") from error


def is_end_of_job(error: BaseException) -> bool:
    """Whether an error of this process is the end of its job: a rank is gone, or has stalled."""
    return isinstance(error, (tf.errors.OpError, RuntimeError)) and bool(_native.end_text())
