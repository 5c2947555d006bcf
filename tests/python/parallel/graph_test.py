"""Names, order and control flow: how the calls of different ranks are matched."""

import os
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import tf_hvd as hvd


def test_each_rank_in_its_own_order(rank, size):
    """Forty requests in flight at once; each rank creates them from a different start."""
    count = 40

    @tf.function(autograph=False)
    def all_at_once():
        results = {}
        for k in range(count):
            i = (k + rank * 13) % count
            results[i] = hvd.allreduce(tf.fill([i + 1], float(i)), op=hvd.Sum, name=f"n{i}")
        return [results[i] for i in range(count)]

    for _ in range(3):
        for i, result in enumerate(all_at_once()):
            np.testing.assert_array_equal(result, np.full(i + 1, i * size, np.float32))


def test_calls_are_not_queued_behind_slow_ops(tmp_path, rank, size):
    """More chains than TensorFlow has threads wait until the last rank has made its calls.

    The last rank makes them only after the others' calls, so these were not queued after chains.
    """
    if size == 1:
        pytest.skip("no rank waits for another")
    last = size - 1
    mark = Path(hvd.broadcast_object(str(tmp_path), root_rank=last)) / "made"
    names = [f"early.{i}" for i in range(3)]
    chains = 2 * len(os.sched_getaffinity(0))
    waiting = list(range(chains * len(names)))

    def wait_for_mark(value, _):
        deadline = time.monotonic() + 200
        while not mark.exists():
            assert time.monotonic() < deadline, "the calls are queued behind the slow chains"
            time.sleep(0.01)
        return value

    def waits(x):
        # Stateful ops would wait for one another, and equal ops would be merged.
        return [
            tf.numpy_function(wait_for_mark, [x, waiting.pop()], tf.float32, stateful=False)
            for _ in range(chains)
        ]

    @tf.function(autograph=False)
    def step(x):
        x = tf.linalg.matmul(x, x)
        results, waiters = [], []
        for name in names:
            results.append(hvd.allreduce(x, op=hvd.Sum, name=name))
            waiters += waits(x)
        return results, waiters

    ones = tf.ones([2, 2])
    if rank == last:
        results = [hvd.allreduce(2 * ones, op=hvd.Sum, name=name) for name in names]
        mark.touch()
    else:
        results, _ = step(ones)
    hvd.barrier()
    for result in results:
        np.testing.assert_array_equal(result, np.full([2, 2], 2 * size, np.float32))


def test_iterations_of_a_loop_are_matched(evaluate, rank, size):
    """Ten iterations in flight; none depends on the previous one."""

    def loop(x):
        def body(i, results):
            reduced = hvd.allreduce(x * tf.cast(i + 1, tf.float32), op=hvd.Sum, name="body")
            return i + 1, results.write(i, reduced)

        results = tf.TensorArray(tf.float32, 20)
        _, results = tf.while_loop(
            lambda i, _: i < 20, body, (tf.constant(0), results), parallel_iterations=10
        )
        return results.stack()

    result = evaluate(loop, np.float32(rank + 1))
    total = sum(range(1, size + 1))
    np.testing.assert_array_equal(result, np.arange(1, 21, dtype=np.float32) * total)


def test_loop_with_control_flow_v1(rank, size):
    tf.compat.v1.disable_control_flow_v2()
    try:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            _, total = tf.while_loop(
                lambda i, _: i < 12,
                lambda i, t: (i + 1, t + hvd.allreduce(tf.constant(rank + 1) * i, op=hvd.Sum)),
                (tf.constant(0), tf.constant(0)),
            )
            assert session.run(total) == sum(range(12)) * sum(range(1, size + 1))
    finally:
        tf.compat.v1.enable_control_flow_v2()


def test_conditional(evaluate, size):
    def conditional(x):
        return tf.cond(
            tf.reduce_sum(x) > 0,
            lambda: hvd.allreduce(x, op=hvd.Sum),
            lambda: hvd.allreduce(x, op=hvd.Max),
        )

    np.testing.assert_array_equal(evaluate(conditional, np.float32([2])), np.float32([2 * size]))
    np.testing.assert_array_equal(evaluate(conditional, np.float32([-2])), np.float32([-2]))


def test_nested_functions(size):
    @tf.function(autograph=False)
    def inner(t):
        return hvd.allreduce(t, op=hvd.Sum)

    @tf.function(autograph=False)
    def outer(t):
        return inner(t) + inner(t + 1.0)

    np.testing.assert_array_equal(outer(tf.constant([1.0])), np.float32([3 * size]))


