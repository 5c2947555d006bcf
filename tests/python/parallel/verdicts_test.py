"""Calls with differences between ranks that a single record does not show: an error, no stall."""

import pytest
import tensorflow as tf

import tf_hvd as hvd

pytestmark = pytest.mark.ranks(2)
OURS = (tf.errors.FailedPreconditionError, tf.errors.InvalidArgumentError)


def expect_error(function, *parts):
    with pytest.raises(OURS) as caught:
        function()
    for part in parts:
        assert part in str(caught.value)
    assert hvd.allreduce(tf.constant([1.0]), op=hvd.Sum, name="next").numpy() == [hvd.size()]


def variables(count):
    return [tf.Variable([float(hvd.rank())]) for _ in range(count)]


@pytest.mark.parametrize("numbers", [(2, 3), (0, 1)])
def test_broadcast_of_different_numbers_of_variables(numbers):
    mine = variables(numbers[min(hvd.rank(), 1)])
    fewer = numbers[0]
    expect_error(
        lambda: hvd.broadcast_variables(mine, 0),
        f"rank 0 has 'end of the variables' as tensor {fewer}",
        f"rank 1 has 'variable {fewer}' as tensor {fewer}",
        "The ranks have different numbers of variables.",
    )
    assert all(value.numpy() == [hvd.rank()] for value in mine)


@pytest.mark.parametrize("inplace", [False, True])
def test_a_variable_of_another_shape_is_named(rank, inplace):
    """The request has only its number, because names may depend on the process."""
    mine = [tf.Variable([1.0], name="bias"), tf.Variable([1.0] * (2 + rank), name=f"kernel_{rank}")]
    expect_error(
        lambda: hvd.broadcast_variables(mine, 0, inplace=inplace),
        "rank 0 has float32[2]",
        f"must be the same on all ranks. On rank {rank} this is the variable 'kernel_{rank}'.",
    )


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("names", [("a", "b"), ("dense/kernel", "dense_1/kernel")])
def test_variables_of_one_shape_in_another_order_are_an_error(rank, names, inplace):
    """As `list(set(variables))` orders them: rank 1's would have been swapped silently."""
    mine = [tf.Variable([float(rank)], name=name) for name in names]
    listed = mine[::-1] if rank == 1 else mine
    expect_error(
        lambda: hvd.broadcast_variables(listed, 0, inplace=inplace),
        "the ranks list the same variables in different orders",
    )
    assert all(value.numpy() == [rank] for value in mine)
    hvd.broadcast_variables(mine, 0, inplace=inplace)  # still works, without a new comparison
    assert all(value.numpy() == [0.0] for value in mine)


@pytest.mark.parametrize("counted", ["dense_{}/kernel", "{}_of_a_loaded_model/dense/kernel"])
def test_different_names_on_the_ranks_are_not_an_error(rank, counted):
    mine = [tf.Variable([float(rank)], name=name) for name in ("a", counted.format(rank))]
    hvd.broadcast_variables(mine, 0)
    assert all(value.numpy() == [0.0] for value in mine)


@pytest.mark.parametrize("in_function", [False, True])
def test_an_unsupported_type_on_one_rank(in_function):
    value = tf.constant(["text"] * hvd.size()) if hvd.rank() == 1 else tf.ones([hvd.size()])
    calls = {
        "allreduce": lambda: hvd.allreduce(value, op=hvd.Sum, name="typed"),
        "allgather": lambda: hvd.allgather(value, name="typed"),
        "broadcast": lambda: hvd.broadcast(value, 0, name="typed"),
        "alltoall": lambda: hvd.alltoall(value, name="typed"),
    }
    for call in calls.values():
        expect_error(
            tf.function(call) if in_function else call,
            "no collective takes tensors of type string; send text as a Python object with broad",
        )
