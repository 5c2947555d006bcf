"""Sums of rows with the same index: in order, and in pairs as on a GPU."""

import numpy as np
import pytest
import tensorflow as tf

import tf_hvd as hvd
from tf_hvd.collectives import row_sums, sparse

DTYPES = (
    "uint8", "int8", "uint16", "int16", "int32", "int64", "uint32", "uint64", "float32", "float64",
    "complex64", "complex128",
)  # fmt: skip
DEVICES = ["CPU:0", *(["GPU:0"] if tf.config.get_visible_devices("GPU") else [])]
# A compiled step sums in pairs if the machine has a GPU: it does not know where it will run.
IN_ORDER = [False] if len(DEVICES) > 1 else [False, True]
each_device = pytest.mark.parametrize("device", DEVICES)


def listed(places, count):
    """The rows' numbers, ordered by sum, and the end of each sum."""
    order = np.argsort(places, kind="stable")
    return order, np.searchsorted(places[order], np.arange(count), side="right")


def numbers(dtype, shape, seed=0):
    """Numbers with sums that round or wrap around."""
    random = np.random.default_rng(seed)
    kind = np.dtype(dtype)
    if kind.kind in "iu":
        info = np.iinfo(kind)
        return random.integers(info.min, info.max, shape, kind, endpoint=True)
    if kind.kind == "c":
        return (random.standard_normal(shape) + 1j * random.standard_normal(shape)).astype(kind)
    return random.standard_normal(shape).astype(kind)


def one_by_one(values, places, count):
    sums = np.zeros((count, *values.shape[1:]), values.dtype)
    for row, place in zip(values, places, strict=True):
        sums[place] += row
    return sums


def summed(values, places, count, compiled=IN_ORDER[-1]):
    """Each place must have a row: a compiled step has as many sums as rows, the last ones zero."""
    step = tf.function(row_sums.sum_by_index, autograph=False, jit_compile=compiled)
    with tf.device("CPU:0"):
        sums, indices = step(tf.constant(values), tf.constant(places), True, "CPU:0")
    equal(indices[:count], np.arange(count))
    equal(sums[count:], np.zeros_like(sums[count:]))
    return sums[:count]


def in_pairs(values, places, count):
    order, ends = listed(places, count)
    return row_sums._summed_in_pairs(tf.constant(values), tf.constant(order), tf.constant(ends))


def equal(actual, wanted):
    actual, wanted = np.asarray(actual), np.asarray(wanted)
    assert (actual.dtype, actual.shape) == (wanted.dtype, wanted.shape)
    assert actual.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("compiled", IN_ORDER)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_summed_in_order(dtype, compiled):
    places = np.random.default_rng(1).integers(0, 40, 500)
    values = numbers(dtype, (500, 3, 5))
    equal(summed(values, places, 40, compiled), one_by_one(values, places, 40))


@pytest.mark.parametrize(
    ("device", "compiled"), [*((device, False) for device in DEVICES), ("CPU:0", True)]
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_summed_in_pairs(dtype, device, compiled):
    places = np.random.default_rng(1).integers(0, 40, 500)
    places[places == 7] = 8  # place 7 then has no row
    values = np.random.default_rng(2).integers(0, 6, (500, 3, 5)).astype(dtype)
    exact = tf.function(lambda: in_pairs(values, places, 41), jit_compile=compiled)
    with tf.device(device):
        equal(exact(), one_by_one(values, places, 41))


@pytest.mark.parametrize("sums_of", [summed, in_pairs])
@pytest.mark.parametrize(
    ("shape", "places", "count"),
    [((0, 4), [], 0), ((5, 0), [0, 0, 1, 1, 0], 2), ((4,), [1, 0, 1, 1], 2)],
)
def test_shapes_without_elements_and_rows_of_one(shape, places, count, sums_of):
    places = np.array(places, np.int64)
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    equal(sums_of(values, places, count), one_by_one(values, places, count))


def test_sums_of_many_rows_are_reproducible():
    """Enough rows for TensorFlow, or XLA, to divide them among several threads."""
    places = np.random.default_rng(1).integers(0, 20, 50_000)
    places[:20] = np.arange(20)
    values = numbers("float32", (50_000, 64))
    first = one_by_one(values, places, 20)
    for _ in range(3):
        for compiled in IN_ORDER:
            equal(summed(values, places, 20, compiled), first)


def test_no_negative_zero():
    result = summed(np.float32([[-0.0]]), np.array([0]), 1, compiled=False)
    assert not np.signbit(result.numpy()).any()


@pytest.mark.parametrize("sums_of", [summed, in_pairs])
def test_derivatives(sums_of):
    places = np.array([2, 0, 2, 1, 2])
    weights = tf.constant(numbers("float64", (3, 3), 1))
    values = tf.constant(numbers("float64", (5, 3), 2))
    with tf.GradientTape() as outer:
        outer.watch(weights)
        with tf.GradientTape() as tape:
            tape.watch(values)
            loss = tf.reduce_sum(weights * sums_of(values, places, 3))
        first = tape.gradient(loss, values)
        second = tf.reduce_sum(first)
    equal(first, weights.numpy()[places])
    equal(
        tf.convert_to_tensor(outer.gradient(second, weights)),
        np.bincount(places)[:, np.newaxis] * np.ones((3, 3)),
    )


@pytest.mark.skipif(len(DEVICES) == 1, reason="no GPU")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int32"])
@pytest.mark.parametrize("way", ["rows", "dense"])
def test_an_allreduce_of_slices_is_equal_on_gpu_and_cpu(rank, dtype, way):
    indices = np.random.default_rng(rank).integers(0, 12, 60)
    kind = tf.as_dtype(dtype).as_numpy_dtype
    values = np.random.default_rng(rank).integers(-9, 9, (60, 4)).astype(kind)
    slices = tf.IndexedSlices(values, indices, tf.constant([12, 4], tf.int64))
    there, here = (
        sparse.each_row_once(hvd.allreduce(slices, op=hvd.Sum, sparse=way, device_sparse=device))
        for device in ("GPU:0", "CPU:0")
    )
    equal(there.indices, here.indices)
    equal(there.values, here.values)


@each_device
def test_each_row_once(device):
    indices = np.array([5, 1, 5, 5, 0])
    values = np.arange(30, dtype=np.float32).reshape(5, 6)
    with tf.device(device):
        result = sparse.each_row_once(tf.IndexedSlices(values, indices, [9, 6]))
    equal(result.indices, np.array([0, 1, 5]))
    equal(result.values, one_by_one(values, np.array([2, 1, 2, 2, 0]), 3))
