"""SyncBatchNormalization: equals one rank's result on the batches of all ranks."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tf_hvd as hvd
from tf_hvd.keras import DistributedOptimizer, GuardError, load_model, unguarded
from tf_hvd.keras.callbacks import of
from tf_hvd.keras.sync_batch_norm import global_moments, synchronized

pytestmark = pytest.mark.framework

LIBRARIES = {"keras": keras, "tf_keras": tf_keras}
LAYERS = {kind: library.layers.BatchNormalization for kind, library in LIBRARIES.items()}


def batch_of(rank, rows, shape=(3,)):
    """A rank's batch; if rows is 0, the last rank of a larger job has no rows."""
    return np.random.default_rng(rank).normal(rank, 1 + rank, (rows, *shape))


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-9)


def train(layer, x, weights, **arguments):
    """Returns the output, and the gradients of sum(weights * output) by x and by gamma."""
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
def test_result_equals_one_large_batch(kind, shape, uneven, rank, size):
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
    if not (kind == "tf_keras" and len(shape) > 1):  # there the plain layer uses the fused
        # kernel, which applies Bessel's correction to the variance
        close(layer.moving_variance.numpy(), plain.moving_variance.numpy())


@pytest.mark.ranks(3)
@pytest.mark.parametrize("kind", list(LAYERS))
def test_process_set(kind, rank, size):
    """Ranks 0 and 2 form one large batch; every other rank has its own."""
    pair = hvd.add_process_set([0, 2])
    layer = synchronized(LAYERS[kind], pair)(dtype="float64", momentum=0.5)
    again = type(layer).from_config(layer.get_config())
    batches = [batch_of(r, 4) for r in range(size)]
    members = [0, 2] if rank in (0, 2) else [rank]
    plain = LAYERS[kind](dtype="float64", momentum=0.5)
    all_y = plain(np.concatenate([batches[r] for r in members]), training=True).numpy()
    mine = slice(4 * members.index(rank), 4 * members.index(rank) + 4)
    for each in (layer, again):  # a clone has the same set
        close(each(batches[rank], training=True).numpy(), all_y[mine])
        close(each.moving_mean.numpy(), plain.moving_mean.numpy())
        close(each.moving_variance.numpy(), plain.moving_variance.numpy())
    assert "process_set" not in layer.get_config()
    assert type(hvd.SyncBatchNormalization(process_set=pair)) is not type(
        hvd.SyncBatchNormalization()
    )
    hvd.remove_process_set(pair)


@pytest.mark.parametrize("kind", list(LAYERS))
def test_call_equals_the_plain_layers_call(kind, rank, size):
    """Axes, masks, dtypes, tensors as `training`, frozen: like the plain layer on equal batches."""
    options = [{"axis": 1}, {"center": False}, {"scale": False}, {"dtype": "mixed_float16"}]
    for arguments in options:
        layer = synchronized(LAYERS[kind])(momentum=0.5, **arguments)
        plain = LAYERS[kind](momentum=0.5, **arguments)
        x = batch_of(0, 6, (2, 5)).astype(np.float32)
        for _ in range(2):
            y, expected = layer(x, training=True), plain(x, training=True)
            assert y.dtype == expected.dtype
            np.testing.assert_allclose(y, expected, rtol=2e-3, atol=2e-3)
        np.testing.assert_allclose(layer.moving_mean, plain.moving_mean, rtol=1e-5, atol=1e-6)
        for training in (False, None):
            np.testing.assert_allclose(
                layer(x, training=training), plain(x, training=training), rtol=2e-3, atol=2e-3
            )
    mask = np.random.default_rng(5).random((6, 2)) < 0.6
    layer, plain = synchronized(LAYERS[kind])(), LAYERS[kind]()
    np.testing.assert_allclose(
        layer(x, training=True, mask=mask), plain(x, training=True, mask=mask), rtol=1e-3, atol=1e-3
    )
    with pytest.raises(ValueError, match="one dimension fewer"):
        layer(x, training=True, mask=mask[0])
    layer.trainable = False
    before = np.array(layer.moving_mean)
    layer(x, training=True)
    assert (np.array(layer.moving_mean) == before).all()


def test_training_may_be_a_tensor():
    layer = synchronized(tf_keras.layers.BatchNormalization)(momentum=0.0)
    x = tf.constant([[1.0], [3.0]])
    layer(x, training=False)
    function = tf.function(lambda training: layer(x, training=training), autograph=False)
    assert (
        function(tf.constant(False)).numpy().tolist() == layer(x, training=False).numpy().tolist()
    )
    assert layer.moving_mean.numpy().tolist() == [0.0]
    np.testing.assert_allclose(function(tf.constant(True)), [[-1.0], [1.0]], rtol=1e-2)
    assert layer.moving_mean.numpy().tolist() == [2.0]


@pytest.mark.parametrize("argument", [{"renorm": True}, {"virtual_batch_size": 2}])
def test_unsupported_arguments_are_refused(argument):
    with pytest.raises(ValueError, match="whole batches of all ranks"):
        synchronized(tf_keras.layers.BatchNormalization)(**argument)
    with pytest.raises(ValueError, match="not a class of BatchNormalization"):
        synchronized(tf_keras.layers.Dense)


