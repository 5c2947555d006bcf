"""Copy the output of `tf_hvd.run`'s ranks to the caller's output or to a notebook cell."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from tf_hvd.launch.job.terminal import Screen
from tf_hvd.launch.machine.lines import UTF_8, Reader


def options() -> list[str]:
    """Return additional `tf_hvd run` options for output that goes to a notebook cell."""
    return ["--tag-output"] if _is_notebook() else []


def start(command: Sequence[str], ranks: int = 0) -> tuple[subprocess.Popen[bytes], Reader]:
    """Start a job without input and in its own session, which Ctrl-C does not reach.

    Args:
        command: the command line that starts the job.
        ranks: number of ranks; 0 if unknown (default).

    Returns:
        The job's process, and the reader that copies the job's output to the current `sys.stdout`
        and `sys.stderr`.
    """
    in_cell, reader = _is_notebook(), Reader()
    pipes: list[int | None] = [None, None]
    streams = ((sys.stdout, sys.__stdout__), (sys.stderr, sys.__stderr__))
    for number, (to, own) in enumerate(streams):
        if to is not own:
            take, tick = _into_cell(to.write, ranks) if in_cell else (_plain(to.write), None)
            pipes[number] = reader.pipe(take, tick)
    job = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=pipes[0],
        stderr=pipes[1],
        start_new_session=True,
    )
    for pipe in pipes:
        if pipe is not None:
            os.close(pipe)
    return job, reader


def _is_notebook() -> bool:
    """Return whether this process's output goes to a cell of Jupyter or of a similar program."""
    # Spyder and other programs derive their own classes from ipykernel's class.
    return any(each.__module__.startswith("ipykernel.") for each in type(sys.stdout).__mro__)


def _plain(write: Callable[[str], Any]) -> Callable[[bytes], bool]:
    decoder = UTF_8("replace")

    def take(piece: bytes) -> bool:
        write(decoder.decode(piece, final=not piece))
        return True

    return take


def _into_cell(
    write: Callable[[str], Any], ranks: int
) -> tuple[Callable[[bytes], bool], Callable[[float], bool]]:
    """Return two functions that show tagged lines in a cell as on a terminal.

    A cell redraws lines that end with a carriage return, as a terminal does.
    """
    screen = Screen(write, banners=True, ranks=ranks, marked=True)
    add = _plain(lambda text: screen.add(None, text, time.monotonic()))

    def take(piece: bytes) -> bool:
        add(piece)
        if not piece:
            screen.finish()
        return True

    return take, screen.tick
