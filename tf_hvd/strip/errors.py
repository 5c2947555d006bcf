"""What cannot be stripped, in words for the user."""

from tf_hvd.core.printable import printable


class StripError(ValueError):
    """A graph that cannot be stripped as asked; the text is one line and names the cure."""

    def __init__(self, text: str) -> None:
        super().__init__(printable(text))


class DamagedError(StripError):
    """The data is not what it was taken for; the text says only what is wrong with it."""
