"""Reads and writes commits in TF_HVD_COMMIT_DIR, a folder that outlives a job's machines.

The folder is optional. Each rank writes every Nth commit to the folder too, not only to the store
on its machine. A job that finds no commit in any store continues from the newest complete commit
in the folder. The folder contains::

    commit.N   the file of commit N (commit_file.py), written by rank 0
    part.R.N   rank R's part of commit N: CRC (zlib's crc32), and the part's data
    job        the name of the job that uses the folder
    refused.K  a folder with commits newer than the commit from which a job continued

Files are written atomically, so a file with one of these names is complete.
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
"""The name of the memory into which `load` reads, one of the files for rank 0's commits."""
_MOST = 8  # commits to keep if none is complete, since machines may have different folders
_CRC = struct.Struct("<I")
_PIECE = 1 << 24
_JOB = "job"
_ASIDE = "refused."
_UNFINISHED = tuple(f"{files.NEW}{name}" for name in ("commit.", "part.", _JOB))


class CommitFolder:
    """The folder for commits on disk. Only one thread may use it.

    Args:
        path: path of the folder, which is created if it does not exist.
        every: int, N to write every Nth commit.
        job: name of the job, the same on all its ranks; "" to skip the check. Once another job
            has started to use the folder, nothing more is written.
        first: whether this rank reserves the folder for the job until this process ends. If
            another job is using the folder, the constructor raises OSError on file systems with
            locks.

    Raises:
        OSError: the folder cannot be used; or other users can write to it, which is unsafe because
            its contents are unpickled.
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
            # A process of an earlier start of this job, on a lost machine, may hold the lock.
            if self._owner() == self._job:
                return
            raise BlockingIOError(
                f"{self._path} is in use by another running job; give each job its own folder"
            ) from error
        except OSError:  # a file system without locks: see _check_ours
            pass
        self._put(_JOB, [self._job])

    def _owner(self) -> bytes:
        """Return the name of the last job that started to use the folder; "" if none did."""
        with contextlib.suppress(FileNotFoundError), self._opened(_JOB) as file:
            return file.read()
        return b""

    def _is_ours(self) -> bool:
        """Return True unless another job has started to use the folder since this job did."""
        return not self._job or self._owner() in (b"", self._job)

    def _check_ours(self) -> None:
        # Locks of a network file system may be local to each machine. Two jobs would then mix their
        # parts of commits.
        if not self._is_ours():
            raise BlockingIOError(
                f"another job has started to use {self._path}; give each job its own folder"
            )

    def wants(self, number: int) -> bool:
        return number % self._every == 0

    def put_part(self, rank: int, number: int, data: bytes) -> None:
        """Write a rank's part of a commit.

        Raises:
            OSError: the part cannot be written, or another job has started to use the folder.
        """
        self._check_ours()
        self._put(f"part.{rank}.{number}", [_CRC.pack(zlib.crc32(data)), data])

    def put_file(self, number: int, file: int) -> None:
        """Write the file of a commit and remove old commits; raises the errors of `put_part`."""
        self._check_ours()
        size = os.fstat(file).st_size
        pieces = (os.pread(file, _PIECE, at) for at in range(0, size, _PIECE))
        self._put(f"commit.{number}", pieces)
        # Other commits may be incomplete, because ranks do not wait for each other, or have ended.
        found = self._listed()
        numbers = sorted(each for each, names in found.items() if f"commit.{each}" in names)
        older = (each for each in reversed(numbers) if each < number)
        complete = next((each for each in older if self._is_complete(each, found[each])), 0)
        oldest = max(complete, numbers[-_MOST:][0])
        for each in found:
            if each < oldest:
                self._remove(found[each])

    def load(self, store: Store, strict: bool = False) -> int:
        """Load the newest complete commit into a store.

        Newer commits are moved to a separate folder, because their numbers are used again. Log
        messages report the result.

        Args:
            store: the store of this machine.
            strict: whether a damaged commit is an error. An incomplete commit is never an error,
                because the ranks may have ended before all of them had written it.

        Returns:
            The commit's number; 0 if the folder has no complete commit.

        Raises:
            ValueError: a commit is damaged, or another version of tf_hvd has written it. The folder
                is then unchanged.
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
                f"TF_HVD_COMMIT_DIR has a damaged commit: {'; '.join(damaged)}; the folder is "
                "unchanged. Set TF_HVD_COMMIT_DIR_DAMAGED=warn to continue from an older commit"
            )
        for rank, data in enumerate(parts or ()):
            store.put(rank, number, data)
        for text in damaged:
            log.warning("a commit of TF_HVD_COMMIT_DIR is not used: %s", text)
        aside = self._set_aside(number)
        if number:
            log.warning("continuing from commit %d of TF_HVD_COMMIT_DIR", number)
        elif aside:
            log.warning(
                "no commit in TF_HVD_COMMIT_DIR is complete: training restarts from the beginning"
            )
        if aside:
            log.warning("unused commits of TF_HVD_COMMIT_DIR were moved to %s", aside)
        return number

    def clear(self) -> None:
        """Remove all commits, unless another job has started to use the folder."""
        if not self._is_ours():
            return
        self._remove_unfinished()
        for names in self._listed().values():
            self._remove(names)

    def _read(self, number: int, into: int) -> list[bytes] | None:
        """Read a commit's file into the memory `into`; return its parts, None if one is missing."""
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
                    f"TF_HVD_COMMIT_DIR: {name}: {error}; the folder is unchanged. Continue with "
                    "that version, or set another TF_HVD_COMMIT_DIR to start from the beginning"
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
        """Return the names of the files of each commit, by the commit's number."""
        found: dict[int, list[str]] = {}
        for name in os.listdir(self._folder):
            kind, *numbers = name.split(".")
            of_commit = len(numbers) == {"commit": 1, "part": 2}.get(kind)
            if of_commit and all(map(str.isdigit, numbers)) and int(numbers[-1]):
                found.setdefault(int(numbers[-1]), []).append(name)
        return found

    def _set_aside(self, number: int) -> str:
        """Move commits with higher numbers to a new folder; return its path, "" if none moved."""
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
