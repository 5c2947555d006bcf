"""What a rank tells the `tf_hvd run` that started it."""

import contextlib
import os

from tf_hvd import config


def tell_joined(rank: int) -> None:
    """Lets the launcher know that this rank has joined the job; `init` calls it when it has."""
    _tell(f"joined.{rank}")
    _take_back(f"left.{rank}")


def tell_left(rank: int) -> None:
    """Lets the launcher know that this rank goes on without the job, by its own wish."""
    _tell(f"left.{rank}")


def tell_called() -> None:
    """Lets the launcher know that this process has called `init`, which may fail."""
    _tell(f"called.{os.getpid()}")


def _tell(name: str) -> None:
    """Makes a file in the launcher's folder, of which the name alone tells.

    Nothing happens where the folder is not there: on other machines, and under another
    launcher.
    """
    folder = config.launcher_folder()
    if folder:
        with contextlib.suppress(OSError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            os.close(os.open(os.path.join(folder, name), flags, 0o600))


def _take_back(name: str) -> None:
    folder = config.launcher_folder()
    if folder:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(folder, name))
