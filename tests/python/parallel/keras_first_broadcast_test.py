"""The broadcast before a fit's first update: all existing variables, whether built or not."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tf_hvd as hvd
import tf_hvd.keras as hvd_keras
from tf_hvd.keras import callbacks
from tf_hvd.keras.compat import variables_of

pytestmark = [pytest.mark.framework, pytest.mark.jobs(2)]

KERAS = {"keras": keras, "tf_keras": tf_keras}
ROWS, STEPS = 12, 2


@pytest.fixture(params=list(KERAS))
def flavour(request, float64):
    library = KERAS[request.param]
    with float64(library):
        yield library


def data(mine):
    """This rank's rows of each step, or all rows."""
    x = np.random.default_rng(7).standard_normal((STEPS, ROWS, 2))
    share = ROWS // hvd.size()
    part = slice(hvd.rank() * share, (hvd.rank() + 1) * share) if mine else slice(None)
    x = x[:, part]
    return tf.data.Dataset.from_tensor_slices(x.reshape(-1, 2)).batch(x.shape[1])


def net(flavour, seed, built=True):
    initial = flavour.initializers.RandomUniform(-1, 1, seed=seed)
    layers = [flavour.layers.Dense(n, "tanh", kernel_initializer=initial) for n in (3, 1)]
    return flavour.Sequential(([flavour.layers.Input([2])] if built else []) + layers)


def without_call(flavour, seed, built=True):
    """A model with only a train_step, like keras.io's GANs: Keras never marks it as built."""

    class Steps(flavour.Model):
        def __init__(self):
            super().__init__()
            self.net = net(flavour, seed, built)

        def train_step(self, x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self.net(x) - 1.0) ** 2)
            variables = self.net.trainable_variables
            gradients = tape.gradient(loss, variables)
            self.optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))
            return {"loss": loss}

    return Steps()


def fit(flavour, model, optimizer, mine, root=0, **options):
    model.compile(optimizer, "mse" if "loss" in options else None)
    made = []
    if mine:
        made = [callbacks.of(flavour).BroadcastGlobalVariablesCallback(root)]
    batches = data(mine)
    if "loss" in options:
        batches = batches.map(lambda x: (x, tf.ones([tf.shape(x)[0], 1], tf.float64)))
    model.fit(batches, verbose=0, callbacks=[*made, *options.get("more", ())])
    return [np.asarray(v) for v in model.weights]


def assert_near(found, wanted):
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)


def momentum(flavour):
    return flavour.optimizers.SGD(0.1, momentum=0.5)


@pytest.mark.parametrize("prepared", [True, False], ids=["optimizer built", "not built"])
def test_model_without_call_starts_from_the_roots_weights(flavour, prepared):
    root = hvd.size() - 1
    with hvd_keras.unguarded():
        wanted = fit(flavour, without_call(flavour, 10 + root), momentum(flavour), False)
    model = without_call(flavour, 10 + hvd.rank())
    optimizer = hvd_keras.DistributedOptimizer(momentum(flavour))
    if prepared:
        optimizer.build(model.net.trainable_variables)
    assert not model.built
    assert_near(fit(flavour, model, optimizer, True, root), wanted)


def test_optimizer_state_of_a_model_without_call(flavour):
    """Only the root has resumed from a checkpoint."""

    def restored(optimizer, model, value):
        optimizer.build(model.net.trainable_variables)
        for variable in variables_of(optimizer):
            if variable.dtype in (tf.float64, "float64") and len(variable.shape):
                variable.assign(tf.fill(variable.shape, tf.constant(value, tf.float64)))
        return optimizer

    with hvd_keras.unguarded():
        single = without_call(flavour, 10)
        wanted = fit(flavour, single, restored(momentum(flavour), single, 0.25), False)
    model = without_call(flavour, 10)
    optimizer = hvd_keras.DistributedOptimizer(momentum(flavour))
    restored(optimizer, model, 0.25 if hvd.rank() == 0 else 0.0)
    seen = []

    class Before(flavour.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            slots = [np.asarray(v) for v in variables_of(optimizer) if len(v.shape)]
            seen.append([float(slot.mean()) for slot in slots])

    assert_near(fit(flavour, model, optimizer, True, more=[Before()]), wanted)
    assert seen[0] == [0.25] * len(model.net.trainable_variables)


def test_variables_created_by_the_first_batch_are_broadcast_after_it(flavour):
    """No variables exist before: each rank makes its first update from its own weights."""
    model = without_call(flavour, 10 + hvd.rank(), built=False)
    seen = []

    class After(flavour.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append([np.asarray(v) for v in self.model.net.weights])

    optimizer = hvd_keras.DistributedOptimizer(momentum(flavour))
    fit(flavour, model, optimizer, True, more=[After()])
    assert len(seen) == STEPS
    for weights in seen:
        for mine, first in zip(weights, hvd.broadcast_object(weights, 0), strict=True):
            np.testing.assert_array_equal(mine, first)


@pytest.mark.parametrize("built", [True, False], ids=["built", "not built"])
def test_variable_on_one_rank_only_is_named(flavour, built):
    model = without_call(flavour, 10)
    model.built = built
    if hvd.rank() == 1:
        model.extra = flavour.layers.Dense(5, name="only_here")
        model.extra(np.zeros([1, 2]))
        model.extra.trainable = False
    optimizer = hvd_keras.DistributedOptimizer(momentum(flavour))
    optimizer.build(model.net.trainable_variables)
    with pytest.raises(
        ValueError, match=r"only_here/kernel.*no such variable on rank 0, float64\[2, 5\] on rank 1"
    ):
        fit(flavour, model, optimizer, True)
    hvd.barrier()


def test_model_called_before_on_rank_0_only(flavour):
    """For example, it predicted or loaded weights; all ranks have the variables by batch 1."""
    with hvd_keras.unguarded():
        wanted = fit(flavour, net(flavour, 10, built=False), momentum(flavour), False, loss=True)
    model = net(flavour, 10 + hvd.rank(), built=False)
    if hvd.rank() == 0:
        model.predict(np.zeros([1, 2]), verbose=0)
    optimizer = hvd_keras.DistributedOptimizer(momentum(flavour))
    assert_near(fit(flavour, model, optimizer, True, loss=True), wanted)


def test_layer_of_another_size_is_named(flavour):
    """The error names the layer, not the optimizer's slots, which have the same size."""
    model = flavour.Sequential(
        [
            flavour.layers.Input([2]),
            flavour.layers.Dense(3 + (hvd.rank() == 1), name="of_another_size"),
            flavour.layers.Dense(1),
        ]
    )
    optimizer = hvd_keras.DistributedOptimizer(momentum(flavour))
    optimizer.build(model.trainable_variables)
    sizes = r"of_another_size/kernel.*float64\[2, 3\] on rank 0, float64\[2, 4\] on rank 1"
    with pytest.raises(ValueError, match=sizes):
        fit(flavour, model, optimizer, True, loss=True)
    sizes = r"rank 0 has float64\[2,3\], rank 1 has float64\[2,4\].*of_another_size.kernel"
    for _ in range(3):  # the broadcasts are concurrent: any of them may fail first
        with pytest.raises(tf.errors.FailedPreconditionError, match=sizes) as caught:
            hvd.broadcast_variables([*model.variables, *variables_of(optimizer)], 0)
        assert "momentum" not in caught.value.message
