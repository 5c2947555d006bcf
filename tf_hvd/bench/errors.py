"""The error that ends a benchmark."""


class BenchError(RuntimeError):
    """The error that ends a benchmark: a wrong result, a failed peer or an unwritable file.

    It is raised on every rank with the same text.
    """
