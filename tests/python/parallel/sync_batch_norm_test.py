"""SyncBatchNormalization: what one rank would compute on all ranks' batches together."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tf_hvd as hvd
from tf_hvd.keras import DistributedOptimizer
from tf_hvd.keras.callbacks import of
from tf_hvd.keras.sync_batch_norm import global_moments, synchronized

pytestmark = pytest.mark.framework

LAYERS = {
    "keras": keras.layers.BatchNormalization,
    "tf_keras": tf_keras.layers.BatchNormalization,
}


def batch_of(rank, rows, shape=(3,)):
    """A rank's batch; the last rank of a larger job has no rows at all when rows is 0."""
    return np.random.default_rng(rank).normal(rank, 1 + rank, (rows, *shape))


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-9)


def train(layer, x, weights, **arguments):
    """Output, gradient of sum(weights * output) by x and by gamma, in training."""
    x = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x, training=True, **arguments)
        loss = tf.reduce_sum(tf.constant(weights) * y)
    gamma = layer.gamma.value if isinstance(layer, keras.Layer) else layer.gamma
    by_x, by_gamma = tape.gradient(loss, [x, gamma])
    return y.numpy(), by_x.numpy(), by_gamma.numpy()


@pytest.mark.parametrize("kind", list(LAYERS))
@pytest.mark.parametrize("shape", [(3,), (2, 2, 3)], ids=["vectors", "images"])
@pytest.mark.parametrize("uneven", [False, True], ids=["even", "uneven"])
def test_as_one_large_batch(kind, shape, uneven, rank, size):
    rows = [4 if not uneven else 3 * (r % 3) for r in range(size)]
    rows[0] = 4
    batches = [batch_of(r, n, shape) for r, n in enumerate(rows)]
    weights = [batch_of(100 + r, n, shape) for r, n in enumerate(rows)]
    layer = synchronized(LAYERS[kind])(dtype="float64", momentum=0.5)
    plain = LAYERS[kind](dtype="float64", momentum=0.5)

    y, by_x, by_gamma = train(layer, batches[rank], weights[rank])
    all_y, all_by_x, all_by_gamma = train(plain, np.concatenate(batches), np.concatenate(weights))

    mine = slice(sum(rows[:rank]), sum(rows[: rank + 1]))
    close(y, all_y[mine])
    close(by_x, all_by_x[mine])
    close(hvd.allreduce(tf.constant(by_gamma), op=hvd.Sum).numpy(), all_by_gamma)
    close(layer.moving_mean.numpy(), plain.moving_mean.numpy())
    if not (kind == "tf_keras" and len(shape) > 1):  # there the plain layer is the fused
        # kernel, which keeps the variance with Bessel's correction
        close(layer.moving_variance.numpy(), plain.moving_variance.numpy())


def test_masked_elements_do_not_count(rank, size):
    batches = [batch_of(r, 4, (5, 2)) for r in range(size)]
    masks = [np.random.default_rng(50 + r).random((4, 5)) < 0.6 for r in range(size)]
    x = np.where(masks[rank][..., None], batches[rank], np.nan)
    mean, variance = global_moments(tf.constant(x), [0, 1], tf.constant(masks[rank][..., None]))
    kept = np.concatenate([b[m] for b, m in zip(batches, masks, strict=True)])
    close(mean.numpy().ravel(), kept.mean(0))
    close(variance.numpy().ravel(), kept.var(0))


def test_large_means_do_not_cancel(rank, size):
    """float32 with a mean of 10,000 standard deviations: squares would lose all digits."""
    batches = [1e4 + np.random.default_rng(r).normal(0, 1, (256, 1)) for r in range(size)]
    x = batches[rank].astype(np.float32)
    _, variance = global_moments(tf.constant(x), [0])
    expected = np.concatenate([b.astype(np.float32) for b in batches]).astype(np.float64).var()
    np.testing.assert_allclose(variance.numpy(), expected, rtol=1e-3)


def test_nothing_at_all():
    mean, variance = global_moments(tf.zeros([0, 3]), [0])
    assert mean.numpy().tolist() == variance.numpy().tolist() == [[0, 0, 0]]


@pytest.mark.parametrize("kind", list(LAYERS))
def test_in_fit(kind, rank, size):
    """Moving statistics after a step of `fit` are those of all ranks' data."""
    layers = keras if kind == "keras" else tf_keras
    layer = synchronized(LAYERS[kind])(momentum=0.0)
    model = layers.Sequential([layers.Input((3,)), layer, layers.layers.Dense(1)])
    model.compile(optimizer=DistributedOptimizer(layers.optimizers.SGD()), loss="mse")
    batches = [batch_of(r, 8).astype(np.float32) for r in range(size)]
    start = of(layers).BroadcastGlobalVariablesCallback(0)
    model.fit(batches[rank], np.zeros((8, 1)), batch_size=8, verbose=0, callbacks=[start])
    expected = np.concatenate(batches).mean(0)
    np.testing.assert_allclose(layer.moving_mean.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_fused_is_refused():
    for fused in (True, None):
        with pytest.raises(ValueError, match="leave fused= out"):
            hvd.SyncBatchNormalization(fused=fused)


def test_config_says_the_plain_layer():
    layer = hvd.SyncBatchNormalization(momentum=0.25)
    saved = keras.saving.serialize_keras_object(layer)
    assert (saved["module"], saved["class_name"]) == ("keras.layers", "BatchNormalization")
    loaded = keras.saving.deserialize_keras_object(saved)
    assert type(loaded) is keras.layers.BatchNormalization
    assert loaded.momentum == 0.25
    assert type(type(layer).from_config(layer.get_config())) is type(layer)