def test_masked_elements_are_ignored(rank, size):
    batches = [batch_of(r, 4, (5, 2)) for r in range(size)]
    masks = [np.random.default_rng(50 + r).random((4, 5)) < 0.6 for r in range(size)]
    x = np.where(masks[rank][..., None], batches[rank], np.nan)
    mean, variance = global_moments(tf.constant(x), [0, 1], tf.constant(masks[rank][..., None]))
    kept = np.concatenate([b[m] for b, m in zip(batches, masks, strict=True)])
    close(mean.numpy().ravel(), kept.mean(0))
    close(variance.numpy().ravel(), kept.var(0))


def test_large_means_do_not_cancel(rank, size):
    """float32 with a mean of 10,000 standard deviations: squares would lose all precision."""
    batches = [1e4 + np.random.default_rng(r).normal(0, 1, (256, 1)) for r in range(size)]
    x = batches[rank].astype(np.float32)
    _, variance = global_moments(tf.constant(x), [0])
    expected = np.concatenate([b.astype(np.float32) for b in batches]).astype(np.float64).var()
    np.testing.assert_allclose(variance.numpy(), expected, rtol=1e-3)


def test_all_batches_are_empty():
    mean, variance = global_moments(tf.zeros([0, 3]), [0])
    assert mean.numpy().tolist() == variance.numpy().tolist() == [[0, 0, 0]]


@pytest.mark.parametrize("kind", list(LAYERS))
def test_in_fit(kind, rank, size):
    """After a step of `fit`, the moving statistics are those of all ranks' data."""
    layers = LIBRARIES[kind]
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
        with pytest.raises(ValueError, match="Remove the `fused` argument"):
            hvd.SyncBatchNormalization(fused=fused)


def test_config_names_the_plain_layer():
    """It uses Keras' own argument for such a layer."""
    layer = hvd.SyncBatchNormalization(momentum=0.25)
    saved = keras.saving.serialize_keras_object(layer)
    assert (saved["module"], saved["class_name"]) == ("keras.layers", "BatchNormalization")
    loaded = keras.saving.deserialize_keras_object(saved)
    assert type(loaded) is keras.layers.BatchNormalization
    assert (loaded.momentum, loaded.synchronized) == (0.25, True)
    assert type(type(layer).from_config(layer.get_config())) is type(layer)


def small_model(kind, layer):
    """A layer inside a model inside a model."""
    library = LIBRARIES[kind]
    inputs = library.Input((3,))
    inner = library.Model(inputs, layer(inputs))
    outer = library.Input((3,))
    return library.Model(outer, library.layers.Dense(1, kernel_initializer="ones")(inner(outer)))


def fit(model, rank):
    x = batch_of(rank, 8).astype(np.float32)
    model.fit(x, x.sum(1, keepdims=True), batch_size=4, shuffle=False, verbose=0)


@pytest.mark.parametrize(
    ("kind", "ending"),
    [(kind, ending) for kind in LAYERS for ending in (".keras", ".h5")] + [("tf_keras", "")],
)
def test_loaded_model_normalizes_over_all_ranks(kind, ending, rank, size, tmp_path):
    """Regression, found by a random program: Keras silently loads the plain layer."""
    library = LIBRARIES[kind]
    model = small_model(kind, synchronized(LAYERS[kind])(momentum=0.5))
    loss = library.losses.MeanSquaredError()  # Keras 3 cannot load it by name from an .h5
    model.compile(DistributedOptimizer(library.optimizers.SGD(0.01)), loss)
    fit(model, rank)
    path = hvd.broadcast_object(str(tmp_path / f"model{ending}"), 0)
    if rank == 0:
        model.save(path)
    hvd.barrier()
    loaded, plain = load_model(path), library.models.load_model(path)
    hvd.barrier()
    if (kind, ending) == ("keras", ".h5"):  # Keras 3 loads an unusable optimizer
        loaded.compile(DistributedOptimizer(library.optimizers.SGD(0.01)), loss)
        plain.compile(library.optimizers.SGD(0.01), loss)
    for each in (model, loaded):
        fit(each, rank)
    for a, b in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    DistributedOptimizer(plain.optimizer)
    if size == 1:  # the only rank has only its own batch
        return fit(plain, rank)
    with pytest.raises(GuardError, match=r"(?s)SyncBatchNormalization.*synchronized=True"):
        fit(plain, rank)


@pytest.mark.jobs(2, 3)
@pytest.mark.parametrize("kind", list(LAYERS))
def test_synchronized_of_keras_is_refused(kind):
    layer = LAYERS[kind](synchronized=True)
    x = tf.ones([2, 3])
    assert layer(x, training=False).shape == x.shape
    for train in (layer, tf.function(layer)):
        with pytest.raises(GuardError, match=r"synchronized=True.*not to the \d+ ranks"):
            train(x, training=True)
    with unguarded():
        assert layer(x, training=True).shape == x.shape
