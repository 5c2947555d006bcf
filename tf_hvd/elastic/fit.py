"""Elastic `model.fit`: Horovod's state and callbacks for Keras 3 and tf_keras.

    state = hvd.elastic.KerasState(model, batch=0, epoch=0)

    @hvd.elastic.run
    def train(state):
        model.fit(dataset, epochs=10, initial_epoch=state.epoch, callbacks=[
            hvd.elastic.UpdateEpochStateCallback(state),
            hvd.elastic.UpdateBatchStateCallback(state),
            hvd.elastic.CommitStateCallback(state, batches_per_commit=10),
        ])

A `fit` that goes on in the middle of an epoch reads the batches that are done and drops them.
The classes are those for the Keras that `tf.keras` is; `of(tf_keras)` and `of(keras)` give those
for a Keras that a program imports by itself.
"""

import types
from collections.abc import Mapping
from typing import Any

from tf_hvd.core import log
from tf_hvd.core.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from tf_hvd.elastic.running import run
from tf_hvd.elastic.state import ObjectState, State, TensorFlowKerasState
from tf_hvd.keras import data_order
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


class _CommitState:
    """Commits the state every so many batches, and at the end of each epoch.

    Stands behind the callbacks that change the state, in the list. After the last batch of an epoch
    the commit is that of its end: Keras cannot go on with an epoch that has no batches left.

    Args:
      state: what `run` hands to the training.
      batches_per_commit: how many batches.
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
        """Whether the epoch has no further batch; False where Keras does not know that yet."""
        samplers = self.state.samplers() if isinstance(self.state, ObjectState) else []
        if samplers:
            return not any(sampler.remaining for sampler in samplers)
        steps = self.params.get("steps")
        return steps is not None and batch + 1 >= steps

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.state.commit()


class _UpdateBatchState(data_order.FollowsData):
    """Keeps in `state.batch` how many batches of the epoch are done.

    A `fit` that begins when some are goes on behind them, in the order of a shuffled
    tf.data.Dataset in which it was, and with what its metrics had added up, in the mean of the
    epoch; in the first epoch, what a batch shows of them does not include it. If the state has an
    ElasticSampler, that is kept up, and the data must be made of its `dataset`.

    Args:
      state: an ObjectState with `batch`.
    """

    model: Any

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self.orders = data_order.new_orders()
        self._place = data_order.Place(self.orders)
        self._resumed: dict[str, Any] | None = None
        self._samplers: list[Any] = []
        self._before = 0  # batches that are done, and that this `fit` does not count
        state.follow("fit", lambda: self._place.collect(self.model), self._restore)

    def on_train_begin(self, logs: Any = None) -> None:
        self._samplers = self.state.samplers()
        # The data begin where a sampler is.
        self._before = self.state.batch if self._samplers else 0
        data_order.done.uneven = bool(self._samplers)
        begun = self._resumed or {"orders": {}, "metrics": []}
        done = 0 if self._samplers else self.state.batch
        if done and self.state.was_resized():
            log.warning(
                f"{done} batches of this epoch were done by another number of ranks: they are left "
                "out, though each rank has other data now; an ElasticSampler loses no sample"
            )
        metrics = begun["metrics"] if self.state.batch else []
        self._place.take_up({**begun, "metrics": metrics, "batches": done})
        self._resumed = None

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if data_order.done.batches:
            raise RuntimeError(
                "this version of Keras does not let a fit go on in the middle of an epoch: leave "
                "UpdateBatchStateCallback out, and commit at the end of each epoch"
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


class _UpdateEpochState:
    """Keeps in `state.epoch` how many epochs are done.

    Whether a `fit` counts on from there (`initial_epoch=state.epoch`) or runs that many
    fewer (`epochs=10 - state.epoch`).

    Args:
      state: an ObjectState with `epoch`.
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
    """The callbacks for a Keras.

    Args:
      keras: the module `keras` or `tf_keras`.
    """
    return _VARIANTS.of(keras)


def __getattr__(name: str) -> Any:
    return _VARIANTS.attribute(name)
