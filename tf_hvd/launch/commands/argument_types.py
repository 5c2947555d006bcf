"""Argument types for argparse: numbers of ranks, seconds and other units."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def whole(what: str, least: int = 0) -> Callable[[str], int]:
    """Return an argparse type for whole numbers of at least `least`.

    Args:
        what: the expected value, for the error "X is not ...".
        least: the smallest valid number.
    """

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
