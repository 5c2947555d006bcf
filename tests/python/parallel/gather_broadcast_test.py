"""allgather and broadcast against NumPy, bit by bit."""

import numpy as np
import pytest
import tensorflow as tf

import tf_hvd as hvd


def rows_of(rank, dtype, rows, columns=3):
    values = np.arange(rows * columns).reshape(rows, columns) % 7 + 10 * rank
    return (values % 2 == 0) if dtype == tf.bool else values.astype(dtype.as_numpy_dtype)


def equal(actual, expected):
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(actual, expected)


def test_allgather_of_a_vector_of_changing_length(rank, size):
    function = tf.function(
        lambda t: hvd.allgather(t), input_signature=[tf.TensorSpec([None], tf.int64)]
    )
    for step in range(5):
        result = function(tf.fill([step * (rank + 1)], tf.constant(rank, tf.int64)))
        equal(result.numpy(), np.repeat(np.arange(size), [step * (r + 1) for r in range(size)]))


@pytest.mark.not_compiled
def test_grouped_allgather(evaluate, rank, size):
    """Rows differ between ranks and between members; dtypes are mixed."""
    dtypes = [tf.float32, tf.int32, tf.float32, tf.bool, tf.float64]

    def members(r):
        return [rows_of(r, d, (r + i) % 3, i + 1) for i, d in enumerate(dtypes)]

    results = evaluate(
        lambda *ts: hvd.grouped_allgather(ts, name="group", member_names=list("abcde")),
        *members(rank),
    )
    for i, result in enumerate(results):
        equal(result, np.concatenate([members(r)[i] for r in range(size)]))
    assert hvd.grouped_allgather([]) == []
    with pytest.raises(ValueError, match="member_names has 0 names for 1 tensors"):
        hvd.grouped_allgather([tf.zeros([1])], member_names=[])


def test_broadcast_does_not_change_the_roots_input(rank):
    tensor = tf.constant([1.0, 2.0]) + float(rank)
    result = hvd.broadcast(tensor, 0)
    equal(result.numpy(), np.float32([1, 2]))
    equal(tensor.numpy(), np.float32([1, 2]) + rank)


def test_gathers_larger_than_any_buffer(rank, size):
    count = (3 << 20) + 7
    base = np.arange(count, dtype=np.float32) % 1024
    last = size - 1
    equal(hvd.broadcast(tf.constant(base + rank), last).numpy(), base + last)
    gathered = hvd.allgather(tf.constant(base + rank)).numpy()
    equal(gathered, np.concatenate([base + r for r in range(size)]))


@pytest.mark.ranks(2)
@pytest.mark.large
def test_more_than_2_gib():
    """A broadcast of 2 GiB and 5 bytes; allgather and alltoall with results of that size."""
    count = (1 << 31) + 5
    mine = tf.constant(hvd.rank() + 1, tf.uint8)
    result = hvd.broadcast(tf.fill([count], mine), 1)
    assert int(tf.reduce_max(result)) == int(tf.reduce_min(result)) == 2
    del result
    half = (1 << 30) + 3
    result = hvd.allgather(tf.fill([half + hvd.rank()], mine))
    assert result.shape == (2 * half + 1,)
    assert int(tf.reduce_max(result[:half])) == int(tf.reduce_min(result[:half])) == 1
    assert int(tf.reduce_max(result[half:])) == int(tf.reduce_min(result[half:])) == 2
    del result
    rows = (1 << 28) + 1 if hvd.rank() == 0 else 0
    result, _ = hvd.alltoall(tf.fill([rows, 8], mine), splits=[0, rows])
    assert result.shape == (((1 << 28) + 1) * hvd.rank(), 8)
    assert hvd.rank() == 0 or int(tf.reduce_max(result)) == int(tf.reduce_min(result)) == 1
