"""The signals that `tf_hvd run` gets between two starts of an elastic job.

While one runs, supervise.py waits for them, in the main thread.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

from tf_hvd.launch.job.supervise import ENDING

# Launchers hand these on to ranks: there are none.
_FOR_RANKS = (signal.SIGUSR1, signal.SIGUSR2)


class Asked(BaseException):
    """A signal asks this process to end; like KeyboardInterrupt, no error.

    Args:
        signum: which.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


@contextlib.contextmanager
def obeyed() -> Iterator[None]:
    """Within it a signal to end raises `Asked`, once; those for ranks do nothing.

    By handlers, which no child inherits. What is ignored stays so, as by nohup.
    """
    before = {signum: signal.getsignal(signum) for signum in (*ENDING, *_FOR_RANKS)}
    ours = {
        signum: _end if signum in ENDING else _nothing
        for signum, was in before.items()
        if was is not signal.SIG_IGN
    }
    for signum, handler in ours.items():
        signal.signal(signum, handler)
    try:
        yield
    finally:
        for signum, handler in ours.items():
            if signal.getsignal(signum) is handler:  # else the job is asked to end
                signal.signal(signum, before[signum] or signal.SIG_DFL)


@contextlib.contextmanager
def deaf() -> Iterator[None]:
    """Threads that begin within it leave the signals to the main thread, where it waits for them.

    They would get those that come while it has them blocked, and does not wait.
    """
    blocked = (*ENDING, *_FOR_RANKS, signal.SIGCHLD)
    inherited = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, inherited)


def unblock() -> None:
    """Before the exec of a child, which is to hear all signals, whoever has started it."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _end(signum: int, frame: FrameType | None) -> None:
    for each in ENDING:
        signal.signal(each, _nothing)  # what follows is the clean-up
    raise Asked(signum)


def _nothing(signum: int, frame: FrameType | None) -> None:
    pass
