"""XLA with one rank: Keras' steps, custom loops, and steps that it cannot compile."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tf_hvd as hvd
import tf_hvd.keras as hvd_keras

hvd.init()


def trained(library, compiled, optimizer):
    library.utils.set_random_seed(3)
    layers = [
        library.layers.Input((4,), dtype="int32"),
        library.layers.Embedding(6, 3),
        library.layers.Flatten(),
        library.layers.Dense(2, activation="tanh"),
        library.layers.Dense(1),
    ]
    model = library.Sequential(layers)
    made = hvd_keras.DistributedOptimizer(optimizer(library))
    made.register_local_var(model.trainable_variables[-1])
    model.compile(made, "mse", jit_compile=compiled)
    assert not compiled or model.jit_compile
    x = np.random.default_rng(0).integers(0, 6, size=[8, 4])  # rows that occur several times
    model.fit(x, np.sum(x, axis=1) / 10, batch_size=4, epochs=3, shuffle=False, verbose=0)
    return model.get_weights()


OPTIMIZERS = {
    "adam": lambda library: library.optimizers.Adam(0.1),
    "clipped": lambda library: library.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.1),
    "scaled": lambda library: (
        library.optimizers.LossScaleOptimizer(library.optimizers.SGD(0.1))
        if library is keras
        else library.mixed_precision.LossScaleOptimizer(library.optimizers.SGD(0.1))
    ),
}


@pytest.mark.parametrize(
    ("library", "optimizer"),
    [(keras, "adam"), (keras, "scaled"), (tf_keras, "clipped"), (tf_keras, "scaled")],
)
def test_one_rank_compiles_its_step(library, optimizer):
    compiled = trained(library, True, OPTIMIZERS[optimizer])
    plain = trained(library, False, OPTIMIZERS[optimizer])
    for ours, wanted in zip(compiled, plain, strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=2e-4, atol=2e-5)


def test_one_rank_compiles_a_custom_loop():
    weight = tf.Variable([1.0, 2.0])

    @tf.function(jit_compile=True)
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight * x)
        weight.assign_sub(hvd.DistributedGradientTape(tape).gradient(loss, weight))

    step(tf.constant([0.5, 0.25]))
    np.testing.assert_array_equal(weight, [0.5, 1.75])
