"""Callbacks for elastic `model.fit`, for Keras 3 and tf_keras, with Horovod's names.

    state = hvd.elastic.KerasState(model, batch=0, epoch=0)

    @hvd.elastic.run
    def train(state):
        model.fit(dataset, epochs=10, initial_epoch=state.epoch, callbacks=[
            hvd.elastic.UpdateEpochStateCallback(state),
            hvd.elastic.UpdateBatchStateCallback(state),
            hvd.elastic.CommitStateCallback(state, batches_per_commit=10),
        ])

A `fit` that continues in the middle of an epoch reads the completed batches and skips them.
The classes are for the Keras that `tf.keras` uses. If the program imports another Keras, use
`of(tf_keras)` or `of(keras)`.
"""

import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tf_hvd.core import basics, log
from tf_hvd.core.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from tf_hvd.elastic.running import run
from tf_hvd.elastic.state import ObjectState, State, TensorFlowKerasState
from tf_hvd.keras import data_order
from tf_hvd.keras.distribution import active
from tf_hvd.keras.keras_variants import KerasVariants

__all__ = [
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "KerasState",
    "ObjectState",
    "State",
    "of",
    "run",
]

KerasState = TensorFlowKerasState
"""TensorFlowKerasState, under its name in Horovod's Keras modules."""


class _CommitState:
    """A callback that commits the state every N batches and at the end of each epoch.

    Put this callback after those that change the state. The last batch of an epoch is committed at
    the epoch's end, because Keras cannot continue an epoch without remaining batches.

    Args:
      state: the state that `run` passes to the training function.
      batches_per_commit: number of batches between commits (default: 1).
    """

    params: Mapping[str, Any]

    def __init__(self, state: State, batches_per_commit: int = 1) -> None:
        super().__init__()
        self.state = state
        self.batches_per_commit = batches_per_commit
        self._left = batches_per_commit

    def on_train_begin(self, logs: Any = None) -> None:
        self._left = self.batches_per_commit

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._left -= 1
        if self._left <= 0 and not self._is_last(batch):
            self._left = self.batches_per_commit
            self.state.commit()

    def _is_last(self, batch: int) -> bool:
        """Return whether a batch is the epoch's last; False if Keras does not know that yet."""
        samplers = self.state.samplers() if isinstance(self.state, ObjectState) else []
        if samplers:
            return not any(sampler.remaining for sampler in samplers)
        steps = self.params.get("steps")
        return steps is not None and batch + 1 >= steps

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.state.commit()


class _UpdateBatchState(data_order.FollowsData):
    """A callback that stores the number of completed batches of the epoch in `state.batch`.

    If `state.batch` is not 0 when `fit` starts, training continues after the completed batches. A
    shuffled tf.data.Dataset keeps its order. The metrics at the end of this epoch include the
    completed batches, but the metrics that are shown after each batch do not.

    If the state has an ElasticSampler, this callback updates the sampler. In this case, make the
    data from the sampler's `dataset`.

    Args:
      state: an ObjectState with an attribute `batch`.
    """

    model: Any

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self.orders = data_order.new_orders()
        self._place = data_order.Place(self.orders)
        self._resumed: dict[str, Any] | None = None
        self._samplers: list[Any] = []
        self._before = 0  # completed batches that this `fit` does not count
        state.follow("fit", lambda: self._place.collect(self.model), self._restore, _merged)

    def on_train_begin(self, logs: Any = None) -> None:
        self._samplers = self.state.samplers()
        # With a sampler, the data begin at the sampler's position.
        self._before = self.state.batch if self._samplers else 0
        data_order.done.uneven = bool(self._samplers)
        begun = self._resumed or {"orders": {}, "metrics": []}
        done = 0 if self._samplers else self.state.batch
        if done and self.state.was_resized() and not active.divides_batches():
            log.warning(
                f"{done} batches of this epoch were completed by another number of ranks. Each "
                "rank skips as many batches, although its data is different now. Use an "
                "ElasticSampler to train on each sample once"
            )
        metrics = begun["metrics"] if self.state.batch else []
        self._place.take_up({**begun, "metrics": metrics, "batches": done})
        self._resumed = None

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if data_order.done.batches:
            raise RuntimeError(
                "this version of Keras cannot continue fit() in the middle of an epoch: "
                "remove UpdateBatchStateCallback, and commit at the end of each epoch"
            )
        self._place.batch_begin()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._place.batch_end(self.model, batch)
        done = self._before + batch + 1
        for sampler in self._samplers:
            for _ in range(done - self.state.batch):
                sampler.record_batch()
        self.state.batch = done

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.state.batch = self._before = 0
        for sampler in self._samplers:
            sampler.set_epoch(sampler.epoch + 1)
        self._place.epoch_end()

    def on_train_end(self, logs: Any = None) -> None:
        data_order.done.uneven = False

    def _restore(self, collected: dict[str, Any]) -> None:
        self._resumed = collected


def _merged(everyone: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The position in the data after a restart with another number of ranks.

    It is known if a Keras distribution divides the batches. Rank 0 gets the metrics' sums of all
    ranks, because the ranks' sums are added at the end of the epoch.
    """
    if not active.divides_batches():
        return None
    sums = [sum(values) for values in zip(*(each["metrics"] for each in everyone), strict=True)]
    if basics.rank() != 0:
        sums = [np.zeros_like(each) for each in sums]
    return {**everyone[0], "metrics": sums}


class _UpdateEpochState:
    """A callback that stores the number of completed epochs in `state.epoch`.

    Call `fit` either with `initial_epoch=state.epoch` or with the number of remaining epochs, such
    as `epochs=10 - state.epoch`.

    Args:
      state: an ObjectState with an attribute `epoch`.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self._before: int | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        self._before = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if self._before is None:
            self._before = self.state.epoch - epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.state.epoch = (self._before or 0) + epoch + 1


_VARIANTS = KerasVariants(
    __name__,
    {
        "CommitStateCallback": (_CommitState, "Callback"),
        "UpdateBatchStateCallback": (_UpdateBatchState, "Callback"),
        "UpdateEpochStateCallback": (_UpdateEpochState, "Callback"),
    },
)


def of(keras: Any) -> types.SimpleNamespace:
    """Return the callback classes for a Keras module.

    Args:
      keras: the module `keras` or `tf_keras`.

    Returns:
      A namespace with CommitStateCallback, UpdateBatchStateCallback and UpdateEpochStateCallback.
    """
    return _VARIANTS.of(keras)


if typing.TYPE_CHECKING:
    from keras import callbacks as _keras

    class CommitStateCallback(_CommitState, _keras.Callback):  # type: ignore[misc]
        pass

    class UpdateBatchStateCallback(_UpdateBatchState, _keras.Callback):  # type: ignore[misc]
        pass

    class UpdateEpochStateCallback(_UpdateEpochState, _keras.Callback):  # type: ignore[misc]
        pass

else:
    __getattr__ = _VARIANTS.attribute

    def __dir__() -> list[str]:
        return sorted([*__all__, *_VARIANTS.names])
