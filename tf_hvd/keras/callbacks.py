"""Callbacks for `model.fit` on several ranks, for Keras 3 and tf_keras.

The classes are for the Keras version that `tf.keras` refers to. If a program imports `keras` or
`tf_keras` directly, use the classes that `of(keras)` or `of(tf_keras)` returns.

    model.fit(..., verbose=0, callbacks=[
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(initial_lr=0.1 * hvd.size()),
        hvd.callbacks.EarlyStopping(patience=2),
        hvd.callbacks.ModelCheckpoint("best.keras", save_best_only=True),
        hvd.callbacks.ProgbarLogger(),
    ])

Pass the same callbacks in the same order on all ranks, because some of them call collectives.
Callbacks that only print or write files may be passed on rank 0 only. The docstring of
tf_hvd.keras.fit_sync describes how `fit` is synchronized across ranks.
"""

import types
import typing
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tf_hvd.collectives.variables import broadcast_variables
from tf_hvd.core.metrics import StepSummaries
from tf_hvd.core.tensorflow_hooks import on_device, tf_variable
from tf_hvd.keras import learning_rate, reduced_metrics, resume, root_only
from tf_hvd.keras.compat import build_optimizer, own_sums, variables_of, weights_of
from tf_hvd.keras.keras_variants import KerasVariants
from tf_hvd.keras.same_variables import check, exist_everywhere
from tf_hvd.training import guard


