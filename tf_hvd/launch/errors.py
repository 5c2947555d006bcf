"""The exceptions that the command line turns into a message and exit code 2."""

import traceback
from collections.abc import Callable, Sequence
from typing import TypeVar

from tf_hvd.core import files

# In bytes: the largest text file, and a reserve for reporting that memory has run out.
_TEXT, _SPARE = 1 << 24, 1 << 22
Read = TypeVar("Read")


class UsageError(ValueError):
    """An invalid or impossible request by the user. The text is one line and includes the fix."""


class HostsError(UsageError):
    """Some hosts cannot run ranks of the job; other hosts may be able to.

    Args:
        wrong: the name of each such host and its fault; a host may appear more than once.
    """

    def __init__(self, wrong: Sequence[tuple[str, str]]) -> None:
        super().__init__("\n".join(why for _, why in wrong))
        self.wrong = wrong


def read_text(file: str, what: str) -> str:
    """Return the text of a file that the user named.

    Args:
        file: the path of the file.
        what: the kind of file, for the error's text.

    Raises:
        UsageError: the file cannot be read or is not text.
    """
    try:
        return files.read_given(file, _TEXT).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "the file is not text"
        raise UsageError(f"cannot read {what} {file}: {reason}") from error


def reading(what: str, read: Callable[[], Read]) -> Read:
    """Call `read`, which reads untrusted files, and return its result.

    Args:
        what: the kind of files, for the error's text.
        read: the function to call.

    Raises:
        UsageError: a file cannot be read, or the files need more memory than is available.
    """
    spare = bytearray(_SPARE)
    try:
        return read()
    except OSError as error:
        raise UsageError(files.reason(error)) from error
    except (MemoryError, RecursionError) as error:
        # The traceback's frames hold the data read so far, which leaves no memory for the message.
        del spare
        traceback.clear_frames(error.__traceback__)
        text = f"not enough memory for {what}: read fewer or smaller files"
        raise UsageError(text) from None
