"""Where the output of `tf_hvd.run`'s ranks goes: to the caller's own, or into a notebook's cell."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from tf_hvd.launch.job.terminal import Screen
from tf_hvd.launch.machine.lines import UTF_8, Reader


def options() -> list[str]:
    """Options of `tf_hvd run` for output that goes to a cell."""
    return ["--tag-output"] if _is_notebook() else []


def start(command: Sequence[str], ranks: int = 0) -> tuple[subprocess.Popen[bytes], Reader]:
    """Starts a job, without input and in a session of its own: an interrupt is not for it.

    Returns its process, and the reader that takes its output to the present `sys.stdout` and
    `sys.stderr`.
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
    """Whether what is printed here goes to a cell: of Jupyter, or of what uses its kernel."""
    # Spyder and others make classes of their own from ipykernel's.
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
    """Takes tagged lines, and shows them as a terminal gets them: a cell redraws lines as well."""
    screen = Screen(write, banners=True, ranks=ranks, marked=True)
    add = _plain(lambda text: screen.add(None, text, time.monotonic()))

    def take(piece: bytes) -> bool:
        add(piece)
        if not piece:
            screen.finish()
        return True

    return take, screen.tick
