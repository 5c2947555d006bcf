"""The expected result of a training program: one worker trains with the rows of all ranks.

It is an eager loop with a plain optimizer and Keras' own callbacks, without tf_hvd. Each row has
the weight that docs/optimizers.md specifies: an Average divides by the number of ranks, including
those that have joined.
"""

import dataclasses

import keras
import numpy as np
import tensorflow as tf
import training_data as data
import training_models as models
from training_programs import FITS


@dataclasses.dataclass
class Outcome:
    """The result of a training run."""

    weights: list
    state: list
    """The variables of the optimizers."""
    losses: list
    """By fit, then by epoch."""


def first_seed(program, rank):
    """The seed of a rank's initial weights."""
    return program.seed + (1 + rank if program.start == "broadcast" else 0)


def state_of(optimizers):
    """The variables of optimizers, as arrays."""
    return [np.asarray(v) for optimizer in optimizers for v in optimizer.variables]


def factor(program, members):
    """The factor for each rank's gradient."""
    return 1.0 if program.wrapped("op") == "Sum" else 1.0 / members


class Plan:
    """Sets learning rates as documented for hvd's callbacks.

    Args:
      rate: function of an execution's first epoch and batch; None: do not change it.
    """

    def __new__(cls, library, rate):
        def on_train_batch_begin(self, batch, logs=None):
            new = rate(self.epoch, batch)
            if new is None:
                return
            optimizer = self.model.optimizer
            old = float(optimizer.learning_rate)
            for velocity in getattr(optimizer, "momentums", ()) if old != new else ():
                if velocity is not None and float(getattr(optimizer, "momentum", 0)) > 0:
                    velocity.assign(velocity * (new / old))
            optimizer.learning_rate = new

        def on_epoch_begin(self, epoch, logs=None):
            self.epoch = epoch

        methods = {"on_train_batch_begin": on_train_batch_begin, "on_epoch_begin": on_epoch_begin}
        return type("Plan", (library.callbacks.Callback,), methods)()


# Keras' own callbacks that use the loss; they decide within a few epochs.
STOP = {"monitor": "loss", "patience": 1, "min_delta": 0.02}
KERAS_STOP = {"monitor": "loss", "patience": 0, "min_delta": 0.03, "restore_best_weights": True}
PLATEAU = {"monitor": "loss", "factor": 0.5, "patience": 1, "min_delta": 0.03}
WARMUP_EPOCHS, PLANNED_RATE, DECAY = 2, 0.05, 0.5


def make_callbacks(program, members, steps):
    """The equivalents of the program's callbacks on one worker."""
    library = models.LIBRARIES[program.library]

    def warmup(epoch, batch):
        if epoch >= WARMUP_EPOCHS:
            return None
        done = min((epoch + (batch + 1) / steps) / WARMUP_EPOCHS, 1)
        return PLANNED_RATE * (1 + done * (members - 1)) / members

    def schedule(epoch, batch):
        return PLANNED_RATE * DECAY**epoch if batch == 0 else None

    makers = {
        "keras_stop": lambda: library.callbacks.EarlyStopping(**KERAS_STOP),
        "stop": lambda: library.callbacks.EarlyStopping(**STOP),
        "plateau": lambda: library.callbacks.ReduceLROnPlateau(**PLATEAU),
        "warmup": lambda: Plan(library, warmup),
        "schedule": lambda: Plan(library, schedule),
    }
    return [makers[name]() for name in program.callbacks if name in makers]


