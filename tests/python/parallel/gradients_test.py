"""Derivatives of the collectives, in every mode, against what NumPy says.

Rank r's loss is sum(weights(r) * collective(x)); so the incoming gradient is
weights(r), and what the gradient of x must be follows from all ranks' weights.
"""

import numpy as np
import pytest
import tensorflow as tf

import tf_hvd as hvd


def weights(rank, rows=4):
    return (np.arange(rows * 2) % 5 + rank + 1).astype(np.float64).reshape(rows, 2)


def inputs(rank, rows=4):
    """Rank r's input; row 0 is the same everywhere, so Min and Max have a tie there."""
    x = ((np.arange(rows * 2) * 3 + rank * 5) % 7 + 1.0).reshape(rows, 2)
    x[0] = 2.0
    return x


def total(function, size):
    return sum(function(r) for r in range(size))


@pytest.fixture
def gradient(evaluate):
    """Gradient of sum(w * collective(x)) with respect to x."""

    def compute(collective, x, w):
        def function(x, w):
            if evaluate.__name__ == "run_in_session":
                return tf.gradients(tf.reduce_sum(w * collective(x)), x)[0]
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.reduce_sum(w * collective(x))
            return tape.gradient(loss, x)

        return evaluate(function, x, w)

    return compute


def test_sum_and_average(gradient, rank, size):
    for op, factor in ((hvd.Sum, 1.0), (hvd.Average, 1.0 / size)):
        result = gradient(
            lambda x, op=op: hvd.allreduce(x, op=op, prescale_factor=0.5, postscale_factor=4.0),
            inputs(rank),
            weights(rank),
        )
        np.testing.assert_array_equal(result, total(weights, size) * factor * 2.0)


def test_default_op_and_compression(gradient, rank, size):
    result = gradient(
        lambda x: hvd.allreduce(x, compression=hvd.Compression.fp16), inputs(rank), weights(rank)
    )
    np.testing.assert_array_equal(result, total(weights, size) / size)


@pytest.mark.parametrize(("op", "extremum"), [("Min", np.min), ("Max", np.max)])
@pytest.mark.parametrize("scales", [(1.0, 1.0), (0.3, 7.0), (-2.0, 0.5)])
def test_min_and_max(gradient, rank, size, op, extremum, scales):
    pre, post = scales
    result = gradient(
        lambda x: hvd.allreduce(x, op=getattr(hvd, op), prescale_factor=pre, postscale_factor=post),
        inputs(rank),
        weights(rank),
    )
    scaled = np.stack([inputs(r) for r in range(size)]) * np.sign(pre)
    holders = scaled == extremum(scaled, axis=0)
    share = holders[rank] / holders.sum(axis=0)
    factor = np.float64(np.float32(pre)) * np.float64(np.float32(post))
    np.testing.assert_allclose(result, share * total(weights, size) * factor, rtol=1e-15)


@pytest.mark.parametrize("zeros", [(), (0,), (0, 1)])
def test_product(gradient, rank, size, zeros):
    """`zeros`: the ranks that hold a zero in their first row."""

    def factors(r):
        x = 2.0 ** (inputs(r) % 3)
        x[0] = 0.0 if r in zeros else x[0]
        return x

    result = gradient(
        lambda x: hvd.allreduce(x, op=hvd.Product, prescale_factor=2.0, postscale_factor=0.25),
        factors(rank),
        weights(rank),
    )
    others = np.ones_like(inputs(0))
    for r in range(size):
        others *= 1.0 if r == rank else 2.0 * factors(r)
    np.testing.assert_array_equal(result, others * total(weights, size) * 2.0 * 0.25)


def test_grouped(gradient, rank, size):
    def collective(x):
        first, second = hvd.grouped_allreduce([x, 3.0 * x], op=hvd.Sum)
        return first + second

    result = gradient(collective, inputs(rank), weights(rank))
    np.testing.assert_array_equal(result, 4.0 * total(weights, size))


def test_grouped_where_one_result_is_not_used(gradient, rank, size):
    result = gradient(
        lambda x: hvd.grouped_allreduce([x, tf.square(x)], op=hvd.Sum)[0],
        inputs(rank),
        weights(rank),
    )
    np.testing.assert_array_equal(result, total(weights, size))


def test_allgather(gradient, rank, size):
    """Horovod's convention: the average of the ranks' gradients, own rows of it."""
    rows = [r + 1 for r in range(size)]
    result = gradient(hvd.allgather, inputs(rank, rows[rank]), weights(rank, sum(rows)))
    average = total(lambda r: weights(r, sum(rows)), size) / size
    np.testing.assert_array_equal(result, average[sum(rows[:rank]) :][: rows[rank]])


def test_broadcast(gradient, rank, size):
    """Horovod's convention: the average at the root, zero elsewhere."""
    root = size - 1
    result = gradient(lambda x: hvd.broadcast(x, root), inputs(rank), weights(rank))
    expected = total(weights, size) / size if rank == root else np.zeros((4, 2))
    np.testing.assert_array_equal(result, expected)


def test_second_derivative(rank, size):
    x = tf.constant(inputs(rank))
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = tf.reduce_sum(hvd.allreduce(x, op=hvd.Sum) ** 3)
        first = inner.gradient(y, x)
    everything = total(inputs, size)
    np.testing.assert_array_equal(first.numpy(), 3.0 * size * everything**2)
    np.testing.assert_array_equal(outer.gradient(first, x).numpy(), 6.0 * size**2 * everything)


def test_in_a_loop(gradient, rank, size):
    def collective(x):
        def body(i, y):
            return i + 1, hvd.allreduce(y * 2.0, op=hvd.Sum)

        return tf.while_loop(lambda i, _: i < 3, body, (tf.constant(0), x))[1]

    # Each iteration's gradient is summed over the ranks again.
    result = gradient(collective, inputs(rank), weights(rank))
    np.testing.assert_array_equal(result, 8.0 * size**2 * total(weights, size))
