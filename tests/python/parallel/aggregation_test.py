"""backward_passes_per_step: several backward passes, one reduction, one update."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tf_hvd as hvd
from tf_hvd.training.aggregation import GradientAggregation

pytestmark = pytest.mark.framework

PASSES = 3
v1 = tf.compat.v1


def gradient(rank, step):
    """A rank's gradient in a pass: small integers, so that sums are exact."""
    return np.array([rank + 1.0, 2.0 * step - rank])


def expected(size, passes, average, steps):
    """The variable after each pass, with SGD at a learning rate of 1."""
    value, sums, values = np.zeros(2), np.zeros(2), []
    for step in range(steps):
        sums += sum(gradient(rank, step) for rank in range(size)) / size
        if (step + 1) % passes == 0:
            value = value - (sums / passes if average else sums)
            sums = np.zeros(2)
        values.append(value)
    return np.array(values)


OPTIMIZERS = {
    "sgd": lambda: v1.train.GradientDescentOptimizer(1.0),
    "momentum": lambda: v1.train.MomentumOptimizer(1.0, momentum=0.0),
}


@pytest.mark.parametrize("average", [False, True], ids=["sum", "average"])
@pytest.mark.parametrize("kind", list(OPTIMIZERS))
def test_v1_graph(rank, size, kind, average):
    with tf.Graph().as_default(), v1.Session() as session:
        variable = v1.get_variable("w", initializer=tf.zeros([2], tf.float64), use_resource=True)
        unused = v1.get_variable("unused", initializer=tf.zeros([1]), use_resource=True)
        given = v1.placeholder(tf.float64, [2])
        optimizer = hvd.DistributedOptimizer(
            OPTIMIZERS[kind](),
            backward_passes_per_step=PASSES,
            average_aggregated_gradients=average,
        )
        step = v1.train.get_or_create_global_step()
        pairs = optimizer.compute_gradients(
            tf.reduce_sum(variable * given), var_list=[variable, unused]
        )
        train = optimizer.apply_gradients(pairs, global_step=step)
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        saved = {v.op.name for v in v1.global_variables()}
        values = []
        for number in range(7):
            session.run(train, {given: gradient(rank, number)})
            values.append(session.run(variable))
        np.testing.assert_array_equal(values, expected(size, PASSES, average, 7))
        assert session.run(step) == 7 // PASSES
        assert not [name for name in saved if "aggregation" in name]


@pytest.mark.parametrize("mode", ["eager", "function"])
def test_passes_with_a_tape_and_a_keras_optimizer(rank, size, mode):
    """A custom loop with the tape and a Keras optimizer."""
    variable = tf.Variable(tf.zeros([2], tf.float64))
    aggregation = GradientAggregation(PASSES, average=True)

    def step(given):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable * given)
        complete, sums = aggregation.add(tape.gradient(loss, [variable]))
        aggregation.when_complete(
            complete, lambda: variable.assign_sub(hvd.allreduce(sums[0], name="sum"))
        )

    if mode == "function":
        step = tf.function(step, autograph=False)
    values = []
    for number in range(7):
        step(tf.constant(gradient(rank, number)))
        values.append(variable.numpy())
    np.testing.assert_array_equal(values, expected(size, PASSES, True, 7))


def rows(rank, flavour, optimizer, **options):
    """The weight after each of seven batches of one row in `fit`."""
    layers = [flavour.layers.Input((2,)), flavour.layers.Dense(
        1, use_bias=False, kernel_initializer="zeros", dtype="float64")]  # fmt: skip
    model = flavour.Sequential(layers)
    optimizer = hvd.DistributedOptimizer(
        optimizer(flavour), backward_passes_per_step=PASSES, **options
    )
    model.compile(optimizer=optimizer, loss=lambda truth, made: tf.reduce_sum(made))
    values = []
    x = np.array([gradient(rank, number) for number in range(7)])
    for row in x:
        model.train_on_batch(row[None], np.zeros((1, 1)))
        values.append(model.get_weights()[0].ravel())
    return values, optimizer


