"""tf_hvd for Keras 3 and tf_keras. `import tf_hvd.keras as hvd`.

Names only; each is documented where it is defined. Importing the package makes
Keras call the guard (tf_hvd.keras.patches).
"""

import importlib
import types
import typing

# `as` says to type checkers that a name is public.
from tf_hvd.collectives.compression import Compression as Compression
from tf_hvd.collectives.objects import allgather_object as allgather_object
from tf_hvd.collectives.objects import broadcast_object as broadcast_object
from tf_hvd.collectives.reduce_ops import Adasum as Adasum
from tf_hvd.collectives.reduce_ops import Average as Average
from tf_hvd.collectives.reduce_ops import Max as Max
from tf_hvd.collectives.reduce_ops import Min as Min
from tf_hvd.collectives.reduce_ops import Product as Product
from tf_hvd.collectives.reduce_ops import Sum as Sum
from tf_hvd.collectives.variables import broadcast_variables as broadcast_variables
from tf_hvd.core.basics import ccl_built as ccl_built
from tf_hvd.core.basics import cross_rank as cross_rank
from tf_hvd.core.basics import cross_size as cross_size
from tf_hvd.core.basics import cuda_built as cuda_built
from tf_hvd.core.basics import ddl_built as ddl_built
from tf_hvd.core.basics import gloo_built as gloo_built
from tf_hvd.core.basics import gloo_enabled as gloo_enabled
from tf_hvd.core.basics import init as init
from tf_hvd.core.basics import is_homogeneous as is_homogeneous
from tf_hvd.core.basics import is_initialized as is_initialized
from tf_hvd.core.basics import local_rank as local_rank
from tf_hvd.core.basics import local_size as local_size
from tf_hvd.core.basics import mpi_built as mpi_built
from tf_hvd.core.basics import mpi_enabled as mpi_enabled
from tf_hvd.core.basics import mpi_threads_supported as mpi_threads_supported
from tf_hvd.core.basics import nccl_built as nccl_built
from tf_hvd.core.basics import rank as rank
from tf_hvd.core.basics import rocm_built as rocm_built
from tf_hvd.core.basics import shutdown as shutdown
from tf_hvd.core.basics import size as size
from tf_hvd.core.process_sets import ProcessSet as ProcessSet
from tf_hvd.core.process_sets import add_process_set as add_process_set
from tf_hvd.core.process_sets import global_process_set as global_process_set
from tf_hvd.core.process_sets import remove_process_set as remove_process_set
from tf_hvd.core.timeline import start_timeline as start_timeline
from tf_hvd.core.timeline import stop_timeline as stop_timeline
from tf_hvd.keras import patches
from tf_hvd.keras.adapted import adapt as adapt
from tf_hvd.keras.adapted import broadcast_adapted as broadcast_adapted
from tf_hvd.keras.guard import check_weights as check_weights
from tf_hvd.keras.models import load_model as load_model
from tf_hvd.keras.optimizer import DistributedOptimizer as DistributedOptimizer
from tf_hvd.keras.optimizer import PartialDistributedOptimizer as PartialDistributedOptimizer
from tf_hvd.keras.sync_batch_norm import SyncBatchNormalization as SyncBatchNormalization
from tf_hvd.keras.value_collectives import allgather as allgather
from tf_hvd.keras.value_collectives import allreduce as allreduce
from tf_hvd.keras.value_collectives import broadcast as broadcast
from tf_hvd.keras.value_collectives import broadcast_global_variables as broadcast_global_variables
from tf_hvd.keras.value_collectives import reducescatter as reducescatter
from tf_hvd.training.guard import GuardError as GuardError
from tf_hvd.training.guard import unguarded as unguarded

if not typing.TYPE_CHECKING:  # which reads it from the imports
    __all__ = sorted(
        name
        for name, value in globals().items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    )

# Modules that import Keras: loaded when they are asked for.
_SUBMODULES = ("callbacks",)


def __getattr__(name: str) -> typing.Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


patches.install()
