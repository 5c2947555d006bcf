"""Adasum, against the formula in NumPy: tensors, process sets, the tape, v1 optimizers."""

import numpy as np
import pytest
import tensorflow as tf

import tf_hvd as hvd

v1 = tf.compat.v1

# Relative to the largest number: slightly more than the error of one rounding of the result.
TOLERANCE = {"float16": 2e-3, "bfloat16": 1e-2, "float32": 1e-5, "float64": 1e-12}


def pair(a, b):
    """Two vectors: their sum if orthogonal, their average if equal."""
    product, of_a, of_b = np.vdot(a, b), np.vdot(a, a), np.vdot(b, b)
    scale_a = 1 - product / (2 * of_a) if of_a > 0 else 1.0
    scale_b = 1 - product / (2 * of_b) if of_b > 0 else 1.0
    return scale_a * a + scale_b * b


def adasum(vectors):
    """The tree: ranks beyond a power of two first, then neighbours, then pairs of pairs, ..."""
    vectors = [np.asarray(v, np.float64) for v in vectors]
    tree = 1 << (len(vectors).bit_length() - 1)
    vectors = [
        pair(v, vectors[i + tree]) if i + tree < len(vectors) else v
        for i, v in enumerate(vectors[:tree])
    ]
    while len(vectors) > 1:
        vectors = [pair(a, b) for a, b in zip(vectors[::2], vectors[1::2], strict=True)]
    return vectors[0]


def vector(rank, number=0, shape=(37,)):
    """Small integers, exact in each dtype."""
    return np.random.default_rng([rank, number]).integers(-8, 9, shape).astype(np.float64)


def assert_combined(result, vectors, dtype="float64"):
    expected = adasum(vectors)
    tolerance = TOLERANCE[dtype] * max(1.0, np.abs(expected).max(initial=0.0))
    np.testing.assert_allclose(np.asarray(result, np.float64), expected, rtol=0, atol=tolerance)


def assert_same_everywhere(*arrays):
    texts = hvd.allgather_object([np.asarray(array).tobytes() for array in arrays])
    assert all(text == texts[0] for text in texts)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_allreduce(evaluate, rank, size, dtype):
    kind = tf.as_dtype(dtype).as_numpy_dtype
    mine = vector(rank).astype(kind)
    result = evaluate(lambda x: hvd.allreduce(x, op=hvd.Adasum, name="adasum"), mine)
    assert_combined(result, [vector(r) for r in range(size)], dtype)
    assert_same_everywhere(result)


def test_each_tensor_of_a_group_is_a_separate_vector(rank, size):
    shapes = [(3,), (200, 5), (), (0,), (4, 4)]
    mine = [vector(rank, i, shape) for i, shape in enumerate(shapes)]
    mine.append(vector(rank, 9).astype(np.float32))
    results = hvd.grouped_allreduce([tf.constant(x) for x in mine], op=hvd.Adasum, name="group")
    for i, shape in enumerate(shapes):
        assert results[i].shape == shape
        assert_combined(results[i], [vector(r, i, shape) for r in range(size)])
    assert_combined(results[5], [vector(r, 9) for r in range(size)], "float32")
    assert_same_everywhere(*results)


def test_equal_vectors_are_averaged_and_orthogonal_ones_summed(rank, size):
    equal = hvd.allreduce(tf.constant([3.0, -4.0]), op=hvd.Adasum, name="equal")
    np.testing.assert_array_equal(equal, np.float32([3, -4]))
    own = np.zeros(size, np.float32)
    own[rank] = rank + 1
    orthogonal = hvd.allreduce(tf.constant(own), op=hvd.Adasum, name="orthogonal")
    np.testing.assert_array_equal(orthogonal, np.arange(1, size + 1, dtype=np.float32))


def test_scales_and_zeros(rank, size):
    result = hvd.allreduce(
        tf.constant(vector(rank)), op=hvd.Adasum, prescale_factor=2.0, postscale_factor=0.25
    )
    assert_combined(result, [vector(r) / 2 for r in range(size)])
    zeros = hvd.allreduce(tf.zeros([5], tf.float64), op=hvd.Adasum, name="zeros")
    np.testing.assert_array_equal(zeros, np.zeros(5))


@pytest.mark.ranks(3)
def test_process_set(rank, size):
    members = hvd.add_process_set(range(1, size))
    if rank > 0:
        result = hvd.allreduce(tf.constant(vector(rank)), op=hvd.Adasum, process_set=members)
        assert_combined(result, [vector(r) for r in range(1, size)])
    hvd.remove_process_set(members)


@pytest.mark.parametrize("dtype", [tf.int32, tf.bool, tf.complex64])
def test_unsupported_dtypes_are_refused(dtype):
    with pytest.raises(tf.errors.InvalidArgumentError, match="cannot compute Adasum of"):
        hvd.allreduce(tf.zeros([2], dtype), op=hvd.Adasum)
    assert hvd.allreduce(tf.ones([1]), op=hvd.Sum)[0] == hvd.size()


