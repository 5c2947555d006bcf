"""Data, models and results for the programs."""

import pathlib
import sys
import tempfile

import keras
import numpy as np
import tensorflow as tf

PROGRAMS = {}
EVEN, UNEVEN, BATCH = 64, 61, 16
FOLDER = pathlib.Path(tempfile.mkdtemp())
layers, SGD = keras.layers, keras.optimizers.SGD


def shared(name):
    """A path that is the same on all ranks."""
    return pathlib.Path(f"{sys.argv[1]}.{name}")


def program(function):
    assert function.__name__ not in PROGRAMS
    PROGRAMS[function.__name__] = function
    return function


def numbers(rows=EVEN, width=6, seed=0):
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(rows, width))
    y = x @ generator.normal(size=(width, 1)) + 0.1 * generator.normal(size=(rows, 1))
    return x, y


def classes(rows=EVEN, width=6, count=3):
    x, _ = numbers(rows, width)
    return x, np.abs(x[:, 0] * 10).astype("int64") % count


def batches(*arrays, size=BATCH, drop=False):
    return tf.data.Dataset.from_tensor_slices(arrays).batch(size, drop_remainder=drop)


def dense(*more, width=6, out=1):
    hidden = [layers.Dense(8, activation="tanh"), *more]
    return keras.Sequential([keras.Input([width]), *hidden, layers.Dense(out)])


def compiled(model, loss="mse", optimizer=None, **options):
    model.compile(optimizer or keras.optimizers.Adam(0.01), loss, **options)
    return model


def trained(model, x, y=None, epochs=2, **options):
    return model.fit(x, y, epochs=epochs, verbose=0, **options).history


def results(model, history=None, **more):
    weights = [np.ravel(np.asarray(w, "float64")) for w in model.get_weights()]
    return {"weights": np.concatenate(weights), **(history or {}), **more}


def fitted(model, rows=EVEN, data=numbers, **options):
    return results(model, trained(model, batches(*data(rows)), **options))
