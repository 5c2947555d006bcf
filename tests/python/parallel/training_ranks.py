"""A training program on the ranks of a job, written as users write training programs."""

import dataclasses
import os
import pathlib
import tempfile

import keras
import tensorflow as tf
import training_data as data
import training_models as models
import training_reference as reference
import training_session
from training_programs import FIT, ON_BATCH, OWN_STEP, SESSION, TAPE

import tf_hvd
import tf_hvd.keras as hvd
from tf_hvd.keras import callbacks as hvd_callbacks


class Rank:
    """This rank's part of a program.

    Args:
      others: the process set of all ranks except the last.
    """

    def __init__(self, program, others):
        self.rank, size = hvd.rank(), hvd.size()
        self.process_set = others if program.left_out else hvd.global_process_set
        salt = 0
        if program.left_out and self.rank == size - 1:
            program, size, salt = dataclasses.replace(program, left_out=""), 1, 1
            self.place = 0
        else:
            self.place = self.rank
        self.program = program
        self.members = len(program.members(size))
        self.rows = data.rows(program, self.members, salt)
        self.mine = data.of_rank(program, size, self.place)
        self.shared = not (salt or self.process_set.included() is False)
        self.model = None
        self.optimizers = []

    def wrap_options(self, variables):
        """Arguments of the wrapper, as objects."""
        options = dict(self.program.wrap)
        if "op" in options:
            options["op"] = getattr(tf_hvd, options["op"])
        if "compression" in options:
            options["compression"] = getattr(tf_hvd.Compression, options["compression"])
        if options.get("groups") == "lists":
            options["groups"] = [list(variables[::2]), list(variables[1::2])]
        return {**options, "process_set": self.process_set}

    def batches(self):
        """This rank's batches of an epoch."""
        size = self.program.batch
        for i in range(0, len(self.mine), size):
            numbers = self.mine[i : i + size]
            yield tuple(data.take(part, numbers) for part in self.rows)

    def train(self):
        """Runs the whole program."""
        program = self.program
        held = "held" in program.layers
        kind = own_step(program) if program.loop == OWN_STEP and not held else None
        seed = reference.first_seed(program, self.rank)
        self.model = trained = models.make_model(program, seed, True, kind)
        if "adapted" in program.layers:
            self.adapt()
        if held:
            self.model = holding(program, trained)
        loop = {FIT: self.fits, OWN_STEP: self.fits, ON_BATCH: self.on_batch}
        losses = loop.get(program.loop, self.by_hand)() or []
        state = reference.state_of(self.optimizers)
        if not held:
            trained = self.model  # it may have been reloaded
        return reference.Outcome(models.weights_of(program, trained), state, losses)

    def adapt(self):
        """Adapts the model's first layer to the rows of all members."""
        layer, x = self.model.get_layer("adapted"), data.take(self.rows[0], self.mine)
        if self.shared:
            hvd.adapt(layer, x, process_set=self.process_set)
        else:
            layer.adapt(x)

    def wrapped_optimizer(self, optimizer=None):
        """A distributed optimizer."""
        if self.program.api == "keras":
            return models.make_optimizer(self.program)
        late = "late" in self.program.layers
        variables = [] if late else self.model.trainable_variables
        optimizer = optimizer or models.make_optimizer(self.program)
        return hvd.DistributedOptimizer(optimizer, **self.wrap_options(variables))

    # Keras' own training loops.

    def compile(self, optimizer):
        program = self.program
        losses = ["mse", "mse"] if "two_outputs" in program.layers else "mse"
        several = {"steps_per_execution": program.steps_per_execution}
        several["jit_compile"] = program.jit
        if "held" in program.layers:
            losses = None
        self.model.compile(optimizer, losses, run_eagerly=program.eager, **several)

    def fits(self):
        program, losses = self.program, []
        self.compile(self.wrapped_optimizer())
        for number in range(program.fits):
            if number and program.between == "freeze":
                self.model.get_layer("hidden").trainable = False
                self.compile(self.model.optimizer)
            elif number and program.between == "save":
                self.save_and_load()
            with tempfile.TemporaryDirectory() as folder:
                losses.append(self.fit(number, pathlib.Path(folder)))
        self.optimizers = [self.model.optimizer]
        return losses

    def fit(self, number, folder):
        program = self.program
        first, last = number * program.epochs, (number + 1) * program.epochs
        made = make_callbacks(program, folder)
        arguments = {"initial_epoch": first, "epochs": last, "verbose": 0, "callbacks": made}
        if program.data in ("drop", "repeat") and self.shared:
            dataset = hvd_shard(self.rows, program.data, self.process_set).batch(program.batch)
            history = self.model.fit(dataset, **arguments)
        else:
            numbers, batch = self.mine, program.batch
            if program.api == "keras":
                steps = data.steps(program, self.members)
                numbers = [number for step in steps for mine in step for number in mine]
                batch *= self.members
            x, y = (data.take(part, numbers) for part in self.rows)
            history = self.model.fit(x, y, batch_size=batch, shuffle=False, **arguments)
        if "checkpoint" in program.callbacks and (folder / "c.keras").exists() != (self.rank == 0):
            raise AssertionError(f"rank {self.rank} and the checkpoint's file")
        return history.history["loss"]

    def save_and_load(self):
        """Rank 0 saves the model; all ranks continue with the file."""
        folder = hvd.broadcast_object(tempfile.mkdtemp() if self.rank == 0 else None, 0)
        path = pathlib.Path(folder) / "model.keras"
        if self.rank == 0:
            self.model.save(path)
        tf_hvd.barrier()
        load = keras.models.load_model if self.program.api == "keras" else hvd.load_model
        self.model = load(path, **({} if self.program.api == "keras" else self.wrap_options(())))
        # The file does not contain them.
        self.compile(self.model.optimizer)
        tf_hvd.barrier()
        if self.rank == 0:
            path.unlink()
            path.parent.rmdir()

    def broadcast(self):
        if self.program.start == "broadcast":
            tf_hvd.broadcast_variables(self.model.variables, root_rank=self.program.root)

    def on_batch(self):
        self.broadcast()
        self.compile(self.wrapped_optimizer())
        for _ in range(self.program.epochs):
            for x, y in self.batches():
                self.model.train_on_batch(x, y)
        self.optimizers = [self.model.optimizer]

    # The user's own loop.

    def by_hand(self):
        program = self.program
        self.broadcast()
        lists = models.lists_of(program, self.model)
        for _ in range(2 if program.lists == "each its own" else 1):
            self.optimizers.append(self.hand_optimizer())
        if program.lists == "two" or program.data == "join":
            for i, optimizer in enumerate(self.optimizers):
                own = program.lists == "each its own"
                optimizer.build(lists[i] if own else self.model.trainable_variables)
        step = self.step
        if not program.eager:
            step = tf.function(step, autograph=False, jit_compile=program.jit)
        for _ in range(program.epochs):
            for x, y in self.batches():
                step(*(tf.nest.map_structure(self.constant, part) for part in (x, y)))
            if program.data == "join":
                last = int(tf_hvd.join())
                state = [v for optimizer in self.optimizers for v in optimizer.variables]
                tf_hvd.broadcast_variables([*self.model.variables, *state], root_rank=last)

    def constant(self, array):
        value = tf.constant(array)
        half = self.program.policy != "float64" and value.dtype == tf.float64
        return tf.cast(value, tf.float32) if half else value

    def hand_optimizer(self):
        if self.program.loop == TAPE:
            return models.make_optimizer(self.program)
        optimizer = self.wrapped_optimizer()
        mixed = self.program.policy == "mixed_float16"
        return keras.optimizers.LossScaleOptimizer(optimizer) if mixed else optimizer

    def step(self, x, y):
        program = self.program
        lists = list(enumerate(models.lists_of(program, self.model)))
        if program.crossed and self.rank % 2:
            lists.reverse()
        for i, variables in lists:
            optimizer = self.optimizers[i % len(self.optimizers)]
            with tf.GradientTape() as tape:
                made = self.model(x, training=True)
                loss = tf.reduce_mean(models.loss_rows(program, made, y))
                for penalty in self.model.losses:
                    loss += tf.cast(penalty, loss.dtype)
                if program.policy == "mixed_float16":
                    loss = optimizer.scale_loss(loss)
            if program.loop == TAPE:
                tape = tf_hvd.DistributedGradientTape(tape, **self.wrap_options(variables))
            gradients = tape.gradient(loss, variables)
            optimizer.apply_gradients(zip(gradients, variables, strict=True))


