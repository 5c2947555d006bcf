"""Rows of docs/differences.md that no other test shows."""

import contextlib
import pathlib
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_hvd as hvd
from tf_hvd.core import _native

pytestmark = [pytest.mark.framework, pytest.mark.jobs(2)]


def switches():
    """The number of times that this process's threads have gone to sleep."""
    total = 0
    for status in pathlib.Path("/proc/self/task").glob("*/status"):
        lines = []
        with contextlib.suppress(OSError):  # an earlier test's thread may have just ended
            lines = status.read_text().splitlines()
        total += sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt"))
    return total


def test_an_idle_job_sleeps():
    """A thread that wakes every millisecond would sleep two thousand times."""
    hvd.barrier()
    before, began = switches(), time.monotonic()
    time.sleep(2.0)
    assert switches() - before < 500 * (time.monotonic() - began)
    hvd.barrier()


def test_join_takes_a_process_set():
    both = hvd.add_process_set([0, 1])
    try:
        assert int(hvd.join(process_set=both)) in (0, 1)
    finally:
        hvd.remove_process_set(both)


def test_received_splits_without_splits(size):
    @tf.function
    def exchange(x):
        return _native.ops.horovod_alltoall(x, tf.constant([], tf.int32))

    x = tf.zeros([2 * size])
    static = exchange.get_concrete_function(x).structured_outputs[1].shape
    assert static.rank == 1
    assert static[0] in (None, size)
    assert exchange(x)[1].numpy().tolist() == [2, 2]


@pytest.mark.parametrize("way", ["rows", "dense"])
def test_integer_slices_are_averaged_as_integers(rank, size, way):
    """Horovod divides them with `/`, which gives float64."""
    part = tf.IndexedSlices(tf.constant([[rank + 2, -3]]), tf.constant([0]), tf.constant([2, 2]))
    result = hvd.allreduce(part, sparse=way)
    assert result.values.dtype == tf.int32
    dense = hvd.allreduce(tf.constant([[rank + 2, -3]]))
    assert result.values.numpy().tolist() == dense.numpy().tolist() == [[2, -3]]


def test_v1_passes_in_eager_mode(rank, size):
    variable = tf.Variable([0.0])
    optimizer = hvd.DistributedOptimizer(
        tf.compat.v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=2
    )
    for _ in range(2):
        pairs = optimizer.compute_gradients(lambda: variable * (1.0 + rank), [variable])
        optimizer.apply_gradients(pairs)
    assert variable.numpy().tolist() == [-3.0]


def test_v1_passes_count_updates(rank):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        step = tf.compat.v1.train.get_or_create_global_step()
        variable = tf.compat.v1.get_variable("v", initializer=[0.0])
        optimizer = hvd.DistributedOptimizer(
            tf.compat.v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=2
        )
        train = optimizer.minimize(variable * (1.0 + rank), global_step=step)
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(tf.compat.v1.local_variables_initializer())
        for _ in range(4):
            session.run(train)
        assert session.run(step) == 2


@pytest.mark.parametrize("single", [True, False])
def test_duplicate_rows_are_summed_before_keras_squares_them(rank, single):
    members = hvd.ProcessSet([0]), hvd.ProcessSet([1])
    for one in members:
        hvd.add_process_set(one)
    try:
        options = {"process_set": members[rank]} if single else {}
        table, whole = (keras.Variable(np.zeros([3, 1], "float32")) for _ in range(2))
        optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.5), **options)
        slices = tf.IndexedSlices(
            tf.constant([[1.0], [2.0]]), tf.constant([1, 1]), tf.constant([3, 1])
        )
        plain = keras.optimizers.Adam(0.5)
        for _ in range(2):
            optimizer.apply_gradients([(slices, table)])
            plain.apply_gradients([(tf.constant([[0.0], [3.0], [0.0]]), whole)])
        np.testing.assert_allclose(table.numpy(), whole.numpy(), rtol=1e-6)
    finally:
        for one in members:
            hvd.remove_process_set(one)


@pytest.mark.jobs(1, 2)
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("local", [False, True])
def test_a_tape_of_a_single_rank_sums_duplicate_rows(rank, size, compiled, local):
    """global_clipnorm showed it: the norm of duplicate rows differs from that of their sum."""
    members = [hvd.add_process_set([r]) for r in range(size)] if size > 1 else []
    mine = members[rank] if members else hvd.global_process_set
    table = tf.Variable(tf.zeros([4, 1]))

    def gradient():
        with tf.GradientTape() as tape:
            rows = tf.gather(table, [3, 1, 3])
            loss = tf.reduce_sum(rows * [[1.0], [2.0], [4.0]])
        tape = hvd.DistributedGradientTape(tape, process_set=mine)
        if local:
            tape.register_local_source(table)
        return tape.gradient(loss, table)

    try:
        found = (tf.function(gradient) if compiled else gradient)()
    finally:
        for each in members:
            hvd.remove_process_set(each)
    assert found.indices.numpy().tolist() == [1, 3]
    assert found.values.numpy().tolist() == [[2.0], [5.0]]


@pytest.mark.parametrize(
    ("group", "requests"), [(hvd.grouped_allgather, 2), (hvd.grouped_reducescatter, 1)]
)
def test_the_gradient_of_a_group_is_one_request(group, requests):
    """allgather needs one more, for the numbers of rows."""
    xs = [tf.ones([2]), tf.ones([4])]
    with tf.GradientTape() as tape:
        tape.watch(xs)
        ys = group(xs)
    before = _native.library.tf_hvd_submitted_count()
    tape.gradient(ys, xs)
    assert _native.library.tf_hvd_submitted_count() - before == requests
