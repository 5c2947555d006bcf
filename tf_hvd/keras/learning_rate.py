"""What the callbacks do that change the learning rate: schedule and warm-up.

Goyal and others, "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", 2017:
N ranks take batches N times as large, so the learning rate is N times as large, and
is reached over the first epochs. Where an optimizer's velocity contains the
learning rate (SGD and RMSprop with momentum), it is scaled with each change of the
learning rate, which is what the paper calls momentum correction.
"""

from collections.abc import Callable
from typing import Any

from tf_hvd.core import basics
from tf_hvd.keras.compat import grows, innermost, velocities_of


def check_settable(optimizer: Any, callback: str) -> None:
    """Raises unless the optimizer has one learning rate that can be set."""
    kind = type(optimizer).__name__
    if grows(optimizer):
        raise ValueError(
            f"{callback} sets one learning rate, and {kind} has several: give each of its "
            "optimizers a Keras schedule."
        )
    if isinstance(optimizer.get_config().get("learning_rate"), dict):
        raise ValueError(
            f"{callback} sets the learning rate, which a LearningRateSchedule in {kind} sets "
            f"already: give {kind} a number, or leave this callback out and put the warm-up into "
            "the schedule."
        )


class Schedule:
    """Multiplies the learning rate from epoch to epoch, or from batch to batch.

    Args:
      initial_lr: the learning rate that the multiplier applies to.
      multiplier: a function of the epoch (with `staircase=False` a float, as 1.5
        after half of the second epoch), or a number m for m ** (epoch - start_epoch).
      start_epoch: first epoch in which this callback sets the learning rate.
      end_epoch: first epoch in which it does not any more; None for never.
      staircase: change at the beginning of epochs only.
      momentum_correction: scale the velocities of an optimizer with momentum.
      steps_per_epoch: batches of an epoch; by default what `fit` knows.

    Raises:
      ValueError: `initial_lr` is None; the number of batches is not known; the
        optimizer has a LearningRateSchedule, or is a MultiOptimizer.
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
            raise ValueError("initial_lr=None: pass the learning rate to multiply.")
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
                "the number of batches of an epoch is not known; give steps_per_epoch= to "
                f"{type(self).__name__}, or a dataset with a known length to fit()."
            )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch
        self._changes = True

    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        ended = self.end_epoch is not None and self._epoch >= self.end_epoch
        if self._epoch < self.start_epoch or ended:
            return
        if self.staircase:
            # Not batch 0: a resumed epoch may begin with another one.
            if self._changes:
                self._changes = False
                self._set(self.multiplier(self._epoch))
        else:
            assert self._steps
            self._set(self.multiplier(self._epoch + batch / self._steps))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Adds the learning rate to the epoch's metrics as `lr`."""
        if logs is not None:
            logs["lr"] = float(innermost(self.model.optimizer).learning_rate)

    def _set(self, factor: float) -> None:
        optimizer = innermost(self.model.optimizer)
        old, new = float(optimizer.learning_rate), self.initial_lr * factor
        if old == new:
            return
        optimizer.learning_rate = new
        # A model that its first batch will build has no velocity yet.
        if self.momentum_correction and old > 0.0 and self.model.built:
            for velocity in velocities_of(optimizer, self.model.trainable_variables):
                if velocity is not None:
                    velocity.assign(velocity * (new / old))


class Warmup(Schedule):
    """Raises the learning rate from initial_lr / size() to initial_lr, batch by batch.

    Args:
      initial_lr: the learning rate at the end, that of `size()` ranks together.
      warmup_epochs: how many epochs it takes.
      momentum_correction: see LearningRateScheduleCallback.
      steps_per_epoch: see there.
      verbose: rank 0 prints a line at the end.
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
            # The last batch is the first with the whole learning rate.
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
        """As the schedule's; then rank 0 may say that the warm-up is over."""
        super().on_epoch_end(epoch, logs)
        if self.verbose and self.end_epoch == epoch + 1 and basics.rank() == 0:
            rate = float(innermost(self.model.optimizer).learning_rate)
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.")