def test_unsupported_arguments_are_refused(rank):
    with pytest.raises(tf.errors.InvalidArgumentError, match="whole vectors"):
        hvd.reducescatter(tf.zeros([4]), op=hvd.Adasum)
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([rank]), tf.constant([9, 2]))
    for call in (hvd.allreduce, lambda x, **k: hvd.grouped_allreduce([tf.ones([2]), x], **k)):
        with pytest.raises(NotImplementedError, match="op=Adasum"):
            call(slices, op=hvd.Adasum)
    with pytest.raises(ValueError, match="average_aggregated_gradients"):
        hvd.DistributedOptimizer(
            v1.train.AdamOptimizer(), op=hvd.Adasum, average_aggregated_gradients=True
        )


def test_tape(rank, size):
    variables = [tf.Variable(tf.zeros([37], tf.float64)), tf.Variable(tf.zeros([5], tf.float64))]
    given = [vector(rank), vector(rank, 1, (5,))]

    @tf.function
    def gradients():
        with hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Adasum) as tape:
            loss = tf.add_n([tf.reduce_sum(v * g) for v, g in zip(variables, given, strict=True)])
        return tape.gradient(loss, variables)

    results = gradients()
    assert_combined(results[0], [vector(r) for r in range(size)])
    assert_combined(results[1], [vector(r, 1, (5,)) for r in range(size)])
    assert_same_everywhere(*results)


def train_v1(rank, steps, make, passes=1, resource=True, local=False):
    """Two weights after steps with gradients vector(rank, step); the second may be local."""
    with tf.Graph().as_default(), v1.Session() as session:
        shared, other = (
            v1.get_variable(n, initializer=tf.ones([37], tf.float64), use_resource=resource)
            for n in ("shared", "other")
        )
        given = v1.placeholder(tf.float64, [37])
        optimizer = hvd.DistributedOptimizer(make(), op=hvd.Adasum, backward_passes_per_step=passes)
        if local:
            optimizer.register_local_var(other)
        step = v1.train.get_or_create_global_step()
        loss = tf.reduce_sum((shared + 2 * other) * given)
        train = optimizer.minimize(loss, global_step=step, var_list=[shared, other])
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        for number in range(steps):
            session.run(train, {given: vector(rank, number)})
        assert session.run(step) == steps
        assert not [v for v in v1.global_variables() if "adasum" in v.op.name]
        return session.run([shared, other])


def sgd():
    return v1.train.GradientDescentOptimizer(0.5)


@pytest.mark.parametrize("resource", [True, False], ids=["resource", "reference"])
def test_v1_optimizer_combines_updates(rank, size, resource):
    shared, other = train_v1(rank, 3, sgd, resource=resource)
    expected = np.ones(37)
    for step in range(3):
        expected = expected + adasum([-0.5 * vector(r, step) for r in range(size)])
    np.testing.assert_allclose(shared, expected, rtol=0, atol=1e-11)
    np.testing.assert_allclose(other, 1 + 2 * (expected - 1), rtol=0, atol=1e-11)
    assert_same_everywhere(shared, other)


def test_v1_optimizer_with_passes(rank, size):
    """Each pass is applied; after every second pass the changes of both are combined."""
    shared, _ = train_v1(rank, 4, sgd, passes=2)
    expected = np.ones(37)
    for first in (0, 2):
        moved = [-0.5 * (vector(r, first) + vector(r, first + 1)) for r in range(size)]
        expected = expected + adasum(moved)
    np.testing.assert_allclose(shared, expected, rtol=0, atol=1e-11)
    assert_same_everywhere(shared)


def test_v1_optimizer_with_a_local_variable(rank, size):
    shared, other = train_v1(rank, 2, sgd, local=True)
    np.testing.assert_array_equal(other, 1 - vector(rank, 0) - vector(rank, 1))
    assert_same_everywhere(shared)


def test_v1_adam(rank):
    """Adam's updates, not its gradients, are combined: slots stay separate on each rank."""
    shared, other = train_v1(rank, 3, lambda: v1.train.AdamOptimizer(0.1))
    assert_same_everywhere(shared, other)
    assert 0.05 < np.abs(shared - 1).max() < 0.3 * hvd.size()


@pytest.mark.parametrize("passes", [1, 2])
def test_v1_optimizer_in_eager_mode(rank, size, passes):
    variable = tf.Variable(tf.ones([37], tf.float64))
    optimizer = hvd.DistributedOptimizer(sgd(), op=hvd.Adasum, backward_passes_per_step=passes)
    mine = vector(rank)
    for _ in range(passes):
        optimizer.minimize(lambda: tf.reduce_sum(variable * mine), var_list=[variable])
    expected = 1 + adasum([-0.5 * passes * vector(r) for r in range(size)])
    np.testing.assert_allclose(variable, expected, rtol=0, atol=1e-12)
