"""Learning rates for several ranks: callbacks for schedules and warm-up, and a Keras schedule.

Source: Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", 2017.

N ranks together process batches that are N times as large. The learning rate is therefore
multiplied by N, and gradually raised to this value over the first epochs.

In SGD and RMSprop with momentum, the velocity contains the learning rate. The velocity is therefore
scaled whenever the learning rate changes. The paper calls this momentum correction.
"""

import functools
import sys
import typing
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_hvd.core import basics
from tf_hvd.keras.compat import grows, innermost, velocities_of


def check_settable(optimizer: Any, callback: str) -> None:
    """Raise an error unless the optimizer has exactly one learning rate, which can be set."""
    kind = type(optimizer).__name__
    if grows(optimizer):
        raise ValueError(
            f"{callback} sets one learning rate, but {kind} has several. Remove this callback, and "
            "give each of the inner optimizers a Keras schedule."
        )
    if isinstance(optimizer.get_config().get("learning_rate"), dict):
        raise ValueError(
            f"{callback} cannot set the learning rate, because {kind} has a LearningRateSchedule. "
            f"Give {kind} a number, or remove this callback and wrap the schedule: "
            "hvd.WarmupSchedule(schedule, warmup_steps)."
        )


class Schedule:
    """Callback that sets the learning rate to `initial_lr` times a factor in each epoch or batch.

    Args:
      initial_lr: learning rate that is multiplied by the factor.
      multiplier: function that takes the epoch and returns the factor; or a number m, for which the
        factor is m ** (epoch - start_epoch). With `staircase=False` the epoch is a float, such as
        1.5 in the middle of the second epoch.
      start_epoch: first epoch in which this callback sets the learning rate (default: 0).
      end_epoch: first epoch in which this callback no longer sets the learning rate. Default None:
        the callback sets the learning rate until training ends.
      staircase: whether to change the learning rate only at the beginning of epochs (default:
        True).
      momentum_correction: whether to scale the velocities of an optimizer with momentum (default:
        True).
      steps_per_epoch: number of batches per epoch, used with `staircase=False`. Default: the number
        determined by `fit`.

    Raises:
      ValueError: `initial_lr` is None. Raised in `fit`: the number of batches is unknown, or the
        optimizer has a LearningRateSchedule or is a MultiOptimizer.
    """

    model: Any
    params: Any

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise ValueError("initial_lr is None. Pass the learning rate to multiply.")
        self.initial_lr = initial_lr
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self._steps = steps_per_epoch  # of this `fit`
        self._epoch = 0
        self._changes = True
        if callable(multiplier):
            self.multiplier = multiplier
        else:
            base = multiplier
            self.multiplier = lambda epoch: base ** (epoch - start_epoch)

    def on_train_begin(self, logs: Any = None) -> None:
        check_settable(innermost(self.model.optimizer), type(self).__name__)
        if self.staircase:
            return
        self._steps = self.steps_per_epoch or (self.params or {}).get("steps")
        if not self._steps:
            raise ValueError(
                f"{type(self).__name__} does not know the number of batches per epoch. Pass "
                "steps_per_epoch= to this callback, or a dataset of known length to fit()."
            )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch
        self._changes = True

    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        ended = self.end_epoch is not None and self._epoch >= self.end_epoch
        if self._epoch < self.start_epoch or ended:
            return
        if self.staircase:
            # The test is not `batch == 0`, because a resumed epoch may begin with another batch.
            if self._changes:
                self._changes = False
                self._set(self.multiplier(self._epoch))
        else:
            assert self._steps
            self._set(self.multiplier(self._epoch + batch / self._steps))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Add the learning rate to the epoch's metrics as `lr`."""
        if logs is not None:
            logs["lr"] = float(innermost(self.model.optimizer).learning_rate)

    def _set(self, factor: float) -> None:
        optimizer = innermost(self.model.optimizer)
        old, new = float(optimizer.learning_rate), self.initial_lr * factor
        if old == new:
            return
        optimizer.learning_rate = new
        # If the first batch builds the model, the optimizer does not have velocities yet.
        if self.momentum_correction and old > 0.0 and self.model.built:
            for velocity in velocities_of(optimizer, self.model.trainable_variables):
                if velocity is not None:
                    velocity.assign(velocity * (new / old))


