"""Commits on disk: a folder that survives all machines of a job, if it is asked for.

Every so many commits, what a rank puts into the store of its machine it writes into the folder as
well. A job that finds no commit in any store goes on from the newest that is complete there.

    commit.N   the file of commit N (commit_file.py), by rank 0
    part.R.N   the part of rank R: CRC (zlib's crc32), and what the store has
    job        whose folder it is, by the job's name
    refused.K  a folder: what was newer than the commit that a job went on from

Each is written in one piece: a file of that name is whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import struct
import zlib
from collections.abc import Collection, Iterable, Iterator
from typing import BinaryIO

from tf_hvd.core import files, log
from tf_hvd.elastic import commit_file
from tf_hvd.elastic.store import Store

FILE = "commit.0.0"
"""The memory into which `load` reads: one of those that rank 0 writes in turns."""
_MOST = 8  # commits, where none is complete: the folder may not be the same on all machines
_CRC = struct.Struct("<I")
_PIECE = 1 << 24
_JOB = "job"
_ASIDE = "refused."
_UNFINISHED = tuple(f"{files.NEW}{name}" for name in ("commit.", "part.", _JOB))


class CommitFolder:
    """The folder. One thread.

    Args:
        path: made if it is not there.
        every: of so many commits one is written.
        job: by which one job is known, to all of its ranks; empty for one that does not look.
            Nothing is written once another job has begun to use the folder.
        first: whether this is the rank that makes the folder the job's. One that another job uses
            is refused, until this process ends, where the file system has locks.

    Raises:
        OSError: it cannot be used, or other users can write to it: what is in it is unpickled.
    """

    def __init__(self, path: str, every: int, job: str = "", first: bool = False) -> None:
        os.makedirs(path, mode=0o700, exist_ok=True)
        self._path, self._every, self._job = path, every, job.encode()
        self._folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        files.check_own(self._folder, path)
        if first:
            self._lock()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            # It may be held by what an earlier start of this job has left, on a lost machine.
            if self._owner() == self._job:
                return
            raise BlockingIOError(
                f"{self._path} is in use by another job, which runs; give each job a "
                "folder of its own"
            ) from error
        except OSError:  # a file system without locks: see _check_ours
            pass
        self._put(_JOB, [self._job])

    def _owner(self) -> bytes:
        """The job that was the last to begin to use the folder; empty if none was."""
        with contextlib.suppress(FileNotFoundError), self._opened(_JOB) as file:
            return file.read()
        return b""

    def _is_ours(self) -> bool:
        """Whether no other job has begun to use the folder after this one."""
        return not self._job or self._owner() in (b"", self._job)

    def _check_ours(self) -> None:
        # Locks of a network's file system may count on each machine alone, and two jobs would make
        # commits of which each has a part.
        if not self._is_ours():
            raise BlockingIOError(
                f"another job has begun to use {self._path}; give each job a folder of its own"
            )

    def wants(self, number: int) -> bool:
        return number % self._every == 0

    def put_part(self, rank: int, number: int, data: bytes) -> None:
        """Writes a rank's part of a commit.

        Raises:
            OSError: it cannot be written, or the folder is another job's by now.
        """
        self._check_ours()
        self._put(f"part.{rank}.{number}", [_CRC.pack(zlib.crc32(data)), data])

    def put_file(self, number: int, file: int) -> None:
        """Writes the file of a commit, and removes those that are too old; raises as `put_part`."""
        self._check_ours()
        size = os.fstat(file).st_size
        pieces = (os.pread(file, _PIECE, at) for at in range(0, size, _PIECE))
        self._put(f"commit.{number}", pieces)
        # Others may be half-written: ranks do not wait for one another, or have ended.
        found = self._listed()
        numbers = sorted(each for each, names in found.items() if f"commit.{each}" in names)
        older = (each for each in reversed(numbers) if each < number)
        complete = next((each for each in older if self._is_complete(each, found[each])), 0)
        oldest = max(complete, numbers[-_MOST:][0])
        for each in found:
            if each < oldest:
                self._remove(found[each])

    def load(self, store: Store, strict: bool = False) -> int:
        """Brings the newest commit that is whole into a store; returns its number, 0 if none is.

        What is newer is set aside, in a folder of its own: its numbers are used again. What is
        found is said.

        Args:
            store: of this machine.
            strict: whether a damaged commit is an error. One that is not complete is none: its
                ranks had ended before all had written it.

        Raises:
            ValueError: one is damaged, or another version has written it. Then nothing is changed.
        """
        self._remove_unfinished()
        damaged, number, parts = [], 0, None
        for each in sorted(self._listed(), reverse=True):
            try:
                parts = self._read(each, store.file(FILE))
            except (OSError, commit_file.CommitError) as error:
                damaged.append(f"commit {each}: {error}")
            if parts is not None:
                number = each
                break
        if not number or (damaged and strict):
            os.ftruncate(store.file(FILE), 0)
        if damaged and strict:
            raise ValueError(
                f"TF_HVD_COMMIT_DIR has a damaged commit: {'; '.join(damaged)}; nothing in it was "
                "changed. TF_HVD_COMMIT_DIR_DAMAGED=warn goes on from an older one"
            )
        for rank, data in enumerate(parts or ()):
            store.put(rank, number, data)
        for text in damaged:
            log.warning("a commit of TF_HVD_COMMIT_DIR is not used: %s", text)
        aside = self._set_aside(number)
        if number:
            log.warning("going on from commit %d of TF_HVD_COMMIT_DIR", number)
        elif aside:
            log.warning("no commit of TF_HVD_COMMIT_DIR is whole: the training begins anew")
        if aside:
            log.warning("unused commits of TF_HVD_COMMIT_DIR are in %s now", aside)
        return number

    def clear(self) -> None:
        """Removes all commits, unless they are another job's by now."""
        if not self._is_ours():
            return
        self._remove_unfinished()
        for names in self._listed().values():
            self._remove(names)

    def _read(self, number: int, into: int) -> list[bytes] | None:
        """The parts of a commit, whose file is read into memory; None if one was not written."""
        name = f"commit.{number}"
        try:
            with self._opened(name) as file:
                os.ftruncate(into, 0)
                at = 0
                while piece := file.read(_PIECE):
                    at += os.pwrite(into, piece, at)
            try:
                index, _ = commit_file.read(into)
            except commit_file.VersionError as error:
                os.ftruncate(into, 0)
                raise ValueError(
                    f"TF_HVD_COMMIT_DIR: {name}: {error}; nothing in it was changed. Go on with "
                    "that version, or name another folder to begin anew"
                ) from error
            except commit_file.CommitError as error:
                raise commit_file.CommitError(f"{name}: {error}") from error
            return [self._part(rank, number) for rank in range(index.ranks)]
        except FileNotFoundError:
            return None

    def _is_complete(self, number: int, names: Collection[str]) -> bool:
        try:
            with self._opened(f"commit.{number}") as file:
                ranks = commit_file.read_index(file.fileno()).ranks
        except (OSError, commit_file.CommitError):
            return False
        return all(f"part.{rank}.{number}" in names for rank in range(ranks))

    def _part(self, rank: int, number: int) -> bytes:
        name = f"part.{rank}.{number}"
        with self._opened(name) as file:
            text = file.read()
        if len(text) < _CRC.size or _CRC.unpack_from(text)[0] != zlib.crc32(text[_CRC.size :]):
            raise commit_file.CommitError(f"{name}: the part is damaged")
        return text[_CRC.size :]

    @contextlib.contextmanager
    def _opened(self, name: str) -> Iterator[BinaryIO]:
        with files.opened(name, folder=self._folder, follow=False) as file:
            files.check_own(file.fileno(), name)
            yield file

    def _put(self, name: str, pieces: Iterable[bytes]) -> None:
        with files.writing(name, 0o600, folder=self._folder, sync=True) as file:
            for piece in pieces:
                file.write(piece)

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._folder)

    def _remove_unfinished(self) -> None:
        self._remove(each for each in os.listdir(self._folder) if each.startswith(_UNFINISHED))

    def _listed(self) -> dict[int, list[str]]:
        """By the number of a commit, what there is of it."""
        found: dict[int, list[str]] = {}
        for name in os.listdir(self._folder):
            kind, *numbers = name.split(".")
            of_commit = len(numbers) == {"commit": 1, "part": 2}.get(kind)
            if of_commit and all(map(str.isdigit, numbers)) and int(numbers[-1]):
                found.setdefault(int(numbers[-1]), []).append(name)
        return found

    def _set_aside(self, number: int) -> str:
        """Moves what is newer than a commit; returns where it is then, empty if nothing was."""
        newer = [names for each, names in self._listed().items() if each > number]
        if not newer:
            return ""
        for count in itertools.count(1):
            aside = f"{_ASIDE}{count}"
            with contextlib.suppress(FileExistsError):
                os.mkdir(aside, 0o700, dir_fd=self._folder)
                break
        for name in itertools.chain(*newer):
            to = os.path.join(aside, name)
            os.rename(name, to, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        return os.path.join(self._path, aside)
