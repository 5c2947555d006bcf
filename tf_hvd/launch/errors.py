"""The one exception that the command line turns into a message and exit code 2."""

import traceback
from collections.abc import Callable, Sequence
from typing import TypeVar

from tf_hvd.core import files

# In bytes: of a text, at most; and what is kept for the end of a command that has no more memory.
_TEXT, _SPARE = 1 << 24, 1 << 22
Read = TypeVar("Read")


class UsageError(ValueError):
    """What the user asked for cannot be done; the text is one line and names the cure."""


class HostsError(UsageError):
    """Some hosts cannot have ranks of the job; others could.

    Args:
        wrong: the names of these hosts, each with what is wrong; one may be there again.
    """

    def __init__(self, wrong: Sequence[tuple[str, str]]) -> None:
        super().__init__("\n".join(why for _, why in wrong))
        self.wrong = wrong


def read_text(file: str, what: str) -> str:
    """The text of a file that the user named, which `what` calls by what it is.

    Raises:
        UsageError: it cannot be read, or is not text.
    """
    try:
        return files.read_given(file, _TEXT).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise UsageError(f"cannot read {what} {file}: {reason}") from error


def reading(what: str, read: Callable[[], Read]) -> Read:
    """What `read` returns, which reads files of which nothing is known.

    Raises:
        UsageError: one cannot be read, or `what` has more in it than there is memory for.
    """
    spare = bytearray(_SPARE)
    try:
        return read()
    except OSError as error:
        raise UsageError(files.reason(error)) from error
    except (MemoryError, RecursionError) as error:
        # What was read so far is in their frames, and leaves no memory to say so.
        del spare
        traceback.clear_frames(error.__traceback__)
        text = f"there is not enough memory for {what}: read fewer of them, or shorter ones"
        raise UsageError(text) from None
