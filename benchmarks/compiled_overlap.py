"""How much of a compiled step's collectives XLA hides behind computation.

    ./dev build
    python benchmarks/compiled_overlap.py --pretended=bazel-bin/benchmarks/pretended_calls.so

One process. Each layer's gradient goes through a collective that takes a fixed time and no
processor: tf_hvd's allreduce with a clock in place of its runtime, or the least that XLA can be
given, a call that starts and one that waits. In turns; medians over the rounds.
"""

import ctypes
import pathlib
import time

import numpy as np
import tensorflow as tf
from absl import app, flags

import tf_hvd as hvd

_PRETENDED = flags.DEFINE_string("pretended", None, "pretended_calls.so", required=True)
_MS = flags.DEFINE_integer("ms", 10, "what a collective takes")
_LAYERS = flags.DEFINE_integer("layers", 12, "each with one weight")
_UNITS = flags.DEFINE_integer("units", 512, "of a layer")
_ROWS = flags.DEFINE_integer("rows", 512, "of the batch")
_ROUNDS = flags.DEFINE_integer("rounds", 21, "rounds, each with all ways")
_STEPS = flags.DEFINE_integer("steps", 3, "steps of a way in a round")


def load(path):
    """The bare pair's op. What tf_hvd compiles from now on has a clock behind it."""
    pair = tf.load_op_library(path).bare_pair
    minor = ".".join(tf.__version__.split(".")[:2])
    (xla,) = pathlib.Path(hvd.__file__).parent.glob(f"_tf_hvd_xla*{minor}*.so")
    pretend = ctypes.CDLL(path).tf_hvd_pretend
    pretend.restype = ctypes.c_char_p
    if error := pretend(str(xla).encode(), 1000 * _MS.value):
        raise RuntimeError(error.decode())
    return pair


def step_of(reduce):
    weights = [
        tf.Variable(tf.random.normal([_UNITS.value, _UNITS.value], stddev=0.05))
        for _ in range(_LAYERS.value)
    ]
    x = tf.random.normal([_ROWS.value, _UNITS.value])

    @tf.function(autograph=False, jit_compile=True)
    def step():
        with tf.GradientTape() as tape:
            y = x
            for weight in weights:
                y = tf.tanh(tf.matmul(y, weight))
            loss = tf.reduce_mean(tf.square(y))
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(1e-4 * reduce(gradient))
        return loss

    return step


def main(_):
    hvd.init()
    tf.config.threading.set_inter_op_parallelism_threads(2)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    pair = load(_PRETENDED.value)
    ways = {
        "none": tf.identity,
        "a bare pair": pair,
        "tf_hvd": lambda gradient: hvd.allreduce(gradient, op=hvd.Sum),
    }
    steps = {way: step_of(reduce) for way, reduce in ways.items()}
    for step in steps.values():
        step()
    times = {way: [] for way in ways}
    for number in range(_ROUNDS.value):
        for way in np.roll(list(ways), number):
            began = time.perf_counter()
            for _ in range(_STEPS.value):
                steps[way]()
            times[way].append((time.perf_counter() - began) / _STEPS.value)
    ms = {way: 1e3 * np.median(of) for way, of in times.items()}
    print("| " + " | ".join([*ways, "tf_hvd / bare pair"]) + " |")
    print("| " + " | ".join(f"{ms[way]:.1f}" for way in ways), end=" | ")
    print(f"{ms['tf_hvd'] / ms['a bare pair']:.2f} |")


if __name__ == "__main__":
    app.run(main)
