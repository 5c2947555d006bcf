"""First and second derivatives of the collectives, in every mode.

Rank r's loss is sum(weights(r) * (y * y + 3 * y)) with y the collective's result.
The reference computes all ranks' results from all ranks' inputs in one process,
and TensorFlow derives the sum of the losses.
"""

import functools

import derivatives
import numpy as np
import pytest
import tensorflow as tf
from derivatives import (
    ROWS,
    compare,
    directions,
    exchanged,
    inputs,
    reduced,
    run_eagerly,
    scattered,
    weights,
)

import tf_hvd as hvd
from tf_hvd.collectives import _calls
from tf_hvd.collectives.options import ReductionOptions

pytestmark = pytest.mark.framework

KINDS = [hvd.Sum, hvd.Average, hvd.Min, hvd.Max, hvd.Product]
NAMES = {hvd.Sum: "sum", hvd.Average: "average", hvd.Min: "min", hvd.Max: "max",
         hvd.Product: "product"}  # fmt: skip


def compare_reductions(evaluate, op, pre, post):
    size = hvd.size()
    options = {"op": op, "prescale_factor": pre, "postscale_factor": post}
    compare(
        evaluate,
        lambda x: hvd.allreduce(x, **options),
        lambda xs, r: reduced(xs, op, pre, post),
        inputs,
    )
    compare(
        evaluate,
        lambda x: hvd.reducescatter(x, **options),
        lambda xs, r: scattered(reduced(xs, op, pre, post), r, size),
        inputs,
    )


# In eager mode the next test has all. The derivative of Sum is Average's, and Min's is Max's.
@pytest.mark.parametrize("op", [hvd.Average, hvd.Max, hvd.Product], ids=NAMES.get)
def test_allreduce_and_reducescatter(evaluate, op):
    compare_reductions(evaluate, op, 2.0, 0.25)


@pytest.mark.parametrize(("pre", "post"), [(1.0, 1.0), (0.3, 7.0), (-2.0, 0.5), (0.0, 1.0)])
@pytest.mark.parametrize("op", KINDS, ids=NAMES.get)
def test_scales(op, pre, post):
    compare_reductions(run_eagerly, op, pre, post)


def compare_groups(evaluate, op):
    """Two members of different shapes; the derivative must not mix them."""
    size = hvd.size()
    options = {"op": op, "prescale_factor": 2.0, "postscale_factor": 0.25}

    def members(x):
        return [x, (x * x)[:3, :1]]

    def both(results):
        return tf.concat([tf.reshape(result, [-1]) for result in results], axis=0)

    def references(xs):
        firsts, seconds = zip(*[members(x) for x in xs], strict=True)
        return [reduced(firsts, op, 2.0, 0.25), reduced(seconds, op, 2.0, 0.25)]

    compare(
        evaluate,
        lambda x: both(hvd.grouped_allreduce(members(x), **options)),
        lambda xs, r: both(references(xs)),
        inputs,
    )
    compare(
        evaluate,
        lambda x: both(hvd.grouped_reducescatter(members(x), **options)),
        lambda xs, r: both([scattered(whole, r, size) for whole in references(xs)]),
        inputs,
    )


@pytest.mark.parametrize("op", KINDS, ids=NAMES.get)
def test_groups(op):
    compare_groups(run_eagerly, op)


def test_groups_in_every_mode(evaluate):
    compare_groups(evaluate, hvd.Average)


def test_allgather(evaluate):
    rows = derivatives.rows_for(evaluate)
    compare(evaluate, hvd.allgather, lambda xs, r: tf.concat(xs, 0), rows)
    compare(
        evaluate,
        lambda x: tf.concat(hvd.grouped_allgather([x, x[:1] * x[:1]]), 0),
        lambda xs, r: tf.concat([*xs, *[x[:1] * x[:1] for x in xs]], 0),
        rows,
    )


def test_broadcast(evaluate, size):
    root = size - 1
    compare(evaluate, lambda x: hvd.broadcast(x, root), lambda xs, r: xs[root], inputs)


@pytest.mark.not_compiled
def test_alltoall_with_splits(evaluate, rank, size):
    """The last row of each rank is in no split."""
    splits = [[(r + s) % 3 for s in range(size)] for r in range(size)]
    compare(
        evaluate,
        lambda x: hvd.alltoall(x, splits=splits[rank])[0],
        lambda xs, r: exchanged(xs, r, splits),
        lambda r: inputs(r, sum(splits[r]) + 1),
    )


def test_alltoall(evaluate, size):
    compare(
        evaluate,
        hvd.alltoall,
        lambda xs, r: exchanged(xs, r, [[2] * size] * size),
        lambda r: inputs(r, 2 * size),
    )


