"""What cannot be stripped, in words for the user."""


class StripError(ValueError):
    """A graph that cannot be stripped as asked; the text is one line and names the cure."""


class DamagedError(StripError):
    """The data is not what it was taken for; the text says only what is wrong with it."""
