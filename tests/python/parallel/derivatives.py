"""Compares derivatives of collectives with those of a reference.

Rank r's loss is sum(weights(r) * (y * y + 3 * y)) with y the collective's result.
The reference computes all ranks' results from all ranks' inputs in one process,
and TensorFlow derives the sum of the losses.
"""

import functools

import numpy as np
import tensorflow as tf

import tf_hvd as hvd

ROWS = 5


def inputs(rank, rows=ROWS):
    """Row 0 is the same on all ranks; the next rows have one zero, two zeros, only zeros."""
    x = ((np.arange(rows * 2) * 3 + rank * 5) % 7 + 1.0).reshape(rows, 2)
    x[:1] = 2.0
    for row, ranks in ((1, [0]), (2, [0, 1]), (3, range(99))):
        if row < rows and rank in ranks:
            x[row] = 0.0
    return x


def weights(rank, shape):
    return (np.arange(np.prod(shape)) % 5 + rank + 1.0).reshape(shape)


def directions(rank, shape):
    return (np.arange(np.prod(shape)) % 3 - rank - 1.0).reshape(shape)


def reduced(xs, op, pre, post):
    """The result of a reduction, from the inputs of all ranks."""
    xs = [x * tf.constant(pre, x.dtype) for x in xs]
    if op in (hvd.Min, hvd.Max):
        result = (tf.reduce_min if op == hvd.Min else tf.reduce_max)(tf.stack(xs), axis=0)
    else:
        result = functools.reduce(tf.multiply if op == hvd.Product else tf.add, xs)
    count = tf.constant(float(len(xs)), result.dtype) if op == hvd.Average else 1
    return result * tf.constant(post, result.dtype) / count


def scattered(whole, rank, size):
    counts = [int(whole.shape[0]) // size + (r < int(whole.shape[0]) % size) for r in range(size)]
    return tf.split(whole, counts)[rank]


def exchanged(xs, rank, splits):
    """The result of alltoall on `rank`; splits[s] are those of rank s."""
    starts = [sum(splits[s][:rank]) for s in range(len(xs))]
    return tf.concat(
        [x[a : a + splits[s][rank]] for s, (x, a) in enumerate(zip(xs, starts, strict=True))], 0
    )


def run_eagerly(function, *arrays):
    return [tensor.numpy() for tensor in function(*[tf.constant(a) for a in arrays])]


def loss(y, w):
    return tf.reduce_sum(tf.math.real(w * (y * y + 3.0 * y)))


def compare(evaluate, collective, reference, x_of, rtol=1e-13):
    """Compare this rank's first and second derivative with the reference."""
    rank, size = hvd.rank(), hvd.size()
    everything = [tf.constant(x_of(r)) for r in range(size)]
    shapes = [reference(everything, r).shape for r in range(size)]
    dtype = everything[0].dtype.as_numpy_dtype
    ws = [weights(r, shapes[r]).astype(dtype) for r in range(size)]
    vs = [directions(r, x.shape).astype(dtype) for r, x in enumerate(everything)]

    def derive(x, w, v):
        if evaluate.__name__ == "run_in_session":
            first = tf.gradients(loss(collective(x), w), x)[0]
            return first, tf.gradients(tf.reduce_sum(tf.math.real(v * first)), x)[0]
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = loss(collective(x), w)
            first = inner.gradient(y, x)
            along = tf.reduce_sum(tf.math.real(v * first))
        return first, outer.gradient(along, x)

    with tf.GradientTape() as outer:
        outer.watch(everything)
        with tf.GradientTape() as inner:
            inner.watch(everything)
            total = sum(loss(reference(everything, r), ws[r]) for r in range(size))
        firsts = inner.gradient(total, everything, unconnected_gradients="zero")
        along = sum(tf.reduce_sum(tf.math.real(v * f)) for v, f in zip(vs, firsts, strict=True))
    second = outer.gradient(along, everything, unconnected_gradients="zero")[rank].numpy()

    results = evaluate(derive, x_of(rank), ws[rank], vs[rank])
    for actual, expected in zip(results, (firsts[rank].numpy(), second), strict=True):
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
        scale = np.max(np.abs(expected), initial=1e-300)
        np.testing.assert_allclose(actual, expected, rtol=rtol, atol=rtol * scale)


def uneven(rank):
    return inputs(rank, rank + 1)


def rows_for(evaluate):
    """Each rank's input: different numbers of rows, unless XLA must know them."""
    return inputs if evaluate.__name__ == "run_compiled" else uneven
