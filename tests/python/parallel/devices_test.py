"""The device of collectives: `device_dense`, `device_sparse`, and functions about GPUs.

The software GPU (tests/gpu/software_device_test.py) gives two devices, otherwise there is one. The
devices that a traced graph requests can be checked without a GPU.
"""

import os

import numpy as np
import pytest
import tensorflow as tf

import tf_hvd as hvd
from tf_hvd.horovod import helpers

CPU, GPU = "/device:CPU:0", "/device:GPU:0"
OTHER = {CPU: GPU, GPU: CPU}
THERE = [f"/device:{d.device_type}:0" for d in tf.config.list_logical_devices()]


def ops_of(function, *arguments):
    """tf_hvd's collectives in the function's graph."""
    graph = tf.function(function).get_concrete_function(*arguments).graph
    ops = [op for op in graph.get_operations() if op.type.startswith("Horovod")]
    # Ops that return a rank or a size move no data.
    found = [op for op in ops if any(i.dtype.is_floating for i in op.inputs)]
    assert found
    return found


def collectives(function, *arguments):
    """The device that each of our collectives requests in the function's graph, by its type."""
    return {(op.type, op.device) for op in ops_of(function, *arguments)}


def slices():
    return tf.IndexedSlices(tf.ones([2, 3]), tf.constant([0, 2]), tf.constant([4, 3]))


@pytest.mark.parametrize("device", [CPU, GPU])
@pytest.mark.parametrize(
    ("type_of_op", "call"),
    [
        ("HorovodAllreduce", lambda x, d: hvd.allreduce(x, device_dense=d)),
        ("HorovodAllreduce", lambda x, d: hvd.allreduce(x, device_dense=d, op=hvd.Max)),
        ("HorovodGroupedAllreduce", lambda x, d: hvd.grouped_allreduce([x, x], device_dense=d)),
        ("HorovodReducescatter", lambda x, d: hvd.reducescatter(x, device_dense=d)),
        (
            "HorovodGroupedReducescatter",
            lambda x, d: hvd.grouped_reducescatter([x, x], device_dense=d),
        ),
    ],
)
def test_device_dense_places_the_op(type_of_op, call, device):
    x = tf.TensorSpec([4, 2])

    def elsewhere(x, asked):
        with tf.device(OTHER[device]):
            return call(x, asked)

    assert collectives(lambda x: elsewhere(x, device), x) == {(type_of_op, device)}
    assert collectives(lambda x: elsewhere(x, ""), x) == {(type_of_op, OTHER[device])}


@pytest.mark.parametrize("device", [CPU, GPU])
@pytest.mark.parametrize("way", ["rows", "dense"])
def test_device_sparse_places_rows_and_their_sums(way, device):
    def call(**devices):
        with tf.device(GPU):
            result = hvd.allreduce(slices(), op=hvd.Sum, sparse=way, **devices)
        return result.values, result.indices

    asked = collectives(lambda: call(device_sparse=device, device_dense=OTHER[device]))
    assert {where for _, where in asked} == {device}
    # Sums of duplicate rows are bitwise reproducible there.
    assert {where for _, where in collectives(lambda: call(device_dense=GPU))} == {CPU}


@pytest.fixture
def several_ranks(size):
    if size == 1:
        pytest.skip("one rank has no gradients to reduce")


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize("device", [CPU, GPU])
def test_gradients_of_a_tape(device):
    with tf.device(CPU):
        weights, table = tf.Variable(tf.ones([3])), tf.Variable(tf.ones([4, 3]))

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, [0, 1]) * weights)
        wrapped = hvd.DistributedGradientTape(
            tape, device_dense=device, device_sparse=OTHER[device], op=hvd.Sum
        )
        dense, rows = wrapped.gradient(loss, [weights, table])
        return dense, rows.values

    found = ops_of(step)
    assert {op.device for op in found if "/bucket_" in op.name} == {device}
    assert {op.device for op in found if "/slices" in op.name} == {OTHER[device]}


@pytest.mark.framework
@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize("device", [CPU, GPU])
def test_gradients_of_a_keras_optimizer(device):
    with tf.device(CPU):
        optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.5), device_dense=device)
        weights = tf.Variable(tf.ones([3]))
        optimizer.build([weights])

        def step():
            optimizer.apply_gradients([(tf.ones([3]), weights)])

        assert {where for _, where in collectives(step)} == {device}


@pytest.mark.framework
@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize("device", [CPU, GPU])
def test_gradients_of_a_v1_optimizer(device):
    with tf.Graph().as_default() as graph, tf.device(CPU):
        optimizer = hvd.DistributedOptimizer(
            tf.compat.v1.train.GradientDescentOptimizer(0.5), device_dense=device
        )
        weights = tf.compat.v1.get_variable("w", initializer=tf.ones([3]), use_resource=True)
        optimizer.compute_gradients(tf.reduce_sum(weights * weights), [weights])
        moved = [op for op in graph.get_operations() if op.type == "HorovodGroupedAllreduce"]
        assert {op.device for op in moved} == {device}


@pytest.mark.parametrize("device", THERE)
@pytest.mark.parametrize("start", THERE)
def test_results_are_on_the_requested_device(start, device):
    with tf.device(start):
        x = tf.identity(tf.constant(np.arange(6, dtype=np.float32) * (hvd.rank() + 1)))
    total = hvd.size() * (hvd.size() + 1) / 2
    for result in (
        hvd.allreduce(x, op=hvd.Sum, device_dense=device),
        hvd.grouped_allreduce([x], op=hvd.Sum, device_dense=device)[0],
    ):
        assert (result.device[-len(device) :], result.backing_device[-len(device) :]) == (
            device,
            device,
        )
        np.testing.assert_array_equal(result.numpy(), np.arange(6) * total)


def test_gpu_queries():
    assert helpers.gpu_available("tensorflow") == (GPU in THERE)
    assert hvd.cuda_built() == tf.test.is_built_with_cuda()
    if "TF_HVD_NCCL_LIBRARY" in os.environ:  # the software NCCL of tests/gpu/software_nccl.h
        assert hvd.nccl_built() == (0 if os.environ.get("TF_HVD_NCCL") == "0" else 22105)
