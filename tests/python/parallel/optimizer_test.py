"""DistributedOptimizer and DistributedGradientTape: the reduced gradients, and their requests."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_hvd as hvd

pytestmark = pytest.mark.framework

v1 = tf.compat.v1


def total(function):
    return sum(function(r) for r in range(hvd.size()))


def linear_loss(variables, rank):
    """Its gradient with respect to variable i is i + 1 + rank, everywhere."""
    return tf.add_n(
        [tf.cast(tf.reduce_sum(v), tf.float64) * (i + 1 + rank) for i, v in enumerate(variables)]
    )


def tape_gradients(variables, sources=None, **options):
    """The reduced gradients of `linear_loss`, in eager mode."""
    with hvd.DistributedGradientTape(tf.GradientTape(), **options) as tape:
        loss = linear_loss(variables, hvd.rank())
    return tape.gradient(loss, variables if sources is None else sources)


def make_variables(dtypes=(tf.float32, tf.float64, tf.float32)):
    return [tf.Variable(tf.ones([i + 2], d)) for i, d in enumerate(dtypes)]


def assert_reduced(gradients, factor=None):
    factor = 1.0 / hvd.size() if factor is None else factor
    for i, gradient in enumerate(gradients):
        expected = total(lambda r, i=i: i + 1 + r) * factor
        np.testing.assert_array_equal(gradient.numpy(), np.full(gradient.shape, expected))


@pytest.mark.parametrize("in_function", [False, True])
def test_tape(in_function):
    variables = make_variables()
    compute = (
        tf.function(lambda: tape_gradients(variables), autograph=False) if in_function else None
    )
    assert_reduced(compute() if compute else tape_gradients(variables))


def test_tape_takes_any_structure_of_sources():
    a, b, c = make_variables()
    result = tape_gradients([a, b, c], sources={"x": [a, c], "y": (b,)})
    assert_reduced([result["x"][0], result["y"][0], result["x"][1]])
    assert isinstance(result["y"], tuple)
    assert_reduced([tape_gradients([a], sources=a)])


def test_tape_takes_keras_variables():
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2), keras.layers.Dense(1)])
    hvd.broadcast_variables(model.variables, 0)
    data = tf.ones([4, 3]) * float(hvd.rank() + 1)
    with tf.GradientTape(persistent=True) as tape:
        loss = tf.reduce_sum(model(data))
    mine = [g.numpy() for g in tape.gradient(loss, model.trainable_variables)]
    reduced = hvd.DistributedGradientTape(tape).gradient(loss, model.trainable_variables)
    everything = hvd.allgather_object(mine)
    for i, gradient in enumerate(reduced):
        expected = sum(gradients[i].astype(np.float64) for gradients in everything) / hvd.size()
        np.testing.assert_allclose(gradient.numpy(), expected, rtol=1e-6)


def test_a_wrapped_tape_shares_state_with_the_original():
    class OwnTape(tf.GradientTape):
        def what(self):
            return "own"

    inner = OwnTape(persistent=True, watch_accessed_variables=False)
    tape = hvd.DistributedGradientTape(inner)
    assert type(tape).__name__ == "OwnTape"
    assert tape.what() == "own"
    x = tf.constant([1.0 + hvd.rank()])
    with tape:
        tape.watch(x)
        y = x * x
    reduced = tape.gradient(y, x).numpy()
    np.testing.assert_array_equal(reduced, np.float32([total(lambda r: 2 + 2 * r) / hvd.size()]))
    with pytest.raises(ValueError, match="twice"):
        hvd.DistributedGradientTape(tape)
    with pytest.raises(ValueError, match="twice"):
        hvd.DistributedGradientTape(inner)
    with pytest.raises(ValueError, match="GradientTape"):
        hvd.DistributedGradientTape("a tape")


def test_a_tape_can_be_wrapped_while_it_records():
    x = tf.Variable([2.0])
    with tf.GradientTape() as inner:
        tape = hvd.DistributedGradientTape(inner)
        loss = tf.reduce_sum(x * x)
    np.testing.assert_array_equal(tape.gradient(loss, [x])[0], np.float32([4]))


def test_unconnected_gradients():
    a, b = tf.Variable([1.0]), tf.Variable([[1.0]])
    for unconnected in tf.UnconnectedGradients:
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_sum(a * a)
        results = tape.gradient(loss, [b, a], unconnected_gradients=unconnected)
        np.testing.assert_array_equal(results[1], np.float32([2]))
        if unconnected == tf.UnconnectedGradients.NONE:
            assert results[0] is None
        else:
            np.testing.assert_array_equal(results[0], np.float32([[0]]))


@pytest.mark.ranks(2)
def test_buckets_by_dtype_and_size(monkeypatch):
    """Last to first; float32 in pairs, because 16 bytes hold two gradients of 8."""
    monkeypatch.setenv("TF_HVD_BUCKET_BYTES", "16")
    variables = [tf.Variable(tf.ones([2], d)) for d in [tf.float32, tf.float64] * 3]

    @tf.function(autograph=False)
    def compute():
        return tape_gradients(variables)

    assert_reduced(compute())
    graph = compute.get_concrete_function().graph
    found = [op for op in graph.get_operations() if op.type == "HorovodGroupedAllreduce"]
    assert [(op.name.split("/")[-1], op.get_attr("num_tensors")) for op in found] == [
        ("bucket_0", 1),
        ("bucket_1", 2),
        ("bucket_2", 1),
        ("bucket_3", 1),
        ("bucket_4", 1),
    ]
    assert all("DistributedGradientTape_Allreduce/" in op.name for op in found)


@pytest.mark.parametrize("sparse_as_dense", [False, True])
@pytest.mark.parametrize("op", ["Average", "Sum"])
def test_embedding(rank, size, sparse_as_dense, op):
    table = tf.Variable(tf.zeros([size + 1, 2]))
    with hvd.DistributedGradientTape(
        tf.GradientTape(), sparse_as_dense=sparse_as_dense, op=getattr(hvd, op)
    ) as tape:
        rows = tf.gather(table, list(range(rank + 1)))  # rank r uses r + 1 rows
        loss = tf.reduce_sum(rows) * float(rank + 1)
    gradient = tape.gradient(loss, [table])[0]
    assert isinstance(gradient, tf.IndexedSlices) is not sparse_as_dense
    expected = np.zeros([size + 1, 2], np.float32)
    for r in range(size):
        expected[: r + 1] += r + 1
    expected /= size if op == "Average" else 1
    np.testing.assert_array_equal(tf.convert_to_tensor(gradient).numpy(), expected)


@pytest.mark.parametrize("scale", [True, False])
def test_local_sources(rank, size, scale):
    variables = make_variables()
    tape = hvd.DistributedGradientTape(tf.GradientTape(), scale_local_gradients=scale)
    tape.register_local_source(variables[1])
    with tape:
        loss = linear_loss(variables, rank)
    local, shared = tape.get_local_and_global_gradients(loss, variables)
    assert local[0][0] is variables[1]
    mine = np.full(3, (2 + rank) / (size if scale else 1))
    np.testing.assert_array_equal(local[0][1].numpy(), mine)
    np.testing.assert_array_equal(shared[0][1].numpy(), np.full(2, total(lambda r: 1 + r) / size))
    np.testing.assert_array_equal(shared[1][1].numpy(), np.full(4, total(lambda r: 3 + r) / size))


@pytest.mark.ranks(2)
def test_a_gradient_missing_on_one_rank_is_an_error(rank):
    a, b = tf.Variable([1.0]), tf.Variable([1.0])
    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = tf.reduce_sum(a if rank == 0 else a + b)
    with pytest.raises(tf.errors.FailedPreconditionError, match="tensors"):
        tape.gradient(loss, [a, b])


def test_v1_optimizer_in_a_graph(rank, size):
    with tf.Graph().as_default(), v1.Session() as session:
        variables = [v1.get_variable(f"v{i}", initializer=tf.ones([i + 2])) for i in range(3)]
        optimizer = hvd.DistributedOptimizer(v1.train.MomentumOptimizer(0.5, 0.9))
        pairs = optimizer.compute_gradients(linear_loss(variables, rank), variables)
        train = optimizer.apply_gradients(pairs)
        session.run(v1.global_variables_initializer())
        gradients = session.run([gradient for gradient, _ in pairs])
        for i, gradient in enumerate(gradients):
            np.testing.assert_array_equal(
                gradient, np.full(i + 2, total(lambda r, i=i: i + 1 + r) / size)
            )
        session.run(train)
        for i, value in enumerate(session.run(variables)):
            np.testing.assert_array_equal(value, 1 - 0.5 * gradients[i])
        # The wrapper does not change names, so checkpoints do not show it.
        assert optimizer.get_slot_names() == ["momentum"]
        assert optimizer.get_slot(variables[0], "momentum").name == "v0/Momentum:0"
        assert not [v for v in v1.global_variables() if "istributed" in v.name]
        assert optimizer.get_name() == "DistributedMomentumOptimizer"


def test_v1_optimizer_in_eager_mode(rank, size):
    variable = tf.Variable([1.0])
    optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), op=hvd.Sum)
    optimizer.minimize(lambda: linear_loss([variable], rank), var_list=[variable])
    np.testing.assert_array_equal(variable, np.float32([1 - total(lambda r: 1 + r)]))


def test_v1_local_variable(rank, size):
    variable = tf.Variable([1.0])
    optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0))
    optimizer.register_local_var(variable)
    ((gradient, _),) = optimizer.compute_gradients(lambda: linear_loss([variable], rank))
    np.testing.assert_array_equal(gradient, np.float32([(1 + rank) / size]))
