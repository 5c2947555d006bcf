"""One model on R ranks is the model that one worker has with all of the batch.

Each cell trains for a few steps with a rank's share of fixed batches, and compares
the weights with those of a plain optimizer on the whole batches, computed here, in
this process, by an eager loop. float64 to 1e-9; mixed_float16 to 1e-3, for it adds
up a batch in half precision.
"""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from tf_keras.src.mixed_precision.loss_scale_optimizer import LossScaleOptimizerV3

import tf_hvd
import tf_hvd.keras as hvd

pytestmark = [pytest.mark.framework, pytest.mark.jobs(2)]

STEPS, BATCH, FEATURES, WORDS = 4, 8, 4, 6
# The row whose gradient overflows in float16 is the last rank's.
OVERFLOW_STEP, OVERFLOW_ROW = 2, BATCH - 1

OPTIMIZERS = {
    "sgd": ("SGD", {"learning_rate": 0.1, "momentum": 0.9}),
    "adam": ("Adam", {"learning_rate": 0.02}),
    "adamw": ("AdamW", {"learning_rate": 0.02, "weight_decay": 0.1}),
    "lion": ("Lion", {"learning_rate": 0.02}),
    "lamb": ("Lamb", {"learning_rate": 0.02}),
    "rmsprop": ("RMSprop", {"learning_rate": 0.02, "momentum": 0.5}),
    "adafactor": ("Adafactor", {"learning_rate": 0.02}),
}
OPTIONS = {
    "plain": {},
    "accumulation": {"gradient_accumulation_steps": 4},
    "clipnorm": {"clipnorm": 0.01},
    "mixed": {},
    "sparse": {},
}


def make_optimizer(library, name, case):
    kind, options = OPTIMIZERS[name]
    return getattr(library.optimizers, kind)(**options, **OPTIONS[case])


def steps_of(case):
    return 2 * STEPS if case == "accumulation" else STEPS


@functools.cache
def data(case):
    """Features and labels of all steps: [steps, BATCH, ...]."""
    generator = np.random.default_rng(3)
    shape = (steps_of(case), BATCH, FEATURES)
    if case == "sparse":
        features = generator.integers(0, WORDS, shape)
        labels = features.sum(axis=2, keepdims=True) / 10.0
    else:
        features = generator.standard_normal(shape) * 0.3
        labels = np.sin(features.sum(axis=2, keepdims=True)) * 0.2
    if case == "mixed":
        labels[OVERFLOW_STEP, OVERFLOW_ROW] = 1e6
    return features, labels


def shard(array):
    """This rank's rows of each step, one after the other."""
    rows = BATCH // hvd.size()
    mine = array[:, hvd.rank() * rows : (hvd.rank() + 1) * rows]
    return mine.reshape(-1, *array.shape[2:])


class OwnStep(keras.Model):
    """A training step of the user's."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
            scaled = self.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


def make_model(library, case, kind=None):
    """The same first weights on each call."""
    layers = library.layers
    if case == "sparse":
        inputs = library.Input([FEATURES], dtype="int64")
        flat = layers.Flatten()(layers.Embedding(WORDS, 2)(inputs))
        outputs = layers.Dense(1, use_bias=False)(flat)
    else:
        inputs = library.Input([FEATURES])
        outputs = layers.Dense(1, activation="tanh")(inputs)
    model = (kind or library.Model)(inputs, outputs)
    generator = np.random.default_rng(7)
    model.set_weights([generator.standard_normal(w.shape) * 0.3 for w in model.get_weights()])
    return model


@pytest.fixture
def precision(request):
    """float64 or mixed_float16 in both Kerases, by the cell's case."""
    mixed = request.node.callspec.params["case"] == "mixed"
    for library in (keras, tf_keras):
        if mixed:
            library.mixed_precision.set_global_policy("mixed_float16")
        else:
            library.backend.set_floatx("float64")
            library.mixed_precision.set_global_policy("float64")
    yield
    for library in (keras, tf_keras):
        library.backend.set_floatx("float32")
        library.mixed_precision.set_global_policy("float32")


def loss_of(model, x, y):
    return tf.reduce_mean(tf.square(tf.cast(model(x, training=True), y.dtype) - y))