def test_default_names_do_not_depend_on_the_process(rank):
    """A tensor made eagerly is captured under a name that contains a counter of the process."""
    for _ in range(rank * 5):  # so that the counters of the ranks differ
        tf.function(lambda t: t + 1)(tf.constant(1.0))
    captured = tf.random.stateless_normal([64], (1, 2))

    @tf.function(autograph=False)
    def function(argument):
        return hvd.allreduce(captured), hvd.allreduce(argument), hvd.allreduce(argument * 2.0)

    function(captured)
    graph = function.get_concrete_function(captured).graph
    names = [op.name for op in graph.get_operations() if op.type == "HorovodAllreduce"]
    assert names == ["HorovodAllreduce", "HorovodAllreduce_argument_0", "HorovodAllreduce_mul_0"]
    assert hvd.allgather_object(names) == [names] * hvd.size()


def test_ignore_name_scope(size):
    """The request is the same one under another scope on each rank."""

    @tf.function(autograph=False)
    def function(t):
        with tf.name_scope(f"scope_of_rank_{hvd.rank()}"):
            return hvd.allreduce(t, op=hvd.Sum, name="inside", ignore_name_scope=True)

    np.testing.assert_array_equal(function(tf.constant([1.0])), np.float32([size]))


def test_saved_function_runs_again(tmp_path, size):
    class Module(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([2], tf.float32)])
        def reduce(self, t):
            return hvd.allreduce(t, op=hvd.Sum)

    tf.saved_model.save(Module(), str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    np.testing.assert_array_equal(loaded.reduce(tf.constant([1.0, 2.0])), np.float32([1, 2]) * size)


def test_same_bits_in_every_run(rank):
    """Sums of numbers that round: the order of addition must not depend on timing."""
    generator = np.random.default_rng(rank)
    arrays = [generator.standard_normal(n).astype(np.float32) for n in (3, 1000, 70000)]

    @tf.function(autograph=False)
    def reduce():
        return hvd.grouped_allreduce(arrays), [hvd.allreduce(a, op=hvd.Sum) for a in arrays]

    first = tf.nest.map_structure(lambda t: t.numpy().tobytes(), reduce())
    for _ in range(10):
        assert tf.nest.map_structure(lambda t: t.numpy().tobytes(), reduce()) == first
    assert hvd.allgather_object(first) == [first] * hvd.size()


def used_on(rank, root, result):
    """A graph that differs between ranks: only one rank uses the result."""
    return result + 1.0 if rank == root else tf.zeros_like(result)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("wrapped", ["function", "nested", "loop", "branch", "tape"])
def test_a_result_that_only_one_rank_uses(rank, size, wrapped):
    """The others' graphs omitted the call, and the one rank waited until the stall limit."""

    def call(x):
        total = hvd.allreduce(x, op=hvd.Sum, name=f"used_{wrapped}")
        rows = tf.ensure_shape(hvd.allgather(x, name=f"gathered_{wrapped}")[:1], [1])
        return used_on(rank, 0, total) + used_on(rank, size - 1, rows)

    def step(x):
        if wrapped == "nested":
            return tf.function(call, autograph=False)(x)
        if wrapped == "loop":
            return tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, call(x)), [0, x])[1]
        if wrapped == "branch":
            return tf.cond(x[0] >= 0.0, lambda: call(x), lambda: x)
        if wrapped == "tape":
            with tf.GradientTape() as tape:
                tape.watch(x)
                result, loss = call(x), tf.reduce_sum(x * x)
            # Derivatives are collectives too, unless the loss does not need them.
            return result + 0.0 * tape.gradient(loss, x)
        return call(x)

    result = tf.function(step, autograph=False)(tf.constant([float(rank)]))
    total = size * (size - 1) / 2
    np.testing.assert_array_equal(
        result, [total + 1.0 if rank == 0 else 1.0 if rank == size - 1 else 0.0]
    )


@pytest.mark.ranks(2)
@pytest.mark.parametrize("wrapped", ["function", "loop", "branch", "tape"])
def test_unused_calls_in_another_order_on_each_rank(rank, size, wrapped):
    """If the calls ran one after the other, the ranks would deadlock."""

    def call(x):
        names = [f"first_{wrapped}", f"second_{wrapped}"]
        for name in names if rank % 2 == 0 else reversed(names):
            hvd.allreduce(x, op=hvd.Sum, name=name)
        return x

    def step(x):
        if wrapped == "loop":
            return tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, call(y)), [0, x])[1]
        if wrapped == "branch":
            return tf.cond(x[0] >= 0.0, lambda: call(x), lambda: x)
        if wrapped == "tape":
            with tf.GradientTape() as tape:
                tape.watch(x)
                call(x)
                loss = tf.reduce_sum(x)
            return tape.gradient(loss, x)
        return call(x)

    before = hvd.core._native.library.tf_hvd_submitted_count()
    tf.function(step, autograph=False)(tf.constant([float(rank)]))
    calls = hvd.core._native.library.tf_hvd_submitted_count() - before
    assert calls == (6 if wrapped == "loop" else 2)
