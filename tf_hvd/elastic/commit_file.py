"""The form of a commit in memory that ranks of one machine share; pure.

A rank that dies while it writes leaves a file that says of itself that it is not complete. Three
files are written in turns, so that the last two commits are always there:

    header   magic, version, number of the commit (0: it is being written), and where the index is,
             its length and CRC
    data     arrays, one behind the other
    index    pickled: what is in it, with a checksum of each array

CRCs are zlib's crc32. Of arrays it is that of the sums of their 64 KiB blocks, as 64-bit words: to
read all bytes for a CRC takes longer than to copy them.
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
_ALIGNED = 64  # arrays, the first behind the header
_BLOCK = 1 << 16


class CommitError(ValueError):
    """It is no commit, not a complete one, or damaged."""


class VersionError(CommitError):
    """Another version of tf_hvd has written it."""


@dataclass(frozen=True)
class Entry:
    offset: int
    """From the beginning of the file."""
    size: int
    """Bytes."""
    checksum: int


@dataclass(frozen=True)
class Index:
    number: int
    ranks: int
    """Of the job that made it."""
    arrays: Mapping[str, Entry]


class CommitFile:
    """One of the files, by its descriptor, which stays the caller's. One thread.

    It stays mapped: copying into memory that is mapped takes half as long as writing to the file.
    """

    def __init__(self, file: int) -> None:
        self._file = file
        self._map: mmap.mmap | None = None

    def write(self, number: int, ranks: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Writes a commit, of a job of so many ranks, in the place of the one that is there."""
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
            # In steps, so that the file is not mapped again with each index that grows.
            size = -(-size // _BLOCK) * _BLOCK
            os.ftruncate(self._file, max(size, os.fstat(self._file).st_size))
            self._map = mmap.mmap(self._file, 0)
        return self._map


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def _copy(array: np.ndarray, to: mmap.mmap, offset: int) -> int:
    """Copies an array; returns its checksum."""
    there = np.frombuffer(to, np.uint8, array.nbytes, offset)
    there[:] = array.reshape(-1).view(np.uint8)
    return _checksum(there)


def _checksum(data: np.ndarray) -> int:
    """Of bytes: of each 64 KiB the sum as 64-bit words, and of these and the rest the CRC."""
    whole = data.size // _BLOCK * _BLOCK
    sums = data[:whole].view(np.uint64).reshape(-1, _BLOCK // 8).sum(1, np.uint64)
    return zlib.crc32(data[whole:].tobytes(), zlib.crc32(sums.tobytes()))


def _header(file: int) -> tuple[int, ...]:
    """The version and number of a commit, and its index's place, length and CRC; 0: none."""
    header = os.pread(file, _HEADER.size, 0)
    if len(header) == _HEADER.size and header.startswith(_MAGIC):
        return _HEADER.unpack(header)[1:]
    return 0, 0, 0, 0, 0


def number_of(file: int) -> int:
    """The number of the commit in a file; 0 if there is none that is complete."""
    version, number, *_ = _header(file)
    return number if version == _VERSION else 0


def read_index(file: int) -> Index:
    """What is in a file; CommitError if it is not complete, damaged, or of another version."""
    version, number, offset, length, crc = _header(file)
    if version not in (0, _VERSION):
        raise VersionError(f"it has format {version}, of another version of tf_hvd")
    size = os.fstat(file).st_size
    text = os.pread(file, min(length, size), min(offset, size)) if number else b""
    if not number or zlib.crc32(text) != crc:
        raise CommitError("the commit is not complete")
    index: Index = pickle.loads(text)
    if index.number != number:
        raise CommitError("the commit is damaged")
    return index


def read(file: int) -> tuple[Index, dict[str, np.ndarray]]:
    """The same, with the bytes of the arrays."""
    index = read_index(file)
    return index, {name: _read_array(file, name, entry) for name, entry in index.arrays.items()}


def _read_array(file: int, name: str, entry: Entry) -> np.ndarray:
    data = np.empty(entry.size, np.uint8)
    view = memoryview(data)  # type: ignore[arg-type]
    got = 0
    while got < entry.size:  # a call reads 2 GiB at most
        more = os.preadv(file, [view[got:]], entry.offset + got)
        if not more:
            break
        got += more
    if got != entry.size or _checksum(data) != entry.checksum:
        raise CommitError(f"{name} is damaged")
    return data
