"""allgather and broadcast against NumPy, bit by bit."""

import numpy as np
import pytest
import tensorflow as tf

import tf_hvd as hvd

DTYPES = [
    tf.uint8, tf.int8, tf.uint16, tf.int16, tf.uint32, tf.int32, tf.uint64, tf.int64,
    tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.complex64, tf.complex128, tf.bool,
]  # fmt: skip


def rows_of(rank, dtype, rows, columns=3):
    values = np.arange(rows * columns).reshape(rows, columns) % 7 + 10 * rank
    return (values % 2 == 0) if dtype == tf.bool else values.astype(dtype.as_numpy_dtype)


def equal(actual, expected):
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.not_compiled
def test_allgather_of_every_dtype_with_differing_rows(evaluate, rank, size):
    results = evaluate(
        lambda *ts: [hvd.allgather(t) for t in ts], *[rows_of(rank, d, rank + 1) for d in DTYPES]
    )
    for dtype, result in zip(DTYPES, results, strict=True):
        equal(result, np.concatenate([rows_of(r, dtype, r + 1) for r in range(size)]))


@pytest.mark.not_compiled
def test_allgather_where_a_rank_has_no_rows(evaluate, rank, size):
    rows = [0 if r == 0 else 2 for r in range(size)]
    result = evaluate(hvd.allgather, rows_of(rank, tf.float32, rows[rank]))
    equal(result, np.concatenate([rows_of(r, tf.float32, n) for r, n in enumerate(rows)]))


def test_allgather_of_nothing_at_all(rank):
    assert hvd.allgather(tf.zeros([0, 4])).shape == (0, 4)
    assert hvd.allgather(tf.zeros([rank + 1, 0])).shape[1] == 0


def test_allgather_of_a_vector_whose_length_changes(rank, size):
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


def test_broadcast_of_every_dtype_from_every_root(evaluate, rank, size):
    results = evaluate(
        lambda *ts: [[hvd.broadcast(t, root) for t in ts] for root in range(size)],
        *[rows_of(rank, d, 4) for d in DTYPES],
    )
    for root in range(size):
        for dtype, result in zip(DTYPES, results[root], strict=True):
            equal(result, rows_of(root, dtype, 4))


def test_broadcast_leaves_the_roots_input_alone(rank):
    tensor = tf.constant([1.0, 2.0]) + float(rank)
    result = hvd.broadcast(tensor, 0)
    equal(result.numpy(), np.float32([1, 2]))
    equal(tensor.numpy(), np.float32([1, 2]) + rank)


@pytest.mark.parametrize("shape", [(), (0,), (2, 1, 3), (2, 1, 1, 3, 1, 1, 1, 2)])
def test_shapes(rank, size, shape):
    mine = tf.fill(shape, rank)
    equal(hvd.broadcast(mine, 0).numpy(), np.zeros(shape, np.int32))
    if shape:
        parts = [np.full(shape, r, np.int32) for r in range(size)]
        equal(hvd.allgather(mine).numpy(), np.concatenate(parts))


def test_larger_than_any_buffer_on_the_way(rank, size):
    count = (3 << 20) + 7
    base = np.arange(count, dtype=np.float32) % 1024
    last = size - 1
    equal(hvd.broadcast(tf.constant(base + rank), last).numpy(), base + last)
    gathered = hvd.allgather(tf.constant(base + rank)).numpy()
    equal(gathered, np.concatenate([base + r for r in range(size)]))


@pytest.mark.ranks(2)
@pytest.mark.large
def test_more_than_2_gib():
    """Broadcast of 2 GiB and 5 bytes; allgather and alltoall whose results are as long."""
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
