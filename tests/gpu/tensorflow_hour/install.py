"""Makes a Python environment from pieces, without a network and without pip."""

from __future__ import annotations

import pathlib
import platform
import shutil
import sys
import venv

import pieces
import wheels

DONE = "complete"


def environment(store: pathlib.Path) -> pathlib.Path:
    return store / "environment"


def python(store: pathlib.Path) -> pathlib.Path:
    return environment(store) / "bin" / "python"


def is_complete(store: pathlib.Path) -> bool:
    done, manifest = environment(store) / DONE, store / pieces.MANIFEST
    return done.exists() and manifest.exists() and done.read_text() == pieces.checksum(manifest)


def why_not_here(manifest: dict[str, object]) -> str:
    """Return why the prepared pieces cannot run on this machine; empty if they can."""
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if here != manifest["python"]:
        return f"this is Python {here}, and the pieces are for {manifest['python']}"
    if platform.machine() != "x86_64":
        return f"this machine is {platform.machine()}, and the pieces are for x86_64"
    return ""


def install(store: pathlib.Path) -> None:
    """Install a complete environment, or none: a partial one is removed."""
    reason = why_not_here(pieces.read_manifest(store))
    if reason:
        raise pieces.PieceError(reason)
    if is_complete(store):
        return
    root = environment(store)
    if root.exists():
        shutil.rmtree(root)
    venv.EnvBuilder(symlinks=True, with_pip=False).create(root)
    pieces.unpack(store, root)
    for script in (root / "bin").iterdir():
        if script.is_file() and not script.is_symlink():
            _name_python(script, python(store))
    (root / DONE).write_text(pieces.checksum(store / pieces.MANIFEST))


def _name_python(script: pathlib.Path, interpreter: pathlib.Path) -> None:
    content = script.read_bytes()
    mark = wheels.MARK.encode()
    if content.startswith(mark):
        rest = content[len(mark) :].partition(b"\n")[2]
        script.write_bytes(f"#!{interpreter}\n".encode() + rest)
