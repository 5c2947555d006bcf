"""Data and layers for the tests of adapted layers: all ranks' rows, and each rank's share."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tf_hvd as hvd
import tf_hvd.keras

LIBRARIES = pytest.mark.parametrize("library", [keras, tf_keras], ids=["keras", "tf_keras"])
ROWS = 7  # rows of rank 0; each further rank has one more


def row_counts():
    return [ROWS + rank for rank in range(hvd.size())]


def share(rows):
    """This rank's part of all ranks' rows."""
    ends = np.cumsum([0, *row_counts()])
    return rows[ends[hvd.rank()] : ends[hvd.rank() + 1]]


def numbers():
    """All ranks' rows; each rank's have a different mean, far from 0."""
    generator = np.random.default_rng(3)
    rank_of = np.repeat(np.arange(hvd.size()), row_counts())[:, None]
    return (generator.standard_normal((len(rank_of), 3)) * [1, 5, 0.1] + rank_of + 1000).astype(
        "f4"
    )


def words():
    """All ranks' texts of one word; some are on one rank only, and many are equally frequent."""
    generator = np.random.default_rng(5)
    rank_of = np.repeat(np.arange(hvd.size()), row_counts())
    made = [
        f"w{generator.integers(4)}" if i % 2 else f"of{rank}_{i % 3}"
        for i, rank in enumerate(rank_of)
    ]
    return np.array(made, object)[:, None]


def sentences():
    """All ranks' texts of a few words."""
    texts = words()[:, 0]
    return np.array([f"{a} {b}, {a}!" for a, b in zip(texts, texts[::-1], strict=True)], object)


def integers():
    return (numbers()[:, :2] * 3).astype("int64") % 11


KINDS = {
    "Normalization": ({}, numbers),
    "Discretization": ({"num_bins": 4}, numbers),
    "StringLookup": ({}, words),
    "IntegerLookup": ({}, integers),
    "TextVectorization": ({"output_sequence_length": 4}, sentences),
}
EACH_KIND = pytest.mark.parametrize("kind", list(KINDS))


def make(library, kind, **options):
    return getattr(library.layers, kind)(**{**KINDS[kind][0], **options})


def data_of(kind):
    return KINDS[kind][1]()


def batches(rows, size=3):
    return tf.data.Dataset.from_tensor_slices(list(rows) if rows.dtype == object else rows).batch(
        size
    )


def outputs(layer, rows):
    """The layer's output for these rows."""
    made = layer(tf.constant(rows))
    return np.asarray(made.to_tensor() if isinstance(made, tf.RaggedTensor) else made)


def assert_alike(value):
    """Check that the value is bitwise the same on all ranks."""
    everyone = hvd.allgather_object(np.asarray(value))
    for other in everyone:
        assert other.dtype == everyone[0].dtype
        np.testing.assert_array_equal(other, everyone[0])


@functools.cache
def dense(library):
    """A model without adapted layers, to be fitted on (2, 1) arrays."""
    model = library.Sequential([library.layers.Dense(1, kernel_initializer="ones")])
    model.build((None, 1))
    model.compile(tf_hvd.DistributedOptimizer(library.optimizers.SGD(0.0)), "mse")
    return model


def fit(library):
    """Train one step."""
    ones = np.ones([2, 1], "f4")
    dense(library).fit(ones, ones, batch_size=2, epochs=1, verbose=0)


def broadcast():
    """The broadcast at the start of a custom loop."""
    hvd.broadcast_variables([tf.Variable(1.0)], 0)
