"""Finds the line that the main thread is executing, to report it to ranks that wait for this rank.

The native library sends the main thread a signal, and faulthandler's handler writes the thread's
frames into memory. This also works while the thread runs no Python code, holds the interpreter's
lock, or is blocked in a system call. The kernel (SA_RESTART) or Python (PEP 475) restarts
interrupted system calls. Only `signal.pause()` returns early.
"""

import faulthandler
import functools
import signal
from typing import NamedTuple

from tf_hvd.core import contract, files

_STATUS = "/proc/self/status"
_STATUS_BYTES = 1 << 16


class Frames(NamedTuple):
    """The signal that queries the main thread, 0 if unavailable, and the file with its answer."""

    signal: int
    file: int


@functools.cache
def watched() -> Frames:
    """Install the signal handler at the first call; it stays until the process ends."""
    number, file = _free_signal(), files.memory(contract.FRAMES)
    if number is None or file is None:
        return Frames(0, -1)
    try:
        # Not chained: calling a previous handler would lose SA_RESTART.
        faulthandler.register(number, file=file, all_threads=False, chain=False)
    except (OSError, RuntimeError, ValueError):
        return Frames(0, -1)
    return Frames(number, file)


def _free_signal() -> int | None:
    """Return a real-time signal that nothing handles, preferring high numbers, which are rare."""
    taken = _taken_signals()
    for number in range(signal.SIGRTMAX - 1, signal.SIGRTMIN, -1):
        if not taken >> (number - 1) & 1:
            return number
    return None


def _taken_signals() -> int:
    """Return a mask with bit N - 1 set if signal N is blocked, ignored or handled.

    All bits are set if the signals are unknown.
    """
    taken = 0
    try:
        for line in files.read(_STATUS, _STATUS_BYTES).decode(errors="replace").splitlines():
            if line.startswith(("SigBlk:", "SigIgn:", "SigCgt:")):
                taken |= int(line.split()[1], 16)
    except (OSError, ValueError, IndexError):
        return -1
    return taken
