"""Safe access to files in folders that other users or programs can write to.

The path of an expected file may lead to a pipe, which blocks a reader, or to an endless device. It
may also lead to another user's file through a link, or to a file that fills the memory. Functions
that read accept only files, up to a maximum size. Functions that write create a new file under
another name, and rename it when it is complete.

This module uses only the standard library and nothing else from this package. An isolated Python
imports this module when it runs parts of the launcher as files.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from typing import BinaryIO

_PIECE = 1 << 20
_NEVER_EXECUTED = 0x8  # MFD_NOEXEC_SEAL, Linux 6.3
NEW = "new."
"""The prefix of a file's name while the file is being written."""
_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
    stat.S_IFSOCK: "a socket",
    stat.S_IFLNK: "a symbolic link",
}


class FileError(OSError):
    """A path must not be read or replaced, for example because it is a pipe.

    Args:
        path: the path.
        text: the reason, such as "is a pipe, not a file".
    """

    def __init__(self, path: str | os.PathLike[str], text: str) -> None:
        super().__init__(errno.EINVAL, f"it {text}", os.fspath(path))
        self._text = text

    def __str__(self) -> str:
        return f"{self.filename} {self._text}"


def reason(error: OSError) -> str:
    """Return why a file operation failed, after the file's name if it is known."""
    if isinstance(error, FileError):
        return str(error)
    why = error.strerror or str(error)
    return f"{error.filename}: {why}" if error.filename else why


def opened(
    path: str | os.PathLike[str],
    most: int | None = None,
    folder: int | None = None,
    follow: bool = True,
) -> BinaryIO:
    """Open a file for reading, without blocking.

    Args:
        path: path of the file, relative to `folder` if that is given.
        most: maximum size of the file in bytes; None for no limit.
        folder: descriptor of a folder, or None.
        follow: whether the path may be a symbolic link.

    Raises:
        FileError: the path is not a file, or the file is too large.
        OSError: the file cannot be opened.
    """
    # Checked before opening too, because opening a device can have an effect.
    _check_file(path, os.stat(path, dir_fd=folder, follow_symlinks=follow))
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    file = os.fdopen(os.open(path, flags, dir_fd=folder), "rb")
    try:
        about = os.fstat(file.fileno())
        _check_file(path, about)
        if most is not None and about.st_size > most:
            raise _too_large(path, _amount(about.st_size), most)
    except BaseException:
        file.close()
        raise
    return file


def read(path: str | os.PathLike[str], most: int) -> bytes:
    """Return the contents of a file of at most `most` bytes.

    Raises:
        FileError: the path is not a file, or the file is too large.
        OSError: the file cannot be read.
    """
    with opened(path, most) as file:
        return _all_of(path, file, most)


def read_given(path: str | os.PathLike[str], most: int) -> bytes:
    """Return the contents of a file or an unnamed pipe, such as a shell's <(...).

    Raises:
        FileError: the path is neither a file nor an unnamed pipe, or has more than `most` bytes.
        OSError: the file or pipe cannot be read.
    """
    # The path leads to a descriptor of this process, and its parent writes to the pipe.
    if not os.path.basename(os.path.realpath(path)).startswith("pipe:["):
        return read(path, most)
    with open(path, "rb") as file:
        return _all_of(path, file, most)


