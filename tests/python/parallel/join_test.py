"""Ranks with fewer batches leave by join; the others continue with zeros for them.

Rank r has r + 1 batches, so rank size - 1 is the last. In step s the ranks from s on
take part.
"""

import numpy as np
import pytest
import tensorflow as tf

import tf_hvd as hvd
from tf_hvd.collectives import sparse

ROWS = 50


@pytest.fixture(params=["eager", "function"])
def train(request, rank, size):
    """Calls a function of the step number for each of this rank's batches, then joins.

    In a tf.function all steps share one function: its requests' names repeat,
    and from the third time on the ranks agree on them by number. Returns the results.
    """

    def run(function):
        step_function = function
        if request.param == "function":
            step_function = tf.function(
                function, autograph=False, input_signature=[tf.TensorSpec([], tf.int32)]
            )
        results = [
            tf.nest.map_structure(lambda t: t.numpy(), step_function(tf.constant(step)))
            for step in range(rank + 1)
        ]
        assert int(hvd.join()) == size - 1
        return results

    return run


def present(step, size):
    """The ranks that have a batch in this step."""
    return range(step, size)


def test_dense_tensors_after_a_join(train, rank, size):
    def function(step):
        mine = tf.cast([rank + 1, step], tf.float32)
        return [
            hvd.allreduce(mine, op=hvd.Sum, name="sum"),
            hvd.allreduce(mine, op=hvd.Average, name="average"),
            hvd.allgather(tf.fill([rank % 2 + 1], rank), name="gather"),
        ]

    for step, (total, average, gathered) in enumerate(train(function)):
        there = present(step, size)
        wanted = np.float32([sum(r + 1 for r in there), step * len(there)])
        np.testing.assert_array_equal(total, wanted)
        # Divided by the total number of ranks, including those that have left.
        np.testing.assert_array_equal(average, wanted / np.float32(size))
        assert gathered.tolist() == [r for r in there for _ in range(r % 2 + 1)]


def test_groups_after_a_join(train, rank, size):
    def function(step):
        tensors = [tf.fill([2], rank + 1), tf.cast(step, tf.int32), tf.fill([1], float(rank))]
        return hvd.grouped_allreduce(tensors, op=hvd.Sum, name="group")

    for step, (ones, steps, ranks) in enumerate(train(function)):
        there = present(step, size)
        assert ones.tolist() == [sum(r + 1 for r in there)] * 2
        assert steps == step * len(there)
        assert ranks.tolist() == [float(sum(there))]


def slices(rank, step, count):
    """`count` rows from row `rank` on, twice."""
    indices = tf.tile(tf.range(rank, rank + count, dtype=tf.int64), [2])
    values = tf.ones([2 * count, 3]) * tf.cast(step + 1, tf.float32)
    return tf.IndexedSlices(values, indices, tf.constant([ROWS, 3], tf.int64))


@pytest.mark.parametrize("way", ["rows", "dense", "auto"])
@pytest.mark.parametrize("count", [1, 40])
def test_slices_after_a_join(train, monkeypatch, rank, size, way, count):
    """Few rows and many, so that "auto" uses both ways."""
    monkeypatch.setattr(sparse, "SMALL_BYTES", 0)

    def function(step):
        part = slices(rank, step, count)
        result = hvd.allreduce(part, op=hvd.Sum, sparse=way, name="slices")
        single, mixed = hvd.grouped_allreduce(
            [tf.constant(1), part], op=hvd.Average, sparse=way, name="mixed"
        )
        return result.values, result.indices, single, mixed.values, mixed.indices

    for step, (values, indices, single, means, places) in enumerate(train(function)):
        dense = np.zeros((ROWS, 3), np.float32)
        for r in present(step, size):
            dense[r : r + count] += 2 * (step + 1)
        wanted = np.flatnonzero(dense[:, 0])
        np.testing.assert_array_equal(indices, wanted)
        np.testing.assert_array_equal(places, wanted)
        np.testing.assert_array_equal(values, dense[wanted])
        np.testing.assert_array_equal(means, dense[wanted] / np.float32(size))
        assert single == len(present(step, size)) // size


def test_join_before_any_other_call(rank, size):
    """Only rank 0 works, with names that the others have never used."""
    if rank == 0:
        for step in range(3):
            total = hvd.allreduce(tf.constant([2.5]), op=hvd.Sum, name=f"new_{step}")
            assert total.numpy().tolist() == [2.5]
        assert hvd.allgather(tf.constant([[7]]), name="new_rows").numpy().tolist() == [[7]]
    last = int(hvd.join())
    assert last == 0 if size == 1 else 0 <= last < size
    assert hvd.allgather_object(last) == [last] * size


@pytest.mark.ranks(2)
def test_allgather_object_fails_after_a_join(rank, size):
    if rank == 0:
        hvd.join()
    else:
        with pytest.raises(RuntimeError, match=rf"1 of the {size} ranks have called join\(\)"):
            hvd.allgather_object(rank)
        hvd.join()
    assert hvd.allgather_object(rank) == list(range(size))


def test_repeated_joins(rank, size):
    """The rank with most batches changes between rounds; other collectives work in between."""
    for turn in range(2 * size):
        longest = turn % size
        batches = 3 if rank == longest else 1
        for step in range(batches):
            total = int(hvd.allreduce(tf.constant(1), op=hvd.Sum, name="batch"))
            assert total == (size if step == 0 else 1)
        assert int(hvd.join()) == longest
        assert hvd.broadcast_object(turn) == turn
        hvd.barrier()


@pytest.mark.parametrize("compiled", [False, True])
def test_training_loop(rank, size, compiled):
    """Embedding and dense layer under a DistributedGradientTape, SGD in whole numbers."""
    table, weights = tf.Variable(tf.zeros([6, 2])), tf.Variable(tf.zeros([2]))

    def step(index):
        with hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Sum) as tape:
            rows = tf.gather(table, index)
            loss = tf.reduce_sum(rows) + tf.reduce_sum(weights) * 2.0
        gradients = tape.gradient(loss, [table, weights])
        optimizer.apply_gradients(zip(gradients, [table, weights], strict=True))

    optimizer = tf.keras.optimizers.SGD(1.0)
    optimizer.build([table, weights])
    step = tf.function(step, autograph=False) if compiled else step
    dataset = hvd.shard(tf.data.Dataset.range(size + 1), uneven="keep").batch(1)
    for epoch in range(2):
        for batch in dataset:
            step(batch)
        assert 0 <= int(hvd.join()) < size
        used = 1 + epoch
        expected = np.zeros((6, 2), np.float32)
        expected[: size + 1] = -used
        # Ranks that left early did not make the last update: the last rank sends it.
        hvd.broadcast_variables([table, weights], root_rank=0)
        np.testing.assert_array_equal(table.numpy(), expected)
        np.testing.assert_array_equal(weights.numpy(), np.float32([-2.0 * (size + 1) * used] * 2))
