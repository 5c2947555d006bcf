"""Where a `fit` is in the order of its data, so that a resumed one goes on there.

A shuffled tf.data.Dataset draws seeds for each iterator that is made of it: the order of an
epoch depends on how many there were before. Keras makes one or two for each epoch. Making
as many and reading nothing of them brings a dataset of a new process to the same place.
"""

import threading
from typing import Any


class _Done(threading.local):
    batches = 0
    uneven = False


_done = _Done()


def resume_after(batches: int) -> None:
    """The next epoch of this thread begins after so many batches, which are done."""
    _done.batches = batches


def not_left_out() -> int:
    """How many batches are done that the epoch did not leave out: this Keras has no such way."""
    return _done.batches


def let_epochs_differ(differ: bool) -> None:
    """Whether an epoch of this thread's `fit` may have another number of batches than the first."""
    _done.uneven = differ


def epochs_differ() -> bool:
    """Whether they may."""
    return _done.uneven


def take_done() -> int:
    """How many batches the epoch that begins now is to leave out."""
    batches, _done.batches = _done.batches, 0
    return batches


class DataOrder:
    """Counts the iterators that a `fit` makes of its dataset."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._made = 0
        self._resumed = self._missing = 0
        self._unread: int | None = None

    def follow(self, dataset: Any) -> Any:
        """A dataset for one `fit`, which is this one, and is counted; it shares its seeds."""
        self._reset()
        order, kind = self, type(dataset)

        def iterate(self: Any) -> Any:
            for _ in range(order._missing):
                kind.__iter__(self)
            order._made += order._missing + 1
            order._missing = 0
            return kind.__iter__(self)

        counted = type(kind.__name__, (kind,), {"__iter__": iterate})
        same: Any = object.__new__(counted)
        vars(same).update(vars(dataset))
        return same

    def batch_begin(self) -> None:
        """Keras may have made iterators before the first batch that it does not read."""
        if self._unread is None:
            self._unread = max(self._made - self._resumed - 1, 0)

    def place(self) -> int:
        """How many iterators the epochs so far have taken; 0 where they are not counted."""
        return max(self._made - (self._unread or 0), 0)

    def go_to(self, place: int) -> None:
        """The next epoch is as if the epochs before it had taken so many."""
        self._resumed = self._missing = place


class FollowsData:
    """A callback that follows the data of its `fit`, from its `new_orders` on."""

    orders: dict[str, DataOrder]
    """Where this rank is in its data, by the arguments of `fit`."""


def new_orders() -> dict[str, DataOrder]:
    """Those of a callback."""
    return {"x": DataOrder(), "validation_data": DataOrder()}
