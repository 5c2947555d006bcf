"""A folder in pieces that can be brought one by one, and back.

The pieces, one behind the other, are a tar archive compressed as xz: `cat piece-* | xz -dc | tar x`
unpacks them too. They consist of blocks that several cores pack and unpack.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import io
import json
import lzma
import os
import pathlib
import shutil
import sys
import tarfile
from collections.abc import Iterator
from typing import Any

MANIFEST = "manifest.json"
BLOCK = 16 << 20
AHEAD = 3  # blocks for each core that wait for their turn


class PieceError(Exception):
    """What is wrong with a piece, and what to do."""


def compress(block: bytes, preset: int) -> bytes:
    # The first filter is for x86 code, of which most of it consists.
    filters = [{"id": lzma.FILTER_X86}, {"id": lzma.FILTER_LZMA2, "preset": preset}]
    return lzma.compress(block, lzma.FORMAT_XZ, lzma.CHECK_CRC64, filters=filters)


class _Blocks(io.RawIOBase):
    """What tarfile writes to: cuts it into blocks, which processes compress, in order."""

    def __init__(self, pieces: _Pieces, block: int, preset: int) -> None:
        super().__init__()
        self._pieces, self._block, self._preset = pieces, block, preset
        self._buffer = bytearray()
        self._pool = concurrent.futures.ProcessPoolExecutor()
        self._waiting: list[concurrent.futures.Future[bytes]] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._buffer += data
        while len(self._buffer) >= self._block:
            self._submit(bytes(self._buffer[: self._block]))
            del self._buffer[: self._block]
        return len(data)

    def _submit(self, block: bytes) -> None:
        self._waiting.append(self._pool.submit(compress, block, self._preset))
        while len(self._waiting) > AHEAD * (os.cpu_count() or 1):
            self._pieces.add(self._waiting.pop(0).result())

    def finish(self) -> None:
        if self._buffer:
            self._submit(bytes(self._buffer))
        for one in self._waiting:
            self._pieces.add(one.result())
        self._pool.shutdown()


class _Pieces:
    """Puts compressed blocks into files of at most `limit` bytes."""

    def __init__(self, folder: pathlib.Path, limit: int) -> None:
        self._folder, self._limit = folder, limit
        self.rows: list[dict[str, Any]] = []

    def add(self, block: bytes) -> None:
        if len(block) > self._limit:
            raise SystemExit(f"a block of {len(block)} bytes does not fit a piece")
        if not self.rows or self.rows[-1]["bytes"] + len(block) > self._limit:
            name = f"piece-{len(self.rows) + 1:02}.xz"
            self.rows.append({"name": name, "bytes": 0, "blocks": []})
        row = self.rows[-1]
        with (self._folder / row["name"]).open("ab") as file:
            file.write(block)
        row["bytes"] += len(block)
        row["blocks"].append(len(block))


def cut(
    tree: pathlib.Path, folder: pathlib.Path, limit: int, about: dict[str, Any],
    block: int = BLOCK, preset: int = 6,
) -> dict[str, Any]:  # fmt: skip
    """Writes folder/call-NN/, each with one piece and the manifest; the same tree, the same bytes.

    A folder for each call of the other machine: that is what one call brings.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in [*folder.glob("call-*"), *folder.glob("piece-*")]:
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    pieces = _Pieces(folder, limit)
    # What cannot be compressed still fits, and leaves little of a piece empty.
    blocks = _Blocks(pieces, min(block, limit // 3), preset)
    with tarfile.open(fileobj=blocks, mode="w|", format=tarfile.GNU_FORMAT) as archive:
        for path in sorted(tree.rglob("*")):
            archive.add(path, str(path.relative_to(tree)), recursive=False, filter=_plain)
    blocks.finish()
    for row in pieces.rows:
        row["sha256"] = checksum(folder / row["name"])
    manifest = {**about, "pieces": pieces.rows}
    for number, row in enumerate(pieces.rows, start=1):
        call = folder / f"call-{number:02}"
        call.mkdir()
        (folder / row["name"]).rename(call / row["name"])
        (call / MANIFEST).write_text(json.dumps(manifest, indent=1))
    return manifest


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without what differs between two preparations."""
    entry.mtime = entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def checksum(path: pathlib.Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()


def read_manifest(folder: pathlib.Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not path.exists():
        raise PieceError(f"there is no {MANIFEST} in {folder}: it travels with each piece")
    manifest: dict[str, Any] = json.loads(path.read_text())
    return manifest


def find(named: list[pathlib.Path]) -> Iterator[pathlib.Path]:
    """The pieces among files and folders."""
    for one in named:
        yield from sorted(one.rglob("piece-*.xz")) if one.is_dir() else [one]


def receive(store: pathlib.Path, piece: pathlib.Path) -> None:
    """Keeps a piece if it is what the manifest beside it says."""
    manifest = read_manifest(piece.parent)
    store.mkdir(parents=True, exist_ok=True)
    if not (store / MANIFEST).exists():
        shutil.copyfile(piece.parent / MANIFEST, store / MANIFEST)
    elif read_manifest(store) != manifest:
        raise PieceError(f"{store} has pieces of another preparation: remove it, or use --store")
    row = next((row for row in manifest["pieces"] if row["name"] == piece.name), None)
    if row is None:
        raise PieceError(f"{piece.name} is no piece of this preparation")
    if is_there(store, row):
        return
    part = store / f"{piece.name}.part"
    shutil.copyfile(piece, part)
    found = part.stat().st_size
    if found != row["bytes"] or checksum(part) != row["sha256"]:
        part.unlink()
        how = f"{found} bytes instead of {row['bytes']}" if found != row["bytes"] else "its SHA-256"
        raise PieceError(f"{piece.name} is damaged ({how}): bring it again")
    part.rename(store / piece.name)


def is_there(store: pathlib.Path, row: dict[str, Any]) -> bool:
    path = store / str(row["name"])
    return path.exists() and path.stat().st_size == int(row["bytes"])


def missing(store: pathlib.Path) -> list[str]:
    """Names of the pieces that are still to come."""
    return [row["name"] for row in read_manifest(store)["pieces"] if not is_there(store, row)]


class _Joined(io.RawIOBase):
    """The archive that the pieces are, as tarfile reads it."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        super().__init__()
        self._blocks, self._rest = blocks, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._rest:
            self._rest = memoryview(next(self._blocks, b""))
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


def unpack(store: pathlib.Path, root: pathlib.Path) -> None:
    """Unpacks what all pieces hold; each is looked at once more, since disks fail too."""
    absent = missing(store)
    if absent:
        raise PieceError(f"still missing: {', '.join(absent)}")
    rows = read_manifest(store)["pieces"]
    with concurrent.futures.ThreadPoolExecutor() as pool:  # lzma and hashlib leave the lock
        sums = pool.map(lambda row: checksum(store / row["name"]), rows)
        for row, sum_ in zip(rows, sums, strict=True):
            if sum_ != row["sha256"]:
                (store / row["name"]).unlink()
                raise PieceError(f"{row['name']} is damaged (its SHA-256): bring it again")
        joined = io.BufferedReader(_Joined(_in_order(pool, _packed(store, rows))), 1 << 20)
        with tarfile.open(fileobj=joined, mode="r|") as archive:
            filtered: Any = {"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}
            archive.extractall(root, **filtered)


def _packed(store: pathlib.Path, rows: list[dict[str, Any]]) -> Iterator[bytes]:
    for row in rows:
        with (store / row["name"]).open("rb") as file:
            for size in row["blocks"]:
                yield file.read(size)


def _in_order(
    pool: concurrent.futures.ThreadPoolExecutor, packed: Iterator[bytes]
) -> Iterator[bytes]:
    waiting: list[concurrent.futures.Future[bytes]] = []
    for one in packed:
        waiting.append(pool.submit(lzma.decompress, one))
        if len(waiting) > 2 * (os.cpu_count() or 1):
            yield waiting.pop(0).result()
    for last in waiting:
        yield last.result()


def say_what_is_missing(store: pathlib.Path) -> None:
    rows, absent = read_manifest(store)["pieces"], missing(store)
    print(f"received {len(rows) - len(absent)} of {len(rows)} pieces", end="; ")
    print(f"still missing: {', '.join(absent)}" if absent else "nothing is missing: install")
    sys.stdout.flush()