KERAS_OPTIMIZERS = {
    "plain": lambda flavour: flavour.optimizers.SGD(1.0),
    "momentum": lambda flavour: flavour.optimizers.SGD(1.0, momentum=0.0, nesterov=False),
}


@pytest.mark.parametrize("average", [False, True], ids=["sum", "average"])
@pytest.mark.parametrize("flavour", [keras, tf_keras], ids=["keras", "tf_keras"])
@pytest.mark.parametrize("kind", list(KERAS_OPTIMIZERS))
def test_passes_in_keras_fit(rank, size, flavour, kind, average):
    values, optimizer = rows(
        rank, flavour, KERAS_OPTIMIZERS[kind], average_aggregated_gradients=average
    )
    np.testing.assert_array_equal(values, expected(size, PASSES, average, 7))
    assert int(optimizer.iterations.numpy()) == 7 // PASSES


def test_passes_with_legacy_keras_optimizers(rank, size):
    values, _ = rows(rank, tf_keras, lambda flavour: flavour.optimizers.legacy.SGD(1.0))
    np.testing.assert_array_equal(values, expected(size, PASSES, False, 7))


def test_one_reduction_for_all_passes():
    """Counted by the executed ops."""
    aggregation = GradientAggregation(4)
    variable = tf.Variable([0.0])
    count = hvd.core._native.library.tf_hvd_submitted_count
    before = count()
    for _ in range(8):
        complete, sums = aggregation.add([tf.constant([1.0])])
        aggregation.when_complete(
            complete, lambda sums=sums: variable.assign_sub(hvd.allreduce(sums[0], name="sum"))
        )
    assert count() - before == 2
    np.testing.assert_array_equal(variable.numpy(), [-8])


def test_gradients_that_cannot_be_added_up_are_refused():
    slices = tf.IndexedSlices(tf.ones([1, 2]), [1], dense_shape=[3, 2])
    with pytest.raises(ValueError, match="sparse_as_dense=True"):
        GradientAggregation(2).add([slices])
    dense = GradientAggregation(2, sparse_as_dense=True).add([slices])[1][0]
    np.testing.assert_array_equal(dense, [[0, 0], [1, 1], [0, 0]])
    aggregation = GradientAggregation(2)
    aggregation.add([tf.ones([1]), None])
    with pytest.raises(ValueError, match="does not have gradients for the same variables"):
        aggregation.add([None, tf.ones([1])])
    with pytest.raises(ValueError, match="at least 1"):
        GradientAggregation(0)


@pytest.mark.parametrize("flavour", [keras, tf_keras], ids=["keras", "tf_keras"])
def test_embedding_in_a_loss_scaler(rank, size, flavour):
    """Within Keras' tf.cond the gradient of a table has an unknown number of rows."""
    flavours = {keras: "optimizers", tf_keras: "mixed_precision"}
    scaler = getattr(flavour, flavours[flavour]).LossScaleOptimizer
    optimizer = hvd.DistributedOptimizer(
        scaler(flavour.optimizers.SGD(1.0)), backward_passes_per_step=2, sparse_as_dense=True
    )
    table = flavour.layers.Embedding(3, 2, embeddings_initializer="zeros")
    model = flavour.Sequential([flavour.layers.Input((1,), dtype="int32"), table])
    model.compile(optimizer=optimizer, loss=lambda truth, made: tf.reduce_sum(made))
    row = min(rank, 2)
    model.fit(np.full((2, 1), row), np.zeros((2, 1, 2)), batch_size=1, verbose=0)
    expected = np.zeros((3, 2))
    for other in range(size):
        expected[min(other, 2)] -= 2 / size
    np.testing.assert_allclose(table.get_weights()[0], expected, rtol=1e-6)


