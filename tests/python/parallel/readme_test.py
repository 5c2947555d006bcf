"""What README.md and docs/data.md print in Python runs as it stands, with small data."""

import pathlib
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_hvd as hvd

pytestmark = [pytest.mark.framework, pytest.mark.jobs(2)]

ROOT = pathlib.Path(__file__).resolve().parents[3]
EXAMPLES = 65  # with batches of 64: ranks that share unevenly have unequal steps


def blocks(file):
    return re.findall(r"^```python\n(.*?)^```", (ROOT / file).read_text(), re.M | re.S)


def stand_ins(rank):
    """The names that a block takes for granted."""
    keras.utils.set_random_seed(rank)
    layers = [keras.layers.Dropout(0.5), keras.layers.Dense(3, activation="softmax")]
    images = np.random.default_rng(0).normal(size=(EXAMPLES, 4)).astype("float32")
    labels = np.arange(EXAMPLES) % 3
    return {
        "tf": tf,
        "keras": keras,
        "model": keras.Sequential(layers),
        "optimizer": keras.optimizers.SGD(),
        "loss_of": keras.losses.SparseCategoricalCrossentropy(),
        "dataset": tf.data.Dataset.from_tensor_slices((images, labels)),
        "steps": [],
    }


def assert_alike(values):
    first, *others = hvd.allgather_object([np.asarray(value).tobytes() for value in values])
    assert first
    assert all(other == first for other in others)


def block_with(text):
    (found,) = [block for block in blocks("README.md") if text in block]
    return found


def test_readme_has_no_other_blocks():
    assert len(blocks("README.md")) == 3


def test_five_lines(rank):
    names = stand_ins(rank)
    exec(block_with("DistributedGradientTape"), names)
    model, optimizer = names["model"], names["optimizer"]
    assert_alike([*model.weights, *optimizer.variables])
    # One dropout mask for all ranks was what step 5 gave.
    (seed,) = [v for v in model.variables if "seed" in v.path]
    assert len({str(each) for each in hvd.allgather_object(seed.numpy())}) == 2


def test_keras_3(rank):
    names = stand_ins(rank)
    exec(block_with("model.fit"), names)
    assert_alike(names["model"].weights)
    assert_alike(names["model"].history.history["loss"])
    assert int(names["optimizer"].iterations) == 10


def test_tensorflow_1(rank):
    with tf.Graph().as_default():
        weight = tf.compat.v1.get_variable("w", [], initializer=tf.constant_initializer(rank + 1.0))
        names = {"tf": tf, "hvd": hvd, "loss": weight * (rank + 1.0)}
        exec(block_with("MonitoredTrainingSession(hooks"), names)


def test_data(rank):
    calls = []
    names = {**stand_ins(rank), "hvd": hvd, "step": lambda *batch: calls.append(batch)}
    names["variables"] = [tf.Variable(1.0 + rank)]
    for block in blocks("docs/data.md"):
        exec(block, dict(names))
    assert len(calls) == 2
    assert_alike(names["variables"])