class _Broadcast:
    """Callback that copies the state of the model and the optimizer from one rank to all ranks.

    All ranks of the job must use this callback, even if their optimizers have a process set.

    Variables that exist when `fit` begins are broadcast before the first update. If the model is
    not built yet, it is first built from the shapes of its first batch.

    If a model has no `call`, its `train_step` may create variables later. These are broadcast after
    the first batch (with steps_per_execution: after the first execution) and after each epoch.

    Two kinds of variables stay local to each rank: the seeds of random layers, and the partial
    gradient sums in Keras 3.

    A subclass that overrides `on_batch_end` must call `super().on_batch_end`.

    Args:
      root_rank: the rank of the job that provides the state.
      device: device that sends and receives the values. Use "/CPU:0" if some ranks have no GPU.
        Default "": TensorFlow chooses.
      local_variables: variables that are not broadcast. Default None: all are broadcast.

    Raises:
      ValueError: an entry in `local_variables` is not a variable. Raised in `fit`: a variable
        exists on some ranks only.
    """

    model: Any

    def __init__(
        self, root_rank: int, device: str = "", local_variables: Iterable[Any] | None = None
    ) -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self._local: dict[int, Any] = {}
        # Holds the variables too, because the id of a deleted variable may be reused.
        self._sent: dict[int, Any] = {}
        self._trained = False
        for variable in local_variables or ():
            self.register_local_var(variable)

    def register_local_var(self, var: Any) -> None:
        """Exclude the variable `var` from later broadcasts."""
        variable = tf_variable(var)
        if not isinstance(variable, tf.Variable):
            raise ValueError(f"{var!r} is not a variable. Pass a tf.Variable or a Keras variable.")
        self._local[id(variable)] = variable

    def on_train_begin(self, logs: Any = None) -> None:
        """Broadcast existing variables, and prepare to broadcast those that are created later."""
        self._sent.clear()
        self._trained = False
        if "on_batch_end" in vars(self):
            return  # the program replaced the method, and broadcasts after the first batch
        new = self._new()
        alike = exist_everywhere(new, self.model.built)
        if alike:
            self._send(new)
        # If some ranks have built their model, all ranks have built it after the first batch.
        if not (alike and self.model.built):
            self._broadcast_before_first_step()

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcast the variables that the first batch (or the first execution) created."""
        if not self._trained:
            self._trained = True
            self._broadcast("after the first batch")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._broadcast(f"after epoch {epoch + 1}")

    def _broadcast_before_first_step(self) -> None:
        """Wrap the step function for its first call, which provides the shapes of the data."""
        model, step = self.model, self.model.train_function

        def first_step(iterator: Any) -> Any:
            model.train_function = step
            if not model.built:
                _build(model, iterator)
            self._broadcast("before the first batch")
            return step(iterator)

        model.train_function = first_step

    def _broadcast(self, when: str) -> None:
        new = self._new()
        check(new, when)
        if new:  # then every rank has new variables
            self._send(new)

    def _new(self) -> list[Any]:
        optimizer = getattr(self.model, "optimizer", None)
        # An optimizer that was built with some of the variables rejects the others.
        if optimizer is not None and self.model.built:
            build_optimizer(optimizer, self.model.trainable_variables)
        # Keep Keras 3's own variables, because they include the name of their layer.
        found = {id(tf_variable(v)): v for v in self._state(optimizer)}
        return [v for key, v in found.items() if key not in self._sent and key not in self._local]

    def _send(self, variables: list[Any]) -> None:
        with on_device(self.device):
            broadcast_variables(variables, self.root_rank)
        self._sent.update((id(plain), plain) for plain in map(tf_variable, variables))

    def _state(self, optimizer: Any) -> list[Any]:
        # In Keras 3, `weights` are the variables except seeds and metrics.
        if optimizer is None:
            return weights_of(self.model)
        own = {id(variable) for variable in own_sums(optimizer)}
        state = [v for v in variables_of(optimizer) if id(v) not in own]
        return [*weights_of(self.model), *state]


def _build(model: Any, iterator: Any) -> None:
    """Create a model's variables from the shapes of its data, without running the model.

    Do nothing if this fails, because a model with its own `train_step` may take any data.
    """
    spec = getattr(iterator, "element_spec", None)
    spec = getattr(spec, "data", spec)  # of rows under a distribution
    inputs = spec[0] if isinstance(spec, tuple) and spec else spec
    try:
        trace = tf.function(lambda x: model(x, training=False), autograph=False)
        trace.get_concrete_function(inputs)
    except Exception:  # the model's own code may raise anything
        model.built = False  # Keras 3 marks a model as built when its call begins


class _MetricAverage:
    """Callback that replaces each epoch's metrics with metrics computed across all ranks.

    Training and validation metrics are the same as in one process. `fit` replaces them before any
    callback reads them, wherever this callback is in the list.

    Keras' metrics are computed from their variables, summed across all ranks. Each sample therefore
    has equal weight, even if the ranks' shares are uneven.

    Other numbers are averaged across the ranks with equal weight. Examples are entries that earlier
    callbacks add to the logs, and metrics with variables that are not known to be sums. A warning
    lists these metrics.

    If the ranks have different metrics (for example validation data on one rank only), all ranks
    raise ValueError. A rank's share of the validation data may be empty. To evaluate a model
    outside `fit`, use `hvd.evaluate`.

    Args:
      device: accepted for compatibility with Horovod and ignored: the CPU reduces the metrics.
    """

    model: Any

    def __init__(self, device: str = "") -> None:
        super().__init__()
        self._epoch = reduced_metrics.Epoch()
        self._in_epoch = False

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch.begin()
        self._in_epoch = True

    def on_test_begin(self, logs: Any = None) -> None:
        """Collect the training metrics now, because validation resets them."""
        self._collect("")

    def on_test_end(self, logs: Any = None) -> None:
        self._collect(reduced_metrics.VALIDATION)

    def _collect(self, prefix: str) -> None:
        # If the guard is on, fit_sync has already reduced the numbers.
        if self._in_epoch and not guard.watches():
            self._epoch.collect(self.model, prefix)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._collect("")
        self._in_epoch = False
        if logs:
            process_set = reduced_metrics.process_set_of(self.model)
            logs.update(reduced_metrics.reduce(self._epoch, logs, process_set))


class _EarlyStopping:
    """Keras' EarlyStopping, based on a metric's average across all ranks. All ranks stop together.

    The arguments are the same as in Keras.
    """

    model: Any

    def get_monitor_value(self, logs: Any) -> Any:
        """Return the monitored metric, averaged across the ranks that have it."""
        value = super().get_monitor_value(logs)  # type: ignore[misc]
        own = {} if value is None else {"monitored": value}
        process_set = reduced_metrics.process_set_of(self.model)
        return reduced_metrics.average(own, process_set).get("monitored")


class _BestModelCheckpoint(root_only.RootOnly):
    """Callback that saves the best model so far. The attribute `filepath` may be set later.

    Arguments other than `filepath` are the same as for Keras' ModelCheckpoint with
    `save_best_only=True`.

    Args:
      filepath: path of the file to write. Nothing is saved while it is None (default).
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: Any = "epoch",
        filepath: Any = None,
    ) -> None:
        # Keras checks the path's suffix.
        named = filepath or f"unnamed{'.weights.h5' if save_weights_only else '.keras'}"
        super().__init__(  # type: ignore[call-arg]
            named,
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        self.filepath = filepath

    def _is_to_run(self) -> bool:
        return self.filepath is not None and super()._is_to_run()


class _CollectiveMetrics:
    """Callback that writes the time spent in collectives per step, for TensorBoard.

    The values are those in `tf_hvd.metrics().per_step`, averaged over the steps since the last
    write. Each rank writes its own values. The callback calls no collective, so you may pass it on
    only some of the ranks.

    Args:
      log_dir: folder for the summaries; rank N writes into the subfolder `rank-N`.
      update_freq: number of batches between writes, or "epoch" (default) to write after each
        epoch.
    """

    def __init__(self, log_dir: str, update_freq: int | str = "epoch") -> None:
        super().__init__()
        self._every = 0 if update_freq == "epoch" else int(update_freq)
        self._summaries = StepSummaries(log_dir, self._every)

    def on_train_begin(self, logs: Any = None) -> None:
        self._summaries.begin()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._summaries.step()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if not self._every:
            self._summaries.write()

    def on_train_end(self, logs: Any = None) -> None:
        self._summaries.end()


class _ProgbarLogger:
    """Keras' progress bar (verbose=1), shown on rank 0 only, even within `unguarded()`.

    Use this callback with `fit(verbose=0)`. The arguments are the same as in Keras.
    """

    model: Any
    verbose: Any

    def set_params(self, params: Any) -> None:
        super().set_params({**params, "verbose": 1})  # type: ignore[misc]
        if not reduced_metrics.shows_progress(self.model):
            self.verbose = 0


_VARIANTS = KerasVariants(
    __name__,
    {
        "BroadcastGlobalVariablesCallback": (_Broadcast, "Callback"),
        "MetricAverageCallback": (_MetricAverage, "Callback"),
        "LearningRateScheduleCallback": (learning_rate.Schedule, "Callback"),
        "LearningRateWarmupCallback": (learning_rate.Warmup, "Callback"),
        "EarlyStopping": (_EarlyStopping, "EarlyStopping"),
        "ModelCheckpoint": (root_only.RootOnly, "ModelCheckpoint"),
        "BestModelCheckpoint": (_BestModelCheckpoint, "ModelCheckpoint"),
        "BackupAndRestore": (resume.BackupAndRestore, "BackupAndRestore"),
        "CSVLogger": (root_only.RootOnly, "CSVLogger"),
        "OrbaxCheckpoint": (root_only.RootOnly, "OrbaxCheckpoint"),
        "RemoteMonitor": (root_only.RootOnly, "RemoteMonitor"),
        "TensorBoard": (root_only.RootOnly, "TensorBoard"),
        "CollectiveMetrics": (_CollectiveMetrics, "Callback"),
        "ProgbarLogger": (_ProgbarLogger, "ProgbarLogger"),
    },
)


def of(keras: Any) -> types.SimpleNamespace:
    """Return the callback classes for Keras 3 or tf_keras.

    Args:
      keras: the module `keras` or `tf_keras`.

    Returns:
      A namespace with this module's callback classes as attributes.
    """
    return _VARIANTS.of(keras)


OnRoot = root_only.on_root

if typing.TYPE_CHECKING:
    from keras import callbacks as _keras

    class BroadcastGlobalVariablesCallback(_Broadcast, _keras.Callback):  # type: ignore[misc]
        pass

    class MetricAverageCallback(_MetricAverage, _keras.Callback):  # type: ignore[misc]
        pass

    class LearningRateScheduleCallback(learning_rate.Schedule, _keras.Callback):  # type: ignore[misc]
        pass

    class LearningRateWarmupCallback(learning_rate.Warmup, _keras.Callback):  # type: ignore[misc]
        pass

    class EarlyStopping(_EarlyStopping, _keras.EarlyStopping):  # type: ignore[misc]
        pass

    class ModelCheckpoint(root_only.RootOnly, _keras.ModelCheckpoint):  # type: ignore[misc]
        pass

    class BestModelCheckpoint(_BestModelCheckpoint, _keras.ModelCheckpoint):  # type: ignore[misc]
        pass

    class BackupAndRestore(resume.BackupAndRestore, _keras.BackupAndRestore):  # type: ignore[misc]
        pass

    class CSVLogger(root_only.RootOnly, _keras.CSVLogger):  # type: ignore[misc]
        pass

    class OrbaxCheckpoint(root_only.RootOnly, _keras.OrbaxCheckpoint):  # type: ignore[misc]
        pass

    class RemoteMonitor(root_only.RootOnly, _keras.RemoteMonitor):  # type: ignore[misc]
        pass

    class TensorBoard(root_only.RootOnly, _keras.TensorBoard):  # type: ignore[misc]
        pass

    class CollectiveMetrics(_CollectiveMetrics, _keras.Callback):  # type: ignore[misc]
        pass

    class ProgbarLogger(_ProgbarLogger, _keras.ProgbarLogger):  # type: ignore[misc]
        pass

else:
    __getattr__ = _VARIANTS.attribute

    def __dir__() -> list[str]:
        return sorted(["OnRoot", "of", *_VARIANTS.names])