@pytest.mark.not_compiled
def test_reducescatter_then_allgather_is_allreduce(evaluate):
    compare(
        evaluate,
        lambda x: hvd.allgather(hvd.reducescatter(x, op=hvd.Sum)),
        lambda xs, r: reduced(xs, hvd.Sum, 1.0, 1.0),
        inputs,
    )


@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (2, 1, 1, 2, 1, 1, 1, 2)])
def test_derivatives_of_any_shape(shape):
    def x_of(rank):
        return np.full(shape, rank + 2.0)

    for op in KINDS:
        compare(
            run_eagerly, lambda x, op=op: hvd.allreduce(x, op=op),
            lambda xs, r, op=op: reduced(xs, op, 1.0, 1.0), x_of,
        )  # fmt: skip
    compare(run_eagerly, lambda x: hvd.broadcast(x, 0), lambda xs, r: xs[0], x_of)
    if shape:
        compare(run_eagerly, hvd.allgather, lambda xs, r: tf.concat(xs, 0), x_of)


@pytest.mark.parametrize(
    "dtype", [tf.float16, tf.bfloat16, tf.float32, tf.complex64], ids=lambda d: d.name
)
def test_other_dtypes(size, dtype):
    """Small whole numbers, so that these dtypes represent every intermediate result."""

    def x_of(rank):
        x = np.array([[1, 2], [2, 1], [1, 1]]) if rank % 2 else np.array([[1, 1], [0, 2], [2, 1]])
        return (x * (1j if rank == 0 and dtype.is_complex else 1)).astype(dtype.as_numpy_dtype)

    for op in KINDS:
        if (op in (hvd.Min, hvd.Max) and dtype.is_complex) or op == hvd.Average:
            continue
        rtol = 0.02 if dtype.size == 2 else 1e-6
        compare(
            run_eagerly, lambda x, op=op: hvd.allreduce(x, op=op),
            lambda xs, r, op=op: reduced(xs, op, 1.0, 1.0), x_of, rtol,
        )  # fmt: skip
        compare(
            run_eagerly, lambda x, op=op: hvd.reducescatter(x, op=op),
            lambda xs, r, op=op: scattered(reduced(xs, op, 1.0, 1.0), r, size), x_of, rtol,
        )  # fmt: skip


def test_half_precisions_are_rounded_once(rank, size):
    """1/3 of 3 in bfloat16: if it were rounded before the product, it would not be 1."""
    x = tf.constant([[3.0]] * size, tf.bfloat16)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = hvd.reducescatter(x, op=hvd.Sum, prescale_factor=1 / 3)
        y = tf.reduce_sum(y * tf.constant(3.0, tf.bfloat16))
    np.testing.assert_array_equal(
        tf.cast(tape.gradient(y, x), tf.float32), np.ones([size, 1], np.float32)
    )


def test_complex_product_is_conjugated():
    """A holomorphic function's gradient is the conjugate of its derivative."""

    def x_of(rank):
        return np.array([[1 + 2j, 0], [rank - 1j, 2 + rank * 1j]])

    for op in (hvd.Sum, hvd.Average, hvd.Product):
        compare(
            run_eagerly,
            lambda x, op=op: hvd.allreduce(x, op=op, prescale_factor=0.5, postscale_factor=4.0),
            lambda xs, r, op=op: reduced(xs, op, 0.5, 4.0),
            x_of,
        )
    compare(run_eagerly, hvd.allgather, lambda xs, r: tf.concat(xs, 0), x_of)


def test_default_op_and_compression():
    for kind in (hvd.Compression.none, hvd.Compression.fp16, hvd.Compression.bf16):
        compare(
            run_eagerly, lambda x, kind=kind: hvd.allreduce(x * 4.0, compression=kind) / 4.0,
            lambda xs, r: reduced(xs, hvd.Average, 1.0, 1.0), inputs, rtol=0.02,
        )  # fmt: skip


def test_a_result_of_a_group_that_is_not_used(evaluate):
    compare(
        evaluate,
        lambda x: hvd.grouped_allreduce([x, tf.square(x)], op=hvd.Sum)[0],
        lambda xs, r: reduced(xs, hvd.Sum, 1.0, 1.0),
        inputs,
    )


def test_in_a_loop(evaluate):
    def loop(x, step):
        def body(i, y):
            return i + 1, step(y * 2.0)

        start = (tf.constant(0), x)
        # XLA must know how much the derivative has to keep.
        return tf.while_loop(lambda i, _: i < 3, body, start, maximum_iterations=3)[1]

    size = hvd.size()
    compare(
        evaluate,
        lambda x: loop(x, lambda y: hvd.allreduce(y, op=hvd.Sum)),
        lambda xs, r: reduced(xs, hvd.Sum, 1.0, 1.0) * 8.0 * size * size,
        inputs,
    )


