"""Cuts a folder into pieces that can be sent one by one, and joins them again.

The concatenated pieces are a tar archive compressed with xz: `cat piece-* | xz -dc | tar x` also
unpacks them.
"""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import pathlib
import shutil
import sys
import tarfile
from collections.abc import Iterator
from typing import Any

MANIFEST = "manifest.json"


class PieceError(Exception):
    """A fault of a piece, and how to fix it."""


def cut(
    tree: pathlib.Path, folder: pathlib.Path, limit: int, about: dict[str, Any], preset: int = 6
) -> dict[str, Any]:
    """Write folder/call-NN/, each with one piece and the manifest; the same tree gives equal bytes.

    Each call of the other machine receives one of these folders.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("call-*"):
        shutil.rmtree(old)
    whole = folder / "whole.xz"
    # The first filter is for x86 code, which is most of the data.
    filters = [{"id": lzma.FILTER_X86}, {"id": lzma.FILTER_LZMA2, "preset": preset}]
    with (
        lzma.open(whole, "wb", filters=filters) as file,
        tarfile.open(fileobj=file, mode="w|", format=tarfile.GNU_FORMAT) as archive,
    ):
        for path in sorted(tree.rglob("*")):
            archive.add(path, str(path.relative_to(tree)), recursive=False, filter=_plain)
    rows: list[dict[str, Any]] = []
    manifest = {**about, "pieces": rows}
    with whole.open("rb") as file:
        while part := file.read(limit):
            number = len(rows) + 1
            piece = folder / f"call-{number:02}" / f"piece-{number:02}.xz"
            piece.parent.mkdir()
            piece.write_bytes(part)
            rows.append({"name": piece.name, "bytes": len(part), "sha256": checksum(piece)})
    whole.unlink()
    for call in folder.glob("call-*"):
        (call / MANIFEST).write_text(json.dumps(manifest, indent=1))
    return manifest


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Remove the properties that differ between two preparations."""
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
        raise PieceError(f"{folder} has no {MANIFEST}; copy it with each piece")
    manifest: dict[str, Any] = json.loads(path.read_text())
    return manifest


def find(named: list[pathlib.Path]) -> Iterator[pathlib.Path]:
    """Find the pieces among files and folders."""
    for one in named:
        yield from sorted(one.rglob("piece-*.xz")) if one.is_dir() else [one]


def receive(store: pathlib.Path, piece: pathlib.Path) -> None:
    """Keep a piece if it matches the manifest next to it."""
    manifest = read_manifest(piece.parent)
    store.mkdir(parents=True, exist_ok=True)
    if not (store / MANIFEST).exists():
        shutil.copyfile(piece.parent / MANIFEST, store / MANIFEST)
    elif read_manifest(store) != manifest:
        raise PieceError(f"{store} has pieces of another preparation: remove it, or use --store")
    row = next((row for row in manifest["pieces"] if row["name"] == piece.name), None)
    if row is None:
        raise PieceError(f"{piece.name} does not belong to this preparation")
    if is_there(store, row):
        return
    part = store / f"{piece.name}.part"
    shutil.copyfile(piece, part)
    found = part.stat().st_size
    if found != row["bytes"] or checksum(part) != row["sha256"]:
        part.unlink()
        how = f"{found} bytes instead of {row['bytes']}" if found != row["bytes"] else "its SHA-256"
        raise PieceError(f"{piece.name} is damaged ({how}): send it again")
    part.rename(store / piece.name)


def is_there(store: pathlib.Path, row: dict[str, Any]) -> bool:
    path = store / str(row["name"])
    return path.exists() and path.stat().st_size == int(row["bytes"])


def missing(store: pathlib.Path) -> list[str]:
    """Names of the missing pieces."""
    return [row["name"] for row in read_manifest(store)["pieces"] if not is_there(store, row)]


class _Joined(io.RawIOBase):
    """Concatenated files."""

    def __init__(self, files: list[pathlib.Path]) -> None:
        super().__init__()
        self._left = list(files)
        self._file = io.BytesIO()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not (count := self._file.readinto(buffer)) and self._left:
            self._file = io.BytesIO(self._left.pop(0).read_bytes())
        return count


def unpack(store: pathlib.Path, root: pathlib.Path) -> None:
    """Unpack all pieces after another check of each, since disks also fail."""
    absent = missing(store)
    if absent:
        raise PieceError(f"still missing: {', '.join(absent)}")
    rows = read_manifest(store)["pieces"]
    for row in rows:
        if checksum(store / row["name"]) != row["sha256"]:
            (store / row["name"]).unlink()
            raise PieceError(f"{row['name']} is damaged (its SHA-256): send it again")
    joined = io.BufferedReader(_Joined([store / row["name"] for row in rows]), 1 << 20)
    with lzma.open(joined) as file, tarfile.open(fileobj=file, mode="r|") as archive:
        filtered: Any = {"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}
        archive.extractall(root, **filtered)


def say_what_is_missing(store: pathlib.Path) -> None:
    rows, absent = read_manifest(store)["pieces"], missing(store)
    print(f"received {len(rows) - len(absent)} of {len(rows)} pieces", end="; ")
    print(f"still missing: {', '.join(absent)}" if absent else "nothing is missing: install")
    sys.stdout.flush()
