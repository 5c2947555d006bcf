"""What `tf_hvd.keras` has, of what horovod.keras and horovod.tensorflow.keras have."""

import inspect

import pytest

import tf_hvd.keras as hvd

HOROVOD = [
    "init",
    "shutdown",
    "is_initialized",
    "size",
    "local_size",
    "cross_size",
    "rank",
    "local_rank",
    "cross_rank",
    "is_homogeneous",
    "mpi_threads_supported",
    "mpi_enabled",
    "mpi_built",
    "gloo_enabled",
    "gloo_built",
    "nccl_built",
    "ddl_built",
    "ccl_built",
    "cuda_built",
    "rocm_built",
    "ProcessSet",
    "global_process_set",
    "Average",
    "Sum",
    "Adasum",
    "Compression",
    "DistributedOptimizer",
    "broadcast_global_variables",
    "allreduce",
    "allgather",
    "broadcast",
    "reducescatter",
    "load_model",
]


@pytest.mark.parametrize("name", HOROVOD)
def test_name_of_horovod(name):
    assert name in hvd.__all__
    assert hasattr(hvd, name)


@pytest.mark.parametrize("name", hvd.__all__)
def test_name_is_documented(name):
    value = getattr(hvd, name)
    if callable(value):
        assert inspect.getdoc(value)


def test_arguments_come_in_horovods_order():
    names = list(inspect.signature(hvd.DistributedOptimizer).parameters)
    assert names[:14] == [
        "optimizer",
        "name",
        "device_dense",
        "device_sparse",
        "compression",
        "sparse_as_dense",
        "gradient_predivide_factor",
        "op",
        "backward_passes_per_step",
        "average_aggregated_gradients",
        "num_groups",
        "groups",
        "process_set",
        "scale_local_gradients",
    ]
    names = list(inspect.signature(hvd.load_model).parameters)
    assert names[:5] == [
        "filepath",
        "custom_optimizers",
        "custom_objects",
        "compression",
        "legacy_opts",
    ]


def test_unknown_name():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = hvd.no_such_name
