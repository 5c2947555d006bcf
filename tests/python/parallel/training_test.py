"""The same loss curve on 1, 2 and 4 ranks.

A fixed global batch is shared out; after each step the mean of the ranks' losses
must be what one worker with the whole batch has: computed here, in this process,
by the same code without tf_hvd. float64, to 1e-9.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_hvd as hvd
import tf_hvd.keras

pytestmark = pytest.mark.framework

v1 = tf.compat.v1

STEPS, BATCH, FEATURES, HIDDEN = 12, 24, 5, 7


def data():
    generator = np.random.default_rng(11)
    features = generator.standard_normal((STEPS, BATCH, FEATURES))
    labels = np.sin(features.sum(axis=2, keepdims=True))
    return features, labels


def initial_weights():
    generator = np.random.default_rng(5)
    shapes = [(FEATURES, HIDDEN), (HIDDEN,), (HIDDEN, 1), (1,)]
    return [generator.standard_normal(shape) * 0.5 for shape in shapes]


def loss_of(weights, features, labels):
    hidden = tf.tanh(features @ weights[0] + weights[1])
    return tf.reduce_mean(tf.square(hidden @ weights[2] + weights[3] - labels))


def shard(distributed):
    """The rows of each batch that this worker has."""
    if not distributed:
        return slice(None)
    rows = BATCH // hvd.size()
    return slice(hvd.rank() * rows, (hvd.rank() + 1) * rows)


V1_OPTIMIZERS = {
    "sgd": lambda: v1.train.GradientDescentOptimizer(0.1),
    "adam": lambda: v1.train.AdamOptimizer(0.05),
}
KERAS_OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "adam": lambda: keras.optimizers.Adam(0.05),
}


def train_in_session(name, distributed):
    features, labels = data()
    rows = shard(distributed)
    with tf.Graph().as_default(), v1.Session() as session:
        weights = [v1.get_variable(f"w{i}", initializer=w) for i, w in enumerate(initial_weights())]
        x = v1.placeholder(tf.float64, [None, FEATURES])
        y = v1.placeholder(tf.float64, [None, 1])
        loss = loss_of(weights, x, y)
        optimizer = V1_OPTIMIZERS[name]()
        if distributed:
            optimizer = hvd.DistributedOptimizer(optimizer)
        train = optimizer.minimize(loss)
        shown = hvd.allreduce(loss, name="loss") if distributed else loss
        session.run(v1.global_variables_initializer())
        feeds = [{x: features[i, rows], y: labels[i, rows]} for i in range(STEPS)]
        return [session.run([shown, train], feed)[0] for feed in feeds]


def make_step(weights, optimizer, distributed):
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(weights, x, y)
        if distributed:
            tape = hvd.DistributedGradientTape(tape)
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return hvd.allreduce(loss, name="loss") if distributed else loss

    return step


def train_with_tape(name, distributed, compiled):
    features, labels = data()
    rows = shard(distributed)
    keras.backend.set_floatx("float64")
    try:
        weights = [keras.Variable(w, dtype="float64") for w in initial_weights()]
        optimizer = KERAS_OPTIMIZERS[name]()
        optimizer.build(weights)
        step = make_step(weights, optimizer, distributed)
        if compiled:
            step = tf.function(step, autograph=False)
        batches = [(features[i, rows], labels[i, rows]) for i in range(STEPS)]
        return [float(step(tf.constant(x), tf.constant(y))) for x, y in batches]
    finally:
        keras.backend.set_floatx("float32")


MODES = {
    "session": train_in_session,
    "function": lambda name, distributed: train_with_tape(name, distributed, True),
    "eager": lambda name, distributed: train_with_tape(name, distributed, False),
}


@pytest.mark.parametrize("name", ["sgd", "adam"])
@pytest.mark.parametrize("mode", list(MODES))
def test_loss_curve_is_that_of_one_worker(mode, name):
    train = MODES[mode]
    with tf_hvd.keras.unguarded():  # as one worker would, on each rank
        alone = train(name, False)
    together = train(name, True)
    assert len(alone) == STEPS
    assert alone[-1] < 0.9 * alone[0]
    np.testing.assert_allclose(together, alone, rtol=0, atol=1e-9)
