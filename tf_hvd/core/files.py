"""The one way to files that others may have put there, or may have put something in the place of.

Where a file is expected there may be a pipe, which blocks whoever opens it, a device without an
end, a link to somebody else's file, or a file that takes all memory. Readers refuse what is not a
file, and what is too large. Writers make a new file under a name that nobody can guess, and give it
its own name when it is whole.

The standard library alone, and none of this package: an isolated Python that runs a file imports
it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from typing import BinaryIO

_PIECE = 1 << 20
NEW = "new."
"""What the name of a file begins with while it is written."""
_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
    stat.S_IFSOCK: "a socket",
    stat.S_IFLNK: "a symbolic link",
}


class FileError(OSError):
    """A path names something that is not read, or not replaced.

    Args:
        path: it.
        text: as "is a pipe, not a file".
    """

    def __init__(self, path: str | os.PathLike[str], text: str) -> None:
        super().__init__(errno.EINVAL, f"it {text}", os.fspath(path))
        self._text = text

    def __str__(self) -> str:
        return f"{self.filename} {self._text}"


def reason(error: OSError) -> str:
    """What went wrong with a file, beginning with its name if that is known."""
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
    """A file to read from. Opening it waits for nobody.

    Args:
        path: from `folder`, a descriptor, if that is given.
        most: the bytes that a file may have; None: any number.
        folder: see above.
        follow: whether the path may be a symbolic link.

    Raises:
        FileError: it is not a file, or too large.
        OSError: it cannot be opened.
    """
    # Before it is opened as well: opening a device may do something.
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
    """The bytes of a file, which has so many at most.

    Raises:
        FileError: it is not a file, or too large.
        OSError: it cannot be read.
    """
    with opened(path, most) as file:
        return _all_of(path, file, most)


def read_given(path: str | os.PathLike[str], most: int) -> bytes:
    """The same; the path may also be a pipe without a name, which a shell's <(...) is.

    Raises:
        FileError: it is something else, or too large.
        OSError: it cannot be read.
    """
    # A descriptor of this process leads there, and whoever gave it that writes to the pipe.
    if not os.path.basename(os.path.realpath(path)).startswith("pipe:["):
        return read(path, most)
    with open(path, "rb") as file:
        return _all_of(path, file, most)


@contextlib.contextmanager
def writing(
    path: str | os.PathLike[str], mode: int = 0o666, folder: int | None = None, sync: bool = False
) -> Iterator[BinaryIO]:
    """A context: a new file, which takes the place of `path` at its end, or is gone if it fails.

    Until then it has a name in the same folder that begins with `new.` and the file's own.

    Args:
        path: from `folder`, a descriptor, if that is given.
        mode: of the file, less the process's umask.
        folder: see above.
        sync: whether the file is on the disk before it takes its place.

    Raises:
        FileError: something that is not a file has this name; a link has it as well.
        OSError: it cannot be written.
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
    """A descriptor of a file that is written to while others read it: it has its name at once.

    With `adds`, what is in the file stays.

    Raises:
        FileError: something that is not a file has this name; a link has it as well.
        OSError: it cannot be opened.
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


def check_target(path: str | os.PathLike[str], folder: int | None = None) -> None:
    """Refuses a path that `writing` would not replace.

    Raises:
        FileError: something that is not a file has this name; a link has it as well.
        OSError: nothing can be seen there.
    """
    with contextlib.suppress(FileNotFoundError):
        _check_file(path, os.stat(path, dir_fd=folder, follow_symlinks=False))


def check_own(file: int, name: str) -> None:
    """Checks that only this user can write to a file or folder that is open.

    Raises:
        FileError: others can, and may have put something of theirs there.
    """
    about = os.fstat(file)
    if about.st_uid != os.geteuid() or about.st_mode & 0o022:
        raise FileError(name, "is another user's, or others can write to it")


@contextlib.contextmanager
def own_folder(path: str) -> Iterator[int]:
    """A context: the descriptor of a folder that only this user can write to.

    Raises:
        FileError: others can.
        OSError: it cannot be opened, or is none.
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
    pieces, left = [], most + 1  # it may grow meanwhile, and those in /proc have no size
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
