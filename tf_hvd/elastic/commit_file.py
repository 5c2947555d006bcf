"""Reads and writes commits in memory that the ranks on one machine share.

If a rank dies while it writes a file, the file's header marks the commit as incomplete. Commits
alternate between three files, so the last two commits always exist. A file has three sections::

    header   magic, version, number of the commit (0 while it is written); index's offset, size, CRC
    data     arrays, one after the other
    index    pickled description of the contents, with a checksum of each array

CRCs are zlib's crc32. For an array's checksum, the 64-bit words of each 64 KiB block are
added up. The checksum is the CRC of these sums. A CRC of all bytes would take longer than copying
them.
"""

from __future__ import annotations

import mmap
import os
import pickle
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

COPIES = 3
_MAGIC = b"tfhvdcmt"
_VERSION = 2
_HEADER = struct.Struct("<8sIqQQI")
_ALIGNED = 64  # alignment of arrays, and offset of the first one
_BLOCK = 1 << 16


class CommitError(ValueError):
    """A file has no commit, or its commit is incomplete or damaged."""


class VersionError(CommitError):
    """A file was written by another version of tf_hvd."""


@dataclass(frozen=True)
class Entry:
    offset: int
    """Offset in the file, in bytes."""
    size: int
    """Size in bytes."""
    checksum: int


@dataclass(frozen=True)
class Index:
    number: int
    ranks: int
    """Number of ranks in the job that made the commit."""
    arrays: Mapping[str, Entry]


class CommitFile:
    """One of the files for commits, given by a descriptor that the caller owns.

    Only one thread may use it. The file stays mapped, because copying into mapped memory takes half
    as long as writing to the file.
    """

    def __init__(self, file: int) -> None:
        self._file = file
        self._map: mmap.mmap | None = None

    def write(self, number: int, ranks: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Replace the file's contents with commit `number` of a job with `ranks` ranks."""
        offset = _ALIGNED
        data = self._sized(offset + sum(_aligned(array.nbytes) for array in arrays.values()))
        data[: _HEADER.size] = bytes(_HEADER.size)
        entries = {}
        for name, array in arrays.items():
            entries[name] = Entry(offset, array.nbytes, _copy(array, data, offset))
            offset += _aligned(array.nbytes)
        index = pickle.dumps(Index(number, ranks, entries))
        data = self._sized(offset + len(index))
        data[offset : offset + len(index)] = index
        data[: _HEADER.size] = _HEADER.pack(
            _MAGIC, _VERSION, number, offset, len(index), zlib.crc32(index)
        )

    def _sized(self, size: int) -> mmap.mmap:
        if self._map is None or len(self._map) < size:
            if self._map is not None:
                self._map.close()
            # In steps, so that a slightly larger index does not require a new mapping.
            size = -(-size // _BLOCK) * _BLOCK
            os.ftruncate(self._file, max(size, os.fstat(self._file).st_size))
            self._map = mmap.mmap(self._file, 0)
        return self._map


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def _copy(array: np.ndarray, to: mmap.mmap, offset: int) -> int:
    """Copy an array and return its checksum."""
    there = np.frombuffer(to, np.uint8, array.nbytes, offset)
    there[:] = array.reshape(-1).view(np.uint8)
    return _checksum(there)


def _checksum(data: np.ndarray) -> int:
    """Return the CRC of the block sums and of the bytes after the last whole block."""
    whole = data.size // _BLOCK * _BLOCK
    sums = data[:whole].view(np.uint64).reshape(-1, _BLOCK // 8).sum(1, np.uint64)
    return zlib.crc32(data[whole:].tobytes(), zlib.crc32(sums.tobytes()))


def _header(file: int) -> tuple[int, ...]:
    """Return the version, number, and the index's offset, size and CRC; all 0 without a header."""
    header = os.pread(file, _HEADER.size, 0)
    if len(header) == _HEADER.size and header.startswith(_MAGIC):
        return _HEADER.unpack(header)[1:]
    return 0, 0, 0, 0, 0


def number_of(file: int) -> int:
    """Return the number of the commit in a file; 0 if the file has no complete commit."""
    version, number, *_ = _header(file)
    return number if version == _VERSION else 0


def read_index(file: int) -> Index:
    """Return the index of a commit.

    Raises:
        VersionError: another version of tf_hvd has written the commit.
        CommitError: the commit is incomplete or damaged.
    """
    version, number, offset, length, crc = _header(file)
    if version not in (0, _VERSION):
        raise VersionError(f"another version of tf_hvd has written it (format {version})")
    size = os.fstat(file).st_size
    text = os.pread(file, min(length, size), min(offset, size)) if number else b""
    if not number or zlib.crc32(text) != crc:
        raise CommitError("the commit is not complete")
    index: Index = pickle.loads(text)
    if index.number != number:
        raise CommitError("the commit is damaged")
    return index


def read(file: int) -> tuple[Index, dict[str, np.ndarray]]:
    """Return the index of a commit and the bytes of its arrays; raises like `read_index`."""
    index = read_index(file)
    return index, {name: _read_array(file, name, entry) for name, entry in index.arrays.items()}


def _read_array(file: int, name: str, entry: Entry) -> np.ndarray:
    data = np.empty(entry.size, np.uint8)
    view = memoryview(data)  # type: ignore[arg-type]
    got = 0
    while got < entry.size:  # a call reads at most 2 GiB
        more = os.preadv(file, [view[got:]], entry.offset + got)
        if not more:
            break
        got += more
    if got != entry.size or _checksum(data) != entry.checksum:
        raise CommitError(f"{name} is damaged")
    return data
