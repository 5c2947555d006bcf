"""tf_hvd for Keras 3 and tf_keras. `import tf_hvd.keras as hvd`.

Names only; each is documented where it is defined. Importing the package makes
Keras call the guard (tf_hvd.keras.patches).
"""

import importlib
from typing import Any

from tf_hvd.collectives.compression import Compression
from tf_hvd.collectives.objects import allgather_object, broadcast_object
from tf_hvd.collectives.reduce_ops import Adasum, Average, Max, Min, Product, Sum
from tf_hvd.collectives.variables import broadcast_variables
from tf_hvd.core.basics import (
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
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    rocm_built,
    shutdown,
    size,
)
from tf_hvd.core.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from tf_hvd.core.timeline import start_timeline, stop_timeline
from tf_hvd.keras import patches
from tf_hvd.keras.adapted import adapt, broadcast_adapted
from tf_hvd.keras.guard import check_weights
from tf_hvd.keras.models import load_model
from tf_hvd.keras.optimizer import DistributedOptimizer, PartialDistributedOptimizer
from tf_hvd.keras.sync_batch_norm import SyncBatchNormalization
from tf_hvd.keras.value_collectives import (
    allgather,
    allreduce,
    broadcast,
    broadcast_global_variables,
    reducescatter,
)
from tf_hvd.training.guard import GuardError, unguarded

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "GuardError",
    "Max",
    "Min",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNormalization",
    "adapt",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "broadcast",
    "broadcast_adapted",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "ccl_built",
    "check_weights",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
    "unguarded",
]

# Modules that import Keras: loaded when they are asked for.
_SUBMODULES = ("callbacks",)


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


patches.install()
