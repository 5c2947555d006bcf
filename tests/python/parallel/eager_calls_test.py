"""Eager calls, which bypass TensorFlow's wrapper, compared with the same calls in a graph."""

import random

import numpy as np
import pytest
import tensorflow as tf

import tf_hvd as hvd

FACTORS = [1, 1.0, 0.0, -0.0, 0.5, 0.1, -3.0, 1e300, float("nan")]
TYPES = [tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.int64]
COMPRESSIONS = [hvd.Compression.none, hvd.Compression.fp16, hvd.Compression.bf16]
OPS = [hvd.Sum, hvd.Average, hvd.Min, hvd.Max, hvd.Product]


class Doubles:
    """A user-defined compressor, as an object."""

    def compress(self, tensor):
        return tensor + tensor, None

    def decompress(self, tensor, ctx):
        return tensor


def some_call(rng, number):
    """A function of a tensor, arguments in a combination that a user might pass, and a tensor."""
    function = rng.choice([hvd.allreduce, hvd.reducescatter])
    arguments = {"op": rng.choice(OPS)}
    for factor in ("prescale_factor", "postscale_factor"):
        if rng.random() < 0.4:
            arguments[factor] = rng.choice(FACTORS)
    if rng.random() < 0.3:
        arguments["compression"] = rng.choice([*COMPRESSIONS, Doubles()])
    if rng.random() < 0.5:
        arguments["name"] = f"call {number}".replace(" ", rng.choice("_./"))
    if rng.random() < 0.2:
        arguments["device_dense"] = "CPU:0"
    if rng.random() < 0.2:
        arguments["ignore_name_scope"] = True
    dtype = rng.choice(TYPES)
    values = [rng.randint(-3, 3) for _ in range(4 * hvd.size())]
    tensor = tf.cast(tf.constant(values) + hvd.rank(), dtype)
    return function, arguments, tensor


def result_and_gradient(function, arguments, tensor):
    with tf.GradientTape() as tape:
        tape.watch(tensor)
        result = function(tensor, **arguments)
    linear = arguments["op"] in (hvd.Sum, hvd.Average) and tensor.dtype.is_floating
    return (result, tape.gradient(result, tensor)) if linear else (result,)


@pytest.mark.parametrize("seed", range(40))
def test_an_eager_call_equals_the_same_call_in_a_graph(seed):
    """The result and the gradient are bitwise equal."""
    function, arguments, tensor = some_call(random.Random(seed), seed)
    eager = result_and_gradient(function, arguments, tensor)
    traced = tf.function(lambda x: result_and_gradient(function, arguments, x))(tensor)
    for one, other in zip(eager, traced, strict=True):
        assert one.dtype == other.dtype == tensor.dtype
        np.testing.assert_array_equal(one.numpy().view(np.uint8), other.numpy().view(np.uint8))


def test_zero_and_negative_zero_factors_are_distinguished():
    one = tf.constant([1.0])
    for factor in (0.0, -0.0, 0.0):
        total = hvd.allreduce(one, op=hvd.Sum, postscale_factor=factor)
        assert np.signbit(total.numpy())[0] == np.signbit(factor)


def test_op_callbacks_see_eager_calls():
    """check_numerics adds a callback, which TensorFlow's own fast path does not support."""
    tf.debugging.enable_check_numerics()
    try:
        assert float(hvd.allreduce(tf.constant(2.0), op=hvd.Average)) == 2.0
        with pytest.raises(tf.errors.InvalidArgumentError, match="HorovodAllreduce"):
            hvd.allreduce(tf.constant(float("nan")), op=hvd.Average)
    finally:
        tf.debugging.disable_check_numerics()


def test_an_unhashable_argument_gets_its_usual_error():
    with pytest.raises(ValueError, match=r"process_set=\[0\] is not a process set"):
        hvd.allreduce(tf.constant(1.0), process_set=[0])


def test_the_name_of_a_failed_call_is_not_reused():
    with pytest.raises(tf.errors.InvalidArgumentError):
        hvd.reducescatter(tf.constant(1.0), name="a scalar")
    total = hvd.allreduce(tf.constant(1.0), op=hvd.Sum)  # fails if one rank uses the old name
    assert float(total) == hvd.size()
