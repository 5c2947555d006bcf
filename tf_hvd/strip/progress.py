"""A progress bar for work that takes long enough to wait for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import track

# What is smaller is done before anybody looks.
_LONG = 64 << 20
Piece = TypeVar("Piece")


def steps(
    pieces: Sequence[Piece], words: str, size: int, wanted: bool, console: Console | None = None
) -> Iterable[Piece]:
    """The pieces, `size` bytes in all; with a bar on standard error, if that is a terminal."""
    console = console or Console(stderr=True)
    if not (wanted and size >= _LONG and console.is_terminal):
        return pieces
    return track(pieces, words, console=console, transient=True)
