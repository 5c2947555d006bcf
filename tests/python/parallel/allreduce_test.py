"""allreduce and grouped_allreduce against NumPy, bit by bit.

`of(r)` is the input of rank r: each rank can compute all ranks' inputs, and so
the result.
"""

import functools

import numpy as np
import pytest
import tensorflow as tf

import tf_hvd as hvd

INTEGERS = [
    tf.uint8, tf.int8, tf.uint16, tf.int16, tf.uint32, tf.int32, tf.uint64, tf.int64,
]  # fmt: skip
FLOATS = [tf.float16, tf.bfloat16, tf.float32, tf.float64]
COMPLEX = [tf.complex64, tf.complex128]
REAL = INTEGERS + FLOATS
DTYPES = REAL + COMPLEX


def numpy_type(dtype):
    return dtype.as_numpy_dtype


def of(rank, dtype, shape=(3, 5)):
    """Small whole numbers, 0 to 9: sums and products of 4 are exact in every dtype over 8 bits."""
    count = int(np.prod(shape))
    values = ((np.arange(count) * 7 + rank * 3) % 10).reshape(shape)
    return (values * (1j if dtype.is_complex and rank % 2 else 1)).astype(numpy_type(dtype))


def everybody(size, dtype, shape=(3, 5)):
    return [of(r, dtype, shape) for r in range(size)]


def equal(actual, expected):
    """The same dtype, shape and bits."""
    expected = np.asarray(expected)
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("dtype", [*FLOATS, tf.complex64], ids=lambda dtype: dtype.name)
def test_infinities_and_nan_arrive(rank, size, dtype):
    """Rank 0 has infinities and NaN, in one element each; the others have ones."""
    special = np.array([np.inf, -np.inf, np.nan, 1.0])
    mine = (special if rank == 0 else np.ones(4)).astype(numpy_type(dtype))
    kinds = [hvd.Sum, hvd.Average, hvd.Product]
    kinds += [] if dtype.is_complex else [hvd.Min, hvd.Max]
    for op in kinds:
        result = tf.cast(tf.math.real(hvd.allreduce(tf.constant(mine), op=op)), tf.float64).numpy()
        expected = special.copy()
        if op == hvd.Sum:
            expected[3] = size
        if size > 1 and op in (hvd.Min, hvd.Max):
            expected[0 if op == hvd.Min else 1] = 1.0
        if dtype.is_complex and op == hvd.Product:  # inf * (1 + 0j) contains a NaN too
            result, expected = result[2:], expected[2:]
        np.testing.assert_array_equal(result, expected)
    kept = hvd.allgather(tf.constant(mine)).numpy()[:4], hvd.broadcast(tf.constant(mine), 0).numpy()
    for result in kept:
        assert result.tobytes() == special.astype(numpy_type(dtype)).tobytes()


@pytest.mark.usefixtures("one_machine")
def test_half_precisions_are_summed_in_float32(rank, size):
    # Added one by one in half precision, each addition of 1 would be lost.
    for dtype, big in ((tf.float16, 2048.0), (tf.bfloat16, 256.0)):
        value = tf.constant([big if rank == 0 else 1.0], dtype)
        total = np.float32(big + size - 1)
        equal(hvd.allreduce(value, op=hvd.Sum).numpy(), np.array([total], numpy_type(dtype)))


def test_tensors_larger_than_any_buffer(rank, size):
    count = (3 << 20) + 7
    base = np.arange(count, dtype=np.float32) % 1024
    result = hvd.allreduce(tf.constant(base + rank), op=hvd.Sum).numpy()
    equal(result, base * size + sum(range(size)))


def random_numbers(rank, dtype):
    values = np.random.default_rng(rank).uniform(-100, 100, 1003)
    return tf.cast(values, dtype).numpy()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("factor", [0.1, 0.1915194503788923, 1 / 3, -1.7])
def test_factors_are_rounded_to_the_type_as_numpy_and_horovod_do(
    evaluate, rank, size, dtype, factor
):
    """Half precisions are multiplied in float32. A maximum does not round in any order."""
    held = np.float64 if dtype == tf.float64 else np.float32

    def times(x):
        return (x.astype(held) * held(factor)).astype(x.dtype)

    def scaled(x):
        before = hvd.allreduce(x, op=hvd.Max, prescale_factor=factor)
        return before, hvd.allreduce(x, op=hvd.Max, postscale_factor=factor)

    inputs = [random_numbers(r, dtype) for r in range(size)]
    before, after = evaluate(scaled, inputs[rank])
    equal(before, functools.reduce(np.maximum, [times(x) for x in inputs]))
    equal(after, times(functools.reduce(np.maximum, inputs)))


