"""A job that is asked to end does so at a step that all ranks agree on.

A scheduler that takes a machine away sends SIGTERM, or what Slurm's `--signal` names, to some of
the ranks or to all of them. Without this that is the death of a rank.
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
"""The signals by which a job is asked to end."""
# How long a rank that has come to the end of its training waits for what others have said.
_LAST = 2.0


class Together:
    """What any rank says, all ranks hear at the same call. One thread.

    No rank waits for another: what one says at a call, all hear at their next.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._asker = concurrent.futures.ThreadPoolExecutor(1, "tf_hvd_together")
        self._asked: concurrent.futures.Future[int] | None = None

    def say(self, mine: int) -> int:
        """Says a number, whose bits are added to those of the others; what was said before."""
        said = self.heard()
        self._asked = self._asker.submit(self._allreduce, mine, call_sites.place_of_call())
        return said

    def heard(self) -> int:
        """What was said at the last call; waits until all have made it."""
        return 0 if self._asked is None else self._asked.result()

    def finish(self) -> None:
        """There will be no further call."""
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
    """What was done before with signals that are listened to."""


def _note(signum: int, frame: FrameType | None) -> None:
    _Asked.to_end = True


def listen(signals: Iterable[int] = (signal.SIGTERM,)) -> list[int]:
    """From now on these signals do not end the process: `is_asked_to_end` says that one came.

    A signal for which the program has a handler of its own, other than Python's for Ctrl-C, is left
    to that. Only the main thread may call this; in others nothing happens.

    Returns:
        Those that did end it before.
    """
    if threading.current_thread() is not threading.main_thread():
        return []
    ended = [signum for signum in signals if not has_own_handler(signum)]
    for signum in ended:
        _Asked.before[signum] = signal.signal(signum, _note)
    return ended


def do_not_listen(signals: Iterable[int]) -> None:
    """From now on these signals, which `listen` has returned, end the process again."""
    for signum in signals:
        signal.signal(signum, _Asked.before.pop(signum, signal.SIG_DFL))


def is_asked_to_end() -> bool:
    return _Asked.to_end


def leave_in_order() -> NoReturn:
    """Ends this process, as all ranks do at the same step."""
    # Who is through first has the launcher end the others: not before all have saved.
    collectives.barrier()
    _launcher.tell_of_rank(contract.ASKED, basics.rank())
    basics.shutdown()
    raise SystemExit(contract.START_AGAIN)


class Preemption:
    """What `on_preemption` returns."""

    def __init__(self, save: Callable[[], Any] | None, signals: Iterable[int]) -> None:
        self._save = save
        self._signals = listen(signals)
        self._together = Together("on_preemption: whether a rank was told to end")

    def check(self) -> None:
        """To be called by all ranks after each step.

        When a rank has got a signal, all ranks call `save` after the same step, the next one or
        that after it, and end with exit code 75 (EX_TEMPFAIL of sysexits.h).
        """
        if self.is_time():
            if self._save is not None:
                self._save()
            self.leave()

    def is_time(self) -> bool:
        """The part of `check` that asks: whether all ranks are to save now, and then to `leave`."""
        return bool(self._together.say(int(is_asked_to_end())))

    def leave(self) -> NoReturn:
        """The part of `check` that ends this process, as all ranks do."""
        self._together.finish()
        leave_in_order()

    def finish(self) -> None:
        """There will be no further step: the signals end the process again."""
        self._together.finish()
        do_not_listen(self._signals)
        self._signals = []


def on_preemption(
    save: Callable[[], Any] | None = None, signals: Iterable[int] = (signal.SIGTERM,)
) -> Preemption:
    """Has the job end in order when a rank is told to end.

        preemption = hvd.on_preemption(lambda: checkpoint.save("last") if hvd.rank() == 0 else None)
        for batch in dataset:
            train_step(batch)
            preemption.check()

    Args:
        save: called on all ranks, before they end; may call collectives.
        signals: which; of those for which the program has handlers these stay. Slurm sends
            what `--signal` says.

    Returns:
        What all ranks ask after each step.

    Raises:
        ValueError: not called by the main thread, or before `init`.
    """
    if threading.current_thread() is not threading.main_thread():
        raise ValueError("on_preemption must be called by the main thread: it handles signals")
    basics.rank()  # or it says that init is missing
    return Preemption(save, signals)
