"""allreduce of IndexedSlices against NumPy: both ways, and the choice between them.

`rows(r)` is the input of rank r. Row 1 occurs twice on every rank; the last row
occurs on none.
"""

import numpy as np
import pytest
import tensorflow as tf

import tf_hvd as hvd
from tf_hvd.collectives import sparse

pytestmark = pytest.mark.framework

WAYS = ["rows", "dense", "auto"]
ROWS, COLUMNS = 7, 3


def rows(rank, dtype=tf.float64, index=np.int64):
    indices = np.array([1, rank % 5, 1, 5 - rank % 3], index)
    values = np.arange(len(indices) * COLUMNS).reshape(-1, COLUMNS) % 5 + rank
    return values.astype(dtype.as_numpy_dtype), indices


def dense(values, indices, count=ROWS):
    result = np.zeros((count, *values.shape[1:]), values.dtype)
    np.add.at(result, indices, values)
    return result


def expected(size, op="Sum", dtype=tf.float64, of=rows):
    """Values and indices of the result: whole numbers, except averages of floats."""
    parts = [of(r, dtype) for r in range(size)]
    indices = np.unique(np.concatenate([i for _, i in parts]))
    total = sum(dense(v.astype(np.float64), i) for v, i in parts)[indices]
    if op == "Average":
        total = total / size
    return (np.trunc(total) if dtype.is_integer else total).astype(dtype.as_numpy_dtype), indices


def slices(values, indices, count=ROWS):
    shape = None if count is None else tf.constant([count, *values.shape[1:]], tf.int64)
    return tf.IndexedSlices(values, indices, shape)


def equal(actual, wanted):
    """The same dtype, shape and bits."""
    actual, wanted = np.asarray(actual), np.asarray(wanted)
    assert (actual.dtype, actual.shape) == (wanted.dtype, wanted.shape)
    assert actual.tobytes() == wanted.tobytes(), f"{actual}\n{wanted}"


def parts_of(result):
    return result.values, result.indices


def reduce(values, indices, **options):
    return parts_of(hvd.allreduce(slices(values, indices), **options))


@pytest.fixture
def taken(monkeypatch):
    """The ways that eager calls used: "rows" and "dense"."""
    ways = []
    for way in ("rows", "dense"):
        original = getattr(sparse, f"_send_{way}")

        def spy(part, way=way, original=original):
            ways.append(way)
            return original(part)

        monkeypatch.setattr(sparse, f"_send_{way}", spy)
    return ways


@pytest.fixture
def no_small(monkeypatch):
    """Makes the ranks count rows of small tensors too."""
    monkeypatch.setattr(sparse, "SMALL_BYTES", -1)


@pytest.mark.not_compiled
@pytest.mark.parametrize("op", ["Sum", "Average"])
@pytest.mark.parametrize("way", WAYS)
def test_each_index_once_in_ascending_order(evaluate, no_small, rank, size, way, op):
    values, indices = evaluate(
        lambda v, i: reduce(v, i, op=getattr(hvd, op), sparse=way), *rows(rank)
    )
    for actual, wanted in zip((values, indices), expected(size, op), strict=True):
        equal(actual, wanted)


DTYPES = [tf.uint8, tf.int8, tf.int32, tf.int64, tf.float16, tf.bfloat16, tf.float32, tf.float64]


@pytest.mark.parametrize("op", ["Sum", "Average"])
@pytest.mark.parametrize("way", ["rows", "dense"])
def test_every_dtype(rank, size, way, op):
    for dtype in DTYPES:
        result = reduce(*rows(rank, dtype), op=getattr(hvd, op), sparse=way)
        wanted = expected(size, op, dtype)
        equal(result[0], wanted[0])
        equal(result[1], wanted[1])


