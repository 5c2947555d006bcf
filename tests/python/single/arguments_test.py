"""Invalid arguments of collectives: the error names the argument and the fix, before any op runs.

TensorFlow's own errors were "object of type 'RaggedTensor' has no len()" and "'int' object has no
attribute 'encode'"; `root_rank=0.5` was treated as 0.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_hvd as hvd
import tf_hvd.keras

hvd.init()

COLLECTIVES = {
    "allreduce": hvd.allreduce,
    "grouped_allreduce": lambda x, **options: hvd.grouped_allreduce([x], **options),
    "allgather": hvd.allgather,
    "grouped_allgather": lambda x, **options: hvd.grouped_allgather([x], **options),
    "broadcast": lambda x, **options: hvd.broadcast(x, 0, **options),
    "alltoall": hvd.alltoall,
    "reducescatter": hvd.reducescatter,
    "grouped_reducescatter": lambda x, **options: hvd.grouped_reducescatter([x], **options),
    "keras.allreduce": tf_hvd.keras.allreduce,
    "keras.allgather": tf_hvd.keras.allgather,
    "keras.broadcast": lambda x, **options: tf_hvd.keras.broadcast(x, 0, **options),
    "keras.reducescatter": tf_hvd.keras.reducescatter,
}
REDUCTIONS = ["allreduce", "grouped_allreduce", "reducescatter", "grouped_reducescatter"]
COMPOSITE = {
    "RaggedTensor": (lambda: tf.ragged.constant([[1.0], [2.0, 3.0]]), r"x\.to_tensor\(\)"),
    "SparseTensor": (lambda: tf.sparse.from_dense([[1.0, 0.0]]), r"tf\.sparse\.to_dense\(x\)"),
}


def eagerly(call):
    return call()


def in_function(call):
    return tf.function(call, autograph=False)()


def in_graph(call):
    with tf.Graph().as_default():
        return call()


MODES = pytest.mark.parametrize("mode", [eagerly, in_function, in_graph])
EVERY = pytest.mark.parametrize("collective", list(COLLECTIVES))


def refused(mode, call, text):
    with pytest.raises(TypeError, match=text):
        mode(call)


@MODES
@EVERY
@pytest.mark.parametrize("kind", list(COMPOSITE))
def test_composite_tensors_are_refused(mode, collective, kind):
    make, cure = COMPOSITE[kind]
    refused(mode, lambda: COLLECTIVES[collective](make()), f"not a {kind}; pass {cure}")


@MODES
@EVERY
@pytest.mark.parametrize("name", [5, b"loss", 0.5])
def test_a_name_must_be_a_string(mode, collective, name):
    text = f"name={name!r} is not a string; pass one"
    refused(mode, lambda: COLLECTIVES[collective](tf.ones([2]), name=name), text)


@MODES
@pytest.mark.parametrize("name", [5, b"loss"])
def test_names_of_other_functions_must_be_strings(mode, name):
    slices = tf.IndexedSlices([[1.0]], [0], [3, 1])
    for call in (
        lambda: hvd.barrier(name=name),
        lambda: hvd.allreduce(slices, name=name),
        lambda: hvd.grouped_allreduce([slices, tf.ones([2])], name=name),
        lambda: hvd.grouped_allreduce([tf.ones([2]), tf.ones([2], tf.int64)], name=name),
        lambda: hvd.broadcast_object(1, 0, name=name),
        lambda: hvd.broadcast_object_fn(0, name=name),
        lambda: hvd.allgather_object(1, name=name),
    ):
        refused(mode, call, "is not a string; pass one")


@MODES
@pytest.mark.parametrize("root", [0.5, 0.0, "0", None, [0]])
def test_a_root_must_be_an_integer(mode, root):
    text = r"root_rank=.* is not an integer; pass the number of a rank"
    for call in (
        lambda: hvd.broadcast(tf.ones([2]), root),
        lambda: tf_hvd.keras.broadcast(tf.ones([2]), root),
        lambda: hvd.broadcast_object(1, root),
        lambda: hvd.broadcast_object_fn(root),
    ):
        refused(mode, call, text)


@pytest.mark.parametrize("root", [0.5, 0.0, "0", None])
def test_a_root_of_variables_must_be_an_integer(root):
    variable = tf.Variable(1.0)
    for call in (
        lambda: hvd.broadcast_variables([variable], root),
        lambda: hvd.broadcast_variables([variable], root, inplace=True),
        lambda: hvd.broadcast_([variable], root),
    ):
        refused(eagerly, call, f"root_rank={root!r} is not an integer")


@MODES
def test_a_root_cannot_be_a_tensor(mode):
    if mode is eagerly:
        assert float(hvd.broadcast(tf.constant(2.0), tf.constant(0))) == 2.0
        return
    refused(mode, lambda: hvd.broadcast(tf.ones([2]), tf.constant(0)), "is not an integer; pass")


@MODES
@pytest.mark.parametrize("root", [0, np.int64(0), np.int32(0)])
def test_numpy_integers_are_valid_roots(mode, root):
    mode(lambda: hvd.broadcast(tf.ones([2]), root))
    assert hvd.broadcast_object("a", root) == "a"


@MODES
@pytest.mark.parametrize("collective", REDUCTIONS)
@pytest.mark.parametrize("compression", ["fp16", None, tf.float16])
def test_invalid_compression_is_refused(mode, collective, compression):
    text = "compression=.* cannot compress; pass hvd.Compression.none"
    call = COLLECTIVES[collective]
    refused(mode, lambda: call(tf.ones([2]), compression=compression), text)


def test_invalid_compression_of_gradients_is_refused():
    for make in (
        lambda: hvd.DistributedGradientTape(tf.GradientTape(), compression="fp16"),
        lambda: tf_hvd.DistributedOptimizer(keras.optimizers.SGD(), compression="fp16"),
    ):
        refused(eagerly, make, "compression='fp16' cannot compress")


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("name", hvd.Compression.fp16, "name= must be a string.* by keyword"),
        ("use_locking", "/CPU:0", "use_locking= must be True or False"),
        ("process_set", [0], "is not a process set"),
        ("gradient_predivide_factor", 0, "factor=0 is not valid"),
    ],
)
def test_invalid_arguments_of_optimizers_and_tapes(name, value, text):
    option = {name: value}
    v1 = tf.compat.v1.train.GradientDescentOptimizer(0.1)
    for optimizer in (keras.optimizers.SGD(), v1):
        with pytest.raises(ValueError, match=text):
            hvd.DistributedOptimizer(optimizer, **option)
    if name not in ("name", "use_locking"):
        with pytest.raises(ValueError, match=text):
            hvd.DistributedGradientTape(tf.GradientTape(), **option)


def test_check_weights_steps_needs_a_keras_optimizer():
    v1 = tf.compat.v1.train.GradientDescentOptimizer(0.1)
    with pytest.raises(ValueError, match="check_weights_steps= is for Keras optimizers only"):
        hvd.DistributedOptimizer(v1, check_weights_steps=1)
    checked = hvd.DistributedOptimizer(keras.optimizers.SGD(), check_weights_steps=1)
    assert checked.horovod_distributed
