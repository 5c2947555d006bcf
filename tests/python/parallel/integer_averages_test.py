"""Average of integers of 8, 16 and 32 bits: their sum may exceed their type.

It wrapped around: with uint8, 255 on two ranks gave 127.
"""

import fractions
import math

import numpy as np
import pytest
import tensorflow as tf

import tf_hvd as hvd

NARROW = [tf.uint8, tf.int8, tf.uint16, tf.int16, tf.uint32, tf.int32]


def of(rank, dtype):
    """Values at the ends of the type, some of which differ between ranks; 12 numbers."""
    least, most = int(dtype.min), int(dtype.max)
    values = [least, most, most - rank, least + rank, most // 2 + rank, 7 * rank]
    return np.array(values + values[::-1], dtype.as_numpy_dtype)


def inside(value, dtype):
    return min(max(value, int(dtype.min)), int(dtype.max))


def mean(parts, dtype, factor=1):
    """With Python's integers, truncated toward zero and clamped to the type's range."""
    sums = [sum(map(int, column)) for column in zip(*parts, strict=True)]
    exact = [fractions.Fraction(total) * factor / len(parts) for total in sums]
    return np.array([inside(math.trunc(x), dtype) for x in exact], dtype.as_numpy_dtype)


def equal(actual, expected):
    assert actual.dtype == expected.dtype
    np.testing.assert_array_equal(actual, expected)


def all_ways(*tensors):
    """Each averaging function on each tensor: one list of results after the other."""
    parts = hvd.grouped_reducescatter(tensors)
    return [
        [hvd.allreduce(t) for t in tensors],
        hvd.grouped_allreduce([*tensors, tf.ones([2])], name="with_others")[:-1],
        [hvd.allgather(hvd.reducescatter(t)) for t in tensors[:1]],
        hvd.grouped_allgather(parts),
    ]


def test_averages_of_integers_do_not_wrap_around(evaluate, rank, size):
    results = evaluate(all_ways, *[of(rank, dtype) for dtype in NARROW])
    for way in results:
        for dtype, result in zip(NARROW, way, strict=False):
            equal(np.asarray(result), mean([of(r, dtype) for r in range(size)], dtype))


def test_255_on_all_ranks_is_255_on_average():
    assert int(hvd.allreduce(tf.constant(255, tf.uint8))) == 255


@pytest.mark.parametrize("arguments", [{"op": hvd.Average}, {"average": True}, {"name": "named"}])
def test_all_ways_to_an_average(rank, size, arguments):
    expected = mean([of(r, tf.int32) for r in range(size)], tf.int32)
    array = of(rank, tf.int32)
    for value in (tf.constant(array), tf.Variable(array), array.tolist()):
        equal(hvd.allreduce(value, **arguments).numpy(), expected)


def test_factors_of_averages_of_integers(evaluate, rank, size):
    """Results outside of the type are clamped, but only after all steps."""
    factors = [(2.0, 0.5), (1.0, 3.0), (2.0, 1.0), (1.0, -1.0)]

    def average(*tensors):
        return [
            hvd.grouped_allreduce(tensors, prescale_factor=before, postscale_factor=after)
            for before, after in factors
        ]

    results = evaluate(average, *[of(rank, dtype) for dtype in NARROW])
    for (before, after), result in zip(factors, results, strict=True):
        for dtype, tensor in zip(NARROW, result, strict=True):
            parts = [of(r, dtype) for r in range(size)]
            equal(np.asarray(tensor), mean(parts, dtype, fractions.Fraction(before * after)))


@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize("way", ["rows", "dense", "auto"])
def test_averages_of_integer_slices(rank, size, way, in_function):
    """Row 0 occurs twice on each rank, row 2 once; a rank's own sum may exceed the type too."""

    def average(values):
        part = tf.IndexedSlices(values, tf.constant([0, 2, 0]), tf.constant([4, 2]))
        return hvd.allreduce(part, sparse=way)

    def each(*values):
        return [average(each) for each in values]

    highs = [int(dtype.max) - rank for dtype in NARROW]
    values = [
        tf.constant([[high, 1], [high, 5], [0, 1]], dtype)
        for dtype, high in zip(NARROW, highs, strict=True)
    ]
    results = (tf.function(each) if in_function else each)(*values)
    for dtype, result in zip(NARROW, results, strict=True):
        equal(result.indices.numpy(), np.array([0, 2], np.int32))
        total = sum(int(dtype.max) - r for r in range(size))
        high = total // size
        equal(result.values.numpy(), np.array([[high, 2], [high, 5]], dtype.as_numpy_dtype))
    most = tf.constant([[127 - rank, 1], [7, 5], [127 - rank, 1]], tf.int8)
    assert average(most).values.numpy().tolist() == [[127, 2], [7, 5]], "clamped, not wrapped"


class AsInt8:
    """A user-defined compressor that converts floats to small integers."""

    @staticmethod
    def compress(tensor):
        return tf.cast(tensor * 100, tf.int8), tensor.dtype

    @staticmethod
    def decompress(tensor, ctx):
        assert tensor.dtype == tf.int8
        return tf.cast(tensor, ctx) / 100


def test_integers_that_a_compressor_makes(evaluate, size):
    slices = tf.IndexedSlices([[1.0]], [0], [3, 1])
    for value in (tf.constant([[1.0]]), slices):
        result = hvd.allreduce(value, compression=AsInt8)
        assert float(getattr(result, "values", result)[0, 0]) == 1.0
    dense = evaluate(lambda t: hvd.allreduce(t, compression=AsInt8), np.float32([1.0, -1.0]))
    assert dense.tolist() == [1.0, -1.0]


def test_sums_and_64_bit_integers_are_sent_unchanged(rank, size):
    """They still wrap around: an integer sum has no other meaning."""
    for dtype, total in ((tf.uint8, 255 * size % 256), (tf.int64, None)):
        value = tf.constant([dtype.max], dtype)
        if total is not None:
            assert int(hvd.allreduce(value, op=hvd.Sum)[0]) == total
    graph = tf.Graph()
    with graph.as_default():
        for dtype in (tf.int64, tf.uint64, tf.float32):
            hvd.allreduce(tf.compat.v1.placeholder(dtype, [2]))
        for dtype in NARROW:
            for op in (hvd.Sum, hvd.Min, hvd.Max, hvd.Product):
                hvd.allreduce(tf.compat.v1.placeholder(dtype, [2]), op=op)
    assert {op.type for op in graph.get_operations()} == {"Placeholder", "HorovodAllreduce"}


@pytest.mark.ranks(2)
@pytest.mark.parametrize("other", [tf.int16, tf.int64, tf.float32])
def test_ranks_with_other_integers_get_an_error(rank, other):
    """Although all of them send int64."""
    value = tf.ones([2], tf.uint8 if rank == 0 else other)
    for call in (hvd.allreduce, lambda x: hvd.grouped_allreduce([x])):
        with pytest.raises(
            tf.errors.FailedPreconditionError, match=r"mismatch in .*: rank 0 has uint8"
        ):
            call(value)


def test_default_names_do_not_depend_on_casts(rank):
    """A rank with more casts than another would otherwise use another name, and wait."""

    @tf.function
    def average(images):
        if hvd.rank() == 0:
            tf.cast(images, tf.float32, name="Cast")
        half = hvd.allreduce(
            tf.cast(images, tf.float32, name="x"), compression=hvd.Compression.fp16
        )
        return hvd.allreduce(images), half

    result, half = average(tf.constant([200], tf.uint8))
    assert int(result[0]) == int(half[0]) == 200
    names = {
        op.name
        for op in average.get_concrete_function(tf.constant([200], tf.uint8)).graph.get_operations()
        if op.type == "HorovodAllreduce"
    }
    assert names == {"HorovodAllreduce_images_0", "HorovodAllreduce_x_0"}


def test_gradients_of_averages_of_floats_and_of_integers(size):
    floats, integers = tf.constant([3.0]), tf.constant([3], tf.int32)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([floats, integers])
        reduced = hvd.allreduce(floats)
        scaled = reduced * tf.cast(hvd.allreduce(integers), tf.float32)
    assert tape.gradient(scaled, floats).numpy() == [3.0]
    assert tape.gradient(scaled, integers) is None


@pytest.mark.ranks(2)
def test_a_rank_that_has_joined_counts_as_zeros(rank, size):
    if rank == 0:
        hvd.join()
        return
    result = hvd.allreduce(tf.constant([254], tf.uint8))
    hvd.join()
    assert int(result[0]) == 254 * (size - 1) // size


@pytest.mark.ranks(2)
def test_in_a_process_set(rank):
    pair = hvd.add_process_set([0, 1])
    try:
        if rank < 2:
            result = hvd.allreduce(tf.constant([255 - rank], tf.uint8), process_set=pair)
            assert int(result[0]) == 254
    finally:
        hvd.barrier()
        hvd.remove_process_set(pair)