@pytest.mark.parametrize("way", WAYS)
def test_int32_indices_and_the_dense_shape_are_kept(no_small, rank, size, way):
    values, indices = rows(rank, index=np.int32)
    shape = tf.constant([ROWS, COLUMNS], tf.int32)
    result = hvd.allreduce(tf.IndexedSlices(values, indices, shape), op=hvd.Sum, sparse=way)
    equal(result.values, expected(size)[0])
    equal(result.indices, expected(size)[1].astype(np.int32))
    equal(result.dense_shape, np.int32([ROWS, COLUMNS]))


@pytest.mark.usefixtures("one_machine")
@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float32, tf.float64])
@pytest.mark.parametrize("op", ["Sum", "Average"])
@pytest.mark.parametrize("compression", ["none", "fp16"])
def test_both_ways_and_the_dense_allreduce_have_the_same_bits(rank, dtype, op, compression):
    """With numbers that round, tiny numbers of both signs, and infinities."""
    random = np.random.default_rng(rank)
    values = random.normal(size=(40, 4)) * 10.0 ** random.integers(-9, 4, (40, 4))
    values[0], values[1, 0] = -0.0, -1e-30
    if rank == 0:
        values[2, :2] = np.inf, -np.inf
    part = slices(tf.cast(values, dtype), tf.constant(random.integers(0, 30, 40)), 31)
    options = {
        "op": getattr(hvd, op),
        "postscale_factor": -3.0,
        "compression": getattr(hvd.Compression, compression),
    }
    by_rows = hvd.allreduce(part, sparse="rows", prescale_factor=0.3, **options)
    by_dense = hvd.allreduce(part, sparse="dense", prescale_factor=0.3, **options)
    equal(by_rows.values, by_dense.values)
    equal(by_rows.indices, by_dense.indices)
    if compression == "none":
        accumulated = tf.float32 if dtype.size == 2 else dtype
        local = tf.math.unsorted_segment_sum(tf.cast(part.values, accumulated), part.indices, 31)
        whole = hvd.allreduce(tf.cast(local, dtype), **options)
        plain = hvd.allreduce(part, sparse="rows", **options)
        equal(plain.values, tf.gather(whole, plain.indices))


def test_half_precisions_are_summed_in_float32(rank, size):
    """Added one by one in half precision, each addition of 1 would be lost."""
    for dtype, big in ((tf.float16, 2048.0), (tf.bfloat16, 256.0)):
        part = slices(tf.constant([[big], *[[1.0]] * 4], dtype), tf.zeros([5], tf.int64))
        for way in ("rows", "dense"):
            result = hvd.allreduce(part, op=hvd.Sum, sparse=way)
            each = np.float32(big + 4).astype(dtype.as_numpy_dtype).astype(np.float32)
            equal(result.values, np.array([[each * size]], dtype.as_numpy_dtype))


@pytest.mark.parametrize("way", WAYS)
def test_a_rank_without_rows(no_small, rank, size, way):
    def of(r, dtype):
        values, indices = rows(r, dtype)
        return (values[:0], indices[:0]) if r == size - 1 else (values, indices)

    values, indices = reduce(*of(rank, tf.float64), op=hvd.Sum, sparse=way)
    wanted, places = expected(size, of=of)
    equal(values, wanted)
    equal(indices, places)


@pytest.mark.parametrize("way", WAYS)
def test_no_rows_at_all(no_small, way):
    values, indices = reduce(np.zeros((0, 2)), np.zeros(0, np.int64), sparse=way)
    assert (values.shape, indices.shape) == ((0, 2), (0,))


@pytest.mark.parametrize("shape", [(), (2, 1, 3), (0,)])
@pytest.mark.not_compiled
def test_rows_of_any_shape(evaluate, no_small, size, shape):
    values = np.ones((2, *shape), np.float32)
    for way in WAYS:
        result = evaluate(
            lambda v, i, way=way: reduce(v, i, op=hvd.Sum, sparse=way), values, np.int64([3, 3])
        )
        equal(result[0], np.full((1, *shape), 2 * size, np.float32))
        equal(result[1], np.int64([3]))


