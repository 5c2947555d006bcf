"""Track the position of `fit` in its data, so that a resumed `fit` continues at that position.

A shuffled tf.data.Dataset draws new seeds for each iterator, so the order of an epoch depends on
the number of iterators created before. Keras creates one or two per epoch. In a new process,
creating the same number of iterators, without reading them, restores the dataset's position.
"""

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from tf_hvd.core.tensorflow_hooks import tf_variable


class _Done(threading.local):
    batches = 0
    """Number of batches that this thread's next epoch must skip; 0 after the epoch has begun."""
    uneven = False
    """Whether epochs of this thread's `fit` may have different lengths."""


done = _Done()


def take_done() -> int:
    """Return the number of batches to skip in the epoch that begins now, and reset it to 0."""
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
        """Return a copy of `dataset` that counts its iterators during one `fit`.

        The copy draws from the same seeds as the original.
        """
        self._reset()
        return self.counting(dataset)

    def counting(self, dataset: Any) -> Any:
        """Return a copy of `dataset` that counts its iterators."""
        order, kind = self, type(dataset)

        def iterate(self: Any) -> Any:
            for _ in range(order._missing):
                kind.__iter__(self)
            order._made += order._missing + 1
            order._missing = 0
            return kind.__iter__(self)

        counted = type(kind.__name__, (kind,), {"__iter__": iterate, "tf_hvd_order": order})
        same: Any = object.__new__(counted)
        vars(same).update(vars(dataset))
        return same

    def batch_begin(self) -> None:
        """Count the iterators that Keras created but did not read before the first batch."""
        if self._unread is None:
            self._unread = max(self._made - self._resumed - 1, 0)

    def place(self) -> int:
        """The number of iterators used by the epochs so far; 0 if none were counted."""
        return max(self._made - (self._unread or 0), 0)

    def go_to(self, place: int) -> None:
        """Make the next epoch behave as if earlier epochs had used `place` iterators."""
        self._resumed = self._missing = place


def derived(dataset: Any, made: Any) -> Any:
    """Return `made`, which was made from `dataset` and is iterated instead of it.

    If the iterators of `dataset` are counted, those of the result are.
    """
    order = getattr(dataset, "tf_hvd_order", None)
    return made if order is None else order.counting(made)


class Place:
    """The position of `fit` within an epoch, where a later `fit` can resume.

    A resumed `fit` reads and drops the batches that were already completed. Metrics resume with
    their partial sums, so that the epoch's mean is correct. The metrics shown during the first
    batch after resuming do not include these sums.

    Args:
      orders: objects that track the data, by name of the argument to `fit`.
    """

    def __init__(self, orders: Mapping[str, DataOrder]) -> None:
        self._orders = orders
        self._before: dict[str, int] = {}  # positions of the orders before this epoch
        self._metrics: list[Any] | None = None  # sums to restore
        self.batches = 0
        """Number of batches of the epoch that are completed."""

    def collect(self, model: Any) -> dict[str, Any]:
        """Return the state for `take_up`: the position, and the sums in the model's metrics.

        Call this function between batches.
        """
        metrics = _metrics(model) if self.batches else []
        return {
            "orders": dict(self._before),
            "metrics": [np.array(each) for each in metrics],
            "batches": self.batches,
        }

    def take_up(self, collected: Mapping[str, Any]) -> None:
        """Make the next epoch resume the collected epoch; call this method before it begins."""
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
            # Keras creates some metrics during the first batch. Metrics consist of sums and counts.
            for metric, value in zip(_metrics(model), self._metrics, strict=True):
                metric.assign_add(value)
            self._metrics = None

    def restart(self) -> None:
        """Make the epoch begin at its first batch."""
        self.batches = 0
        self._metrics = None

    def epoch_end(self) -> None:
        self.restart()
        self._before = {name: order.place() for name, order in self._orders.items()}


def _metrics(model: Any) -> list[Any]:
    return [tf_variable(v) for metric in model.metrics for v in metric.variables]


class FollowsData:
    """Base class of callbacks that track the data of their `fit`."""

    orders: dict[str, DataOrder]
    """This rank's position in its data, by the argument of `fit`; initially `new_orders()`."""


def new_orders() -> dict[str, DataOrder]:
    return {"x": DataOrder(), "validation_data": DataOrder()}
