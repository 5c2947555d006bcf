"""Measures what the reduction adds to a training step, with and without XLA.

    tf_hvd run -np 2 python benchmarks/compiled_steps.py

Four variants are interleaved so that other load affects them equally: with and without the
reduction of the gradients, each compiled and not. Prints medians over the rounds, of the slowest
rank.
"""

import time

import numpy as np
import tensorflow as tf
from absl import app, flags

import tf_hvd as hvd
from tf_hvd.core.tensorflow_hooks import tf_variable

_ROUNDS = flags.DEFINE_integer("rounds", 15, "rounds; each runs all variants")
_STEPS = flags.DEFINE_integer("steps", 3, "steps per variant and round")


def mlp():
    layers = [tf.keras.layers.Dense(1024, activation="relu") for _ in range(4)]
    model = tf.keras.Sequential([tf.keras.Input([1024]), *layers, tf.keras.layers.Dense(10)])
    return model, tf.random.normal([64, 1024])


def convolutional():
    layers = tf.keras.layers
    model = tf.keras.Sequential([tf.keras.Input([32, 32, 3])])
    for filters in (32, 64, 128):
        model.add(layers.Conv2D(filters, 3, padding="same", activation="relu"))
        model.add(layers.MaxPooling2D())
    model.add(layers.Flatten())
    model.add(layers.Dense(256, activation="relu"))
    model.add(layers.Dense(10))
    return model, tf.random.normal([16, 32, 32, 3])


def transformer():
    layers = tf.keras.layers
    inputs = tf.keras.Input([32, 256])
    x = inputs
    for _ in range(12):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(4, 64)(y, y)
        y = layers.LayerNormalization()(x)
        x = x + layers.Dense(256)(layers.Dense(1024, activation="gelu")(y))
    outputs = layers.Dense(10)(layers.GlobalAveragePooling1D()(x))
    return tf.keras.Model(inputs, outputs), tf.random.normal([4, 32, 256])


MODELS = {"MLP": mlp, "convolutional": convolutional, "transformer, 12 layers": transformer}


def step_of(model, x, jit, reduce):
    y = tf.zeros([x.shape[0]], tf.int32)
    variables = model.trainable_variables

    @tf.function(autograph=False, jit_compile=jit)
    def step():
        with tf.GradientTape() as tape:
            made = model(x, training=True)
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=made)
            )
        if reduce:
            tape = hvd.DistributedGradientTape(tape)
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            tf_variable(variable).assign_sub(1e-4 * gradient)
        return loss

    return step


def seconds(step, steps):
    hvd.barrier()
    began = time.perf_counter()
    for _ in range(steps):
        step()
    return (time.perf_counter() - began) / steps


def main(_):
    hvd.init()
    tf.config.threading.set_inter_op_parallelism_threads(2)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    ways = [(jit, reduce) for jit in (False, True) for reduce in (False, True)]
    for name, make in MODELS.items():
        tf.keras.utils.set_random_seed(1)
        model, x = make()
        hvd.broadcast_variables(model.variables, 0)
        steps = {way: step_of(model, x, *way) for way in ways}
        for step in steps.values():
            step()
            step()
        times = {way: [] for way in ways}
        for number in range(_ROUNDS.value):
            for way in ways[number % 4 :] + ways[: number % 4]:
                times[way].append(seconds(steps[way], _STEPS.value))
        slowest = {
            way: np.max(hvd.allgather(tf.constant([of])).numpy(), axis=0)
            for way, of in times.items()
        }
        if hvd.rank() == 0:
            ms = {way: 1e3 * np.median(of) for way, of in slowest.items()}
            added = [ms[jit, True] - ms[jit, False] for jit in (False, True)]
            print(
                f"| {name} | {ms[False, False]:.1f} | {ms[False, True]:.1f} | {added[0]:.1f} "
                f"| {ms[True, False]:.1f} | {ms[True, True]:.1f} | {added[1]:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    app.run(main)
