"""The part of an elastic job that runs in each rank: it restores, commits and ends for restarts.

After a failure, `tf_hvd run` restarts all ranks on the available hosts. The ranks continue from the
newest complete commit.
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

# Slurm's --signal can send any of these signals. Without a handler, a signal would end a rank.
_ASK_TO_END = (*preemption.ENDING, signal.SIGUSR1, signal.SIGUSR2)


@dataclass(frozen=True)
class Restored:
    """The contents of a commit for one rank."""

    objects: bytes
    """Rank 0's Python values, pickled."""
    arrays: Mapping[str, np.ndarray]
    """The values of the variables as bytes, by name."""
    own: Mapping[str, Any] | None
    """The rank's own values; None if the job that made the commit did not have this rank."""
    same_size: bool
    """bool, whether the job has as many ranks as the job that made the commit."""
    everyone: Sequence[Mapping[str, Any]] = ()
    """With another number of ranks: the own values of each rank of that job, without arrays."""


class Engine:
    """A rank's part of elastic training, for use by the training thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._writer: commits.Writer | None = None
        self._folder = _folder()
        self._number = 0  # number of the last commit
        self._leaves = False  # whether all ranks must end after the next commit
        self._together = preemption.Together("elastic: signals and changes of hosts")
        self._signals = preemption.listen(_ASK_TO_END)

    def restore(self) -> Restored | None:
        """Return the commit from which all ranks continue; None if there is none."""
        restored, last = self._newest()
        if restored is None and self._folder is not None:
            if basics.rank() == 0:
                self._store.forget(0, last)  # parts of incomplete commits
                self._folder.load(self._store, config.COMMIT_DIR_DAMAGED.read() == "error")
            restored, found = self._newest()
            last = max(last, found)
        if restored is None and last and basics.rank() == 0:
            log.warning("no commit is complete: training restarts from the beginning")
        self._store.forget(self._number, last)
        self._begin(self._number)
        # Do not reuse the numbers of incomplete commits.
        self._number = max(self._number, last)
        return restored

    def _newest(self) -> tuple[Restored | None, int]:
        """Return the newest complete and undamaged commit, and the highest number of any commit."""
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
        """Return the arrays that are the same on all ranks; None if no rank has them undamaged."""
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
        """Return a commit with this rank's own part.

        If this machine does not have the part, another rank sends it.
        """
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
        same_size = ranks == basics.size()
        everyone = () if same_size else self._of_all_ranks(number, ranks, found)
        objects = own["objects"] if basics.rank() == 0 else None
        objects = broadcast_object(objects, 0, name=Title("elastic: objects of the last commit"))
        return Restored(objects, arrays, own, same_size, everyone)

    def _of_all_ranks(
        self, number: int, ranks: int, found: Sequence[commits.Found]
    ) -> list[Mapping[str, Any]]:
        """Return what all ranks of a commit have followed, and their random numbers."""
        mine = {}
        for each in range(ranks):
            holders = [at for at, one in enumerate(found) if (each, number) in one.parts]
            data = self._store.part(each, number) if basics.rank() == holders[0] else None
            if data is not None:
                part = pickle.loads(data)
                mine[each] = {name: part.get(name, {}) for name in ("random", "followed")}
        name = Title("elastic: values of the ranks of the last commit")
        sent = {
            each: part
            for parts in allgather_object(mine, name=name)
            for each, part in parts.items()
        }
        return [sent[each] for each in range(ranks)]

    def _begin(self, restored: int) -> None:
        # Ranks that count as different machines may share a store.
        memory = os.fstat(self._store.file(contract.NOTICE_FILE)).st_ino
        mine = (memory, basics.local_rank() == 0)
        places = allgather_object(mine, name=Title("elastic: memory of each machine"))
        place = places[: basics.rank()].count(mine) if mine[1] else None
        self._writer = commits.Writer(
            self._store, basics.rank(), basics.size(), place, restored, self._folder
        )

    @property
    def writer(self) -> commits.Writer:
        """The writer of commits; available after `restore`."""
        assert self._writer is not None
        return self._writer

    def commit(self, contents: commits.Contents) -> None:
        self._number += 1
        self.writer.commit(self._number, contents, last=self._leaves)

    def heard(self) -> int:
        """Return the announcements of all ranks as bits; 0 for none.

        The result is the same on all ranks at the same call. The function waits until all ranks
        have made their previous call to `say`.
        """
        said = self._together.heard()
        self._leaves = bool(said)
        return said

    def say(self, mine: int) -> None:
        """Announce this rank's signals and the changes of hosts, which `heard` returns."""
        asked = preemption.is_asked_to_end() * contract.LEAVE
        self._together.say(mine | self._store.notice() | asked)

    def finish(self) -> None:
        self.writer.flush()
        self._together.finish()
        self.stop_listening()
        if self._folder is not None:
            collectives.barrier()  # all ranks have written their commits
            if basics.rank() == 0:
                self._folder.clear()

    def stop_listening(self) -> None:
        preemption.do_not_listen(self._signals)

    def leave_in_order(self) -> NoReturn:
        """End this process after the same commit on all ranks, for a restart by `tf_hvd run`."""
        self._together.heard()
        self.writer.save()
        preemption.leave_in_order()

    def leave_for(self, error: BaseException) -> NoReturn:
        """End this process because the job has ended, for a restart by `tf_hvd run`."""
        basics.ends_by(error, error.__traceback__)
        if self._writer is not None:  # None if the job ended while searching for commits
            with contextlib.suppress(RuntimeError):  # `error` is the cause to report
                self._writer.flush()
        raise SystemExit(contract.START_AGAIN)


def _folder() -> CommitFolder | None:
    """Return the folder for commits on disk; None if TF_HVD_COMMIT_DIR is not set."""
    path = config.COMMIT_DIR.read()
    if not path:
        return None
    job = hashlib.sha256(config.launcher_job().encode()).hexdigest()
    try:
        return CommitFolder(path, config.COMMIT_DIR_EVERY.read(), job, first=basics.rank() == 0)
    except OSError as error:
        raise ValueError(f"TF_HVD_COMMIT_DIR cannot be used: {error}") from error