@contextlib.contextmanager
def writing(
    path: str | os.PathLike[str], mode: int = 0o666, folder: int | None = None, sync: bool = False
) -> Iterator[BinaryIO]:
    """Open a new file in a context that replaces `path` on success and removes the file on failure.

    While it is written, the file is in the same folder, named `new.` followed by its name.

    Args:
        path: path of the file, relative to `folder` if that is given.
        mode: permission bits of the file, before the process's umask is applied.
        folder: descriptor of a folder, or None.
        sync: whether to flush the file to disk before it replaces `path`.

    Raises:
        FileError: the path exists and is not a regular file, for example a link.
        OSError: the file cannot be written.
    """
    where, name = os.path.split(os.fspath(path))
    new = f"{NEW}{name[:50]}.{os.urandom(8).hex()}"
    at = -1
    try:
        check_target(path, folder)
        at = os.open(where or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(new, flags, mode, dir_fd=at), "wb") as file:
            yield file
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.rename(new, name, src_dir_fd=at, dst_dir_fd=at)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(new, dir_fd=at)
        if isinstance(error, OSError) and error.errno and error.filename in (None, new, where, "."):
            raise OSError(error.errno, error.strerror, os.fspath(path)) from error
        raise
    finally:
        if at >= 0:
            os.close(at)


def stream(path: str | os.PathLike[str], adds: bool) -> int:
    """Open a file, under its final name, that others read while it is written.

    Args:
        path: path of the file.
        adds: whether to keep the existing contents and append to them.

    Returns:
        The file's descriptor.

    Raises:
        FileError: the path exists and is not a regular file, for example a link.
        OSError: the file cannot be opened.
    """
    check_target(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    file = os.open(path, flags | (os.O_APPEND if adds else 0), 0o666)
    try:
        _check_file(path, os.fstat(file))
        if not adds:
            os.ftruncate(file, 0)
    except BaseException:
        os.close(file)
        raise
    return file


def memory(name: str) -> int | None:
    """Create an anonymous file in memory, which /proc shows as `name`.

    Programs that this process executes do not inherit the file.

    Returns:
        The file's descriptor; None if the system does not support such files.
    """
    for flags in (_NEVER_EXECUTED, 0):
        # Older kernels do not know the flag, others require it; a Python built for old systems
        # lacks memfd_create.
        with contextlib.suppress(OSError, AttributeError):
            return os.memfd_create(name, flags | os.MFD_CLOEXEC)
    return None


def check_target(path: str | os.PathLike[str], folder: int | None = None) -> None:
    """Raise if `writing` would not replace the path.

    Raises:
        FileError: the path exists and is not a regular file, for example a link.
        OSError: the path cannot be examined.
    """
    with contextlib.suppress(FileNotFoundError):
        _check_file(path, os.stat(path, dir_fd=folder, follow_symlinks=False))


def check_own(file: int, name: str) -> None:
    """Raise unless only this user can write to an open file or folder.

    Raises:
        FileError: other users can write to it, so its contents are not trusted.
    """
    about = os.fstat(file)
    if about.st_uid != os.geteuid() or about.st_mode & 0o022:
        raise FileError(name, "belongs to another user, or other users can write to it")


@contextlib.contextmanager
def own_folder(path: str) -> Iterator[int]:
    """Open a folder that only this user can write to, in a context that yields its descriptor.

    Raises:
        FileError: other users can write to the folder.
        OSError: the path cannot be opened, or is not a folder.
    """
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        check_own(folder, path)
        yield folder
    finally:
        os.close(folder)


def _check_file(path: str | os.PathLike[str], about: os.stat_result) -> None:
    if not stat.S_ISREG(about.st_mode):
        kind = _KINDS.get(stat.S_IFMT(about.st_mode), "something else")
        raise FileError(path, f"is {kind}, not a file")


def _all_of(path: str | os.PathLike[str], file: BinaryIO, most: int) -> bytes:
    pieces, left = [], most + 1  # a file may grow meanwhile, and files in /proc have size 0
    while left and (piece := file.read(min(left, _PIECE))):
        pieces.append(piece)
        left -= len(piece)
    if not left:
        raise _too_large(path, f"more than {_amount(most)}", most)
    return b"".join(pieces)


def _too_large(path: str | os.PathLike[str], size: str, most: int) -> FileError:
    return FileError(path, f"is {size}; at most {_amount(most)} are read")


def _amount(size: int) -> str:
    for unit, name in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size} bytes"
