"""barrier and join: no rank continues before all have arrived."""

import numpy as np
import pytest
import tensorflow as tf

import tf_hvd as hvd


@pytest.fixture
def arrivals(tmp_path, size):
    """A shared folder; each rank creates a file there when it arrives."""
    folder = hvd.broadcast_object(str(tmp_path))

    class Arrivals:
        def arrive(self, step):
            open(f"{folder}/{step}_{hvd.rank()}", "w").close()

        def count(self, step):
            return len(tf.io.gfile.glob(f"{folder}/{step}_*"))

    return Arrivals()


def test_no_rank_leaves_a_barrier_early(arrivals, size):
    for step in range(5):
        arrivals.arrive(step)
        assert hvd.barrier() is None
        assert arrivals.count(step) == size
        hvd.barrier(name="again")  # otherwise the next file could exist before the check


def test_barrier_in_a_function_runs_in_order(arrivals, size):
    """It runs between the two calls around it, although its result is unused."""

    @tf.function
    def function():
        tf.py_function(lambda: arrivals.arrive("f"), [], [])
        hvd.barrier()
        return tf.py_function(lambda: arrivals.count("f"), [], tf.int32)

    assert int(function()) == size
    operations = [op.type for op in function.get_concrete_function().graph.get_operations()]
    assert operations.count("HorovodBarrier") == 1


def test_barrier_as_a_control_dependency_in_v1(arrivals, size):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        arrive = tf.compat.v1.py_func(lambda: arrivals.arrive("v1"), [], [])
        with tf.control_dependencies([arrive]):
            barrier = hvd.barrier(name="v1")
        assert isinstance(barrier, tf.Operation)
        with tf.control_dependencies([barrier]):
            count = tf.compat.v1.py_func(lambda: np.int32(arrivals.count("v1")), [], tf.int32)
        assert session.run(count) == size


@pytest.mark.not_compiled
def test_join_returns_the_last_rank(evaluate, rank, size):
    """Rank r has r more batches than rank 0; sums include the ranks that still have some."""
    for batch in range(rank + 1):
        total = hvd.allreduce(tf.constant([1.0]), op=hvd.Sum, name=f"batch_{batch}")
        assert total.numpy().tolist() == [size - batch]
    assert evaluate(lambda: hvd.join()) == size - 1


def test_join_returns_a_number(rank, size):
    result = hvd.join()
    assert (result.dtype, result.shape) == (tf.int32, [])
    assert 0 <= int(result) < size
    assert hvd.allgather_object(int(result)) == [int(result)] * size


def test_join_with_an_unused_result_runs(rank, size):
    """In a tf.function; afterwards the ranks work together as before."""

    @tf.function
    def end():
        hvd.join()

    for step in range(3):
        if rank == 0:
            total = hvd.allreduce(tf.constant(1), op=hvd.Sum, name=f"only_rank_0_{step}")
            assert int(total) == 1
        end()
        assert int(hvd.allreduce(tf.constant(1), op=hvd.Sum)) == size


@pytest.mark.ranks(2)
def test_operations_that_need_all_ranks_fail_during_join(rank):
    if rank == 0:
        with pytest.raises(tf.errors.FailedPreconditionError, match="join"):
            hvd.broadcast(tf.constant(1), 0, name="needs_all")
    hvd.join()
