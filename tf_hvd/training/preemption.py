"""End a job after a termination signal, at a step that all ranks agree on.

Before a scheduler takes a machine away, it sends SIGTERM, or the signal of Slurm's `--signal`, to
some or all ranks. Without this module the signal would kill the rank.
"""

from __future__ import annotations

import concurrent.futures
import signal
import threading
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any, ClassVar, NoReturn

import tensorflow as tf

from tf_hvd.collectives import collectives, reduce_ops
from tf_hvd.core import _launcher, basics, call_sites, contract
from tf_hvd.core.tensorflow_hooks import eagerly, has_own_handler, on_host

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""The signals that ask a job to end."""
# Seconds that a rank at the end of its training waits for the other ranks' last bits.
_LAST = 2.0


class Together:
    """Up to 8 bits that the ranks combine in the background, with one thread.

    All ranks receive the bits from one call at their next call. A rank therefore does not wait for
    slower ranks in the same call.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._asker = concurrent.futures.ThreadPoolExecutor(1, "tf_hvd_together")
        self._asked: concurrent.futures.Future[int] | None = None

    def say(self, mine: int) -> int:
        """Send this rank's bits, and return the bits of all ranks from the previous call.

        The ranks' bits are combined by OR.
        """
        said = self.heard()
        self._asked = self._asker.submit(self._allreduce, mine, call_sites.place_of_call())
        return said

    def heard(self) -> int:
        """Wait until all ranks have made the previous call; return that call's combined bits."""
        return 0 if self._asked is None else self._asked.result()

    def finish(self) -> None:
        """Stop the thread; called after the last call of `say`."""
        if self._asked is not None:
            concurrent.futures.wait([self._asked], _LAST)
        self._asker.shutdown(wait=False)

    def _allreduce(self, mine: int, place: int | None) -> int:
        call_sites.work_for(place)
        with eagerly(), on_host():
            bits = tf.constant([mine >> bit & 1 for bit in range(8)], tf.uint8)
            said = collectives.allreduce(bits, op=reduce_ops.Max, name=self._name).numpy()
        return sum(int(bit) << place for place, bit in enumerate(said))


class _Asked:
    to_end = False
    before: ClassVar[dict[int, Any]] = {}
    """The previous handlers, by signal number."""


def _note(signum: int, frame: FrameType | None) -> None:
    _Asked.to_end = True


def listen(signals: Iterable[int] = (signal.SIGTERM,)) -> list[int]:
    """Record these signals from now on, instead of ending the process; see `is_asked_to_end`.

    Signals for which the program has its own handler are not recorded. Python's handler for Ctrl-C
    is replaced. In a thread other than the main thread, this function does nothing.

    Returns:
        The signals that are now recorded.
    """
    if threading.current_thread() is not threading.main_thread():
        return []
    ended = [signum for signum in signals if not has_own_handler(signum)]
    for signum in ended:
        _Asked.before[signum] = signal.signal(signum, _note)
    return ended


def do_not_listen(signals: Iterable[int]) -> None:
    """Restore the previous handlers of the signals that `listen` returned."""
    for signum in signals:
        signal.signal(signum, _Asked.before.pop(signum, signal.SIG_DFL))


def is_asked_to_end() -> bool:
    return _Asked.to_end


def leave_in_order() -> NoReturn:
    """End this process with code 75; all ranks must call this function at the same step."""
    # When the first rank exits, the launcher ends the others, so all must have saved before.
    collectives.barrier()
    _launcher.tell_of_rank(contract.ASKED, basics.rank())
    basics.shutdown()
    raise SystemExit(contract.START_AGAIN)


class Preemption:
    """An object that ends the job after a termination signal; `on_preemption` returns it.

    Example:
      preemption = hvd.on_preemption()
      for step in range(3):
          preemption.check()  # after each step, on all ranks
      preemption.finish()
    """

    def __init__(self, save: Callable[[], Any] | None, signals: Iterable[int]) -> None:
        self._save = save
        self._signals = listen(signals)
        self._together = Together("on_preemption: whether a rank was asked to end")

    def check(self) -> None:
        """Check whether a rank has received a signal; all ranks must call this after each step.

        After a signal, all ranks call `save` after the same step, at most two steps later. They
        then exit with code 75 (EX_TEMPFAIL of sysexits.h).
        """
        if self.is_time():
            if self._save is not None:
                self._save()
            self.leave()

    def is_time(self) -> bool:
        """Return whether all ranks must now save and call `leave`; the first part of `check`."""
        return bool(self._together.say(int(is_asked_to_end())))

    def leave(self) -> NoReturn:
        """End this process, as all ranks must do at this step; the second part of `check`."""
        self._together.finish()
        leave_in_order()

    def finish(self) -> None:
        """Restore the previous signal handlers; call this after the last step."""
        self._together.finish()
        do_not_listen(self._signals)
        self._signals = []


def on_preemption(
    save: Callable[[], Any] | None = None, *, signals: Iterable[int] = (signal.SIGTERM,)
) -> Preemption:
    """Save and end the job at the same step on all ranks when a rank gets a termination signal.

        preemption = hvd.on_preemption(lambda: checkpoint.save("last") if hvd.rank() == 0 else None)
        for batch in dataset:
            train_step(batch)
            preemption.check()

    Args:
        save: function without arguments that all ranks call before they end; it may call
            collectives. None (default) to save nothing.
        signals: numbers of the signals to handle (default: SIGTERM). Signals for which the program
            has its own handler are not handled. Slurm sends the signal that its option `--signal`
            specifies.

    Returns:
        A `Preemption` object. Call its method `check` after each step on all ranks.

    Raises:
        ValueError: the function was called outside the main thread, or before `init`.

    Example:
      preemption = hvd.on_preemption(lambda: hvd.is_root() and print("saved"))
      preemption.check()  # after each step, on all ranks
      preemption.finish()
    """
    if threading.current_thread() is not threading.main_thread():
        raise ValueError(
            "on_preemption was called outside the main thread, where Python cannot handle "
            "signals. Call it in the main thread."
        )
    basics.rank()  # raises before init
    return Preemption(save, signals)
