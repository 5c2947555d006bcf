"""The native ops in a single-rank job, called as they are registered.

With one rank the outputs equal the inputs. A wrong call is refused with a text that
names the fault.
"""

import numpy as np
import pytest
import tensorflow as tf

import tf_hvd as hvd
from tf_hvd.core import _native

SUM, ADASUM = 1, 2
NONE = np.zeros([0], np.int32)

ops = _native.ops


@pytest.fixture(autouse=True)
def initialized():
    hvd.init()


def rows(dtype, shape=(3, 2)):
    count = int(np.prod(shape))
    return tf.cast(tf.reshape(tf.range(count), shape), dtype)


def same(result, expected):
    assert result.dtype == expected.dtype
    assert result.shape == expected.shape
    assert result.numpy().tobytes() == expected.numpy().tobytes()


def refused(text, function, *args, **attributes):
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        function(*args, **attributes)


def test_reducescatter_refuses_unsupported_ops():
    refused("Adasum", ops.horovod_reducescatter, [1.0], ADASUM, 1.0, 1.0)
    refused("invalid reduce_op 6", ops.horovod_reducescatter, [1.0], 6, 1.0, 1.0)
    refused("cannot compute Average of bool", ops.horovod_reducescatter, [True], 0, 1.0, 1.0)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: ops.horovod_allgather(x),
        lambda x: ops.horovod_alltoall(x, NONE),
        lambda x: ops.horovod_reducescatter(x, SUM, 1.0, 1.0),
    ],
)
def test_scalars_have_no_rows(call):
    refused(r"the tensor is a scalar, float32\[\], but must have", call, tf.constant(1.0))


def test_a_scalar_in_a_group_is_named():
    tensors = [tf.constant([1.0]), tf.constant(1.0)]
    refused(r"tensor 1 is a scalar", ops.horovod_grouped_allgather, tensors, [])
    refused(
        r"tensor 1 'b' is a scalar",
        ops.horovod_grouped_reducescatter,
        *(tensors, SUM, 1.0, 1.0),
        member_names=["a", "b"],
    )


def test_the_number_of_member_names_is_checked():
    x = tf.constant([1.0])
    attributes = {"member_names": ["a", "b", "c"]}
    text = "3 names for 2 tensors"
    refused(text, ops.horovod_grouped_allgather, [x, x], [], **attributes)
    refused(text, ops.horovod_grouped_allreduce, [x, x], [], SUM, 1.0, 1.0, **attributes)
    refused(text, ops.horovod_grouped_reducescatter, [x, x], SUM, 1.0, 1.0, **attributes)


def test_exact_factors_are_two():
    text = "exact_factors must have two numbers or none"
    refused(text, ops.horovod_allreduce, tf.constant([1.0]), SUM, 1.0, 1.0, exact_factors=[1])


def test_alltoall_sends_only_the_rows_of_its_splits():
    x = rows(tf.int32)
    for count in range(4):
        output, received = ops.horovod_alltoall(x, [count])
        same(output, x[:count])
        same(received, tf.constant([count]))


@pytest.mark.parametrize(
    ("splits", "text"),
    [
        (tf.constant(3), "splits has 0 dimensions; pass one dimension"),
        ([[3]], "splits has 2 dimensions; pass one dimension"),
        ([1, 2], "splits has 2 elements for 1 ranks"),
        ([-1], r"splits\[0\] is -1"),
        ([4], "splits add up to 4 rows, but the tensor has 3"),
    ],
)
def test_alltoall_refuses_splits_that_do_not_fit(splits, text):
    refused(text, ops.horovod_alltoall, rows(tf.float32), splits)


def test_barrier_and_join_of_one_rank_end_at_once():
    assert ops.horovod_barrier() is None
    last_rank = ops.horovod_join()
    same(last_rank, tf.constant(0))
    same(ops.horovod_allreduce([1.0], SUM, 1.0, 1.0), tf.constant([1.0]))


def inplace(*variables, root=0):
    names = [variable.name for variable in variables]
    ops.horovod_broadcast_inplace_resource([v.handle for v in variables], root, names)


def test_inplace_broadcast_keeps_the_roots_values():
    values = [
        tf.constant([[1.5, -0.0]]),
        tf.constant(7, tf.int64),
        tf.zeros([0]),
        tf.constant(True),
    ]
    variables = [tf.Variable(value) for value in values]
    inplace(*variables)
    for variable, value in zip(variables, values, strict=True):
        same(variable.read_value(), value)


def test_inplace_broadcast_after_a_sparse_update():
    variable = tf.Variable(tf.zeros([3, 2]))
    variable.scatter_add(tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1])))
    inplace(variable)
    assert variable.numpy().tolist() == [[0, 0], [1, 1], [0, 0]]


def test_inplace_broadcast_refuses_uninitialised_variables():
    variable = tf.Variable(1.0)
    missing = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[])
    function = ops.horovod_broadcast_inplace_resource
    refused("variable 'm': it has no value", function, [variable.handle, missing], 0, ["v", "m"])
    refused("variable 't': no collective takes tensors of type string",
            function, [tf.Variable("text").handle], 0, ["t"])  # fmt: skip
    refused("there is no rank 1", function, [variable.handle], 1, ["v"])
    refused("2 names for 1 tensors", function, [variable.handle], 0, ["v", "w"])


def test_inplace_broadcast_errors_name_the_variable():
    text = tf.Variable("text", name="greeting")
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"variable '.*greeting"):
        ops.horovod_broadcast_inplace_resource([text.handle], 0, [])


def test_inplace_broadcast_of_reference_variables():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        first = tf.compat.v1.get_variable("first", initializer=[1.0, 2.0], use_resource=False)
        second = tf.compat.v1.get_variable("second", initializer=3.0, use_resource=False)
        references = ops.horovod_broadcast_inplace(
            [first._ref(), second._ref()], 0, ["first", "second"]
        )
        session.run(first.initializer)
        with pytest.raises(tf.errors.InvalidArgumentError, match="'second': it has no value"):
            session.run(references)
        session.run(second.initializer)
        values = session.run(references)
        assert values[0].tolist() == [1.0, 2.0]
        assert values[1] == 3.0
        # The output is the variable itself.
        changed = tf.compat.v1.assign_add(references[0], [1.0, 1.0])
        session.run(changed)
        assert session.run(first).tolist() == [2.0, 3.0]


def test_an_unknown_process_set_is_an_error():
    text = "there is no process set 7"
    refused(text, ops.horovod_process_set_included, process_set_id=7)
    refused(text, ops.horovod_barrier, process_set_id=7)
    refused(text, ops.horovod_join, process_set_id=7)
    refused(text, ops.horovod_alltoall, [1.0], NONE, process_set_id=7)


def test_calls_before_init_fail():
    hvd.shutdown()
    try:
        for call in (
            ops.horovod_join,
            ops.horovod_barrier,
            ops.horovod_cross_rank,
            ops.horovod_process_set_included,
            lambda: ops.horovod_reducescatter([1.0], SUM, 1.0, 1.0),
            lambda: inplace(tf.Variable(1.0)),
        ):
            with pytest.raises(tf.errors.FailedPreconditionError, match="has been shut down"):
                call()
    finally:
        hvd.init()
