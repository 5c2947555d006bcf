"""allreduce and grouped_allreduce against NumPy, bit by bit.

`of(r)` is what rank r puts in: each rank can compute all ranks' inputs, and so
the result.
"""

import functools

import numpy as np
import pytest
import tensorflow as tf

import tf_hvd as hvd

INTEGERS = [tf.uint8, tf.int8, tf.int32, tf.int64]
FLOATS = [tf.float16, tf.bfloat16, tf.float32, tf.float64]
DTYPES = INTEGERS + FLOATS


def numpy_type(dtype):
    return dtype.as_numpy_dtype


def of(rank, dtype, shape=(3, 5)):
    """Small whole numbers, 0 to 9: sums and products of 4 are exact in every dtype but 8 bits."""
    count = int(np.prod(shape))
    return ((np.arange(count) * 7 + rank * 3) % 10).reshape(shape).astype(numpy_type(dtype))


def everybody(size, dtype, shape=(3, 5)):
    return [of(r, dtype, shape) for r in range(size)]


def equal(actual, expected):
    """The same dtype, shape and bits."""
    expected = np.asarray(expected)
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    np.testing.assert_array_equal(actual, expected)


def truncated(values, dtype):
    return np.trunc(np.asarray(values, np.float64)).astype(numpy_type(dtype))


def test_sum_min_max_of_every_dtype(evaluate, rank, size):
    ops = {hvd.Sum: np.add, hvd.Min: np.minimum, hvd.Max: np.maximum}

    def reduce_all(*tensors):
        return [
            hvd.allreduce(t, op=op, name=f"r_{op}_{i}") for op in ops for i, t in enumerate(tensors)
        ]

    results = iter(evaluate(reduce_all, *[of(rank, d) for d in DTYPES]))
    for function in ops.values():
        for dtype in DTYPES:
            expected = functools.reduce(function, everybody(size, dtype))
            equal(next(results), expected.astype(numpy_type(dtype)))


def test_average_and_product_of_every_dtype(evaluate, rank, size):
    def reduce_all(*tensors):
        return [hvd.allreduce(t) for t in tensors] + [
            hvd.allreduce(t % 3 if t.dtype.is_integer else t, op=hvd.Product) for t in tensors
        ]

    results = evaluate(reduce_all, *[of(rank, d) for d in DTYPES])
    for dtype, average, product in zip(
        DTYPES, results[: len(DTYPES)], results[len(DTYPES) :], strict=True
    ):
        inputs = [x.astype(np.float64) for x in everybody(size, dtype)]
        mean = sum(inputs) / size
        equal(average, truncated(mean, dtype) if dtype.is_integer else mean.astype(average.dtype))
        if dtype.is_integer:
            inputs = [x % 3 for x in inputs]
        if dtype != tf.bfloat16:  # its 8 bits cannot hold the product
            equal(product, functools.reduce(np.multiply, inputs).astype(average.dtype))


def test_bool(evaluate, rank, size):
    inputs = [np.array([r % 2 == 0, True, False, r == 0]) for r in range(size)]
    ops = [hvd.Min, hvd.Product, hvd.Max, hvd.Sum]
    results = evaluate(lambda t: [hvd.allreduce(t, op=op) for op in ops], inputs[rank])
    every, some = np.logical_and.reduce(inputs), np.logical_or.reduce(inputs)
    for result, expected in zip(results, [every, every, some, some], strict=True):
        equal(result, expected)


def test_half_precisions_are_summed_in_float32(rank, size):
    # One by one, in the half precision, each addition of 1 would be lost.
    for dtype, big in ((tf.float16, 2048.0), (tf.bfloat16, 256.0)):
        value = tf.constant([big if rank == 0 else 1.0], dtype)
        total = np.float32(big + size - 1)
        equal(hvd.allreduce(value, op=hvd.Sum).numpy(), np.array([total], numpy_type(dtype)))


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0, 2), (2, 1, 3, 1, 2)])
def test_shapes(evaluate, rank, size, shape):
    result = evaluate(lambda t: hvd.allreduce(t, op=hvd.Sum), of(rank, tf.float32, shape))
    equal(result, sum(everybody(size, tf.float32, shape)).astype(np.float32))


def test_larger_than_any_buffer_on_the_way(rank, size):
    count = (3 << 20) + 7
    base = np.arange(count, dtype=np.float32) % 1024
    result = hvd.allreduce(tf.constant(base + rank), op=hvd.Sum).numpy()
    equal(result, base * size + sum(range(size)))


def test_scales(evaluate, rank, size):
    def scaled(x, n):
        options = {"op": hvd.Sum, "prescale_factor": 0.5, "postscale_factor": 4.0}
        return hvd.allreduce(x, **options), hvd.allreduce(n, **options)

    floats, integers = evaluate(scaled, of(rank, tf.float64), of(rank, tf.int32))
    inputs = everybody(size, tf.float64)
    equal(floats, sum(x * 0.5 for x in inputs) * 4.0)
    # Integers are truncated where they are scaled: before the sum, and after.
    equal(integers, (sum(np.trunc(x * 0.5) for x in inputs) * 4.0).astype(np.int32))


