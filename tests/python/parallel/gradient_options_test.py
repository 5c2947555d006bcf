"""The options of gradient reduction, each in the v1 optimizer and in the tape."""

import importlib

import numpy as np
import pytest
import tensorflow as tf

import tf_hvd as hvd

pytestmark = pytest.mark.framework

v1 = tf.compat.v1


def given(rank, i):
    """A rank's gradient of variable i: small integers, exact in each dtype."""
    return np.random.default_rng([rank, i]).integers(-8, 9, (4, 3)).astype(np.float32)


def by_tape(rank, count, options, local=(), **more):
    variables = [tf.Variable(tf.zeros([4, 3])) for _ in range(count)]
    options = options(variables)

    @tf.function
    def gradients():
        tape = hvd.DistributedGradientTape(tf.GradientTape(), **options, **more)
        for i in local:
            tape.register_local_source(variables[i])
        with tape:
            loss = tf.add_n([tf.reduce_sum(v * given(rank, i)) for i, v in enumerate(variables)])
        return tape.gradient(loss, variables)

    results = [g.numpy() for g in gradients()]
    return results, gradients.get_concrete_function().graph


def by_v1(rank, count, options, local=(), **more):
    with tf.Graph().as_default() as graph, v1.Session() as session:
        variables = [v1.get_variable(f"v{i}", [4, 3]) for i in range(count)]
        optimizer = hvd.DistributedOptimizer(
            v1.train.GradientDescentOptimizer(1.0), **options(variables), **more
        )
        for i in local:
            optimizer.register_local_var(variables[i])
        loss = tf.add_n([tf.reduce_sum(v * given(rank, i)) for i, v in enumerate(variables)])
        pairs = optimizer.compute_gradients(loss, variables)
        session.run(v1.global_variables_initializer())
        return session.run([gradient for gradient, _ in pairs]), graph


@pytest.fixture(params=[by_tape, by_v1], ids=["tape", "v1"])
def reduce(request):
    return request.param


# By name: the options for these variables, and the number of tensors in each request.
OPTIONS = {
    "predivide": (lambda v: {"gradient_predivide_factor": 2.0}, [4]),
    "fp16": (lambda v: {"compression": hvd.Compression.fp16}, [4]),
    "bf16": (lambda v: {"compression": hvd.Compression.bf16}, [4]),
    "two groups": (lambda v: {"groups": 2}, [2, 2]),
    "num_groups": (lambda v: {"num_groups": 4}, [1, 1, 1, 1]),
    "more groups than gradients": (lambda v: {"groups": 9}, [1, 1, 1, 1]),
    "lists": (lambda v: {"groups": [[v[3], v[0]], [v[1]]]}, [2, 1, 1]),
}


@pytest.mark.jobs(3, 4)
def test_a_local_gradient_outside_of_the_process_set_is_unchanged(reduce, rank):
    """It was divided by the size of the set, unlike all other gradients there."""
    pair = hvd.add_process_set([0, 1])
    try:
        results, _ = reduce(rank, 2, lambda v: {"process_set": pair}, local=[1])
    finally:
        hvd.remove_process_set(pair)
    if rank > 1:
        for index, result in enumerate(results):
            np.testing.assert_array_equal(result, given(rank, index))


@pytest.mark.parametrize("case", list(OPTIONS))
def test_each_option_gives_the_same_gradients(reduce, rank, size, case):
    options, requests = OPTIONS[case]
    results, graph = reduce(rank, 4, options)
    for i, result in enumerate(results):
        expected = sum(given(r, i) for r in range(size)) / np.float32(size)
        # Sent values are exact; a 16-bit average rounds unless the size is a power of two.
        np.testing.assert_allclose(result, expected, rtol=1e-2 if size == 3 else 0, atol=0)
    found = [len(o.outputs) for o in graph.get_operations() if o.type == "HorovodGroupedAllreduce"]
    assert found == (requests if size > 1 else [])
    if size > 1 and case in ("fp16", "bf16"):
        name = {"fp16": tf.float16, "bf16": tf.bfloat16}[case]
        sent = [o for o in graph.get_operations() if o.type == "HorovodGroupedAllreduce"]
        assert all(o.inputs[0].dtype == name for o in sent)


def test_predivide_scales_before_and_after(reduce, rank, size):
    """The factor divides before the sum: float16 of 65504 would overflow otherwise."""
    _, graph = reduce(rank, 1, lambda v: {"gradient_predivide_factor": 4.0})
    factors = [
        (o.get_attr("prescale_factor"), o.get_attr("postscale_factor"))
        for o in graph.get_operations()
        if o.type == "HorovodGroupedAllreduce"
    ]
    assert factors == ([(0.25, 4.0)] if size > 1 else [])


@pytest.mark.parametrize("scale", [True, False])
def test_local_variables(reduce, rank, size, scale):
    results, _ = reduce(rank, 3, lambda v: {}, local=[1], scale_local_gradients=scale)
    for i in (0, 2):
        expected = sum(given(r, i) for r in range(size)) / np.float32(size)
        np.testing.assert_allclose(results[i], expected, rtol=1e-6)
    np.testing.assert_array_equal(results[1], given(rank, 1) / np.float32(size if scale else 1))


def test_sparse_as_dense_in_v1(rank, size):
    with tf.Graph().as_default(), v1.Session() as session:
        table = v1.get_variable("table", [size + 1, 2])
        optimizer = hvd.DistributedOptimizer(
            v1.train.GradientDescentOptimizer(1.0), sparse_as_dense=True
        )
        loss = tf.reduce_sum(tf.nn.embedding_lookup(table, [rank, rank + 1]))
        ((gradient, _),) = optimizer.compute_gradients(loss, [table])
        assert isinstance(gradient, tf.Tensor)
        session.run(v1.global_variables_initializer())
        expected = np.zeros([size + 1, 2], np.float32)
        for r in range(size):
            expected[[r, r + 1]] += 1
        np.testing.assert_array_equal(session.run(gradient), expected / np.float32(size))


@pytest.mark.parametrize("flavour", ["keras", "tf_keras"])
def test_partial_tape(rank, size, flavour):
    keras = importlib.import_module(flavour)
    layers = [keras.layers.Dense(2, use_bias=False), keras.layers.Dense(1, use_bias=False)]
    model = keras.Sequential([keras.Input([3]), *layers])
    for weight in model.weights:
        weight.assign(tf.ones(weight.shape))
    for local in (layers[1], [layers[1]]):
        tape = hvd.PartialDistributedGradientTape(
            tf.GradientTape(), local_layers=local, scale_local_gradients=False
        )
        with tape:
            loss = tf.reduce_sum(model(tf.ones([1, 3]) * float(rank + 1)))
        shared, own = tape.gradient(loss, model.trainable_variables)
        mean = sum(r + 1 for r in range(size)) / size
        np.testing.assert_array_equal(shared, np.full([3, 2], mean, np.float32))
        np.testing.assert_array_equal(own, np.full([2, 1], 3.0 * (rank + 1), np.float32))


def test_local_layers_must_be_layers():
    for wrong in ("dense", [tf.Variable(1.0)]):
        with pytest.raises(ValueError, match="is not a Keras layer"):
            hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=wrong)
