"""A progress bar for work that takes noticeable time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import track

# Smaller data is processed without a noticeable delay.
_LONG = 64 << 20
Piece = TypeVar("Piece")


def steps(
    pieces: Sequence[Piece], words: str, size: int, wanted: bool, console: Console | None = None
) -> Iterable[Piece]:
    """Return the pieces; iterating over them shows a progress bar if standard error is a terminal.

    Args:
      pieces: the pieces to process.
      words: the text next to the bar.
      size: total size of the data, in bytes.
      wanted: whether a bar may be shown.
      console: where to show the bar (default: standard error).
    """
    console = console or Console(stderr=True)
    if not (wanted and size >= _LONG and console.is_terminal):
        return pieces
    return track(pieces, words, console=console, transient=True)
