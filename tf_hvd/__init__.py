"""tf_hvd: data-parallel training for TensorFlow. `import tf_hvd as hvd`.

Names only; each is documented where it is defined. Importing the package loads
the native library and so registers its ops.
"""

import importlib.util
import pathlib
import sys
import typing

from tf_hvd.core.absent import ABSENT

__all__ = [
    "Adasum",
    "Average",
    "BF16Compressor",
    "BroadcastGlobalVariablesHook",
    "Compression",
    "Compressor",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "FP16Compressor",
    "GradientAggregation",
    "HorovodInitError",
    "HorovodInternalError",
    "HorovodVersionMismatchError",
    "Max",
    "MetricsHook",
    "Min",
    "MonitoredTrainingSession",
    "NoneCompressor",
    "PartialDistributedGradientTape",
    "PowerSGD",
    "ProcessSet",
    "Product",
    "RankError",
    "Sum",
    "SyncBatchNormalization",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "ccl_built",
    "check_extension",
    "check_num_rank_power_of_2",
    "cross_rank",
    "cross_rank_op",
    "cross_size",
    "cross_size_op",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "gpu_available",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "handle_average_backwards_compatibility",
    "init",
    "install_as_horovod",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "metrics",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included_op",
    "rank",
    "rank_op",
    "reducescatter",
    "refs_to_vars",
    "remove_process_set",
    "rocm_built",
    "run",
    "shard",
    "shutdown",
    "size",
    "size_op",
    "split_list",
    "start_timeline",
    "steps_per_epoch",
    "stop_timeline",
    "strip_ops",
    "vars_to_refs",
]


def _is_command_line() -> bool:
    """Whether this process is one of our commands, which start without TensorFlow."""
    program = sys.argv[0] if sys.argv else ""
    modules = {
        "tf_hvd.launch.main",
        "tf_hvd.launch.elastic_start",
        "tf_hvd.horovod.horovodrun",
        "tf_hvd.horovod.names",
    }
    as_module = program == "-m" and not modules.isdisjoint(sys.orig_argv)
    return as_module or pathlib.Path(program).name in {"tf_hvd", "horovodrun"}


if not typing.TYPE_CHECKING:  # to mypy it would say that there is every name

    def __getattr__(name: str) -> typing.Any:
        if name == "elastic":
            return importlib.import_module("tf_hvd.elastic")
        if name == "on_preemption":
            return importlib.import_module("tf_hvd.elastic").on_preemption
        why = f": {ABSENT[name]}" if name in ABSENT else ""
        raise AttributeError(f"module 'tf_hvd' has no attribute {name!r}{why}")


if not _is_command_line():
    if "tensorflow" not in sys.modules and importlib.util.find_spec("tensorflow") is None:
        raise ModuleNotFoundError(
            f"{sys.executable} has tf_hvd, but no TensorFlow: pip install 'tf_hvd[cpu]' (or "
            "tf_hvd[gpu]), or start the program with the Python that has both",
            name="tensorflow",
        )
    # The first registers the derivatives; with the second the guard watches Keras.
    from tf_hvd import keras  # noqa: F401
    from tf_hvd.collectives import gradients  # noqa: F401
    from tf_hvd.collectives.collectives import (
        allgather,
        allreduce,
        alltoall,
        barrier,
        broadcast,
        grouped_allgather,
        grouped_allreduce,
        grouped_reducescatter,
        join,
        reducescatter,
    )
    from tf_hvd.collectives.compression import (
        BF16Compressor,
        Compression,
        Compressor,
        FP16Compressor,
        NoneCompressor,
    )
    from tf_hvd.collectives.objects import allgather_object, broadcast_object, broadcast_object_fn
    from tf_hvd.collectives.powersgd import PowerSGD
    from tf_hvd.collectives.reduce_ops import Adasum, Average, Max, Min, Product, Sum
    from tf_hvd.collectives.variables import (
        broadcast_,
        broadcast_global_variables,
        broadcast_variables,
    )
    from tf_hvd.core._native import build_info
    from tf_hvd.core.basics import (
        ccl_built,
        cross_rank,
        cross_rank_op,
        cross_size,
        cross_size_op,
        cuda_built,
        ddl_built,
        gloo_built,
        gloo_enabled,
        init,
        is_homogeneous,
        is_initialized,
        local_rank,
        local_rank_op,
        local_size,
        local_size_op,
        mpi_built,
        mpi_enabled,
        mpi_threads_supported,
        nccl_built,
        process_set_included_op,
        rank,
        rank_op,
        rocm_built,
        shutdown,
        size,
        size_op,
    )
    from tf_hvd.core.exceptions import (
        HorovodInitError,
        HorovodInternalError,
        HorovodVersionMismatchError,
    )
    from tf_hvd.core.process_sets import (
        ProcessSet,
        add_process_set,
        global_process_set,
        remove_process_set,
    )
    from tf_hvd.horovod.helpers import (
        check_extension,
        check_num_rank_power_of_2,
        gpu_available,
        handle_average_backwards_compatibility,
        refs_to_vars,
        split_list,
        vars_to_refs,
    )
    from tf_hvd.horovod.names import install_as_horovod
    from tf_hvd.keras.any_optimizer import DistributedOptimizer
    from tf_hvd.keras.sync_batch_norm import SyncBatchNormalization
    from tf_hvd.launch.run_function import RankError, run
    from tf_hvd.observe.metrics import metrics
    from tf_hvd.observe.timeline import start_timeline, stop_timeline
    from tf_hvd.strip import strip_ops
    from tf_hvd.training.aggregation import GradientAggregation
    from tf_hvd.training.data import shard, steps_per_epoch
    from tf_hvd.training.gradient_tape import (
        DistributedGradientTape,
        PartialDistributedGradientTape,
    )
    from tf_hvd.training.session_hooks import (
        BroadcastGlobalVariablesHook,
        MetricsHook,
        MonitoredTrainingSession,
    )

    __version__: str = build_info.VERSION

    # Pickles of their objects name the package alone, and outlive a move within it.
    for _public in [globals()[_name] for _name in __all__]:
        if isinstance(_public, type) and not _public.__module__.startswith("tf_hvd.keras"):
            _public.__module__ = "tf_hvd"
