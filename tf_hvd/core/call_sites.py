"""Finds the program line of each collective call, for the flight recorder.

Each eager call looks up its line, which must take well under a microsecond. For an op in a graph,
the line is looked up once, when the function is traced.
"""

import sys
import threading
import types
from typing import Any

from tf_hvd.core import _native, error_text
from tf_hvd.core.tensorflow_hooks import annotate, traceback_of

_ATTRIBUTE = "_tf_hvd_source"  # kSource of kernels/attributes.cc
# Maximum number of known code objects. A program that keeps calling exec may reach it. The lines
# of further code are then unknown.
_MOST = 10_000

# The key is the id of a code object. The value is None if the code is not the program's. Otherwise
# it maps each call's offset in the code to the address of the call's text. The texts are kept,
# because computing a line number requires a walk through the code.
places: dict[int, dict[int, int | None] | None] = {}
# The objects behind those ids and addresses: kept forever, because the native side holds the
# addresses.
_kept: list[types.CodeType | bytes] = []


class _Cell(threading.local):
    """Thread-local cell from which the native library reads the line of the next eager call."""

    def __init__(self) -> None:
        self.pointer = _native.eager_source()
        self.works_for: int | None = None
        """Address of the program line that this thread works for, if the thread is tf_hvd's."""


cell = _Cell()


def note_eager_call(depth: int) -> None:
    """Record where this thread's next eager call is made.

    Args:
        depth: int, the minimum number of frames between this function's and the program's.
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
    """Return the address of the line that called the caller, for `work_for`; None if unknown."""
    note_eager_call(2)
    place: int | None = cell.pointer.value
    cell.pointer.value = None
    return place


def work_for(place: int | None) -> None:
    """Attribute this thread's eager calls to a line from now on; for tf_hvd's own threads."""
    cell.works_for = place


def note_op(results: Any) -> None:
    """Record the current program line in the graph's op that returns these results."""
    op = results[0] if isinstance(results, list | tuple) and results else results
    op = getattr(op, "op", op)
    for file, line in reversed(traceback_of(op)):
        if not error_text.is_library_file(file):
            annotate(op, _ATTRIBUTE, _text(file, line))
            return


def _learn(code: types.CodeType) -> dict[int, int | None] | None:
    is_library = error_text.is_library_file(code.co_filename)
    sites: dict[int, int | None] | None = None if is_library else {}
    if len(_kept) < _MOST:
        _kept.append(code)
        places[id(code)] = sites
    return sites


def _keep(sites: dict[int, int | None], frame: types.FrameType) -> int | None:
    """Store the line of a frame and return its text's address; None if too many are stored."""
    if len(_kept) >= _MOST:
        return None
    text = _text(frame.f_code.co_filename, frame.f_lineno)
    address = _native.address_of(text)
    _kept.append(text)
    sites[frame.f_lasti] = address
    return address


def _text(file: str, line: int) -> bytes:
    return f"{error_text.from_here(file)}:{line}".encode(errors="replace")
