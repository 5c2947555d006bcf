"""Where a `fit` is in the order of its data, so that a resumed one goes on there.

A shuffled tf.data.Dataset draws seeds for each iterator that is made of it: the order of an
epoch depends on how many there were before. Keras makes one or two for each epoch. Making
as many and reading nothing of them brings a dataset of a new process to the same place.
"""

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from tf_hvd.core.tensorflow_hooks import tf_variable


class _Done(threading.local):
    batches = 0
    """How many the next epoch of this thread leaves out: 0 once it has begun, or Keras cannot."""
    uneven = False
    """Whether an epoch of this thread's `fit` may have another number of them than the first."""


done = _Done()


def take_done() -> int:
    """How many batches the epoch that begins now is to leave out."""
    batches, done.batches = done.batches, 0
    return batches


class DataOrder:
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


class Place:
    """Where a `fit` is within its epoch: its callback calls this, and takes it up in a later one.

    The batches that are done are read and dropped, and the metrics have what they had added up, in
    the mean of the epoch; in the first epoch, what a batch shows of them does not include it.

    Args:
      orders: what follows the data.
    """

    def __init__(self, orders: Mapping[str, DataOrder]) -> None:
        self._orders = orders
        self._before: dict[str, int] = {}  # their places before this epoch
        self._metrics: list[Any] | None = None  # what is to be added up
        self.batches = 0
        """How many are done."""

    def collect(self, model: Any) -> dict[str, Any]:
        """What `take_up` needs: of a model's metrics between batches."""
        metrics = _metrics(model) if self.batches else []
        return {
            "orders": dict(self._before),
            "metrics": [np.array(each) for each in metrics],
            "batches": self.batches,
        }

    def take_up(self, collected: Mapping[str, Any]) -> None:
        """The next epoch is that which was collected; before it begins."""
        self._before = dict(collected["orders"])
        self._metrics = list(collected["metrics"]) or None
        self.batches = collected["batches"]
        done.batches = self.batches
        for name, place in self._before.items():
            self._orders[name].go_to(place)

    def batch_begin(self) -> None:
        self._orders["x"].batch_begin()

    def batch_end(self, model: Any, batch: int) -> None:
        self.batches = batch + 1
        if self._metrics is not None:
            # Only now Keras has made all of its metrics. They are sums and counts.
            for metric, value in zip(_metrics(model), self._metrics, strict=True):
                metric.assign_add(value)
            self._metrics = None

    def begin_anew(self) -> None:
        """The epoch begins with its first batch all the same."""
        self.batches = 0
        self._metrics = None

    def epoch_end(self) -> None:
        self.begin_anew()
        self._before = {name: order.place() for name, order in self._orders.items()}


def _metrics(model: Any) -> list[Any]:
    return [tf_variable(v) for metric in model.metrics for v in metric.variables]


class FollowsData:
    """A callback that follows the data of its `fit`, from its `new_orders` on."""

    orders: dict[str, DataOrder]
    """Where this rank is in its data, by the arguments of `fit`."""


def new_orders() -> dict[str, DataOrder]:
    return {"x": DataOrder(), "validation_data": DataOrder()}