def test_deprecated_average_argument(size):
    one = tf.constant([1.0])
    with pytest.warns(DeprecationWarning, match="op="):
        equal(hvd.allreduce(one, average=False).numpy(), np.float32([size]))
    with pytest.raises(ValueError, match="not both"):
        hvd.allreduce(one, average=True, op=hvd.Sum)


def test_variables_and_numpy_arrays(rank, size):
    expected = np.float32([sum(range(size))])
    equal(hvd.allreduce(tf.Variable([float(rank)]), op=hvd.Sum).numpy(), expected)
    equal(hvd.allreduce(np.float32([rank]), op=hvd.Sum).numpy(), expected)


@pytest.mark.parametrize("compression", ["none", "fp16", "bf16"])
def test_compression(evaluate, rank, size, compression):
    kind = getattr(hvd.Compression, compression)
    results = evaluate(
        lambda *ts: [hvd.allreduce(t, op=hvd.Sum, compression=kind) for t in ts],
        *[of(rank, d) for d in DTYPES],
    )
    for dtype, result in zip(DTYPES, results, strict=True):
        equal(result, sum(everybody(size, dtype)).astype(numpy_type(dtype)))


def test_compression_travels_in_the_narrow_type():
    class Spy(hvd.FP16Compressor):
        sent: list = []  # noqa: RUF012

        @staticmethod
        def decompress(tensor, ctx):
            Spy.sent.append(tensor.dtype)
            return hvd.FP16Compressor.decompress(tensor, ctx)

    result = hvd.allreduce(tf.constant([1.0], tf.float64), compression=Spy)
    assert (Spy.sent, result.dtype) == ([tf.float16], tf.float64)


def test_grouped(evaluate, rank, size):
    dtypes = [tf.float32, tf.int32, tf.float32, tf.float16, tf.float32]
    shapes = [(3, 5), (2,), (), (4,), (0, 3)]
    inputs = [of(rank, d, s) for d, s in zip(dtypes, shapes, strict=True)]
    results = evaluate(lambda *ts: hvd.grouped_allreduce(ts, op=hvd.Sum, name="group"), *inputs)
    assert len(results) == len(inputs)
    for dtype, shape, result in zip(dtypes, shapes, results, strict=True):
        equal(result, sum(everybody(size, dtype, shape)).astype(numpy_type(dtype)))
    assert hvd.grouped_allreduce([]) == []


def test_grouped_many_members(rank, size):
    inputs = [tf.fill([i + 1], float(i + rank)) for i in range(161)]
    for i, result in enumerate(hvd.grouped_allreduce(inputs, op=hvd.Sum)):
        equal(result.numpy(), np.full(i + 1, i * size + sum(range(size)), np.float32))


def slices(rank):
    """Rank r has r + 1 rows; row 0 is in all of them."""
    values = np.arange((rank + 1) * 2, dtype=np.float64).reshape(-1, 2) + rank
    return values, np.arange(rank + 1, dtype=np.int64)


@pytest.mark.parametrize("op", ["Sum", "Average"])
def test_indexed_slices(evaluate, rank, size, op):
    def reduce(values, indices):
        result = hvd.allreduce(
            tf.IndexedSlices(values, indices, tf.constant([size, 2], tf.int64)),
            op=getattr(hvd, op),
            postscale_factor=2.0,
        )
        return result.values, result.indices, result.dense_shape

    values, indices, shape = evaluate(reduce, *slices(rank))
    everything = [slices(r) for r in range(size)]
    factor = 2.0 if op == "Sum" else 2.0 / size
    equal(values, np.concatenate([v for v, _ in everything]) * factor)
    equal(indices, np.concatenate([i for _, i in everything]))
    equal(shape, np.int64([size, 2]))


def test_indexed_slices_in_a_group(rank, size):
    values, indices = slices(rank)
    mixed = [
        tf.constant([1.0]),
        tf.IndexedSlices(tf.constant(values), tf.constant(indices), tf.constant([size, 2])),
        tf.constant([2.0]),
    ]
    first, middle, last = hvd.grouped_allreduce(mixed, op=hvd.Sum, name="mixed")
    equal(first.numpy(), np.float32([size]))
    equal(last.numpy(), np.float32([2 * size]))
    equal(middle.values.numpy(), np.concatenate([slices(r)[0] for r in range(size)]))


@pytest.mark.parametrize("op", ["Min", "Max", "Product"])
def test_indexed_slices_refuse_other_ops(op):
    sparse = tf.IndexedSlices(tf.constant([[1.0]]), tf.constant([0]), tf.constant([1, 1]))
    with pytest.raises(NotImplementedError, match=op):
        hvd.allreduce(sparse, op=getattr(hvd, op))


@pytest.mark.ranks(2)
@pytest.mark.large
def test_more_than_2_to_the_31_elements():
    """2^31 + 5 bytes-sized elements: no count may pass through an int."""
    count = (1 << 31) + 5
    result = hvd.allreduce(tf.fill([count], tf.constant(3, tf.uint8)), op=hvd.Sum)
    for place in (0, count // 2, (1 << 31) - 1, 1 << 31, count - 1):
        assert int(result[place]) == 6
    assert int(tf.reduce_max(result)) == int(tf.reduce_min(result)) == 6
