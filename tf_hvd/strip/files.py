"""Reading and writing of any path that tf.io.gfile can open, in small parts.

A written file is either complete or absent, because it gets its name only when it is complete.
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
_NO_UTF_8 = "it contains a name that is not UTF-8; rename that file"
_SAID: dict[type[Exception], str] = {
    FileNotFoundError: f"no such file or folder; {_CHECK}",
    PermissionError: _DENIED,
    tf.errors.NotFoundError: "no such file or folder; check the path, and that its parent folder "
    "exists",
    tf.errors.PermissionDeniedError: _DENIED,
    tf.errors.ResourceExhaustedError: "no space left; free some space or choose another disk",
    tf.errors.AlreadyExistsError: "it already exists; remove it or choose another path",
    UnicodeDecodeError: _NO_UTF_8,
    UnicodeEncodeError: _NO_UTF_8,
}


@contextlib.contextmanager
def doing(words: str) -> Iterator[None]:
    """Provide a context that turns TensorFlow's errors into "cannot `words`: reason; fix"."""
    try:
        yield
    except (tf.errors.OpError, OSError, UnicodeError) as error:  # UnicodeError: from names
        text = (getattr(error, "message", None) or str(error)).splitlines()[0]
        said = _SAID.get(type(error), f"{text}; {_CHECK}")
        raise StripError(f"cannot {words}: {said}") from None


def read(path: str, progress: bool = False) -> bytearray:
    """Return all bytes of a file.

    Raises:
      StripError: the file cannot be read.
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
                    raise StripError(f"cannot read {path}: it is truncated; save the graph again")
                view[at : at + len(chunk)] = chunk
    return result


def check_new(path: str) -> None:
    """Raise StripError if `path` exists."""
    local = _local_path(path)
    with doing(f"write {path}"):
        # Includes a dangling link, which a rename would not replace.
        if tf.io.gfile.exists(path) or (local is not None and os.path.islink(local)):
            raise StripError(f"{path} exists; remove it or choose another path")


def check_own(path: str) -> None:
    """Raise StripError unless `path`, an entry in a model's folder, is a regular file or folder.

    A link could copy another user's file to the output, and reading a named pipe would block.
    """
    local = _local_path(path)
    if local is None:
        return
    if os.path.islink(local):
        raise StripError(
            f"{path} is a symbolic link to {os.readlink(local)}; replace the link with a copy if "
            "it is part of the model, or remove it"
        )
    if not os.path.isfile(local) and not os.path.isdir(local):
        raise StripError(
            f"{path} is not a file; a model contains only files and folders: remove it"
        )


def write(path: str, chunks: Sequence[bytes | bytearray], progress: bool) -> None:
    """Write a new file next to `path`, then rename it.

    Raises:
      StripError: the file cannot be written; `path` then does not exist.
    """
    beside = _beside(path)
    with _removed_on_failure(beside, tf.io.gfile.remove), doing(f"write {path}"):
        _fill(beside, chunks, progress)
        tf.io.gfile.rename(beside, path)


@contextlib.contextmanager
def new_folder(path: str) -> Iterator[str]:
    """Provide a context with a folder to fill. After the block, the folder is at `path`.

    Write the file that makes the folder valid last. On the local disk, the folder is filled next to
    `path` and then renamed. Other file systems rename folders file by file or not at all, so the
    folder is filled in place.

    Raises:
      StripError: the folder cannot be created; `path` then does not exist.
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
    """Write a file into a folder that `new_folder` provides.

    Raises:
      StripError: the file cannot be written.
    """
    with doing(f"write {path}"):
        _fill(path, chunks, progress)


def copy(source: str, target: str) -> None:
    """Copy a file into a folder that `new_folder` provides; create missing parent folders.

    Raises:
      StripError: the file cannot be copied.
    """
    with doing(f"copy {source} to {target}"):
        tf.io.gfile.makedirs(target.rpartition("/")[0])
        tf.io.gfile.copy(source, target)


def tree(folder: str) -> list[tuple[str, int]]:
    """Return the relative path and the size in bytes of each file below a model's folder.

    Raises:
      StripError: the folder cannot be read, or `check_own` refuses an entry.
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
    """Return a path on the local disk in the form that Python accepts; None for other paths."""
    scheme, separator, rest = path.partition("://")
    if not separator:
        return path
    return "/" + rest.partition("/")[2] if scheme == "file" else None


def _beside(path: str) -> str:
    folder, slash, name = path.rstrip("/").rpartition("/")
    # Not as a suffix: ram:// would treat such a name as an entry of the folder `path`.
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
