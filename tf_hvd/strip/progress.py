"""A progress bar for work that takes long enough to wait for."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

# What is smaller is done before anybody looks.
_LONG = 64 << 20


class Bars:
    """Shows steps on standard error, if it is a terminal and the data is large."""

    def __init__(self, wanted: bool, console: Console | None = None) -> None:
        console = console or Console(stderr=True)
        self._columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        self._bars = Progress(*self._columns, console=console, transient=True)
        self._wanted = wanted and console.is_terminal
        self._shown = False

    def step(self, words: str, total: int) -> Callable[[int], None]:
        """Begins a step; returns a function that takes how much of `total` is done."""
        if not self._wanted or total < _LONG:
            return lambda _: None
        if not self._shown:
            self._bars.start()
            self._shown = True
        task = self._bars.add_task(words, total=total)
        return lambda done: self._bars.update(task, completed=done)

    def close(self) -> None:
        if self._shown:
            self._bars.stop()