@pytest.mark.ranks(2)
def test_the_shorter_way_is_used(no_small, taken, rank, size):
    """float32 rows of 3 are 12 + 8 bytes; dense moves 2 (n - 1) / n * 100 * 13."""
    limit = 2 * (size - 1) * 1300 // size // 20
    for count, way in ((limit, "rows"), (limit + size, "dense")):
        # All rows, or nearly all, on the last rank: the others must follow.
        mine = count - (size - 1) if rank == size - 1 else 1
        part = slices(tf.ones([mine, 3]), tf.range(mine, dtype=tf.int64), 100)
        result = hvd.allreduce(part, op=hvd.Sum, sparse="auto")
        assert taken == [way]
        equal(result.values[0], np.float32([size] * 3))
        taken.clear()


@pytest.mark.ranks(2)
def test_sizes_are_counted_after_compression(no_small, taken):
    indices = tf.zeros([5000], tf.int64)
    hvd.allreduce(slices(tf.ones([5000, 3]), indices, 100))
    assert taken == ["rows"]
    # 70 rows on 2 ranks: of 2 * 4 + 8 bytes where dense moves 900, of 8 * 4 + 8 where 3300.
    count = 35 if hvd.size() == 2 else 0
    part = slices(tf.ones([count, 4], tf.float64), tf.range(count, dtype=tf.int64), 100)
    hvd.allreduce(part, compression=hvd.Compression.fp16)
    hvd.allreduce(part)
    assert taken[1:] == ["dense" if count else "rows", "rows"]


@pytest.mark.ranks(2)
def test_small_tensors_go_dense_without_a_count(taken, monkeypatch):
    counts = []
    monkeypatch.setattr(sparse, "_excess_bytes", counts.append)
    reduce(*rows(0))
    assert (taken, counts) == (["dense"], [])


@pytest.mark.not_compiled
def test_without_a_dense_shape_rows_are_sent(evaluate, rank, size, taken):
    for way in WAYS:
        result = evaluate(
            lambda v, i, way=way: parts_of(
                hvd.allreduce(slices(v, i, None), op=hvd.Sum, sparse=way)
            ),
            *rows(rank),
        )
        equal(result[0], expected(size)[0])
    assert set(taken) == {"rows"}


def test_an_index_outside_of_the_tensor_is_sent_as_rows(no_small, rank, size):
    """As rows, because the dense way would fail on one rank while the others wait."""
    indices = tf.constant([0, 1000 if rank == 0 else 1], tf.int64)
    _, indices = reduce(tf.ones([2, 2]), indices, op=hvd.Sum)
    wanted = [0, 1000] if size == 1 else [0, 1, 1000]
    equal(indices, np.int64(wanted))


def test_one_function_takes_both_ways(no_small, size):
    """Shapes are known only at run time; the counts cross the limit and return."""

    @tf.function(
        input_signature=[tf.TensorSpec([None], tf.int64), tf.TensorSpec([2], tf.int32)],
        autograph=False,
    )
    def function(indices, shape):
        values = tf.ones(tf.concat([tf.shape(indices), shape[1:]], 0), tf.float32)
        return parts_of(hvd.allreduce(tf.IndexedSlices(values, indices, shape), op=hvd.Sum))

    for count in (1, 90, 3, 100, 0):
        values, indices = function(tf.range(count, dtype=tf.int64), tf.constant([100, 2]))
        equal(indices, np.arange(count))
        equal(values, np.full((count, 2), size, np.float32))


@pytest.mark.not_compiled
def test_in_a_loop(evaluate, no_small, rank, size):
    """Iterations must not be mixed up."""

    def function(values, indices):
        def body(i, total):
            factor = tf.cast(i + 1, tf.float64)
            got, _ = reduce(values * factor, indices, op=hvd.Sum)
            return i + 1, total + got

        start = (tf.constant(0), tf.zeros(expected(size)[0].shape, tf.float64))
        shapes = (tf.TensorShape([]), tf.TensorShape([None, COLUMNS]))
        return tf.while_loop(lambda i, _: i < 4, body, start, shape_invariants=shapes)[1]

    equal(evaluate(function, *rows(rank)), expected(size)[0] * 10.0)


