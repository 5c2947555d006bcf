"""broadcast_variables, the hook, and objects."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_hvd as hvd
from tf_hvd.collectives.variables import _compiled as variable_functions
from tf_hvd.training.reduction import _compiled as gradient_functions

v1 = tf.compat.v1


def test_tf_variables(rank, size):
    for root in range(size):
        variables = [
            tf.Variable(tf.fill([3], float(rank))),
            tf.Variable(rank, dtype=tf.int64),
            tf.Variable([rank % 2 == 0]),
            tf.Variable(tf.cast([rank], tf.bfloat16)),
        ]
        assert hvd.broadcast_variables(variables, root) is None
        np.testing.assert_array_equal(variables[0], np.full(3, root, np.float32))
        assert [variables[1].numpy(), variables[2].numpy()[0]] == [root, root % 2 == 0]
        assert float(variables[3].numpy()[0]) == root
    hvd.broadcast_variables([], 0)


def test_keras_variables_with_different_names(rank):
    for _ in range(rank):  # Keras numbers them, so the names below differ between ranks
        keras.layers.Dense(1).build((None, 1))
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(3), keras.layers.Dense(2)])
    optimizer = keras.optimizers.Adam(0.1 * (rank + 1))
    optimizer.build(model.trainable_variables)
    hvd.broadcast_variables(model.variables, 0)
    hvd.broadcast_variables(optimizer.variables, 0)
    values = hvd.allgather_object([v.numpy().tobytes() for v in model.variables])
    assert values == [values[0]] * hvd.size()
    assert float(optimizer.learning_rate.numpy()) == pytest.approx(0.1)


@pytest.mark.ranks(2)
def test_many_lists_of_variables_cause_no_retracing_warning(rank, caplog):
    """TensorFlow would warn about tf_hvd's functions, twice for each."""
    variable_functions.cache_clear()
    gradient_functions.cache_clear()
    logger = tf.get_logger()
    logger.addHandler(caplog.handler)
    try:
        for i in range(8):
            variable = tf.Variable(tf.fill([1] * i, float(rank)))
            hvd.broadcast_variables([variable], 0)
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(variable) * float(rank)
            hvd.DistributedGradientTape(tape).gradient(loss, [variable])
            np.testing.assert_array_equal(variable, np.zeros([1] * i))
    finally:
        logger.removeHandler(caplog.handler)
    assert not [r for r in caplog.records if "retracing" in r.getMessage()]


@pytest.mark.skipif(hvd.size() == 1, reason="a single rank cannot differ")
def test_different_variables_are_an_error(rank):
    variables = [tf.Variable(tf.zeros([2])), tf.Variable(tf.zeros([3 + rank]))]
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"\[3\].*\[4\]"):
        hvd.broadcast_variables(variables, 0)
    hvd.broadcast_variables(variables[:1], 0)


def test_inside_a_function(rank):
    variable = tf.Variable(float(rank) + 5.0)

    @tf.function(autograph=False)
    def function():
        hvd.broadcast_variables([variable], 0)

    function()
    assert variable.numpy() == 5.0


@pytest.mark.parametrize("use_resource", [True, False])
def test_global_variables_of_a_graph(rank, use_resource):
    with tf.Graph().as_default(), v1.Session() as session:
        a = v1.get_variable("a", initializer=tf.fill([2], float(rank)), use_resource=use_resource)
        b = v1.get_variable("b", initializer=rank, use_resource=use_resource)
        broadcast = hvd.broadcast_global_variables(0)
        session.run(v1.global_variables_initializer())
        session.run(broadcast)
        np.testing.assert_array_equal(session.run(a), np.zeros(2, np.float32))
        assert session.run(b) == 0


def test_in_place(rank, size):
    """Mixed dtypes in one request, Keras variables too; earlier reads keep their values."""
    root = size - 1
    variables = [
        tf.Variable(tf.fill([3], float(rank))),
        tf.Variable(rank, dtype=tf.int64),
        keras.Variable(tf.fill([2, 0], float(rank))),
        keras.Variable([float(rank)]),
    ]
    before = variables[0].read_value()
    values = hvd.broadcast_(variables, root, name="in_place")
    for variable, value in zip(variables, values, strict=True):
        np.testing.assert_array_equal(value, np.full(value.shape, root))
        np.testing.assert_array_equal(variable.numpy(), value)
    np.testing.assert_array_equal(before, np.full(3, rank, np.float32))
    assert hvd.broadcast_([], root) == []


