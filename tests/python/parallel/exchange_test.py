"""alltoall and reducescatter, single and grouped, against NumPy, bit by bit."""

import numpy as np
import pytest
import tensorflow as tf

import tf_hvd as hvd

FLOATS = [tf.float16, tf.bfloat16, tf.float32, tf.float64]


def of(rank, dtype, shape=(5, 3)):
    """Multiples of 12 below 60, so that sums, and averages over up to 4 ranks, are exact."""
    values = ((np.arange(np.prod(shape)) * 7 + rank * 3) % 5).reshape(shape)
    if dtype == tf.bool:
        return values % 2 == 0
    return (values * (12j if dtype.is_complex and rank == 1 else 12)).astype(dtype.as_numpy_dtype)


def equal(actual, expected):
    """The same dtype, shape and bits."""
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(actual, expected)


def rows_of(rank, size, count):
    """The rows of `count` that the rank gets: the first ranks get one more."""
    counts = [count // size + (r < count % size) for r in range(size)]
    return slice(sum(counts[:rank]), sum(counts[: rank + 1]))


def splits_of(rank, size):
    """Rows from `rank` to each rank; some pairs exchange none, and rank 1 keeps none itself."""
    return [(rank + 2 * r) % 3 for r in range(size)]


def tagged(rank, size, dtype, extra=0):
    """Rows that contain their source and their destination."""
    rows = [
        [100 * rank + 10 * r + i] for r, n in enumerate(splits_of(rank, size)) for i in range(n)
    ]
    values = np.array([*rows, *[[99]] * extra]).reshape(-1, 1) % 120 + np.arange(2)
    return (values % 2 == 0) if dtype == tf.bool else values.astype(dtype.as_numpy_dtype)


def received(rank, size, dtype):
    parts = []
    for sender in range(size):
        splits = splits_of(sender, size)
        start = sum(splits[:rank])
        parts.append(tagged(sender, size, dtype)[start : start + splits[rank]])
    return np.concatenate(parts), np.int32([len(part) for part in parts])


@pytest.mark.not_compiled
def test_alltoall_with_a_tensor_of_splits(evaluate, rank, size):
    """Rows beyond the splits are not sent."""
    output, splits = evaluate(
        lambda t, s: hvd.alltoall(t, splits=s, name="tensor_splits"),
        tagged(rank, size, tf.float32, extra=2),
        np.int32(splits_of(rank, size)),
    )
    equal(output, received(rank, size, tf.float32)[0])
    equal(splits, received(rank, size, tf.float32)[1])


def test_alltoall_larger_than_any_buffer(rank, size):
    count = (1 << 20) + 7
    result = hvd.alltoall(tf.range(count * size, dtype=tf.float32) % 1024 + float(rank)).numpy()
    rows = np.arange(count * rank, count * (rank + 1), dtype=np.float32) % 1024
    equal(result, np.concatenate([rows + r for r in range(size)]))


def test_wrong_splits(rank, size):
    x = tf.zeros([4, 2])
    for splits in ([1] * (size + 1), [5] + [0] * (size - 1), [-1] + [1] * (size - 1), [[1]]):
        with pytest.raises(tf.errors.OpError, match="splits"):
            hvd.alltoall(x, splits=splits)
    with pytest.raises(ValueError, match=r"int64.*int32"):
        hvd.alltoall(x, splits=tf.constant([1] * size, tf.int64))
    with pytest.raises(ValueError, match=r"splits=.*int32"):
        hvd.alltoall(x, splits=[0.5] * size)
    if size > 1:
        with pytest.raises(tf.errors.OpError, match="splits"):
            hvd.alltoall(tf.zeros([size + 1]))
    equal(hvd.alltoall(tf.range(size) * 0 + rank).numpy(), np.arange(size, dtype=np.int32))


def test_scalars_have_no_rows():
    for function in (hvd.alltoall, hvd.reducescatter, hvd.allgather):
        with pytest.raises((tf.errors.OpError, ValueError), match=r"scalar|dimension"):
            function(tf.constant(1.0))


@pytest.mark.usefixtures("one_machine")
def test_reducescatter_equals_allreduce_bitwise(rank, size):
    """Numbers that round, with scales, and in half precision."""
    generator = np.random.default_rng(rank)
    x = generator.standard_normal((1001, 3))
    for dtype in FLOATS:
        for op in (hvd.Average, hvd.Sum, hvd.Min, hvd.Product):
            options = {"op": op, "prescale_factor": 0.3, "postscale_factor": -1.7}
            tensor = tf.cast(x, dtype)
            part = hvd.reducescatter(tensor, **options).numpy()
            whole = hvd.allreduce(tensor, **options).numpy()
            assert part.tobytes() == whole[rows_of(rank, size, 1001)].tobytes()


@pytest.mark.parametrize("kind", ["fp16", "bf16"])
def test_compressed_reducescatter(evaluate, rank, size, kind):
    options = {"op": hvd.Sum, "compression": getattr(hvd.Compression, kind)}
    dtypes = [tf.float64, tf.float32, tf.float16, tf.int32]
    results = evaluate(
        lambda *ts: [
            *hvd.grouped_reducescatter(ts, **options),
            hvd.reducescatter(ts[0], **options),
        ],
        *[of(rank, dtype) for dtype in dtypes],
    )
    for dtype, result in zip([*dtypes, dtypes[0]], results, strict=True):
        expected = sum(of(r, dtype) for r in range(size)).astype(dtype.as_numpy_dtype)
        equal(result, expected[rows_of(rank, size, 5)])


def test_grouped_reducescatter(evaluate, rank, size):
    dtypes = [tf.float32, tf.int32, tf.float32, tf.float64]
    shapes = [(5, 3), (2,), (7, 1, 2), (0, 3)]
    inputs = [of(rank, d, s) for d, s in zip(dtypes, shapes, strict=True)]
    results = evaluate(
        lambda *ts: hvd.grouped_reducescatter(
            ts, op=hvd.Sum, postscale_factor=0.5, name="group", member_names=list("abcd")
        ),
        *inputs,
    )
    for dtype, shape, result in zip(dtypes, shapes, results, strict=True):
        expected = sum(of(r, dtype, shape) for r in range(size)) * 0.5
        equal(result, expected.astype(dtype.as_numpy_dtype)[rows_of(rank, size, shape[0])])
    assert hvd.grouped_reducescatter([]) == []


def test_wrong_arguments_of_reducescatter():
    with pytest.raises(ValueError, match="reduce op"):
        hvd.reducescatter(tf.zeros([2]), op=17)
    with pytest.raises(ValueError, match="member_names has 1 names for 2 tensors"):
        hvd.grouped_reducescatter([tf.zeros([2])] * 2, member_names=["a"])
    with pytest.raises(tf.errors.OpError, match="Min of complex64"):
        hvd.reducescatter(tf.zeros([2], tf.complex64), op=hvd.Min)
    with pytest.raises(tf.errors.OpError, match="Average of bool"):
        hvd.reducescatter(tf.constant([True]))