@pytest.mark.not_compiled
@pytest.mark.parametrize("way", WAYS)
def test_groups_of_dense_tensors_and_slices(evaluate, no_small, rank, size, way):
    def function(one, values, indices, two):
        group = [one, slices(values, indices), two, slices(values * 2, indices, None)]
        results = hvd.grouped_allreduce(group, op=hvd.Sum, name="mixed", sparse=way)
        return results[0], *parts_of(results[1]), results[2], *parts_of(results[3])

    results = evaluate(function, np.float32([1]), *rows(rank), np.float64([rank]))
    values, indices = expected(size)
    wanted = [np.float32([size]), values, indices, np.float64([sum(range(size))]), values * 2]
    for actual, right in zip(results, [*wanted, indices], strict=True):
        equal(actual, right)


@pytest.mark.parametrize("op", ["Min", "Max", "Product", "Adasum"])
def test_other_operations_are_refused_before_anything_is_sent(op, size):
    part = slices(*rows(0))
    with pytest.raises(NotImplementedError, match=op):
        hvd.allreduce(part, op=getattr(hvd, op))
    if hvd.rank() == 0:  # the others send nothing, so nothing may wait for them
        with pytest.raises(NotImplementedError, match=op):
            hvd.grouped_allreduce([tf.ones([2]), part], op=getattr(hvd, op))
    equal(hvd.allreduce(tf.ones([1]), op=hvd.Sum), np.float32([size]))


def weights(rank, count):
    return (np.arange(count * COLUMNS) % 5 + rank + 1.0).reshape(count, COLUMNS)


@pytest.mark.not_compiled
@pytest.mark.parametrize("op", ["Sum", "Average"])
@pytest.mark.parametrize("way", WAYS)
def test_derivative(evaluate, no_small, rank, size, way, op):
    """Rank r's loss is sum(weights(r) * result); each row gets its index's sum across all ranks."""
    in_session = evaluate.__name__ == "run_in_session"

    def function(values, indices, w):
        with tf.GradientTape() as tape:
            tape.watch(values)
            result, _ = reduce(
                values, indices, op=getattr(hvd, op), sparse=way,
                prescale_factor=0.1, postscale_factor=4.0,
            )  # fmt: skip
            loss = tf.reduce_sum(w * result)
        return tf.gradients(loss, values)[0] if in_session else tape.gradient(loss, values)

    values, indices = rows(rank)
    _, places = expected(size)
    gradient = evaluate(function, values, indices, weights(rank, len(places)))
    total = sum(weights(r, len(places)) for r in range(size))
    factor = 0.4 / (size if op == "Average" else 1)
    wanted = total[np.searchsorted(places, indices)] * factor
    np.testing.assert_allclose(gradient, wanted, rtol=1e-14)


@pytest.mark.parametrize("way", ["rows", "dense"])
def test_second_derivative(rank, size, way):
    values, indices = rows(rank)
    x = tf.constant(values)
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            loss = tf.reduce_sum(reduce(x, indices, op=hvd.Sum, sparse=way)[0] ** 3)
        first = inner.gradient(loss, x)
    result, places = expected(size)
    mine = np.searchsorted(places, indices)
    equal(first, (3.0 * size * result**2)[mine])
    # Of this rank's two rows with the same index, each adds its own part.
    counts = sum(np.bincount(np.searchsorted(places, rows(r)[1]), minlength=len(places))
                 for r in range(size))  # fmt: skip
    equal(outer.gradient(first, x), (6.0 * size * result * counts[:, None])[mine] * 1.0)


def test_the_setting_and_the_argument(monkeypatch, rank, size, taken):
    for setting in ("rows", "dense"):
        monkeypatch.setenv("TF_HVD_SPARSE", setting)
        reduce(*rows(rank))
    reduce(*rows(rank), sparse="rows")
    assert taken == ["rows", "dense", "rows"]
    with pytest.raises(ValueError, match=r"sparse='both'.*'auto', 'rows', 'dense'"):
        reduce(*rows(rank), sparse="both")
