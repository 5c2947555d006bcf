"""The form of a commit in memory that ranks of one machine share; pure.

A rank that dies while it writes leaves a file that says of itself that it is not complete. Three
files are written in turns, so that the last two commits are always there:

    header   magic, version, number of the commit (0: it is being written), length and CRC of
             the index
    index    pickled: what is in it
    data     arrays, one behind the other, each with a checksum in the index

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
from dataclasses import dataclass, field
from typing import Any

import numpy as np

COPIES = 3
"""Files that are written in turns."""
_MAGIC = b"tfhvdcmt"
_VERSION = 1
_HEADER = struct.Struct("<8sIqQI")
_START = 64  # of the index
_ALIGNED = 64
_BLOCK = 1 << 16


class CommitError(ValueError):
    """It is no commit, not a complete one, or damaged."""


@dataclass(frozen=True)
class Entry:
    dtype: str
    """TensorFlow's name of the type of the variable."""
    shape: tuple[int, ...]
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
    objects: bytes
    """Pickled, of the program's own: equal on all ranks."""
    arrays: dict[str, Entry] = field(default_factory=dict)


class CommitFile:
    """One of the files. One thread.

    Args:
        file: its descriptor; stays the caller's.
    """

    def __init__(self, file: int) -> None:
        self._file = file
        self._map: mmap.mmap | None = None

    def write(
        self, number: int, ranks: int, objects: bytes, arrays: Mapping[str, tuple[str, Any]]
    ) -> None:
        """Writes a commit in the place of the one that is there.

        Args:
            number: of the commit, from 1.
            ranks: how many the job has.
            objects: pickled.
            arrays: by name, TensorFlow's name of the dtype and the array.
        """
        offset = self._room_of_index(objects, arrays)
        data = self._sized(offset + sum(_aligned(array.nbytes) for _, array in arrays.values()))
        data[: _HEADER.size] = bytes(_HEADER.size)
        entries = {}
        for name, (dtype, array) in arrays.items():
            checksum = _copy(array, data, offset)
            entries[name] = Entry(dtype, array.shape, offset, array.nbytes, checksum)
            offset += _aligned(array.nbytes)
        index = pickle.dumps(Index(number, ranks, objects, entries))
        data[_START : _START + len(index)] = index
        data[: _HEADER.size] = _HEADER.pack(_MAGIC, _VERSION, number, len(index), zlib.crc32(index))

    def _room_of_index(self, objects: bytes, arrays: Mapping[str, tuple[str, Any]]) -> int:
        names = sum(
            len(name.encode()) + 32 * len(array.shape) for name, (_, array) in arrays.items()
        )
        room = _START + len(objects) + names + 256 * len(arrays) + 4096
        # In steps, so that the file is not mapped again with each object that grows.
        return -(-room // (1 << 16)) * (1 << 16)

    def _sized(self, size: int) -> mmap.mmap:
        if self._map is None or len(self._map) < size:
            if self._map is not None:
                self._map.close()
            os.ftruncate(self._file, max(size, os.fstat(self._file).st_size))
            self._map = mmap.mmap(self._file, 0)
        return self._map


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def _copy(array: Any, to: mmap.mmap, offset: int) -> int:
    """Copies an array; returns its checksum."""
    there = np.frombuffer(to, np.uint8, array.nbytes, offset)
    there[:] = np.frombuffer(memoryview(array).cast("B"), np.uint8) if array.nbytes else there
    return checksum_of(there)


def checksum_of(data: np.ndarray) -> int:
    """Of bytes: of each 64 KiB the sum as 64-bit words, and of these and the rest the CRC."""
    whole = data.size // _BLOCK * _BLOCK
    sums = data[:whole].view(np.uint64).reshape(-1, _BLOCK // 8).sum(1, np.uint64)
    return zlib.crc32(data[whole:].tobytes(), zlib.crc32(sums.tobytes()))


def number_of(file: int) -> int:
    """The number of the commit in a file; 0 if there is none that is complete."""
    header = os.pread(file, _HEADER.size, 0)
    if len(header) < _HEADER.size:
        return 0
    magic, version, number, _, _ = _HEADER.unpack(header)
    return int(number) if magic == _MAGIC and version == _VERSION else 0


def read_index(file: int) -> Index:
    """What is in a file.

    Raises:
        CommitError: it is not complete, or damaged.
    """
    number = number_of(file)
    length, crc = _HEADER.unpack(os.pread(file, _HEADER.size, 0))[3:] if number else (0, 0)
    length = min(length, os.fstat(file).st_size)
    text = os.pread(file, length, _START) if number else b""
    if not number or zlib.crc32(text) != crc:
        raise CommitError("the commit is not complete")
    index: Index = pickle.loads(text)
    if index.number != number:
        raise CommitError("the commit is damaged")
    return index


def read_array(file: int, name: str, entry: Entry) -> np.ndarray:
    """An array's bytes.

    Raises:
        CommitError: they are damaged.
    """
    data = np.empty(entry.size, np.uint8)
    view = memoryview(data)  # type: ignore[arg-type]
    got = 0
    while got < entry.size:  # a call reads 2 GiB at most
        more = os.preadv(file, [view[got:]], entry.offset + got)
        if not more:
            break
        got += more
    if got != entry.size or checksum_of(data) != entry.checksum:
        raise CommitError(f"{name} is damaged")
    return data
