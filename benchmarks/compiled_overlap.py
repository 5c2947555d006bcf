"""Measures how much of a compiled step's collectives XLA hides behind computation.

    ./dev build
    python benchmarks/compiled_overlap.py --pretended=bazel-bin/benchmarks/pretended_calls.so

Runs in one process. Each layer's gradient goes through a collective that takes a fixed time and
uses no processor. It is either tf_hvd's allreduce with a clock in place of its runtime, or a bare
pair of XLA calls: one starts, the other waits. The variants are interleaved; the result is the
median over the rounds.
"""

import ctypes
import pathlib
import time

import numpy as np
import tensorflow as tf
from absl import app, flags

import tf_hvd as hvd

_PRETENDED = flags.DEFINE_string("pretended", None, "pretended_calls.so", required=True)
_MS = flags.DEFINE_integer("ms", 10, "duration of a collective in ms")
_LAYERS = flags.DEFINE_integer("layers", 12, "layers, each with one weight")
_UNITS = flags.DEFINE_integer("units", 512, "units per layer")
_ROWS = flags.DEFINE_integer("rows", 512, "rows per batch")
_ROUNDS = flags.DEFINE_integer("rounds", 21, "rounds; each runs all variants")
_STEPS = flags.DEFINE_integer("steps", 3, "steps per variant and round")


def load(path):
    """Load the bare pair's op and make tf_hvd compile collectives that wait for a clock."""
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
