"""v1 optimizers: training with gradients that were not reduced is stopped, and no other."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tf_hvd as hvd
from tf_hvd.keras import unguarded

pytestmark = [pytest.mark.framework, pytest.mark.ranks(2)]

v1 = tf.compat.v1
MESSAGE = r"(?s)tf_hvd\.D.*Each of the \d+ ranks .*not reduced.*TF_HVD_GUARD=off"
SGD = v1.train.GradientDescentOptimizer
LOSS_SCALER = v1.train.experimental.MixedPrecisionLossScaleOptimizer


def loss_of(*weights):
    """Its gradient is rank + 1 for each number in the weights."""
    return tf.add_n([tf.reduce_sum(weight) for weight in weights]) * (hvd.rank() + 1.0)


def mean():
    return (hvd.size() + 1) / 2


def weight(name="w", **options):
    return v1.get_variable(name, initializer=tf.zeros([2]), use_resource=True, **options)


def clipped(pairs):
    gradients, _ = tf.clip_by_global_norm([g for g, _ in pairs], 1e9)
    return list(zip(gradients, [v for _, v in pairs], strict=True))


def by_tf_gradients(optimizer, inner, w):
    return clipped([(tf.gradients(loss_of(w), [w])[0], w)])


def by_the_inner_optimizer(optimizer, inner, w):
    return inner.compute_gradients(loss_of(w), [w])


def by_a_tape(optimizer, inner, w):
    with tf.GradientTape() as tape:
        loss = loss_of(w)
    return [(tape.gradient(loss, w), w)]


def by_a_reduced_loss(optimizer, inner, w):
    return [(tf.gradients(hvd.allreduce(loss_of(w)), [w])[0], w)]


def by_sums_of_the_program(optimizer, inner, w):
    kept = weight("kept", trainable=False)
    with tf.control_dependencies([kept.assign_add(tf.gradients(loss_of(w), [w])[0])]):
        return [(kept.read_value(), w)]


def in_a_branch(optimizer, inner, w):
    (gradient,) = tf.gradients(loss_of(w), [w])
    return [(tf.cond(tf.reduce_sum(gradient) > 1e9, lambda: gradient / 2.0, lambda: gradient), w)]


UNREDUCED = [
    by_tf_gradients,
    by_the_inner_optimizer,
    by_a_tape,
    by_a_reduced_loss,
    by_sums_of_the_program,
    in_a_branch,
]


def own(optimizer, inner, w):
    return optimizer.compute_gradients(loss_of(w), [w])


def own_clipped(optimizer, inner, w):
    return clipped(own(optimizer, inner, w))


def own_in_a_scope_named_gradients(optimizer, inner, w):
    with tf.name_scope("gradients"), tf.name_scope("gradient"):
        return own_clipped(optimizer, inner, w)


def by_a_distributed_tape(optimizer, inner, w):
    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = loss_of(w)
    return clipped([(tape.gradient(loss, w), w)])


def by_allreduce(optimizer, inner, w):
    return [(hvd.allreduce(tf.gradients(loss_of(w), [w])[0]), w)]


def by_sums_of_reduced(optimizer, inner, w):
    kept = weight("kept", trainable=False)
    gradient = own(optimizer, inner, w)[0][0]
    with tf.control_dependencies([kept.assign(gradient)]):
        return [(kept.read_value(), w)]


def constants(optimizer, inner, w):
    tf.gradients(loss_of(w), [w])
    return [(tf.constant([mean(), mean()]), w)]


REDUCED = [
    own,
    own_clipped,
    own_in_a_scope_named_gradients,
    by_a_distributed_tape,
    by_allreduce,
    by_sums_of_reduced,
    constants,
]


@pytest.mark.parametrize("control_flow", ["v1", "v2"])
@pytest.mark.parametrize("make", UNREDUCED)
def test_unreduced_gradients_in_a_graph(make, control_flow):
    if make is by_a_tape and control_flow == "v1":
        return  # with control flow v1, a tape leaves no trace in a graph
    (v1.enable_control_flow_v2 if control_flow == "v2" else v1.disable_control_flow_v2)()
    try:
        with tf.Graph().as_default():
            inner, w = v1.train.AdamOptimizer(0.1), weight()
            optimizer = hvd.DistributedOptimizer(inner)
            pairs = make(optimizer, inner, w)
            with pytest.raises(hvd.keras.GuardError, match=MESSAGE):
                optimizer.apply_gradients(pairs)
            with unguarded():
                optimizer.apply_gradients(pairs)
    finally:
        v1.enable_control_flow_v2()


@pytest.mark.parametrize("control_flow", ["v1", "v2"])
@pytest.mark.parametrize("make", REDUCED)
def test_reduced_gradients_in_a_graph_are_reduced_once(make, control_flow):
    (v1.enable_control_flow_v2 if control_flow == "v2" else v1.disable_control_flow_v2)()
    try:
        with tf.Graph().as_default() as graph:
            inner, w = SGD(1.0), weight()
            optimizer = hvd.DistributedOptimizer(inner)
            train = optimizer.apply_gradients(make(optimizer, inner, w))
            found = [op.name for op in graph.get_operations() if "Allreduce" in op.type]
            # Except the early comparison of weights (tf_hvd.training.initial_weights).
            assert len([name for name in found if "distributed_start" not in name]) <= 1
            with hvd.MonitoredTrainingSession() as session:
                session.run(train)
                np.testing.assert_allclose(session.run(w), [-mean()] * 2)
    finally:
        v1.enable_control_flow_v2()


@pytest.mark.parametrize("in_function", [False, True], ids=["eager", "function"])
def test_plain_tape_and_apply_gradients(in_function):
    w = tf.Variable([0.0, 0.0])
    optimizer = hvd.DistributedOptimizer(SGD(1.0))

    def step(tape):
        with tape:
            loss = loss_of(w)
        optimizer.apply_gradients([(tape.gradient(loss, w), w)])

    run = (lambda tape: tf.function(step, autograph=False)(tape)) if in_function else step
    with pytest.raises(hvd.keras.GuardError, match=MESSAGE):
        run(tf.GradientTape())
    run(hvd.DistributedGradientTape(tf.GradientTape()))
    np.testing.assert_allclose(w, [-mean()] * 2)
    for _ in range(2):
        optimizer.minimize(lambda: loss_of(w), var_list=[w])
    np.testing.assert_allclose(w, [-3 * mean()] * 2)
    with pytest.raises(hvd.keras.GuardError, match=MESSAGE):
        run(tf.GradientTape())
    with unguarded():
        run(tf.GradientTape())
    np.testing.assert_allclose(w, [-3 * mean() - hvd.rank() - 1] * 2)


def test_eager_gradients_may_be_applied_one_by_one():
    a, b = tf.Variable([0.0]), tf.Variable([0.0])
    optimizer = hvd.DistributedOptimizer(SGD(1.0))
    for _ in range(2):
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = loss_of(a, b)
        for pair in zip(tape.gradient(loss, [a, b]), [a, b], strict=True):
            optimizer.apply_gradients([pair])
        for pair in optimizer.compute_gradients(lambda: loss_of(a, b), var_list=[a, b]):
            optimizer.apply_gradients([pair])
    np.testing.assert_allclose([a[0], b[0]], [-4 * mean()] * 2)


def test_eager_gradients_may_be_changed_and_applied_alternately():
    a, b = tf.Variable([0.0]), tf.Variable([0.0])
    optimizer = hvd.DistributedOptimizer(SGD(1.0))
    for _ in range(2):
        pairs = [optimizer.compute_gradients(lambda: loss_of(a, b), var_list=[v]) for v in (a, b)]
        for each in pairs:
            optimizer.apply_gradients(clipped(each))
    np.testing.assert_allclose([a[0], b[0]], [-2 * mean()] * 2)


def test_compiled_into_a_model_of_tf_keras():
    """It reduces in compute_gradients, which tf_keras does not call."""
    model = tf_keras.Sequential([tf_keras.layers.Input((2,)), tf_keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(SGD(0.1)), "mse")
    with pytest.raises(hvd.keras.GuardError, match=MESSAGE):
        model.train_on_batch(np.ones((4, 2)), np.ones((4, 1)))


def test_unreduced_by_design_is_accepted():
    """Local variables, Adasum, a set of only this rank, IndexedSlices, no gradient."""
    sets = [hvd.add_process_set([rank]) for rank in range(hvd.size())]
    try:
        with tf.Graph().as_default():
            w, unused = weight(), weight("unused")
            local = hvd.DistributedOptimizer(SGD(1.0))
            local.register_local_var(w)
            optimizers = [
                local,
                hvd.DistributedOptimizer(SGD(1.0), op=hvd.Adasum),
                hvd.DistributedOptimizer(SGD(1.0), process_set=sets[hvd.rank()]),
            ]
            for optimizer in optimizers:
                pairs = [*zip(tf.gradients(loss_of(w), [w]), [w], strict=True), (None, unused)]
                optimizer.apply_gradients(pairs)
                optimizer.minimize(loss_of(w))
            table = v1.get_variable("table", initializer=tf.zeros([4, 2]), use_resource=True)
            loss = loss_of(tf.nn.embedding_lookup(table, [hvd.rank()]))
            optimizer = hvd.DistributedOptimizer(v1.train.AdamOptimizer())
            optimizer.apply_gradients(optimizer.compute_gradients(loss))
            with pytest.raises(hvd.keras.GuardError, match=MESSAGE):
                optimizer.apply_gradients(zip(tf.gradients(loss, [table]), [table], strict=True))
            passes = hvd.DistributedOptimizer(SGD(1.0), backward_passes_per_step=2)
            pairs = passes.compute_gradients(loss_of(w), [w])
            passes.apply_gradients(clipped(pairs))
            with pytest.raises(hvd.keras.GuardError, match=MESSAGE):
                passes.apply_gradients(zip(tf.gradients(loss_of(w), [w]), [w], strict=True))
            hvd.MonitoredTrainingSession().close()
    finally:
        for each in sets:
            hvd.remove_process_set(each)


PLAIN = {
    "sgd": lambda: SGD(0.1),
    "adam": lambda: v1.train.AdamOptimizer(0.1),
    "adagrad": lambda: v1.train.AdagradOptimizer(0.1),
    "in a branch": lambda: LOSS_SCALER(SGD(0.1), v1.train.experimental.DynamicLossScale()),
}


def sessions():
    yield hvd.MonitoredTrainingSession
    hook = hvd.BroadcastGlobalVariablesHook(0)
    yield lambda: v1.train.MonitoredTrainingSession(hooks=[hook])


@pytest.mark.parametrize("of_rows", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("kind", list(PLAIN))
def test_a_plain_optimizer_in_a_session(kind, of_rows):
    with tf.Graph().as_default():
        w = v1.get_variable("w", initializer=tf.zeros([4, 2]), use_resource=kind != "adagrad")
        loss = loss_of(tf.nn.embedding_lookup(w, [1, 2]) if of_rows else w)
        other = hvd.DistributedOptimizer(SGD(0.1), name="D").minimize(loss)
        train = PLAIN[kind]().minimize(loss)
        for session in sessions():
            with pytest.raises(hvd.keras.GuardError, match=MESSAGE):
                session()
        with unguarded(), hvd.MonitoredTrainingSession() as session:
            session.run([train, other])


@pytest.mark.parametrize("kind", list(PLAIN))
def test_a_plain_optimizer_of_reduced_gradients_in_a_session(kind):
    """By hand or by a tape; a variable that the tape does not cover is not an error."""
    with tf.Graph().as_default():
        w, local = weight(), weight("local")
        ema = tf.train.ExponentialMovingAverage(0.9)
        tape = hvd.DistributedGradientTape(tf.GradientTape())
        tape.register_local_source(local)
        with tape:
            loss = loss_of(w, local)
        train = PLAIN[kind]().apply_gradients(
            zip(tape.gradient(loss, [w, local]), [w, local], strict=True)
        )
        with tf.control_dependencies([train]):
            train = ema.apply([w])
        with hvd.MonitoredTrainingSession() as session:
            session.run(train)


@pytest.mark.parametrize("kind", list(PLAIN))
def test_distributed_optimizers_in_a_session(kind):
    for wrap in (
        lambda inner: hvd.DistributedOptimizer(inner, backward_passes_per_step=2),
        lambda inner: hvd.DistributedOptimizer(inner, op=hvd.Adasum),
        lambda inner: hvd.DistributedOptimizer(inner, compression=hvd.PowerSGD(1)),
        lambda inner: LOSS_SCALER(
            hvd.DistributedOptimizer(inner), v1.train.experimental.DynamicLossScale()
        ),
    ):
        with tf.Graph().as_default():
            w = weight()
            train = wrap(PLAIN[kind]()).minimize(loss_of(w))
            with hvd.MonitoredTrainingSession() as session:
                session.run(train)
                values = hvd.allgather_object(session.run(w).tobytes())
            assert len(set(values)) == 1


def scaled(wrap, given, steps):
    """Weights and scale after each step with the ranks' gradients."""
    with tf.Graph().as_default():
        w = v1.get_variable("w", initializer=tf.ones([1]), use_resource=True)
        fed = v1.placeholder(tf.float32, [1])
        scale = v1.train.experimental.DynamicLossScale(initial_loss_scale=64.0, increment_period=3)
        train = wrap(scale).minimize(tf.reduce_sum(w * fed))
        both = [w, scale()]
        with hvd.MonitoredTrainingSession() as session:
            found = []
            for step in range(steps):
                session.run(train, {fed: [given(step)]})
                found.append([float(np.squeeze(value)) for value in session.run(both)])
    return found


