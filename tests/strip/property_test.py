"""Random graphs with tf_hvd's ops among others: stripping does not change their results."""

import numpy as np
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

v1 = tf.compat.v1
FACTORS = st.sampled_from([1.0, 0.1, -2.5, 1e3])
DTYPES = st.sampled_from(["float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8"])


def scales(draw):
    return {"prescale_factor": draw(FACTORS), "postscale_factor": draw(FACTORS)}


def collective(ops, draw, known):
    """One of tf_hvd's ops on existing tensors."""
    kind = draw(st.integers(0, 8))
    x = draw(st.sampled_from(known))
    like = [t for t in known if t.dtype == x.dtype]
    group = draw(st.lists(st.sampled_from(like), min_size=1, max_size=3))
    reduce_op = draw(st.sampled_from([0, 1, 3, 4, 5]))
    calls = [
        lambda: [ops.horovod_allreduce(x, reduce_op=reduce_op, **scales(draw))],
        lambda: ops.horovod_grouped_allreduce(group, [], reduce_op=reduce_op, **scales(draw)),
        lambda: [ops.horovod_allgather(x)],
        lambda: ops.horovod_grouped_allgather(group, []),
        lambda: [ops.horovod_broadcast(x, root_rank=0)],
        lambda: [ops.horovod_reducescatter(x, reduce_op=reduce_op, **scales(draw))],
        lambda: ops.horovod_grouped_reducescatter(group, reduce_op=reduce_op, **scales(draw)),
        lambda: list(ops.horovod_alltoall(x, tf.constant(draw(SPLITS), tf.int32)))[:1],
        lambda: [x * tf.cast(ops.horovod_size() + ops.horovod_rank(), x.dtype)],
    ]
    return calls[kind]()


SPLITS = st.sampled_from([[], [2], [4]])


def ordinary(ops, draw, known):
    """One TensorFlow op, sometimes with a collective in a branch, a loop or a function."""
    kind = draw(st.integers(0, 4))
    x, y = draw(st.sampled_from(known)), draw(st.sampled_from(known))
    if kind == 0:
        return [x + tf.cast(y, x.dtype)]
    if kind == 1:
        with tf.control_dependencies([y]):
            return [tf.identity(x)]
    if kind == 2:
        taken = v1.placeholder_with_default(draw(st.booleans()), [])
        return [tf.cond(taken, lambda: collective(ops, draw, [x])[0], lambda: x - x)]
    if kind == 3:
        body = collective_body(ops, scales(draw))
        return [tf.while_loop(lambda i, _: i < 3, body, [0, x])[1]]
    return [tf.function(lambda t: ops.horovod_allgather(t) + ops.horovod_broadcast(t, 0))(x)]


def collective_body(ops, factors):
    def body(i, x):
        result = ops.horovod_allreduce(x, reduce_op=1, **factors)
        result.set_shape(x.shape)
        return i + 1, result

    return body


@st.composite
def graphs(draw, ops):
    """Tensors of a random graph, in the current graph."""
    known = []
    for _ in range(2):
        dtype = tf.as_dtype(draw(DTYPES))
        numbers = draw(st.lists(st.integers(0, 9), min_size=8, max_size=8))
        data = np.array(numbers).reshape(4, 2).astype(dtype.as_numpy_dtype)
        known.append(v1.placeholder_with_default(tf.constant(data), [4, 2]))
    known += collective(ops, draw, known)
    for _ in range(draw(st.integers(1, 6))):
        make = draw(st.sampled_from([collective, ordinary]))
        made = make(ops, draw, [t for t in known if t.shape.rank == 2])
        # There may be fewer rows now; the following ops need four again.
        known += [tf.concat([t, t, t[:0]], 0) if t.shape[0] == 2 else t for t in made]
    return known


@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_stripped_graphs_compute_the_same(check_stripped, ops, data):
    switch = v1.enable_control_flow_v2 if data.draw(st.booleans()) else v1.disable_control_flow_v2
    switch()
    try:
        check_stripped(lambda: data.draw(graphs(ops)))
    finally:
        v1.enable_control_flow_v2()
