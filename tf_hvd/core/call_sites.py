"""The line of the program that makes a collective call: for the flight recorder.

Of an eager call it is looked up at each call, so that this has to cost well under a microsecond; of
an op in a graph once, when the function is traced.
"""

import sys
import threading
import types
from typing import Any

from tf_hvd.core import _native, error_text
from tf_hvd.core.tensorflow_hooks import annotate, traceback_of

_ATTRIBUTE = "_tf_hvd_source"  # kSource of kernels/attributes.cc
# A program that makes code all the time, as by exec, has no more of it known.
_MOST = 10_000

# Of each code by its id: None if it is not the program's own, or else where the text lies of each
# of its calls, by the call's place in the code. A line's number takes a walk through the code.
places: dict[int, dict[int, int | None] | None] = {}
# What those ids and addresses are of: never let go of, since the native side is given where they
# lie.
_kept: list[types.CodeType | bytes] = []


class _Cell(threading.local):
    """Where the native side looks for the line of this thread's next eager call."""

    def __init__(self) -> None:
        self.pointer = _native.eager_source()
        self.works_for: int | None = None
        """Where the program is that this thread calls for, if it is none of the program's."""


cell = _Cell()


def note_eager_call(depth: int) -> None:
    """Says where the eager call is made that follows on this thread.

    Args:
        depth: how many frames are at least between this one and the program's.
    """
    frame: types.FrameType | None = sys._getframe(depth)
    while frame is not None:
        code = frame.f_code
        try:
            sites = places[id(code)]
        except KeyError:
            sites = _learn(code)
        if sites is not None:
            place = frame.f_lasti
            cell.pointer.value = sites[place] if place in sites else _keep(sites, frame)
            return
        frame = frame.f_back
    cell.pointer.value = cell.works_for


def place_of_call() -> int | None:
    """Where the program is that has called the caller, for `work_for`; None if not known."""
    note_eager_call(2)
    place: int | None = cell.pointer.value
    cell.pointer.value = None
    return place


def work_for(place: int | None) -> None:
    """From now on eager calls of this thread, one of ours, count as made there."""
    cell.works_for = place


def note_op(results: Any) -> None:
    """Writes into the graph's op with these results where the program makes it."""
    op = results[0] if isinstance(results, list | tuple) and results else results
    op = getattr(op, "op", op)
    for file, line in reversed(traceback_of(op)):
        if not error_text.is_others(file):
            annotate(op, _ATTRIBUTE, _text(file, line))
            return


def _learn(code: types.CodeType) -> dict[int, int | None] | None:
    sites: dict[int, int | None] | None = None if error_text.is_others(code.co_filename) else {}
    if len(_kept) < _MOST:
        _kept.append(code)
        places[id(code)] = sites
    return sites


def _keep(sites: dict[int, int | None], frame: types.FrameType) -> int | None:
    """Where the text lies; None if there are too many."""
    if len(_kept) >= _MOST:
        return None
    text = _text(frame.f_code.co_filename, frame.f_lineno)
    address = _native.address_of(text)
    _kept.append(text)
    sites[frame.f_lasti] = address
    return address


def _text(file: str, line: int) -> bytes:
    return f"{error_text.from_here(file)}:{line}".encode(errors="replace")
