"""Each op's replacement computes the same as the op on one rank."""

import numpy as np
import pytest
import tensorflow as tf

from tf_hvd.collectives import scales
from tf_hvd.strip.rules import RULES, Meaning, meaning_of

v1 = tf.compat.v1
REAL = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
COMPLEX = ("complex64", "complex128")
FACTORS = ((1.0, 1.0), (0.1, 1.0), (1.0, -3.7), (1.1, 0.3), (1e30, 1e-30), (-2.0, 1e-3))


def values(name):
    """Numbers of a type, including the ends of its range."""
    dtype = tf.as_dtype(name)
    if dtype.is_bool:
        return np.array([True, False, True])
    if dtype.is_integer:
        limits = np.iinfo(dtype.as_numpy_dtype)
        numbers = [0, 1, 7, 100, limits.max, limits.max - 1, limits.min, limits.min // 2 + 3]
        return np.array(numbers, dtype.as_numpy_dtype)
    special = [0.0, -0.0, 1.0, -1.5, 3.14159, 1e4, np.inf, -np.inf, np.nan, -65000.0]
    if dtype.is_complex:
        return np.array([complex(a, b) for a in special for b in special], dtype.as_numpy_dtype)
    return np.array(special, dtype.as_numpy_dtype)


def reduced(ops, names, reduce_op, factors):
    return [
        ops.horovod_allreduce(
            v1.placeholder_with_default(tf.constant(values(name)), None),
            reduce_op=reduce_op,
            prescale_factor=factors[0],
            postscale_factor=factors[1],
            exact_factors=scales.exact(*factors),
            name=f"reduced_{name}",
        )
        for name in names
    ]


@pytest.mark.parametrize("factors", FACTORS)
def test_allreduce_of_each_type(check_stripped, ops, factors):
    names = (*REAL, *INTEGERS, *COMPLEX, "bool")
    check_stripped(lambda: reduced(ops, names, 1, factors))


@pytest.mark.parametrize("factors", FACTORS[:4])
@pytest.mark.parametrize("wire_dtype", ["float16", "bfloat16"])
def test_casts_by_the_op_are_rounded_too(check_stripped, ops, factors, wire_dtype):
    def build():
        x = v1.placeholder_with_default(tf.constant(values("float32")), None)
        options = {
            "prescale_factor": factors[0],
            "postscale_factor": factors[1],
            "exact_factors": scales.exact(*factors),
            "wire_dtype": wire_dtype,
        }
        whole = ops.horovod_allreduce(x, reduce_op=1, name="whole", **options)
        both = ops.horovod_grouped_allreduce([x, x[:3]], [], reduce_op=0, name="both", **options)
        rows = ops.horovod_reducescatter(x, reduce_op=1, name="rows", **options)
        return [whole, *both, rows]

    check_stripped(build)


@pytest.mark.parametrize("factor", [float("inf"), float("-inf"), float("nan"), 0.0])
def test_infinite_and_nan_factors(check_stripped, ops, factor):
    check_stripped(lambda: reduced(ops, (*REAL, *INTEGERS), 1, (factor, 1.0)))
    check_stripped(lambda: reduced(ops, (*REAL, *INTEGERS), 1, (0.5, factor)))


def test_the_step_of_an_optimizer_is_dropped(check_stripped, ops):
    def build():
        members = [tf.constant([1.5, -2.0]), tf.constant([7.0])]
        step = [tf.constant(7, tf.int64)]
        scales = {"prescale_factor": 0.5, "postscale_factor": 3.0}
        return [
            *ops.horovod_grouped_allreduce(members, step, reduce_op=0, **scales),
            *ops.horovod_grouped_allgather(members, step),
        ]

    for node in check_stripped(build).node:
        assert "stamp_count" not in node.attr
        if node.op == "IdentityN":
            assert len([edge for edge in node.input if edge[0] != "^"]) == 2


@pytest.mark.parametrize("splits", [[], [3], [2], [0]])
def test_alltoall(check_stripped, ops, splits):
    def build():
        x = tf.constant(np.arange(6).reshape(3, 2))
        given = v1.placeholder_with_default(tf.constant(splits, tf.int32), [None])
        return list(ops.horovod_alltoall(x, given))

    check_stripped(build)


def test_alltoall_with_too_many_rows_still_fails(evaluate_graph, ops):
    from tf_hvd.strip import strip_ops

    with tf.Graph().as_default() as graph:
        splits = v1.placeholder_with_default(tf.constant([4]), [None])
        ops.horovod_alltoall(tf.zeros([3, 2]), splits, name="exchange")
    stripped = strip_ops(graph.as_graph_def(), assume_single_process=True)
    with pytest.raises(tf.errors.InvalidArgumentError, match="exchange"):
        evaluate_graph(stripped, ["exchange:0"])


def test_scalars(check_stripped, ops):
    def build():
        return [
            ops.horovod_size(),
            ops.horovod_rank(),
            ops.horovod_local_size(),
            ops.horovod_local_rank(),
            ops.horovod_cross_size(),
            ops.horovod_cross_rank(),
            ops.horovod_process_set_included(),
            ops.horovod_join(),
        ]

    stripped = check_stripped(build)
    assert {node.op for node in stripped.node} == {"Const"}


def test_barrier_keeps_the_order(check_stripped, ops):
    def build():
        with tf.control_dependencies([tf.constant(1.0, name="before")]):
            barrier = ops.horovod_barrier(name="wait")
        with tf.control_dependencies([barrier]):
            return [tf.constant(2.0, name="after")]

    nodes = {node.name: node for node in check_stripped(build).node}
    assert (nodes["wait"].op, list(nodes["wait"].input)) == ("NoOp", ["^before"])
    assert list(nodes["after"].input) == ["^wait"]


@pytest.mark.parametrize("count", [1, 3])
def test_in_place_broadcast_of_references(ops, find_ours, count):
    from tf_hvd.strip import strip_ops

    with tf.Graph().as_default() as graph:
        variables = [
            v1.get_variable(f"v{i}", initializer=float(i), use_resource=False) for i in range(count)
        ]
        sources = [v1.assign(v, v + 10.0) for v in variables]
        sent = ops.horovod_broadcast_inplace(
            sources, root_rank=0, variable_names=[v.op.name for v in variables]
        )
        read = [tf.identity(one, name=f"read{i}") for i, one in enumerate(sent)]
        v1.global_variables_initializer()
    results = []
    for graph_def in (graph.as_graph_def(), strip_ops(graph.as_graph_def())):
        with tf.Graph().as_default() as loaded:
            tf.graph_util.import_graph_def(graph_def, name="")
        with v1.Session(graph=loaded) as session:
            session.run("init")
            results.append(session.run([tensor.name for tensor in read]))
    assert results == [[10.0 + i for i in range(count)]] * 2
    assert not find_ours(graph_def)


def test_in_place_broadcast_of_resources(check_stripped, ops):
    def build():
        variable = v1.get_variable("r", initializer=5.0, use_resource=True)
        with tf.control_dependencies([variable.initializer]):
            done = ops.horovod_broadcast_inplace_resource(
                [variable.handle], root_rank=0, variable_names=["r"]
            )
        with tf.control_dependencies([done]):
            return [variable.read_value()]

    check_stripped(build, assume_single_process=False)


def test_the_table_has_every_registered_op(ops):
    registered = {
        "Horovod" + name.removeprefix("Horovod") for name in dir(ops) if name.startswith("Horovod")
    }
    assert registered == set(RULES)


def test_graphs_of_old_horovod(ops):
    """Without reduce_op a reduction is a sum, and without factors it is not scaled."""
    from tf_hvd.strip import strip_ops

    graph = tf.compat.v1.GraphDef()
    graph.node.add(name="x", op="Placeholder").attr["dtype"].type = 1
    node = graph.node.add(name="y", op="HorovodAllreduce", input=["x"])
    node.attr["T"].type = 1
    assert meaning_of(node) == Meaning.JOB
    stripped = strip_ops(graph, assume_single_process=True)
    assert [(n.name, n.op) for n in stripped.node] == [("x", "Placeholder"), ("y", "Identity")]