def inf_on_rank_1_first(step):
    return np.inf if step == 0 and hvd.rank() == 1 else 1.0


def test_passes_around_a_loss_scaler_continue_after_an_infinity():
    found = scaled(
        lambda scale: hvd.DistributedOptimizer(
            LOSS_SCALER(SGD(0.125), scale), backward_passes_per_step=2
        ),
        inf_on_rank_1_first,
        6,
    )
    assert [w for w, _ in found] == [1.0, 1.0, 1.0, 0.75, 0.75, 0.5]
    assert [s for _, s in found] == [64.0, 32.0, 32.0, 32.0, 32.0, 32.0]
    assert all(other == found for other in hvd.allgather_object(found))


@pytest.mark.parametrize(
    "options", [{"backward_passes_per_step": 2}, {"op": hvd.Adasum}], ids=["passes", "adasum"]
)
def test_passes_inside_of_a_loss_scaler_are_refused(options):
    """The weights never moved again after an infinity, and scales differed between ranks."""
    with pytest.raises(ValueError, match="in the opposite order"):
        scaled(
            lambda scale: LOSS_SCALER(hvd.DistributedOptimizer(SGD(0.125), **options), scale),
            inf_on_rank_1_first,
            1,
        )
    if "op" not in options:
        w = tf.Variable([0.0])
        fixed = LOSS_SCALER(hvd.DistributedOptimizer(SGD(1.0), **options), 64.0)
        for _ in range(2):
            fixed.minimize(lambda: loss_of(w), var_list=[w])
        np.testing.assert_allclose(w, [-2 * mean()])


def test_skipped_passes_start_again():
    """With the program's own tf.cond around apply_gradients, the infinite sum is discarded."""
    with tf.Graph().as_default():
        w = v1.get_variable("w", initializer=tf.zeros([1]), use_resource=True)
        fed = v1.placeholder(tf.float32, [1])
        optimizer = hvd.DistributedOptimizer(SGD(1.0), backward_passes_per_step=2)
        pairs = optimizer.compute_gradients(tf.reduce_sum(w * fed), [w])

        def update():
            with tf.control_dependencies([optimizer.apply_gradients(pairs)]):
                return tf.constant(True)

        finite = tf.reduce_all(tf.math.is_finite(pairs[0][0]))
        train = tf.cond(finite, update, lambda: tf.constant(False))
        with hvd.MonitoredTrainingSession() as session:
            found = []
            for step in range(6):
                session.run(train, {fed: [inf_on_rank_1_first(step)]})
                found.append(float(session.run(w)[0]))
    assert found == [0.0, 0.0, 0.0, -2.0, -2.0, -4.0]