def test_in_place_in_a_function(rank):
    """It runs between the assignments around it, although nothing uses its result."""
    variable = tf.Variable([0.0])

    @tf.function
    def function():
        variable.assign([float(rank) + 5.0])
        hvd.broadcast_([variable], 0)
        variable.assign_add([1.0])

    for _ in range(2):
        function()
        assert variable.numpy().tolist() == [6.0]


@pytest.mark.parametrize("use_resource", [True, False])
def test_in_place_in_a_session(rank, size, use_resource):
    with tf.Graph().as_default(), v1.Session() as session:
        a, b, c = (
            v1.get_variable(name, initializer=value, use_resource=use_resource)
            for name, value in (("a", [float(rank)] * 2), ("b", rank), ("c", float(rank)))
        )
        values = hvd.broadcast_([a, b, c], size - 1)
        session.run(v1.global_variables_initializer())
        for result in (session.run(values), session.run([a, b, c])):
            assert [np.asarray(x).tolist() for x in result] == [
                [size - 1.0] * 2,
                size - 1,
                size - 1,
            ]


def test_in_place_refuses_invalid_variables(rank, size):
    with pytest.raises(ValueError, match="takes only variables"):
        hvd.broadcast_([tf.constant(1.0)], 0)
    with tf.Graph().as_default():
        kinds = [v1.get_variable(str(u), shape=[], use_resource=u) for u in (True, False)]
        with pytest.raises(ValueError, match="reference variable False:0 and resource variable"):
            hvd.broadcast_(kinds, 0)
    variable = tf.Variable(1.0)
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"rank {size}"):
        hvd.broadcast_([variable], size)
    assert hvd.broadcast_([variable], 0)[0].numpy() == 1.0


@pytest.mark.ranks(2)
def test_different_variables_in_place_are_an_error(rank):
    variables = [tf.Variable(tf.zeros([2])), tf.Variable(tf.zeros([3 + rank]))]
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"\[3\].*\[4\]"):
        hvd.broadcast_(variables, 0)
    hvd.broadcast_(variables[:1], 0)


def test_broadcast_variables_in_place(rank, size):
    root = size - 1
    variables = [tf.Variable([float(rank)]), keras.Variable([rank * 2.0])]
    assert hvd.broadcast_variables(variables, root, inplace=True) is None
    assert [v.numpy().tolist() for v in variables] == [[root], [2.0 * root]]
    hvd.broadcast_variables([], root, inplace=True)
    with tf.Graph().as_default(), v1.Session() as session:
        kinds = [
            v1.get_variable(str(u), initializer=rank + 1.0, use_resource=u) for u in (True, False)
        ]
        broadcast = hvd.broadcast_variables(kinds, 0, inplace=True)
        session.run(v1.global_variables_initializer())
        session.run(broadcast)
        assert session.run(kinds) == [1.0, 1.0]


def test_global_variables_are_refused_in_eager_mode():
    with pytest.raises(RuntimeError, match="broadcast_variables"):
        hvd.broadcast_global_variables(0)


def test_hook_with_monitored_session(rank):
    hook = hvd.BroadcastGlobalVariablesHook(0)
    for _ in range(2):  # the same hook, another graph
        with tf.Graph().as_default():
            variable = v1.get_variable("v", initializer=float(rank) + 3.0)
            v1.train.get_or_create_global_step()
            with v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
                assert session.run(variable) == 3.0


def test_the_hook_broadcasts_restored_values(rank, tmp_path):
    def run(value, folder):
        with tf.Graph().as_default():
            variable = v1.get_variable("v", initializer=value)
            step = v1.train.get_or_create_global_step()
            advance = v1.assign_add(step, 1)
            with v1.train.MonitoredTrainingSession(
                checkpoint_dir=folder, hooks=[hvd.BroadcastGlobalVariablesHook(0)]
            ) as session:
                result = session.run([variable, step])
                session.run(advance)
                return result

    folder = str(tmp_path) if rank == 0 else None
    assert run(7.0 + rank, folder) == [7.0, 0]
    assert run(9.0 + rank, folder) == [7.0, 1]
