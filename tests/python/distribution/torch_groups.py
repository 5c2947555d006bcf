"""The subjects of Keras' tests for PyTorch, as tests for TensorFlow.

Pytest runs them in one process, and on each rank of a job of 4 ranks.
"""

import os

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.backend import distribution_lib

import tf_hvd as hvd

RANK = int(os.environ.get("TF_HVD_LAUNCHED_RANK", 0))
RANKS = 4 if "TF_HVD_LAUNCHED_RANK" in os.environ else 1
# Fewer rows than ranks in each batch.
ROWS, BATCH = 10, 3
distribution = keras.distribution


@pytest.fixture
def float64():
    usual = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx(usual[0])
    keras.config.set_dtype_policy(usual[1])


@pytest.fixture
def data_parallel():
    distribution.initialize()
    with distribution.DataParallel().scope():
        yield


def arrays():
    x = np.random.default_rng(5).normal(size=(ROWS, 4))
    return x, x[:, :1] - x[:, 1:2] ** 2


class Plain(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x)


class OfTraining(Plain):
    def __init__(self):
        super().__init__()
        self.dropout = keras.layers.Dropout(0.5)

    def call(self, x, training=False):
        return self.dropout(self.dense(x), training=training)


def compiled(kind):
    keras.utils.set_random_seed(11)
    model = kind()
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    return model


def uses(model):
    """Uses each method of a model; returns results that are of the global batches."""
    x, y = arrays()
    history = model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0).history
    evaluated = model.evaluate(x, y, batch_size=BATCH, verbose=0)
    predicted = model.predict(x, batch_size=BATCH, verbose=0)
    model.train_on_batch(x, y)
    model.test_on_batch(x, y)
    return [
        *(history["loss"], history["mae"], evaluated, predicted),
        *(np.asarray(model.predict_on_batch(x)), *model.get_weights()),
    ]


def test_processes():
    distribution.initialize()
    assert distribution_lib.num_processes() == RANKS
    assert distribution_lib.process_id() == RANK
    assert distribution.DataParallel().num_processes == RANKS


def test_initialize_accepts_the_jobs_numbers(monkeypatch):
    distribution.initialize("127.0.0.1:29506", RANKS, RANK)
    monkeypatch.setenv("KERAS_DISTRIBUTION_JOB_ADDRESSES", "127.0.0.1:29507")
    monkeypatch.setenv("KERAS_DISTRIBUTION_NUM_PROCESSES", str(RANKS))
    monkeypatch.setenv("KERAS_DISTRIBUTION_PROCESS_ID", str(RANK))
    distribution.initialize()
    monkeypatch.setenv("KERAS_DISTRIBUTION_NUM_PROCESSES", str(RANKS + 1))
    with pytest.raises(ValueError, match=f"num_processes={RANKS + 1}"):
        distribution.initialize()


@pytest.mark.parametrize("kind", [None, "cpu", "gpu", "CPU"])
def test_devices(kind):
    has_gpu = bool(tf.config.list_logical_devices("GPU"))
    shown = (kind or ("gpu" if has_gpu else "cpu")).lower()
    own = len(tf.config.list_logical_devices(shown.upper()))
    expected = RANKS if RANKS > 1 and own else own
    assert distribution.list_devices(kind) == [f"{shown}:{number}" for number in range(expected)]
    assert distribution.get_device_count(kind) == expected


def test_tensors_stay_whole():
    layout = distribution.TensorLayout([None], distribution.DataParallel().device_mesh)
    value = tf.range(4)
    assert distribution.distribute_tensor(value, layout) is value
    assert distribution_lib.distribute_data_input(value, layout, "batch") is value


@pytest.mark.parametrize("kind", [Plain, OfTraining])
def test_all_methods_of_a_model(kind, float64, data_parallel):
    model = compiled(kind)
    found = uses(model)
    distribution.set_distribution(None)
    with hvd.unguarded():
        expected = hvd.broadcast_object(uses(compiled(kind)) if RANK == 0 else None)
    for mine, of_one_process in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, of_one_process, rtol=1e-10, atol=1e-12)
    hvd.check_weights(model)


def test_metrics_of_all_ranks(float64, data_parallel):
    model = compiled(Plain)
    x, y = arrays()
    model.train_on_batch(x, y)
    assert {"loss", "mae"} <= set(model.get_metrics_result())
    wrong = model.predict(x, verbose=0) - y
    results = model.evaluate(x, y, batch_size=BATCH, verbose=0, return_dict=True)
    np.testing.assert_allclose(results["mae"], np.mean(np.abs(wrong)), rtol=1e-10)
    np.testing.assert_allclose(results["loss"], np.mean(wrong**2), rtol=1e-10)
    assert len({str(each) for each in hvd.allgather_object(results)}) == 1


def test_metrics_under_model_parallel():
    mesh = distribution.DeviceMesh([RANKS], ["batch"], distribution.list_devices())
    layouts = distribution.LayoutMap(mesh)
    with distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch").scope():
        model = compiled(Plain)
        model.train_on_batch(*arrays())
        assert {"loss", "mae"} <= set(model.get_metrics_result())
        hvd.check_weights(model)