@pytest.mark.parametrize("op", [hvd.Average, hvd.Product], ids=NAMES.get)
def test_second_derivatives_equal_finite_differences(rank, size, op):
    """All ranks move at once: the change of the gradient along the direction."""
    start, direction = inputs(rank) / 8 + 1.0, directions(rank, (ROWS, 2))

    def first(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = hvd.reducescatter(x, op=op, prescale_factor=0.5, postscale_factor=3.0)
            y = tf.reduce_sum(y * y * y)
        return tape.gradient(y, x)

    x = tf.constant(start)
    with tf.GradientTape() as tape:
        tape.watch(x)
        along = tf.reduce_sum(first(x) * direction)
    h = 1e-4
    plus, minus = (
        first(tf.constant(start + h * direction)),
        first(tf.constant(start - h * direction)),
    )
    np.testing.assert_allclose(
        tape.gradient(along, x), (plus - minus) / (2 * h), rtol=1e-4, atol=1e-5
    )


@pytest.mark.ranks(3)
def test_in_a_process_set(rank, size):
    """Ranks 1 and up: indices in the set differ from ranks of the job."""
    some = hvd.add_process_set(range(1, size))
    try:
        if rank > 0:
            x = tf.constant(inputs(rank, 4) + 1.0)
            g = tf.constant(weights(rank, (4, 2)))
            with tf.GradientTape(persistent=True) as tape:
                tape.watch(x)
                product = tf.reduce_sum(g * hvd.allreduce(x, op=hvd.Product, process_set=some))
                gathered = hvd.allgather(x, process_set=some)
                gathered = tf.reduce_sum(tf.reshape(tf.range(8.0 * (size - 1)), [-1, 2]) *
                                         tf.cast(gathered, tf.float32))  # fmt: skip
                sent = tf.reduce_sum(g * hvd.broadcast(x, size - 1, process_set=some))
            total = sum(weights(r, (4, 2)) for r in range(1, size))
            others = [inputs(r, 4) + 1.0 for r in range(1, size) if r != rank]
            expected = functools.reduce(np.multiply, others, total)
            np.testing.assert_array_equal(tape.gradient(product, x), expected)
            rows = np.arange(8.0).reshape(4, 2) + 8 * (rank - 1)
            np.testing.assert_array_equal(tape.gradient(gathered, x), rows * (size - 1))
            at_root = total if rank == size - 1 else np.zeros((4, 2))
            np.testing.assert_array_equal(tape.gradient(sent, x), at_root)
    finally:
        hvd.remove_process_set(some)


def test_integers_have_no_gradient(evaluate):
    def of_integers(x):
        if evaluate.__name__ == "run_in_session":
            whole = tf.cast(x, tf.int32)
            return tf.gradients(tf.cast(hvd.allreduce(whole), tf.float64), x)[0] is None
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.cast(hvd.reducescatter(tf.cast(x, tf.int32)), tf.float64)
        return tape.gradient(y, x) is None

    if evaluate.__name__ == "run_in_session":
        with tf.Graph().as_default():
            assert of_integers(tf.constant([1.0], tf.float64))
    else:
        assert of_integers(tf.constant([1.0], tf.float64))


@pytest.mark.parametrize("in_function", [False, True], ids=["eager", "function"])
@pytest.mark.parametrize("pfor", [True, False])
def test_jacobians_are_each_ranks_own(rank, size, in_function, pfor):
    """TensorFlow calls gradient() for each row, which was reduced, or refused by pfor."""
    with tf.device("CPU:0"):
        x = tf.Variable([[1.0, 2.0]])

    def derive():
        with hvd.DistributedGradientTape(tf.GradientTape(persistent=True)) as tape:
            y = x * x * (rank + 1.0)
        whole = tape.jacobian(y, x, experimental_use_pfor=pfor)
        rows = tape.batch_jacobian(y, x, experimental_use_pfor=pfor)
        return whole, rows, tape.gradient(y, x)

    with tf.device("CPU:0"):  # pfor's own ops have no kernels for the software GPU
        whole, rows, gradient = (tf.function(derive) if in_function else derive)()
    own = (rank + 1.0) * np.diag([2.0, 4.0])
    np.testing.assert_array_equal(np.reshape(whole, [2, 2]), own)
    np.testing.assert_array_equal(np.reshape(rows, [2, 2]), own)
    np.testing.assert_array_equal(gradient, [[size + 1.0, 2.0 * (size + 1.0)]])


def test_missing_gradients_raise_lookup_error():
    with tf.Graph().as_default():
        x = tf.constant([1.0])
        with pytest.raises(LookupError, match="Adasum"):
            tf.gradients(
                _calls.run_reduction(
                    "Allreduce", [x], ReductionOptions(op=hvd.Adasum), grouped=False
                )[0],
                x,
            )
        variable = tf.compat.v1.get_variable("v", initializer=1.0, use_resource=False)
        with pytest.raises(LookupError, match="HorovodBroadcastInplace"):
            tf.gradients(hvd.broadcast_([variable], 0), variable)
