"""The one exception that the command line turns into a message and exit code 2."""

from collections.abc import Sequence
from pathlib import Path


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
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise UsageError(f"cannot read {what} {file}: {reason}") from error
