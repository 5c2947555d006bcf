"""How the ops are registered: the effect on equal, unused and constant calls in TensorFlow.

The runtime counts each executed call. If one rank's TensorFlow merged a call with another, omitted
it, or computed it while optimising the graph, the other ranks would wait. Every number here is
therefore exact. One rank is enough, because nothing depends on other ranks.
"""

import threading

import keras
import pytest
import tensorflow as tf
from tensorflow.python.framework import auto_control_deps

import tf_hvd as hvd
from tf_hvd.core import _native

SUM = 1
COLLECTIVES = (
    "HorovodAllreduce",
    "HorovodGroupedAllreduce",
    "HorovodAllgather",
    "HorovodGroupedAllgather",
    "HorovodBroadcast",
    "HorovodAlltoall",
    "HorovodReducescatter",
    "HorovodGroupedReducescatter",
)
EFFECTS = (
    "HorovodBarrier",
    "HorovodJoin",
    "HorovodBroadcastInplace",
    "HorovodBroadcastInplaceResource",
)


@pytest.fixture(autouse=True)
def initialized():
    hvd.init()


def allreduce(tensor, **attributes):
    return _native.ops.horovod_allreduce(tensor, SUM, 1.0, 1.0, **attributes)


def grouped_allreduce(tensor):
    return _native.ops.horovod_grouped_allreduce([tensor, tensor], [], SUM, 1.0, 1.0)[0]


def allgather(tensor):
    return _native.ops.horovod_allgather(tensor)


def grouped_allgather(tensor):
    return _native.ops.horovod_grouped_allgather([tensor, tensor], [])[0]


def broadcast(tensor):
    return _native.ops.horovod_broadcast(tensor, 0)


def alltoall(tensor):
    return _native.ops.horovod_alltoall(tensor, tf.constant([2]))[0]


def reducescatter(tensor):
    return _native.ops.horovod_reducescatter(tensor, SUM, 1.0, 1.0)


def grouped_reducescatter(tensor):
    return _native.ops.horovod_grouped_reducescatter([tensor, tensor], SUM, 1.0, 1.0)[0]


every_collective = pytest.mark.parametrize(
    "call",
    [
        allreduce,
        grouped_allreduce,
        allgather,
        grouped_allgather,
        broadcast,
        alltoall,
        reducescatter,
        grouped_reducescatter,
    ],
)


def barrier(_variable):
    _native.ops.horovod_barrier()


def join(_variable):
    _native.ops.horovod_join()


def broadcast_inplace(variable):
    _native.ops.horovod_broadcast_inplace_resource([variable.handle], 0, ["v"])


every_effect = pytest.mark.parametrize("call", [barrier, join, broadcast_inplace])


def executed(function):
    """The number of calls that `function` made the runtime execute."""
    before = _native.library.tf_hvd_submitted_count()
    function()
    return _native.library.tf_hvd_submitted_count() - before


def inputs():
    return tf.constant([1.0, 2.0])


@every_collective
def test_eager_calls_all_run(call):
    x = inputs()
    assert executed(lambda: (call(x), call(x))) == 2


@every_collective
def test_equal_calls_in_a_function_are_not_merged(call):
    @tf.function
    def twice(x):
        return call(x) + call(x)

    x = inputs()
    for _ in range(2):
        assert executed(lambda: twice(x)) == 2


@every_collective
def test_calls_on_constants_are_not_folded(call):
    @tf.function
    def of_constant():
        return call(tf.constant([1.0, 2.0]))

    # Grappler folds when the graph is first optimised, so later runs show it.
    for _ in range(3):
        assert executed(of_constant) == 1


def unused(call, x):
    """One call with an unused result and one with a returned result."""
    call(x)
    return call(x * 2.0)


@every_collective
def test_a_call_with_an_unused_result_runs(call):
    """A rank that omitted it would block the ranks that use the result."""
    function = tf.function(lambda x: unused(call, x))
    for _ in range(2):
        assert executed(lambda: function(inputs())) == 2


@every_collective
def test_a_call_runs_if_only_the_shape_of_its_result_is_used(call):
    function = tf.function(lambda x: tf.shape(call(x)) + tf.size(call(x)))
    for _ in range(2):
        assert executed(lambda: function(inputs())) == 2


def in_while_loop(call, x):
    def body(i):
        unused(call, x)
        return i + 1

    return tf.while_loop(lambda i: i < 3, body, [0])


def in_branch(call, x):
    return tf.cond(x[0] > 0.0, lambda: [unused(call, x), x][1], lambda: x)