@functools.cache
def alone(library, name, case):
    """What one worker has: weights."""
    model = make_model(library, case)
    optimizer = make_optimizer(library, name, case)
    legacy = library is tf_keras
    if case == "mixed":
        # tf_keras picks its class for the optimizer's kind in compile().
        kind = LossScaleOptimizerV3 if legacy else keras.optimizers.LossScaleOptimizer
        optimizer = kind(optimizer)
    dtype = tf.float32 if case == "mixed" else tf.float64
    with hvd.unguarded():
        for x, y in zip(*data(case), strict=True):
            with tf.GradientTape() as tape:
                loss = loss_of(model, tf.constant(x), tf.constant(y, dtype))
                if not legacy:
                    loss = optimizer.scale_loss(loss)
                elif case == "mixed":
                    loss = optimizer.get_scaled_loss(loss)
            gradients = tape.gradient(loss, model.trainable_variables)
            if case == "sparse" and not legacy:
                # Keras 3 squares each of several slices of one row before it adds
                # them up; the gradient is their sum.
                gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
            if legacy and case == "mixed":
                gradients = optimizer.get_unscaled_gradients(gradients)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return model.get_weights(), int(optimizer.iterations.numpy())


def fit(library, name, case, kind=None):
    model = make_model(library, case, kind)
    optimizer = hvd.DistributedOptimizer(make_optimizer(library, name, case))
    if kind is OwnStep and case == "mixed":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    # One of the optimizers is enough to see a train_step in a tf.function.
    model.compile(optimizer, "mse", run_eagerly=kind is OwnStep and name != "adam")
    features, labels = (shard(array) for array in data(case))
    rows = BATCH // hvd.size()
    model.fit(features, labels, batch_size=rows, shuffle=False, verbose=0)
    return model


def by_hand(name, case, distributed_tape=False):
    """A loop of the user's, with our optimizer or with our tape and a plain one."""
    model = make_model(keras, case)
    optimizer = make_optimizer(keras, name, case)
    if case == "mixed":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    if not distributed_tape:
        optimizer = hvd.DistributedOptimizer(optimizer)
    optimizer.build(model.trainable_variables)
    dtype = tf.float32 if case == "mixed" else tf.float64

    @tf.function(autograph=False)
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(loss_of(model, x, y))
        if distributed_tape:
            tape = tf_hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    features, labels = (shard(array) for array in data(case))
    rows = BATCH // hvd.size()
    for i in range(0, len(features), rows):
        step(tf.constant(features[i : i + rows]), tf.constant(labels[i : i + rows], dtype))
    model.optimizer = optimizer
    return model


PATHS = {
    "fit": lambda name, case: fit(keras, name, case),
    "train_step": lambda name, case: fit(keras, name, case, OwnStep),
    "by_hand": by_hand,
    "tape": lambda name, case: by_hand(name, case, distributed_tape=True),
    "tf_keras": lambda name, case: fit(tf_keras, name, case),
}


def cells():
    """Each pair of a path, an optimizer and a case, as in a Latin square.

    training_programs_test.py has random triples, and much else.
    """
    for i, name in enumerate(OPTIMIZERS):
        for j, case in enumerate(OPTIONS):
            path = tuple(PATHS)[(i + j) % len(PATHS)]
            if path == "tf_keras" and (case == "accumulation" or name == "lamb"):
                path = "fit"  # tf_keras has neither
            yield path, name, case
    yield "tf_keras", "lion", "plain"  # in place of those


@pytest.mark.parametrize(("path", "name", "case"), cells())
def test_ranks_train_as_one_worker(path, name, case, precision):
    library = tf_keras if path == "tf_keras" else keras
    model = PATHS[path](name, case)
    expected, iterations = alone(library, name, case)
    # A skipped step is none to Keras 3, and one without an update to tf_keras.
    skipped = case == "mixed" and library is keras
    assert iterations == (2 if case == "accumulation" else STEPS) - skipped
    assert int(model.optimizer.iterations.numpy()) == iterations
    tolerance = 1e-3 if case == "mixed" else 1e-9
    first = make_model(library, case).get_weights()
    for weight, value, before in zip(model.get_weights(), expected, first, strict=True):
        assert np.abs(value - before).max() > 3 * tolerance
        np.testing.assert_allclose(weight, value, rtol=0, atol=tolerance)
    hvd.check_weights(model)
