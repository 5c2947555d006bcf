"""What an elastic job does at its beginning, at each commit, and when it must begin anew.

A job is not mended within its processes: `tf_hvd run` starts all ranks again, on the hosts that
are left or have come, and they go on from the newest commit that is complete.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from tf_hvd.collectives import collectives
from tf_hvd.collectives.objects import Title, allgather_object, broadcast_object
from tf_hvd.core import basics, config, contract, log
from tf_hvd.elastic import commit_file, commits
from tf_hvd.elastic.commit_folder import CommitFolder
from tf_hvd.elastic.store import Store
from tf_hvd.training import preemption

# Slurm's --signal names one; where a program has no handler they would be the death of a rank.
_ASK_TO_END = (*preemption.ENDING, signal.SIGUSR1, signal.SIGUSR2)


@dataclass(frozen=True)
class Restored:
    """What a commit gives back to one rank."""

    objects: bytes
    """Pickled, of rank 0."""
    arrays: Mapping[str, np.ndarray]
    """Bytes, by the name of the variable."""
    own: Mapping[str, Any] | None
    """What was its own; None for a rank that there was not before."""
    same_size: bool
    """Whether the job has as many ranks as that which made the commit."""


class Engine:
    """Of a rank of an elastic job. The thread that trains."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._writer: commits.Writer | None = None
        self._folder = _folder()
        self._number = 0  # of the last commit
        self._leaves = False  # whether all are to leave after the next commit
        self._together = preemption.Together("elastic: signals, and hosts that come or go")
        self._signals = preemption.listen(_ASK_TO_END)

    def restore(self) -> Restored | None:
        """Finds the commit to go on from, on all ranks; None if there is none."""
        restored, last = self._newest()
        if restored is None and self._folder is not None:
            if basics.rank() == 0:
                self._store.forget(0, last)  # parts of what is not complete
                self._folder.load(self._store, config.COMMIT_DIR_DAMAGED.read() == "error")
            restored, found = self._newest()
            last = max(last, found)
        if restored is None and last and basics.rank() == 0:
            log.warning("no commit is complete: the training begins anew")
        self._store.forget(self._number, last)
        self._begin(self._number)
        # Numbers of commits that were not complete are not used again.
        self._number = max(self._number, last)
        return restored

    def _newest(self) -> tuple[Restored | None, int]:
        """The newest commit that is complete, and undamaged; and the highest number of any."""
        name = Title("elastic: commits that are found")
        found: list[commits.Found] = allgather_object(commits.look(self._store), name=name)
        last = max(one.newest() for one in found)
        for number, ranks in commits.complete(found):
            arrays = self._arrays(number, found)
            if arrays is not None:
                self._number = number
                return self._restored(arrays, number, ranks, found), last
        return None, last

    def _arrays(
        self, number: int, found: Sequence[commits.Found]
    ) -> Mapping[str, np.ndarray] | None:
        """What is equal on all ranks, on all ranks; None if nobody has it undamaged."""
        name, mine = Title("elastic: the last commit"), None
        files = {
            rank: one.files[number][0] for rank, one in enumerate(found) if number in one.files
        }
        if basics.rank() in files:
            with contextlib.suppress(commit_file.CommitError, OSError):
                _, mine = commit_file.read(self._store.file(files[basics.rank()]))
        have = allgather_object(mine is not None, name=name)
        if any(have) and not all(have):
            first = min((rank for rank in files if have[rank]), key=lambda rank: files[rank])
            sent = broadcast_object(mine, first, name=name)
            mine = sent if mine is None else mine
        return mine

    def _restored(
        self,
        arrays: Mapping[str, np.ndarray],
        number: int,
        ranks: int,
        found: Sequence[commits.Found],
    ) -> Restored:
        """A commit with what is this rank's own; sent by another one where this has it not."""
        own: Any = None
        for each in range(min(ranks, basics.size())):
            holders = [at for at, one in enumerate(found) if (each, number) in one.parts]
            part = None
            if basics.rank() == (each if each in holders else holders[0]):
                part = self._store.part(each, number)
            if each not in holders:
                name = Title("elastic: a part of the last commit")
                part = broadcast_object(part, holders[0], name=name)
            if basics.rank() == each and part is not None:
                own = pickle.loads(part)
        objects = own["objects"] if basics.rank() == 0 else None
        objects = broadcast_object(objects, 0, name=Title("elastic: objects of the last commit"))
        return Restored(objects, arrays, own, ranks == basics.size())

    def _begin(self, restored: int) -> None:
        # Ranks that take themselves for two machines may share a store.
        memory = os.fstat(self._store.file(contract.NOTICE_FILE)).st_ino
        mine = (memory, basics.local_rank() == 0)
        places = allgather_object(mine, name=Title("elastic: memory of each machine"))
        place = places[: basics.rank()].count(mine) if mine[1] else None
        self._writer = commits.Writer(
            self._store, basics.rank(), basics.size(), place, restored, self._folder
        )

    @property
    def writer(self) -> commits.Writer:
        """There when `restore` has been called."""
        assert self._writer is not None
        return self._writer

    def commit(self, contents: commits.Contents) -> None:
        self._number += 1
        self.writer.commit(self._number, contents, last=self._leaves)

    def heard(self) -> int:
        """What a rank or `tf_hvd run` was told, on all ranks at the same call; 0: nothing.

        All ranks have come to the last call of `say` by then.
        """
        said = self._together.heard()
        self._leaves = bool(said)
        return said

    def say(self, mine: int) -> None:
        """Tells all ranks what this one was told, and its program; they hear it at `heard`."""
        asked = preemption.is_asked_to_end() * contract.LEAVE
        self._together.say(mine | self._store.notice() | asked)

    def finish(self) -> None:
        self.writer.flush()
        self._together.finish()
        self.stop_listening()
        if self._folder is not None:
            collectives.barrier()  # all have written what they were to write
            if basics.rank() == 0:
                self._folder.clear()

    def stop_listening(self) -> None:
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
    """Where commits are written to disk, if that is asked for."""
    path = config.COMMIT_DIR.read()
    if not path:
        return None
    job = hashlib.sha256(config.launcher_job().encode()).hexdigest()
    try:
        return CommitFolder(path, config.COMMIT_DIR_EVERY.read(), job, first=basics.rank() == 0)
    except OSError as error:
        raise ValueError(f"TF_HVD_COMMIT_DIR cannot be used: {error}") from error