def test_shapes_come_from_the_variables():
    @tf.function(autograph=False)
    def add(gradient):
        with_variables.add([gradient], [variable])
        with pytest.raises(ValueError, match="Pass the variables too"):
            GradientAggregation(2).add([gradient])

    variable, with_variables = tf.Variable(tf.zeros([3, 2])), GradientAggregation(2)
    add.get_concrete_function(tf.TensorSpec([None, 2]))


@pytest.mark.parametrize("control_flow", ["v1", "v2"])
def test_a_session_that_did_not_initialise_local_variables(rank, size, control_flow, request):
    """It was NotFoundError: Resource localhost/aggregation/sum_0 does not exist."""
    request.addfinalizer(v1.enable_control_flow_v2)
    (v1.enable_control_flow_v2 if control_flow == "v2" else v1.disable_control_flow_v2)()
    with tf.Graph().as_default(), v1.Session() as session:
        variable = v1.get_variable("w", initializer=tf.zeros([2], tf.float64), use_resource=True)
        given = v1.placeholder(tf.float64, [2])
        optimizer = hvd.DistributedOptimizer(OPTIMIZERS["sgd"](), backward_passes_per_step=PASSES)
        train = optimizer.minimize(tf.reduce_sum(variable * given))
        session.run(v1.global_variables_initializer())
        values = []
        for number in range(7):
            session.run(train, {given: gradient(rank, number)})
            values.append(session.run(variable))
        np.testing.assert_array_equal(values, expected(size, PASSES, False, 7))


def test_a_complete_step_that_was_not_applied_starts_again():
    aggregation = GradientAggregation(2)
    given = [np.inf, 1.0, 1.0, 2.0, 4.0]
    found = [aggregation.add([tf.constant([value])]) for value in given]
    assert [bool(complete) for complete, _ in found] == [False, True, False, True, False]
    assert [float(sums[0][0]) for _, sums in found] == [np.inf, np.inf, 1.0, 3.0, 4.0]


def test_gradients_of_another_compute_gradients_are_refused():
    with tf.Graph().as_default():
        optimizer = hvd.DistributedOptimizer(OPTIMIZERS["sgd"](), backward_passes_per_step=2)
        with pytest.raises(ValueError, match="Pass the result of its compute_gradients"):
            optimizer.apply_gradients([])


def in_turn(size, steps):
    """The final a and b, with gradients 1 and 10 (times rank + 1), applied alternately."""
    mean = sum(range(1, size + 1)) / size
    return -mean * steps, -10 * mean * steps


@pytest.mark.parametrize("in_function", [False, True], ids=["eager", "function"])
@pytest.mark.parametrize("kind", ["keras", "tf_keras", "legacy", "v1"])
def test_two_alternating_lists_of_variables(rank, size, kind, in_function):
    """One optimizer for a generator and a discriminator; expected -2, -20, but got 0, -22."""
    inner = {
        "keras": lambda: keras.optimizers.SGD(1.0),
        "tf_keras": lambda: tf_keras.optimizers.SGD(1.0),
        "legacy": lambda: tf_keras.optimizers.legacy.SGD(1.0),
        "v1": lambda: v1.train.GradientDescentOptimizer(1.0),
    }[kind]()
    optimizer = hvd.DistributedOptimizer(inner, backward_passes_per_step=2)
    a, b = (tf.Variable(tf.zeros([1])) for _ in range(2))
    if kind in ("keras", "tf_keras"):
        optimizer.build([a, b])

    def update(variable, value):
        if kind == "v1":
            pairs = optimizer.compute_gradients(lambda: variable * value, var_list=[variable])
        else:
            pairs = [(tf.fill([1], value), variable)]
        optimizer.apply_gradients(pairs)

    def step(value):
        update(a, value)
        update(b, 10.0 * value)

    if in_function:
        step = tf.function(step, autograph=False)
    for _ in range(2):
        step(tf.constant(rank + 1.0))
    np.testing.assert_allclose([a.numpy()[0], b.numpy()[0]], in_turn(size, 2))


