"""tf_hvd: data-parallel training for TensorFlow. `import tf_hvd as hvd`.

Names only; each is documented where it is defined. Importing the package loads
the native library and so registers its ops.
"""

import pathlib
import sys

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
    "HorovodInitError",
    "HorovodInternalError",
    "HorovodVersionMismatchError",
    "Max",
    "Min",
    "NoneCompressor",
    "Product",
    "Sum",
    "allgather",
    "allgather_object",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allreduce",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "rank_op",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
]


def _is_command_line() -> bool:
    """Whether this process is the `tf_hvd` command, which starts without TensorFlow."""
    program = sys.argv[0] if sys.argv else ""
    as_module = program == "-m" and "tf_hvd.cli.main" in sys.orig_argv
    return as_module or pathlib.Path(program).name == "tf_hvd"


if not _is_command_line():
    from tf_hvd import gradients  # noqa: F401 - registers the derivatives
    from tf_hvd._native import build_info
    from tf_hvd.basics import (
        Adasum,
        Average,
        Max,
        Min,
        Product,
        Sum,
        ccl_built,
        cross_rank,
        cross_size,
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
        rank,
        rank_op,
        rocm_built,
        shutdown,
        size,
        size_op,
    )
    from tf_hvd.collectives import allgather, allreduce, broadcast, grouped_allreduce
    from tf_hvd.compression import (
        BF16Compressor,
        Compression,
        Compressor,
        FP16Compressor,
        NoneCompressor,
    )
    from tf_hvd.exceptions import (
        HorovodInitError,
        HorovodInternalError,
        HorovodVersionMismatchError,
    )
    from tf_hvd.gradient_tape import DistributedGradientTape
    from tf_hvd.hooks import BroadcastGlobalVariablesHook
    from tf_hvd.objects import allgather_object, broadcast_object
    from tf_hvd.optimizer import DistributedOptimizer
    from tf_hvd.process_sets import global_process_set
    from tf_hvd.variables import broadcast_global_variables, broadcast_variables

    __version__: str = build_info.VERSION