def in_nested_functions(call, x):
    inner = tf.function(lambda y: unused(call, y))
    middle = tf.function(lambda y: [inner(y), y][1])
    return middle(x)


def under_a_tape(call, x):
    """The backward pass makes no call for a result that the loss does not depend on."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        unused(call, x)
        loss = tf.reduce_sum(x * x)
    return tape.gradient(loss, x)


def of_a_dataset(call, x):
    numbers = tf.data.Dataset.range(1).map(lambda _: [unused(call, x), x][1])
    return numbers.reduce(tf.zeros_like(x), lambda total, y: total + y)


@every_collective
@pytest.mark.parametrize(
    ("where", "calls"),
    [
        (in_while_loop, 6),
        (in_branch, 2),
        (in_nested_functions, 2),
        (under_a_tape, 2),
        (of_a_dataset, 2),
    ],
)
def test_unused_calls_run_wherever_they_are(call, where, calls):
    function = tf.function(lambda x: where(call, x))
    for _ in range(2):
        assert executed(lambda: function(inputs())) == calls


@every_collective
def test_unused_calls_run_without_grappler(call):
    before = tf.config.optimizer.get_experimental_options()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    try:
        function = tf.function(lambda x: in_nested_functions(call, x))
        assert executed(lambda: function(inputs())) == 2
    finally:
        restored = {"disable_meta_optimizer": before.get("disable_meta_optimizer", False)}
        tf.config.optimizer.set_experimental_options(restored)


@pytest.mark.parametrize("steps_per_execution", [1, 3])
def test_unused_calls_run_in_each_step_of_keras(steps_per_execution):
    class Model(keras.Model):
        def call(self, x):
            allreduce(x)
            return x * 2.0

    model = Model()
    model.compile(loss="mse", steps_per_execution=steps_per_execution)
    x = tf.ones([6, 2])
    assert executed(lambda: model.fit(x, x, batch_size=1, epochs=2, verbose=0)) == 12


@every_collective
def test_a_call_that_is_only_a_control_dependency_runs(call):
    @tf.function
    def before(x):
        with tf.control_dependencies([call(x)]):
            return tf.identity(x)

    assert executed(lambda: before(inputs())) == 1


@every_collective
def test_loop_invariant_calls_run_in_each_iteration(call):
    @tf.function
    def loop(x):
        def body(i, total):
            return i + 1, total + call(x) + call(x)

        return tf.while_loop(
            lambda i, total: i < 5, body, [0, tf.zeros_like(x)], parallel_iterations=10
        )[1]

    x = inputs()
    assert executed(lambda: loop(x)) == 10
    assert loop(x).numpy().tolist() == [10.0, 20.0]


@every_collective
def test_only_the_taken_branch_runs(call):
    @tf.function
    def branch(x):
        return tf.cond(x[0] > 0.0, lambda: call(x) + call(x), lambda: call(x))

    assert executed(lambda: branch(inputs())) == 2
    assert executed(lambda: branch(-inputs())) == 1


@every_collective
def test_nested_functions_run_for_each_call(call):
    inner = tf.function(call)

    @tf.function
    def outer(x):
        return inner(x) + inner(x)

    assert executed(lambda: outer(inputs())) == 2


@every_collective
def test_session_runs_only_what_is_fetched(call):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, [2])
        fetched = [call(x), call(x)]
        call(x)
        constant = call(tf.constant([1.0, 2.0]))
        for _ in range(2):
            assert executed(lambda: session.run(fetched, {x: [1.0, 2.0]})) == 2
            assert executed(lambda: session.run(constant)) == 1


def test_session_runs_each_iteration_of_a_loop():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.constant([1.0, 2.0])
        loop = tf.while_loop(
            lambda i, total: i < 5,
            lambda i, total: (i + 1, total + allreduce(x) + allreduce(x)),
            [0, tf.zeros_like(x)],
            parallel_iterations=10,
        )
        assert executed(lambda: session.run(loop)) == 10


@every_collective
def test_no_call_waits_for_another(call):
    """Automatic control dependencies do not order collectives."""

    @tf.function
    def independent(x):
        return call(x), call(x), call(x)

    nodes = [
        node
        for node in independent.get_concrete_function(inputs()).graph.get_operations()
        if node.type in COLLECTIVES
    ]
    assert len(nodes) == 3
    for node in nodes:
        assert not [other.name for other in node.control_inputs if other.type in COLLECTIVES]


class Gate:
    """Holds one tensor back until another has been computed, but not indefinitely."""

    def __init__(self):
        self._opened = threading.Event()
        self.waited_in_vain = False

    def _open(self, x):
        self._opened.set()
        return x

    def _pass(self, x):
        self.waited_in_vain = not self._opened.wait(timeout=200)
        return x

    def opened_by(self, x):
        return tf.numpy_function(self._open, [x], tf.float32, stateful=False)

    def passed_by(self, x):
        return tf.numpy_function(self._pass, [x], tf.float32, stateful=False)


def test_a_later_call_runs_while_an_earlier_one_waits_for_input():
    """In program order, one after the other, the first would wait for the second."""
    gate = Gate()

    @tf.function
    def crosswise(x):
        first = allreduce(tf.ensure_shape(gate.passed_by(x), [2]))
        second = gate.opened_by(allreduce(x * 2.0))
        return first, second

    assert executed(lambda: crosswise(inputs())) == 2
    assert not gate.waited_in_vain


def test_iterations_of_a_loop_in_a_function_end_with_their_collectives():
    """The same on all ranks: order that follows from the graph delays no rank."""

    @tf.function
    def loop(x):
        def body(i):
            unused(allreduce, x)
            return i + 1

        return tf.while_loop(lambda i: i < 2, body, [0], parallel_iterations=2)

    (while_op,) = [
        node
        for node in loop.get_concrete_function(inputs()).graph.get_operations()
        if node.type == "While"
    ]
    body = while_op.graph._get_function(while_op.get_attr("body").name).graph
    waited_for = {
        before.type
        for node in body.get_operations()
        if node.type == "NoOp"
        for before in node.control_inputs
    }
    assert "HorovodAllreduce" in waited_for


@every_effect
def test_effects_run_whether_their_result_is_used_or_not(call):
    variable = tf.Variable([1.0, 2.0])

    @tf.function
    def twice():
        call(variable)
        call(variable)

    assert executed(lambda: call(variable)) == 1
    for _ in range(2):
        assert executed(twice) == 2


@every_effect
def test_effects_run_in_each_iteration_and_in_the_taken_branch(call):
    variable = tf.Variable([1.0, 2.0])

    @tf.function
    def loop(count):
        for _ in tf.range(count):
            call(variable)

    @tf.function
    def branch(taken):
        if taken:
            call(variable)

    assert executed(lambda: loop(tf.constant(3))) == 3
    assert executed(lambda: branch(tf.constant(True))) == 1
    assert executed(lambda: branch(tf.constant(False))) == 0


@every_effect
def test_effects_run_in_the_order_of_the_program(call):
    variable = tf.Variable([1.0, 2.0])

    @tf.function
    def twice():
        call(variable)
        call(variable)

    operations = twice.get_concrete_function().graph.get_operations()
    first, second = [node for node in operations if node.type in EFFECTS]
    assert first in second.control_inputs


def test_session_runs_effects_that_are_fetched():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.get_variable("v", initializer=[1.0, 2.0], use_resource=False)
        barrier_op = _native.ops.horovod_barrier()
        last_rank = _native.ops.horovod_join()
        reference = _native.ops.horovod_broadcast_inplace([variable._ref()], 0, ["v"])
        session.run(variable.initializer)
        for _ in range(2):
            assert executed(lambda: session.run(barrier_op)) == 1
            assert executed(lambda: session.run([last_rank, reference[0].op])) == 2


@pytest.mark.parametrize(
    ("op", "value"),
    [
        ("horovod_size", 1),
        ("horovod_rank", 0),
        ("horovod_local_rank", 0),
        ("horovod_local_size", 1),
        ("horovod_cross_rank", 0),
        ("horovod_cross_size", 1),
        ("horovod_process_set_included", 1),
    ],
)
def test_topology_is_read_when_the_graph_runs(op, value):
    """Not a constant: a graph may run in a job of a different size from the one it was made in."""
    read = tf.function(lambda: getattr(_native.ops, op)() + 0)
    assert read().numpy() == value
    hvd.shutdown()
    try:
        with pytest.raises(tf.errors.FailedPreconditionError, match="has been shut down"):
            read()
    finally:
        hvd.init()
    assert read().numpy() == value


def test_all_collectives_always_run_and_in_any_order():
    assert set(COLLECTIVES) <= auto_control_deps.MUST_RUN_ORDER_INSENSITIVE_STATEFUL_OPS
    assert not set(COLLECTIVES) & auto_control_deps.ASYNC_STATEFUL_OPS


def test_ops_with_effects_keep_their_order():
    """Otherwise they would lose their order among assignments."""
    for ops in (
        auto_control_deps.MUST_RUN_ORDER_INSENSITIVE_STATEFUL_OPS,
        auto_control_deps.ASYNC_STATEFUL_OPS,
    ):
        assert not set(EFFECTS) & ops