def test_two_lists_of_variables_in_a_v1_graph(rank, size):
    """Both losses' gradients are computed before the first is applied."""
    with tf.Graph().as_default(), v1.Session() as session:
        a, b = (v1.get_variable(n, initializer=tf.zeros([1]), use_resource=True) for n in "ab")
        optimizer = hvd.DistributedOptimizer(OPTIMIZERS["sgd"](), backward_passes_per_step=2)
        losses = [a * (rank + 1.0), b * (rank + 1.0) * 10.0]
        pairs = [
            optimizer.compute_gradients(loss, var_list=[variable])
            for loss, variable in zip(losses, (a, b), strict=True)
        ]
        first, second = [optimizer.apply_gradients(each) for each in pairs]
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        for train in (first, second, second, first):
            session.run(train)
        np.testing.assert_allclose(np.ravel(session.run([a, b])), in_turn(size, 2))


@pytest.mark.parametrize("flavour", [keras, tf_keras], ids=["keras", "tf_keras"])
def test_a_frozen_layer_starts_a_separate_step(rank, size, flavour):
    """The shorter list starts a separate step; it was an error with the wrong fix."""
    first = flavour.layers.Dense(1, use_bias=False, kernel_initializer="ones", name="first")
    last = flavour.layers.Dense(1, use_bias=False, kernel_initializer="ones", name="last")
    model = flavour.Sequential([flavour.layers.Input((1,)), first, last])
    optimizer = hvd.DistributedOptimizer(
        flavour.optimizers.SGD(1.0 / 64), backward_passes_per_step=2
    )

    def train(rows):
        model.compile(optimizer=optimizer, loss=lambda truth, made: tf.reduce_sum(made))
        for _ in range(rows):
            model.train_on_batch(np.full((1, 1), rank + 1.0), np.zeros((1, 1)))
        return [float(np.squeeze(layer.get_weights())) for layer in (first, last)]

    mean = sum(range(1, size + 1)) / size
    change = 2 * mean / 64
    np.testing.assert_allclose(train(2), [1 - change, 1 - change], rtol=1e-6)
    first.trainable = False
    kept, changed = train(2)
    np.testing.assert_allclose(kept, 1 - change, rtol=1e-6)
    np.testing.assert_allclose(changed, (1 - change) - change * (1 - change), rtol=1e-6)


def test_v1_adasum_of_two_alternating_lists(rank, size):
    """Each list's updates are combined after two of that list."""
    adasum = hvd.DistributedOptimizer(
        OPTIMIZERS["sgd"](), op=hvd.Adasum, backward_passes_per_step=2
    )
    a, b = (tf.Variable(tf.zeros([1])) for _ in range(2))
    for _ in range(2):
        for variable, value in ((a, 1.0), (b, 10.0)):
            pairs = adasum.compute_gradients(
                lambda variable=variable, value=value: variable * value, var_list=[variable]
            )
            adasum.apply_gradients(pairs)
    # Adasum averages equal changes.
    np.testing.assert_allclose([a.numpy()[0], b.numpy()[0]], [-2.0, -20.0], rtol=1e-6)


def test_a_v1_meta_graph_with_passes_can_be_imported(tmp_path):
    """Its collection of train ops named an op in the branch that applies the sums."""
    file = str(tmp_path / "model.meta")
    with tf.Graph().as_default():
        weight = v1.get_variable("w", initializer=[1.0])
        optimizer = v1.train.AdagradOptimizer(0.1)
        wrapped = hvd.DistributedOptimizer(optimizer, backward_passes_per_step=2)
        train = wrapped.minimize(tf.reduce_sum(weight * weight))
        v1.train.export_meta_graph(file)
    with tf.Graph().as_default() as graph:
        v1.train.import_meta_graph(file)
        assert v1.get_collection(v1.GraphKeys.TRAIN_OP) == [
            graph.get_operation_by_name(train.op.name)
        ]
