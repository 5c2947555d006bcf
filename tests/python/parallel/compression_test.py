"""Compression: casts in the op are bitwise equal to TensorFlow's casts around it.

The op casts if all ranks may have GPUs. These tests make it cast everywhere, on a CPU too.
"""

import numpy as np
import pytest
import tensorflow as tf

import tf_hvd as hvd
from tf_hvd.core import _native

KINDS = ("fp16", "bf16")
OPS = ("Average", "Sum", "Min", "Max", "Product")
FACTORS = {"prescale_factor": 0.3, "postscale_factor": -1.7}


def numbers(rank, shape=(41, 3), seed=0):
    """Numbers that round, some too large or too small for float16, and infinities."""
    random = np.random.default_rng([rank, seed])
    values = random.normal(size=shape) * 10.0 ** random.integers(-9, 5, shape)
    values.flat[:3] = -0.0, np.inf if rank == 0 else 1.0, 70000.0
    return tf.constant(values, tf.float32)


@pytest.fixture
def both_ways(monkeypatch):
    """The results of a function if the op casts, and if TensorFlow does."""

    def call(function):
        results = []
        for by_op in (True, False):
            monkeypatch.setattr(_native, "gpus_on_all_ranks", lambda by_op=by_op: by_op)
            results.append([x.numpy() for x in tf.nest.flatten(function())])
        return results

    return call


def same_bits(ways):
    by_op, by_tensorflow = ways
    assert len(by_op) == len(by_tensorflow) > 0
    for one, other in zip(by_op, by_tensorflow, strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert one.tobytes() == other.tobytes()


def compression(kind):
    return getattr(hvd.Compression, kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("factors", [{}, FACTORS])
def test_allreduce(rank, both_ways, kind, op, factors):
    options = {"op": getattr(hvd, op), "compression": compression(kind), **factors}
    x = numbers(rank)
    for run in (lambda function: function, tf.function):
        same_bits(both_ways(lambda run=run: run(lambda: hvd.allreduce(x, **options))()))


@pytest.mark.parametrize("kind", KINDS)
def test_groups_of_types_and_shapes(rank, both_ways, kind):
    """float16 members are sent with those that become float16, as usual."""
    tensors = [
        numbers(rank, shape, seed=i) for i, shape in enumerate([(7,), (0, 2), (), (300, 11)])
    ]
    mixed = [*tensors, tf.cast(tensors[0], tf.float64), tf.cast(tensors[0], tf.float16)]
    options = {"compression": compression(kind), **FACTORS}
    for group in (tensors, mixed, [*mixed, tf.constant([1, rank])]):
        same_bits(both_ways(lambda group=group: hvd.grouped_allreduce(group, **options)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op", OPS)
def test_reducescatter(rank, both_ways, kind, op):
    options = {"op": getattr(hvd, op), "compression": compression(kind), **FACTORS}
    x, y = numbers(rank), numbers(rank, (2, 5), seed=1)
    same_bits(both_ways(lambda: hvd.reducescatter(x, **options)))
    same_bits(both_ways(lambda: hvd.grouped_reducescatter([x, y], **options)))


@pytest.mark.parametrize("op", ["Average", "Sum", "Max", "Product"])
def test_gradients(rank, both_ways, op):
    x = numbers(rank, (9,))
    weights = numbers(rank, (9,), seed=5)

    def gradient(reduce):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(reduce(x) * weights)
        return tape.gradient(loss, x)

    options = {"op": getattr(hvd, op), "compression": hvd.Compression.fp16, **FACTORS}
    same_bits(both_ways(lambda: gradient(lambda x: hvd.allreduce(x, **options))))
    if op != "Product":  # because of zeros and infinities
        scattered = lambda x: tf.tile(hvd.reducescatter(x, **options)[:1], [9])  # noqa: E731
        same_bits(both_ways(lambda: gradient(scattered)))


def test_ranks_may_cast_in_tensorflow_or_in_the_op(rank, size, monkeypatch):
    monkeypatch.setattr(_native, "gpus_on_all_ranks", lambda: rank == 0)
    x = tf.fill([5], float(rank + 1))
    for kind in KINDS:
        result = hvd.allreduce(x, op=hvd.Sum, name="met", compression=compression(kind))
        np.testing.assert_array_equal(result, np.full(5, size * (size + 1) / 2, np.float32))


def test_only_float32_is_sent_in_half_precision():
    for dtype, wire_dtype in ((tf.float64, "float16"), (tf.float32, "float64"), (tf.int32, "half")):
        with pytest.raises(tf.errors.OpError, match="wire_dtype must be float16 or bfloat16"):
            _native.ops.horovod_allreduce(
                tf.zeros([2], dtype), reduce_op=hvd.Sum, prescale_factor=1.0, postscale_factor=1.0,
                wire_dtype=wire_dtype,
            )  # fmt: skip
