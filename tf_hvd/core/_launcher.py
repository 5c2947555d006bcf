"""What a rank tells the `tf_hvd run` that started it."""

import contextlib
import os
from collections.abc import Callable

from tf_hvd.core import config


def tell_joined(rank: int) -> None:
    """Lets the launcher know that this rank has joined the job; `init` calls it when it has.

    And in which shared memory it may leave something if it is killed: the launcher clears it. A
    process with `TF_HVD_ALONE=1` joins none, and says that: it is not the rank 0 that it is to
    itself.

    Args:
      rank: of the job, here and below. The launcher is told its own number, if that is known.
    """
    if config.alone():
        return _tell(f"alone.{os.getpid()}")
    number = _launchers(rank)
    _tell(f"joined.{number}", _shared_memory)
    _take_back(f"left.{number}")
    _take_back(f"exits.{number}")


def tell_left(rank: int) -> None:
    """Lets the launcher know that this rank goes on without the job, by its own wish."""
    _tell_of_rank(f"left.{_launchers(rank)}")


def tell_exits(rank: int) -> None:
    """Lets the launcher know that this rank leaves the job because its program ends."""
    _tell_of_rank(f"exits.{_launchers(rank)}")


def tell_asked(rank: int) -> None:
    """Lets the launcher know that this rank ends because it, or another one, was asked to."""
    _tell_of_rank(f"asked.{_launchers(rank)}")


def tell_exception(rank: int | None, text: str, where: str) -> None:
    """Lets the launcher know which exception ends this rank's program.

    Args:
      rank: None before it has joined the job.
      text: the exception.
      where: the place in the program, in one line; may be empty.
    """
    if rank is None and (config.launched_rank() is None or config.is_child_of_rank()):
        return
    _tell_of_rank(f"exception.{_launchers(rank or 0)}", lambda: f"{where}\n{text}")


def tell_called() -> None:
    """Lets the launcher know that this process has called `init`, which may fail."""
    _tell(f"called.{os.getpid()}")


def _launchers(rank: int) -> int:
    launched = config.launched_rank()
    return rank if launched is None else launched


def _tell_of_rank(name: str, text: Callable[[], str] = str) -> None:
    """The same as `_tell`, of who is in the job: a process that is alone is no rank of it."""
    if not config.alone():
        _tell(name, text)


def _tell(name: str, text: Callable[[], str] = str) -> None:
    """Makes a file in the launcher's folder.

    Nothing happens where the folder is not there: on other machines, and under another
    launcher.
    """
    folder = config.launcher_folder()
    if folder:
        with contextlib.suppress(OSError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(
                os.open(os.path.join(folder, name), flags, 0o600), "w", encoding="utf-8"
            ) as file:
                file.write(text())


def _shared_memory() -> str:
    """The names in /dev/shm that this process uses: MPI's, for our own are gone already."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        paths = {line.rstrip("\n").partition("/dev/shm/")[2] for line in maps}
    return "\n".join(path for path in paths if path and not path.endswith(" (deleted)"))


def _take_back(name: str) -> None:
    folder = config.launcher_folder()
    if folder:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(folder, name))