class Worker:
    """One worker, which replaces the members of a job of `size` ranks.

    Args:
      salt: seed of the rows.
    """

    def __init__(self, program, size, salt=0):
        self.program, self.size = program, size
        self.members = len(program.members(size))
        self.model = models.make_model(program, first_seed(program, program.root), False)
        count = 2 if program.lists == "each its own" else 1
        self.optimizers = [self._optimizer() for _ in range(count)]
        if program.lists == "two":
            self.optimizers[0].build(self.model.trainable_variables)
        self.rows = data.rows(program, self.members, salt)
        self.steps = data.steps(program, size)
        if "adapted" in program.layers:
            mine = [data.of_rank(program, size, place) for place in range(self.members)]
            x = data.take(self.rows[0], [n for numbers in mine for n in numbers])
            self.model.get_layer("adapted").adapt(x)
        self.model.optimizer = self.optimizers[0]
        self.sums = {}

    def _optimizer(self):
        optimizer = models.make_optimizer(self.program)
        mixed = self.program.policy == "mixed_float16"
        return keras.optimizers.LossScaleOptimizer(optimizer) if mixed else optimizer

    def train(self):
        """Runs the whole program."""
        program, losses = self.program, []
        for number in range(program.fits):
            if number and program.between == "freeze":
                if "frozen" not in program.layers:  # the list of variables has changed
                    self.sums = {}
                self.model.get_layer("hidden").trainable = False
            losses.append(self._fit(number))
        weights = models.weights_of(program, self.model)
        return Outcome(weights, state_of(self.optimizers), losses)

    def _fit(self, number):
        program, losses = self.program, []
        callbacks = make_callbacks(program, self.members, len(self.steps))
        self.model.stop_training = False
        for callback in callbacks:
            callback.set_model(self.model)
            callback.set_params({"verbose": 0})
            callback.on_train_begin({})
        for epoch in range(number * program.epochs, (number + 1) * program.epochs):
            losses.append(self._epoch(epoch, callbacks))
            if self.model.stop_training:
                break
        if program.loop in FITS:
            self.optimizers[0].finalize_variable_values(self.model.trainable_variables)
        for callback in callbacks:
            callback.on_train_end({})
        return losses

    def _epoch(self, epoch, callbacks):
        seen, total = 0, 0.0
        for callback in callbacks:
            callback.on_epoch_begin(epoch, {})
        for i, step in enumerate(self.steps):
            if i % self.program.steps_per_execution == 0:
                for callback in callbacks:
                    callback.on_train_batch_begin(i, {})
            rows = sum(map(len, step))
            total += rows * self._step(step)
            seen += rows
        logs = {"loss": total / seen if seen else 0.0}
        for callback in callbacks:
            callback.on_epoch_end(epoch, logs)
        return logs["loss"]

    def _step(self, step):
        """Makes a step and returns its loss, the mean across the ranks."""
        each = factor(self.program, self.members)
        present = sum(1 for numbers in step if numbers)
        numbers = [n for mine in step for n in mine]
        weights = [each / len(mine) for mine in step for _ in mine]
        found = []
        lists = models.lists_of(self.program, self.model)
        for i, variables in enumerate(lists):
            optimizer = self.optimizers[i % len(self.optimizers)]
            loss, gradients = self._gradients(
                optimizer, variables, numbers, weights, present * each
            )
            found.append(float(loss) / (present * each))
            self._apply(i, optimizer, gradients, variables)
        return found[0]

    def _gradients(self, optimizer, variables, numbers, weights, regular):
        program = self.program
        x, y = (tf.nest.map_structure(tf.constant, data.take(part, numbers)) for part in self.rows)
        if program.policy != "float64":
            x, y = (tf.nest.map_structure(lambda a: tf.cast(a, tf.float32), p) for p in (x, y))
        with tf.GradientTape() as tape:
            rows = models.loss_rows(program, self.model(x, training=True), y)
            loss = tf.reduce_sum(rows * tf.constant(weights, rows.dtype))
            for penalty in self.model.losses:
                loss += regular * tf.cast(penalty, loss.dtype)
            mixed = program.policy == "mixed_float16"
            scaled = optimizer.scale_loss(loss) if mixed else loss
        sources = [v.value if isinstance(v, keras.Variable) else v for v in variables]
        gradients = tape.gradient(scaled, sources)
        return loss, [self._as_applied(g) for g in gradients]

    def _as_applied(self, gradient):
        """The gradient that tf_hvd documents to pass to the optimizer."""
        if not isinstance(gradient, tf.IndexedSlices):
            return gradient
        if self.program.wrapped("sparse_as_dense"):
            return tf.convert_to_tensor(gradient)
        rows, number = tf.unique(gradient.indices)
        sums = tf.math.unsorted_segment_sum(gradient.values, number, tf.size(rows))
        return tf.IndexedSlices(sums, rows, gradient.dense_shape)

    def _apply(self, key, optimizer, gradients, variables):
        passes = self.program.passes
        if passes > 1:
            count, sums = self.sums.get(key, (0, None))
            if sums is not None:
                gradients = [a + b for a, b in zip(sums, gradients, strict=True)]
            self.sums[key] = (count + 1, gradients)
            if count + 1 < passes:
                if not self.program.eager:  # a function creates the state for all passes
                    optimizer.build(variables)
                return
            average = passes if self.program.wrapped("average_aggregated_gradients") else 1
            gradients = [total / average for total in gradients]
            self.sums.pop(key)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))


def train(program, size, salt=0):
    """The result of one worker with the rows of all members of a job of `size` ranks."""
    return Worker(program, size, salt).train()
