"""The one exception that the command line turns into a message and exit code 2."""


class UsageError(ValueError):
    """What the user asked for cannot be done; the text is one line and names the cure."""
