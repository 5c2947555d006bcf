"""Reading and writing through tf.io.gfile: whatever paths TensorFlow opens, in small parts.

What is written is complete or not there: it gets its name when it is whole.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf

from tf_hvd.strip.errors import StripError
from tf_hvd.strip.progress import steps

_CHUNK = 1 << 24
_CHECK = "check the path and the disk"
_DENIED = "permission denied; choose a path that you may use"
_NO_UTF_8 = "a name in it is not UTF-8; rename what has it"
_SAID: dict[type[Exception], str] = {
    FileNotFoundError: f"no such file or folder; {_CHECK}",
    PermissionError: _DENIED,
    tf.errors.NotFoundError: "no such file or folder; check the path, and that the folder it is in "
    "exists",
    tf.errors.PermissionDeniedError: _DENIED,
    tf.errors.ResourceExhaustedError: "no space left; free some space or choose another disk",
    tf.errors.AlreadyExistsError: "it exists already; remove it or choose another path",
    UnicodeDecodeError: _NO_UTF_8,
    UnicodeEncodeError: _NO_UTF_8,
}


@contextlib.contextmanager
def doing(words: str) -> Iterator[None]:
    """Turns TensorFlow's errors in the block into one line: "cannot `words`: why; cure"."""
    try:
        yield
    except (tf.errors.OpError, OSError, UnicodeError) as error:  # the last: of names
        text = (getattr(error, "message", None) or str(error)).splitlines()[0]
        said = _SAID.get(type(error), f"{text}; {_CHECK}")
        raise StripError(f"cannot {words}: {said}") from None


def read(path: str, progress: bool = False) -> bytearray:
    """All bytes of a file.

    Raises:
      StripError: it cannot be read.
    """
    with doing(f"read {path}"):
        if tf.io.gfile.isdir(path):
            raise StripError(
                f"{path} is a folder, but not a SavedModel; name a file or a SavedModel"
            )
        size = tf.io.gfile.stat(path).length
        result = bytearray(size)
        with memoryview(result) as view, tf.io.gfile.GFile(path, "rb") as file:
            for at in steps(range(0, size, _CHUNK), "reading", size, progress):
                chunk = file.read(min(_CHUNK, size - at))
                if len(chunk) < min(_CHUNK, size - at):
                    raise StripError(f"cannot read {path}: it ended early; save the graph again")
                view[at : at + len(chunk)] = chunk
    return result


def check_new(path: str) -> None:
    """Raises StripError if there is something at `path`."""
    local = _local_path(path)
    with doing(f"write {path}"):
        # A link that leads nowhere is there too, and a rename does not take its place.
        if tf.io.gfile.exists(path) or (local is not None and os.path.islink(local)):
            raise StripError(f"{path} exists; remove it or choose another path")


def check_own(path: str) -> None:
    """Raises StripError unless `path`, of a model's folder, is a file or folder of its own.

    A link could put another user's file into the output, and a named pipe would block its reader.
    """
    local = _local_path(path)
    if local is None:
        return
    if os.path.islink(local):
        raise StripError(
            f"{path} is a symbolic link to {os.readlink(local)}; put a copy in the link's place if "
            "it is part of the model, or remove it"
        )
    if not os.path.isfile(local) and not os.path.isdir(local):
        raise StripError(f"{path} is not a file; a model holds files and folders only: remove it")


def write(path: str, chunks: Sequence[bytes | bytearray], progress: bool) -> None:
    """Writes a new file beside `path`, then gives it its name.

    Raises:
      StripError: it cannot be written; there is then nothing at `path`.
    """
    beside = _beside(path)
    with _removed_on_failure(beside, tf.io.gfile.remove), doing(f"write {path}"):
        _fill(beside, chunks, progress)
        tf.io.gfile.rename(beside, path)


@contextlib.contextmanager
def new_folder(path: str) -> Iterator[str]:
    """A folder to fill in, which is at `path` after the block; its last file makes it valid.

    On the local disk it is filled beside `path`. Other file systems rename folders file by file,
    or not at all: there it is filled in place.

    Raises:
      StripError: it cannot be made; there is then nothing at `path`.
    """
    local = _local_path(path) is not None
    beside = _beside(path) if local else path
    with _removed_on_failure(beside, tf.io.gfile.rmtree):
        with doing(f"write {path}"):
            (tf.io.gfile.mkdir if local else tf.io.gfile.makedirs)(beside)
        yield beside
        if local:
            with doing(f"write {path}"):
                tf.io.gfile.rename(beside, path)


def fill(path: str, chunks: Sequence[bytes | bytearray], progress: bool) -> None:
    """Writes a file into a folder that `new_folder` made.

    Raises:
      StripError: it cannot be written.
    """
    with doing(f"write {path}"):
        _fill(path, chunks, progress)


def copy(source: str, target: str) -> None:
    """Copies a file into a folder that `new_folder` made, with the folders that it is in.

    Raises:
      StripError: it cannot be copied.
    """
    with doing(f"copy {source} to {target}"):
        tf.io.gfile.makedirs(target.rpartition("/")[0])
        tf.io.gfile.copy(source, target)


def tree(folder: str) -> list[tuple[str, int]]:
    """All files below a model's folder: path from there, and size.

    Raises:
      StripError: the folder cannot be read, or `check_own` refuses something in it.
    """
    result = []
    with doing(f"read {folder}"):
        for at, folders, names in tf.io.gfile.walk(folder):
            for name in (*folders, *names):
                check_own(tf.io.gfile.join(at, name))
            for path in (tf.io.gfile.join(at, name) for name in names):
                inside = path[len(folder) :].lstrip("/")
                result.append((inside, tf.io.gfile.stat(path).length))
    return result


def _local_path(path: str) -> str | None:
    """A path of the local disk as Python takes it; None for other file systems."""
    scheme, separator, rest = path.partition("://")
    if not separator:
        return path
    return "/" + rest.partition("/")[2] if scheme == "file" else None


def _beside(path: str) -> str:
    folder, slash, name = path.rstrip("/").rpartition("/")
    # Not the name with something after it: to ram:// that looks like something inside of it.
    return f"{folder}{slash}.tmp-{os.urandom(8).hex()}-{name}"


def _fill(path: str, chunks: Sequence[bytes | bytearray], progress: bool) -> None:
    with tf.io.gfile.GFile(path, "wb") as file:
        for chunk in steps(chunks, "writing", sum(map(len, chunks)), progress):
            file.write(chunk)


@contextlib.contextmanager
def _removed_on_failure(path: str, remove: Callable[[str], None]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with contextlib.suppress(tf.errors.OpError):
            remove(path)
        raise
