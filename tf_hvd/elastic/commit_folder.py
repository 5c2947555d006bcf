"""Commits on disk: a folder that survives all machines of a job, if it is asked for.

Every so many commits, what a rank puts into the store of its machine it writes into the folder as
well. A job that finds no commit in any store goes on from the newest that is complete there.

    commit.N   the file of commit N (commit_file.py), by the first rank of the first node
    part.R.N   the part of rank R: CRC (zlib's crc32), and what the store has
    job        whose folder it is, by the job's token

Each is written in one piece: a file of that name is whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from tf_hvd.elastic import commit_file
from tf_hvd.elastic.store import Store

FILE = "commit.disk"
"""The memory into which `load` reads."""
_MOST = 8  # commits, where none is complete: the folder may not be the same on all machines
_CRC = struct.Struct("<I")
_PIECE = 1 << 24
_JOB = "job"
_NEW = "new."  # before the name of what is being written
_UNFINISHED = tuple(f"{_NEW}{name}" for name in ("commit.", "part.", _JOB))


class CommitFolder:
    """The folder. One thread.

    Args:
        path: made if it is not there.
        every: of so many commits one is written.
        job: by which one job is known; a folder that another one uses is refused, until this
            process ends. Empty: of a rank that does not look.

    Raises:
        OSError: it cannot be used, or other users can write to it: what is in it is unpickled.
    """

    def __init__(self, path: str, every: int, job: str = "") -> None:
        os.makedirs(path, mode=0o700, exist_ok=True)
        self._path, self._every = path, every
        self._folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        _check_own(self._folder, path)
        if job:
            self._lock(job)

    def _lock(self, job: str) -> None:
        try:
            fcntl.flock(self._folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            # It may be held by what an earlier start of this job has left, on a lost machine.
            with contextlib.suppress(OSError), self._opened(_JOB) as file:
                if file.read() == job.encode():
                    return
            raise BlockingIOError(f"{self._path} is in use by another job, which runs") from error
        except OSError:
            return  # a file system without locks
        self._put(_JOB, [job.encode()])

    def wants(self, number: int) -> bool:
        """Whether a commit is to be written."""
        return number % self._every == 0

    def put_part(self, rank: int, number: int, data: bytes) -> None:
        """Writes the part of a rank."""
        self._put(f"part.{rank}.{number}", [_CRC.pack(zlib.crc32(data)), data])

    def put_file(self, number: int, file: int) -> None:
        """Writes the file of a commit, and removes those that are too old."""
        size = os.fstat(file).st_size
        pieces = (os.pread(file, _PIECE, at) for at in range(0, size, _PIECE))
        self._put(f"commit.{number}", pieces)
        # Others may be half-written: ranks do not wait for one another, or have ended.
        numbers = sorted(self._numbers())
        older = (each for each in reversed(numbers) if each < number)
        complete = next(filter(self._is_complete, older), 0)
        oldest = max(complete, numbers[-_MOST:][0])
        self._remove({each for each in self._listed() if each < oldest})

    def load(self, store: Store) -> int:
        """Brings the newest commit that is complete into a store; returns its number, or 0.

        What is newer is removed: its numbers are used again.
        """
        self._remove_unfinished()
        for number in sorted(self._numbers(), reverse=True):
            parts = self._read(number, store.file(FILE))
            if parts is not None:
                for rank, data in enumerate(parts):
                    store.put(rank, number, data)
                self._remove({each for each in self._listed() if each > number})
                return number
        os.ftruncate(store.file(FILE), 0)
        self._remove(self._listed())
        return 0

    def clear(self) -> None:
        """Removes all commits: the training is through."""
        self._remove_unfinished()
        self._remove(self._listed())

    def _read(self, number: int, into: int) -> list[bytes] | None:
        """The parts of a commit, whose file is read into memory; None if it is not complete."""
        try:
            with self._opened(f"commit.{number}") as file:
                os.ftruncate(into, 0)
                at = 0
                while piece := file.read(_PIECE):
                    at += os.pwrite(into, piece, at)
            index = commit_file.read_index(into)
            for name, entry in index.arrays.items():
                commit_file.read_array(into, name, entry)
            return [self._part(rank, number) for rank in range(index.ranks)]
        except (OSError, commit_file.CommitError):
            return None

    def _is_complete(self, number: int) -> bool:
        """Whether all of a commit is there."""
        names = set(os.listdir(self._folder))
        try:
            with self._opened(f"commit.{number}") as file:
                ranks = commit_file.read_index(file.fileno()).ranks
        except (OSError, commit_file.CommitError):
            return False
        return all(f"part.{rank}.{number}" in names for rank in range(ranks))

    def _part(self, rank: int, number: int) -> bytes:
        with self._opened(f"part.{rank}.{number}") as file:
            text = file.read()
        if len(text) < _CRC.size or _CRC.unpack_from(text)[0] != zlib.crc32(text[_CRC.size :]):
            raise commit_file.CommitError("a part is damaged")
        return text[_CRC.size :]

    @contextlib.contextmanager
    def _opened(self, name: str) -> Iterator[BinaryIO]:
        flags = os.O_RDONLY | os.O_NOFOLLOW
        with open(os.open(name, flags, dir_fd=self._folder), "rb") as file:
            _check_own(file.fileno(), name)
            yield file

    def _put(self, name: str, pieces: Iterable[bytes]) -> None:
        new = f"{_NEW}{name}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        try:
            with open(os.open(new, flags, 0o600, dir_fd=self._folder), "wb") as file:
                for piece in pieces:
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
            os.rename(new, name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except OSError:
            self._unlink(new)  # the disk may be full
            raise

    def _unlink(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._folder)

    def _listed(self) -> set[int]:
        """The numbers of the commits of which something is there."""
        names = [name.split(".") for name in os.listdir(self._folder)]
        kinds = {"commit": 2, "part": 3}
        return {
            int(parts[-1])
            for parts in names
            if kinds.get(parts[0]) == len(parts) and parts[-1].isdigit()
        }

    def _numbers(self) -> list[int]:
        """Those of which the file is there."""
        names = set(os.listdir(self._folder))
        return [each for each in self._listed() if f"commit.{each}" in names]

    def _remove(self, numbers: Iterable[int]) -> None:
        old = {str(number) for number in numbers}
        for name in os.listdir(self._folder):
            if name.startswith(("commit.", "part.")) and name.rpartition(".")[2] in old:
                self._unlink(name)

    def _remove_unfinished(self) -> None:
        for name in os.listdir(self._folder):
            if name.startswith(_UNFINISHED):
                self._unlink(name)


def _check_own(file: int, name: str) -> None:
    about = os.fstat(file)
    if about.st_uid != os.geteuid() or about.st_mode & 0o022:
        raise PermissionError(f"{name} is another user's, or others can write to it")
