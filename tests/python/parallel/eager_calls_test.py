"""An eager call, which goes around TensorFlow's wrapper, against the same call in a graph."""

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
    """A compressor of the user's own: an object."""

    def compress(self, tensor):
        return tensor + tensor, None

    def decompress(self, tensor, ctx):
        return tensor


def some_call(rng, number):
    """A function of a tensor, its arguments as a user would combine them, and a tensor."""
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
def test_an_eager_call_is_the_same_call_in_a_graph(seed):
    """Bits of the result and of the gradient."""
    function, arguments, tensor = some_call(random.Random(seed), seed)
    eager = result_and_gradient(function, arguments, tensor)
    traced = tf.function(lambda x: result_and_gradient(function, arguments, x))(tensor)
    for one, other in zip(eager, traced, strict=True):
        assert one.dtype == other.dtype == tensor.dtype
        np.testing.assert_array_equal(one.numpy().view(np.uint8), other.numpy().view(np.uint8))


def test_factors_that_are_equal_and_not_the_same():
    one = tf.constant([1.0])
    for factor in (0.0, -0.0, 0.0):
        total = hvd.allreduce(one, op=hvd.Sum, postscale_factor=factor)
        assert np.signbit(total.numpy())[0] == np.signbit(factor)


def test_what_watches_ops_sees_an_eager_call():
    """check_numerics adds a callback, which TensorFlow's own fast way does not serve."""
    tf.debugging.enable_check_numerics()
    try:
        assert float(hvd.allreduce(tf.constant(2.0), op=hvd.Average)) == 2.0
        with pytest.raises(tf.errors.InvalidArgumentError, match="HorovodAllreduce"):
            hvd.allreduce(tf.constant(float("nan")), op=hvd.Average)
    finally:
        tf.debugging.disable_check_numerics()


def test_an_argument_without_a_hash_is_refused_by_what_it_is():
    with pytest.raises(ValueError, match=r"process_set=\[0\] is not a process set"):
        hvd.allreduce(tf.constant(1.0), process_set=[0])


def test_the_name_of_a_call_that_failed_is_not_the_next_ones():
    with pytest.raises(tf.errors.InvalidArgumentError):
        hvd.reducescatter(tf.constant(1.0), name="a scalar")
    total = hvd.allreduce(tf.constant(1.0), op=hvd.Sum)  # else one rank's name is another's
    assert float(total) == hvd.size()
