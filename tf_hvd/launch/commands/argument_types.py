"""Numbers on a command line, as argparse reads them."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def whole(what: str, least: int = 0) -> Callable[[str], int]:
    """Reads whole numbers that are not less; says of another text that it is not `what`."""

    def number(text: str) -> int:
        if not (text.isascii() and text.isdigit() and int(text) >= least):
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
        return int(text)

    return number


rank_count = whole("a positive number of ranks; for example -np 2", 1)


def seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of seconds")
    return found