def hvd_shard(rows, uneven, process_set):
    dataset = tf.data.Dataset.from_tensor_slices(rows)
    return tf_hvd.shard(dataset, uneven=uneven, process_set=process_set)


def own_step(program):
    """A Model with a user's train_step."""
    library = models.LIBRARIES[program.library]

    class OwnStep(library.Model):
        def train_step(self, batch):
            x, y = batch
            with tf.GradientTape() as tape:
                made = self(x, training=True)
                loss = self.compute_loss(x=x, y=y, y_pred=made)
            gradients = tape.gradient(loss, self.trainable_variables)
            pairs = zip(gradients, self.trainable_variables, strict=True)
            self.optimizer.apply_gradients(pairs)
            self.shown.update_state(loss, sample_weight=tf.shape(x)[0])
            return {"loss": self.shown.result()}

    def make(*arguments):
        model = OwnStep(*arguments)
        model.shown = library.metrics.Mean(name="shown")
        return model

    return make


def holding(program, net):
    """A Model that trains another model, which it holds, and is never called itself."""
    library = models.LIBRARIES[program.library]

    class Holding(library.Model):
        def train_step(self, batch):
            x, y = batch
            with tf.GradientTape() as tape:
                made = self.net(x, training=True)
                loss = tf.reduce_mean(models.loss_rows(program, made, y))
                for penalty in self.net.losses:
                    loss += tf.cast(penalty, loss.dtype)
            variables = self.net.trainable_variables
            gradients = tape.gradient(loss, variables)
            self.optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))
            self.shown.update_state(loss, sample_weight=tf.shape(x)[0])
            return {"loss": self.shown.result()}

    model = Holding()
    model.net = net
    model.shown = library.metrics.Mean(name="shown")
    return model


