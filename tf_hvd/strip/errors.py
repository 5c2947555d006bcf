"""Errors raised by stripping, with texts for the user."""

from tf_hvd.core.printable import printable


class StripError(ValueError):
    """A graph cannot be stripped as requested; the text is one line and includes the fix."""

    def __init__(self, text: str) -> None:
        super().__init__(printable(text))


class DamagedError(StripError):
    """The data is damaged or of the wrong kind. The text describes only the problem, not a fix."""