@pytest.mark.parametrize("dtype", FLOATS + COMPLEX)
def test_an_average_is_the_sum_divided_in_the_type(evaluate, rank, size, dtype):
    """Not the sum times 1 / N, which is less than 1 for 41 ones in float32, for 49 in float64."""
    tensors = [of(rank, dtype), np.full([5], 0.375, numpy_type(dtype))]
    means, equals = evaluate(lambda x, y: [hvd.allreduce(x), hvd.allreduce(y)], *tensors)
    half = dtype in (tf.float16, tf.bfloat16)
    total = sum(x.astype(np.float32) if half else x for x in everybody(size, dtype))
    parts = total.view(total.real.dtype)  # NumPy's quotient of complex numbers is a product
    equal(means, (parts / parts.dtype.type(size)).view(total.dtype).astype(numpy_type(dtype)))
    equal(equals, tensors[1])


@pytest.mark.parametrize("factors", [(0.1, 1.0), (1.0, 1 / 3), (0.1, 1 / 3)])
def test_factors_of_float64_and_of_integers_are_float64(evaluate, rank, size, factors):
    """TensorFlow's attributes are float32: 0.1 was 0.10000000149, and 10 * 0.7 was 6."""
    before, after = factors

    def scaled(x, n, z):
        options = {"op": hvd.Sum, "prescale_factor": before, "postscale_factor": after}
        group = hvd.grouped_allreduce([x, n], **options)
        scattered = hvd.reducescatter(tf.tile(x, [hvd.size(), 1]), **options)
        return *group, hvd.allreduce(z, **options), scattered

    inputs = [of(rank, dtype) for dtype in (tf.float64, tf.int64, tf.complex128)]
    floats, integers, complexes, scattered = evaluate(scaled, *inputs)
    # Where machines add first, they add in another order.
    close = functools.partial(np.testing.assert_allclose, rtol=1e-14)
    expected = sum(x * before for x in everybody(size, tf.float64)) * after
    close(floats, expected)
    close(scattered, expected)
    close(complexes, sum(x * before for x in everybody(size, tf.complex128)) * after)
    whole = sum(np.trunc(x * before) for x in everybody(size, tf.float64))
    equal(integers, np.trunc(whole * after).astype(np.int64))


def test_a_maximum_is_scaled_in_float64():
    ten = tf.constant([10])
    equal(hvd.allreduce(ten, op=hvd.Max, prescale_factor=0.7).numpy(), np.int32([7]))


def test_deprecated_average_argument(size):
    one = tf.constant([1.0])
    with pytest.warns(DeprecationWarning, match="op="):
        equal(hvd.allreduce(one, average=False).numpy(), np.float32([size]))
    with pytest.raises(ValueError, match="both passed"):
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


def test_compressed_tensors_are_sent_in_the_narrow_type():
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


def test_names_of_members(rank, size):
    pair = [tf.constant([1.0]), tf.constant([2])]
    for result in hvd.grouped_allreduce(pair, op=hvd.Sum, member_names=["a", "b"], name="named"):
        assert int(result[0]) in (size, 2 * size)
    with pytest.raises(ValueError, match="member_names has 3 names for 2 tensors"):
        hvd.grouped_allreduce(pair, member_names=["a", "b", "c"])


@pytest.mark.ranks(2)
def test_members_in_another_order_are_an_error(rank):
    names = ["first", "second"] if rank == 0 else ["second", "first"]
    pair = [tf.constant([1.0]), tf.constant([2.0])]
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"(?s)first.*second"):
        hvd.grouped_allreduce(pair, member_names=names)
    assert len(hvd.grouped_allreduce(pair)) == 2


@pytest.mark.ranks(2)
def test_compression_on_one_rank_only_is_an_error(rank):
    """Also where the sent dtypes are equal: one rank's tensor is float16 from the start."""
    tensor = tf.constant([1.0], tf.float32 if rank == 0 else tf.float16)
    kind = hvd.Compression.fp16
    for call in (hvd.allreduce, hvd.reducescatter):
        with pytest.raises(tf.errors.FailedPreconditionError, match="fp16 of float32"):
            call(tensor, compression=kind)
    with pytest.raises(tf.errors.FailedPreconditionError, match="fp16 of float32"):
        hvd.grouped_allreduce([tensor], compression=kind)


def test_grouped_many_members(rank, size):
    inputs = [tf.fill([i + 1], float(i + rank)) for i in range(161)]
    for i, result in enumerate(hvd.grouped_allreduce(inputs, op=hvd.Sum)):
        equal(result.numpy(), np.full(i + 1, i * size + sum(range(size)), np.float32))


@pytest.mark.ranks(2)
@pytest.mark.large
def test_more_than_2_to_the_31_elements():
    """2^31 + 5 one-byte elements: no count may pass through an int."""
    count = (1 << 31) + 5
    result = hvd.allreduce(tf.fill([count], tf.constant(3, tf.uint8)), op=hvd.Sum)
    for place in (0, count // 2, (1 << 31) - 1, 1 << 31, count - 1):
        assert int(result[place]) == 6
    assert int(tf.reduce_max(result)) == int(tf.reduce_min(result)) == 6