def make_callbacks(program, folder):
    """The program's callbacks, in its order."""
    library = models.LIBRARIES[program.library]
    ours = hvd_callbacks.of(library)
    rate = reference.PLANNED_RATE
    makers = {
        "broadcast": lambda: ours.BroadcastGlobalVariablesCallback(program.root),
        "average": ours.MetricAverageCallback,
        "keras_stop": lambda: library.callbacks.EarlyStopping(**reference.KERAS_STOP),
        "stop": lambda: ours.EarlyStopping(**reference.STOP),
        "plateau": lambda: library.callbacks.ReduceLROnPlateau(**reference.PLATEAU),
        "warmup": lambda: ours.LearningRateWarmupCallback(rate, reference.WARMUP_EPOCHS),
        "schedule": lambda: ours.LearningRateScheduleCallback(rate, reference.DECAY),
        "checkpoint": lambda: ours.ModelCheckpoint(str(folder / "c.keras"), monitor="loss"),
    }
    return [makers[name]() for name in program.callbacks]


def train(program, others):
    """This rank's final state; None if it only waits."""
    left_out = program.left_out and hvd.rank() == hvd.size() - 1
    if left_out and program.left_out == "waits":
        return None
    before = {name: os.environ.get(name) for name, _ in program.environment}
    os.environ.update(program.environment)
    try:
        part = Rank(program, others)
        if program.api == "keras":
            with keras.distribution.DataParallel().scope():
                return part.train()
        return training_session.together(part) if program.loop == SESSION else part.train()
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
