"""What ends a benchmark."""


class BenchError(RuntimeError):
    """A benchmark cannot go on: a wrong result, a peer that failed, a file that cannot be written.

    Raised on every rank, with the same text.
    """
