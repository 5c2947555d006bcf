"""Callbacks for `model.fit` on several ranks, for Keras 3 and tf_keras.

The classes are those for the Keras that `tf.keras` is; `of(tf_keras)` and
`of(keras)` give those for a Keras that a program imports by itself.

    model.fit(..., verbose=0, callbacks=[
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(initial_lr=0.1 * hvd.size()),
        hvd.callbacks.EarlyStopping(patience=2),
        hvd.callbacks.ModelCheckpoint("best.keras", save_best_only=True),
        hvd.callbacks.ProgbarLogger(),
    ])

All ranks give the same callbacks in the same order, for some of them call collectives;
those that only write may be given on rank 0 alone. tf_hvd.keras.fit_sync says what is
done in each `fit` beside them.
"""

import types
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tf_hvd.collectives.variables import broadcast_variables
from tf_hvd.core.metrics import StepSummaries
from tf_hvd.core.tensorflow_hooks import on_device, tf_variable
from tf_hvd.keras import learning_rate, metrics, resume, root_only
from tf_hvd.keras.compat import build_optimizer, own_sums, variables_of, weights_of
from tf_hvd.keras.keras_variants import KerasVariants
from tf_hvd.keras.same_variables import check, exist_everywhere


class _Broadcast:
    """Gives all ranks the state of one rank: that of its model and of its optimizer.

    All ranks of the job take part, whatever the process set of their optimizer.

    Variables that exist when a `fit` begins are broadcast then, before the first update. If the
    model is built by its first batch, it is built before that from the batch's shapes. Variables
    that are made later (by a `train_step` of a model without `call`) are broadcast after the first
    batch (with steps_per_execution: after the first execution) and after each epoch. Each rank
    keeps its own seeds of random layers, and what Keras 3 has added up for an update that is not
    complete.

    A subclass that overrides `on_batch_end` must call super's.

    Args:
      root_rank: the rank of the job whose state counts.
      device: where the values are sent from and received, such as "/CPU:0" if some ranks
        have no GPU; "" leaves it to TensorFlow.
      local_variables: variables that are not broadcast.

    Raises:
      ValueError: an entry of `local_variables` is not a variable; in `fit`: a variable exists on
        some ranks only.
    """

    model: Any

    def __init__(
        self, root_rank: int, device: str = "", local_variables: Iterable[Any] | None = None
    ) -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self._local: dict[int, Any] = {}
        # The variables themselves: an id may be given again to another one.
        self._sent: dict[int, Any] = {}
        self._trained = False
        for variable in local_variables or ():
            self.register_local_var(variable)

    def register_local_var(self, var: Any) -> None:
        """From now on `var` is not broadcast."""
        variable = tf_variable(var)
        if not isinstance(variable, tf.Variable):
            raise ValueError(f"{var!r} is not a variable.")
        self._local[id(variable)] = variable

    def on_train_begin(self, logs: Any = None) -> None:
        """Broadcasts what exists; and prepares for the first batch, if that makes the rest."""
        self._sent.clear()
        self._trained = False
        if "on_batch_end" in vars(self):
            return  # the program has replaced it, and broadcasts after the first batch
        new = self._new()
        alike = exist_everywhere(new, self.model.built)
        if alike:
            self._send(new)
        # A model that is built on some ranks only is so on all of them after the first batch.
        if not (alike and self.model.built):
            self._broadcast_before_first_step()

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcasts what the first batch has made, or the first few that are one call."""
        if not self._trained:
            self._trained = True
            self._broadcast("after the first batch")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._broadcast(f"after epoch {epoch + 1}")

    def _broadcast_before_first_step(self) -> None:
        """Puts itself before the step function for one call, which brings the shapes."""
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
        if new:  # then all ranks have some
            self._send(new)

    def _new(self) -> list[Any]:
        optimizer = getattr(self.model, "optimizer", None)
        # One that is built of a part of the variables refuses the rest.
        if optimizer is not None and self.model.built:
            build_optimizer(optimizer, self.model.trainable_variables)
        # Keras 3's own variables say which layer they are of.
        found = {id(tf_variable(v)): v for v in self._state(optimizer)}
        return [v for key, v in found.items() if key not in self._sent and key not in self._local]

    def _send(self, variables: list[Any]) -> None:
        with on_device(self.device):
            broadcast_variables(variables, self.root_rank)
        self._sent.update((id(plain), plain) for plain in map(tf_variable, variables))

    def _state(self, optimizer: Any) -> list[Any]:
        # Keras 3's `weights` are the variables without seeds and metrics.
        if optimizer is None:
            return weights_of(self.model)
        own = {id(variable) for variable in own_sums(optimizer)}
        state = [v for v in variables_of(optimizer) if id(v) not in own]
        return [*weights_of(self.model), *state]


def _build(model: Any, iterator: Any) -> None:
    """Makes the variables of a model from the shapes of its data, if it can; runs nothing of it.

    A model with a step of its own may take what it likes.
    """
    spec = getattr(iterator, "element_spec", None)
    inputs = spec[0] if isinstance(spec, tuple) and spec else spec
    try:
        trace = tf.function(lambda x: model(x, training=False), autograph=False)
        trace.get_concrete_function(inputs)
    except Exception:  # whatever the model's own code raises
        model.built = False  # Keras 3 takes it for built when it begins to call it


class _MetricAverage:
    """Replaces the metrics of an epoch by their averages over the ranks.

    Also those of its validation. In `fit` it is done before any callback sees them,
    wherever this one stands in the list; what other callbacks add to the logs is
    averaged if they come before this one. Each rank counts alike, even one with fewer
    batches for validation. Ranks with other metrics than the rest (validation data on
    one rank only) are an error. What `evaluate` returns, called by itself, is the
    rank's own: no callback can change it.

    Args:
      device: accepted for Horovod's scripts; the metrics are averaged on the CPU.
    """

    model: Any

    def __init__(self, device: str = "") -> None:
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if logs:
            logs.update(metrics.average(logs, metrics.process_set_of(self.model), strict=True))


class _EarlyStopping:
    """Keras' EarlyStopping, decided on the average over ranks: all stop, or none.

    Arguments are those of Keras.
    """

    model: Any

    def get_monitor_value(self, logs: Any) -> Any:
        """The monitored metric, averaged over the ranks that have it."""
        value = super().get_monitor_value(logs)  # type: ignore[misc]
        own = {} if value is None else {"monitored": value}
        process_set = metrics.process_set_of(self.model)
        return metrics.average(own, process_set, strict=False).get("monitored")


class _BestModelCheckpoint(root_only.RootOnly):
    """A ModelCheckpoint of the best epoch; its `filepath` may be set later.

    The other arguments are those of ModelCheckpoint.

    Args:
      filepath: where to save; nothing is saved while it is None.
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
        # Keras checks the ending of the path.
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
    """Writes what collectives take of a step for TensorBoard, each rank into a folder of its own.

    The values are those of `tf_hvd.metrics().per_step`, averaged since they were last written. No
    collective is called: it may be given on some ranks alone.

    Args:
      log_dir: a folder; rank 1 writes into `rank-1` in it.
      update_freq: after so many batches, or "epoch": after each epoch.
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
    """Keras' progress bar, as with verbose=1: on rank 0 alone, even under `unguarded()`.

    For `fit(verbose=0)`. Arguments are those of Keras.
    """

    model: Any
    verbose: Any

    def set_params(self, params: Any) -> None:
        super().set_params({**params, "verbose": 1})  # type: ignore[misc]
        if not metrics.shows_progress(self.model):
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
    """The callbacks for a Keras.

    Args:
      keras: the module `keras` or `tf_keras`.
    """
    return _VARIANTS.of(keras)


__getattr__ = _VARIANTS.attribute