class Warmup(Schedule):
    """Callback that raises the learning rate gradually from initial_lr / size() to initial_lr.

    The learning rate rises with each batch of the warm-up.

    Args:
      initial_lr: learning rate after the warm-up, scaled for `size()` ranks.
      warmup_epochs: duration of the warm-up in epochs (default: 5).
      momentum_correction: whether to scale the velocities of an optimizer with momentum (default:
        True).
      steps_per_epoch: number of batches per epoch. Default: the number determined by `fit`.
      verbose: 1 to print a line on rank 0 after the warm-up (default: 0).
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: float = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            # The last batch of the warm-up has the full learning rate.
            assert self._steps
            done = min((epoch + 1.0 / self._steps) / warmup_epochs, 1.0)
            return (1.0 + done * (basics.size() - 1)) / basics.size()

        super().__init__(
            initial_lr,
            multiplier,
            start_epoch=0,
            end_epoch=-int(-warmup_epochs // 1),
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Add `lr` to the metrics; if verbose, print a line on rank 0 after the warm-up."""
        super().on_epoch_end(epoch, logs)
        if self.verbose and self.end_epoch == epoch + 1 and basics.rank() == 0:
            rate = float(innermost(self.model.optimizer).learning_rate)
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.")


class _WarmedUp:
    """A Keras schedule that adds a warm-up to another schedule or to a constant learning rate.

    During the first `warmup_steps` updates, the learning rate of `schedule` is multiplied by a
    factor that grows in equal steps from `initial_factor` to 1. The last of these updates and all
    later updates use the full learning rate of `schedule`. See Goyal et al., "Accurate, Large
    Minibatch SGD", 2017, section 2.2.

    The class is for the Keras version that `tf.keras` refers to. If a program imports `keras` or
    `tf_keras` directly, use `WarmupSchedule.of(keras)` or `WarmupSchedule.of(tf_keras)`.

    To load a model that was compiled with this schedule, import tf_hvd first, or pass
    `compile=False`.

    Args:
      schedule: learning rate scaled for `size()` ranks: a number, or a LearningRateSchedule such
        as `keras.optimizers.schedules.CosineDecay`.
      warmup_steps: number of updates in the warm-up, at least 1.
      initial_factor: number from 0 to 1 at which the warm-up starts. The first update uses a factor
        one step above this number. Default: 1 / size().

    Raises:
      ValueError: `warmup_steps` is less than 1, or `initial_factor` is not between 0 and 1.
      NotInitializedError: `initial_factor` is not given and `init` was not called.

    Example:
      cosine = keras.optimizers.schedules.CosineDecay(0.1 * hvd.size(), decay_steps=1000)
      optimizer = keras.optimizers.SGD(hvd.WarmupSchedule(cosine, warmup_steps=100))
    """

    _keras: Any = None

    def __init__(
        self, schedule: Any, warmup_steps: int, *, initial_factor: float | None = None
    ) -> None:
        super().__init__()
        if warmup_steps < 1:
            raise ValueError(f"warmup_steps={warmup_steps} is less than 1. Pass a positive number.")
        self.schedule = schedule
        self.warmup_steps = warmup_steps
        self.initial_factor = 1 / basics.size() if initial_factor is None else initial_factor
        if not 0 <= self.initial_factor <= 1:
            raise ValueError(
                f"initial_factor={initial_factor} is out of range. Pass a number from 0 to 1."
            )

    def __call__(self, step: Any) -> Any:
        """Return the learning rate of update number `step`, counted from 0."""
        rate = self.schedule(step) if callable(self.schedule) else self.schedule
        done = tf.minimum((tf.cast(step, tf.float32) + 1.0) / self.warmup_steps, 1.0)
        return tf.cast(rate, tf.float32) * (self.initial_factor * (1.0 - done) + done)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments for `from_config`, including the `initial_factor` of this job."""
        schedule = self.schedule
        if callable(schedule):
            schedule = self._keras.optimizers.schedules.serialize(schedule)
        return {
            "schedule": schedule,
            "warmup_steps": self.warmup_steps,
            "initial_factor": self.initial_factor,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """Create the schedule from the result of `get_config`."""
        schedule = config["schedule"]
        if isinstance(schedule, dict):
            schedule = cls._keras.optimizers.schedules.deserialize(schedule)
        return cls(**{**config, "schedule": schedule})

    @staticmethod
    def of(keras: Any) -> Any:
        """Return the class for a Keras module, `keras` or `tf_keras`."""
        return warmup_schedule_of(keras)


def warmup_schedule_of(keras: Any) -> Any:
    return _warmed_up(keras.optimizers.schedules.LearningRateSchedule)


@functools.lru_cache(maxsize=4)
def _warmed_up(base: Any) -> Any:
    library = sys.modules[base.__module__.partition(".")[0]]  # works for `tf.keras`, too
    contents = {"__module__": "tf_hvd", "__doc__": _WarmedUp.__doc__, "_keras": library}
    made: Any = type("WarmupSchedule", (_WarmedUp, base), contents)
    return library.saving.register_keras_serializable("tf_hvd")(made)


if typing.TYPE_CHECKING:
    import keras as _keras

    class WarmupSchedule(_WarmedUp, _keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
        pass

else:

    def __getattr__(name: str) -> Any:
        if name == "WarmupSchedule":
            return warmup_schedule_of(tf.keras)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
