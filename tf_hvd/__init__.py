"""tf_hvd: data-parallel training for TensorFlow. `import tf_hvd as hvd`.

Names only; each is documented where it is defined. Importing the package loads
the native library and so registers its ops.
"""

import importlib.util
import sys
import types
import typing

if "tensorflow" not in sys.modules and importlib.util.find_spec("tensorflow") is None:
    raise ModuleNotFoundError(
        f"{sys.executable} has tf_hvd, but no TensorFlow: pip install 'tf_hvd[cpu]' (or "
        "tf_hvd[gpu]), or start the program with the Python that has both",
        name="tensorflow",
    )

# The names, each once: `as` says to type checkers that they are public. With keras the guard
# watches Keras; gradients registers the derivatives.
from tf_hvd import elastic as elastic
from tf_hvd import keras as keras
from tf_hvd.collectives import gradients as _gradients  # noqa: F401
from tf_hvd.collectives.collectives import allgather as allgather
from tf_hvd.collectives.collectives import allreduce as allreduce
from tf_hvd.collectives.collectives import alltoall as alltoall
from tf_hvd.collectives.collectives import barrier as barrier
from tf_hvd.collectives.collectives import broadcast as broadcast
from tf_hvd.collectives.collectives import grouped_allgather as grouped_allgather
from tf_hvd.collectives.collectives import grouped_allreduce as grouped_allreduce
from tf_hvd.collectives.collectives import grouped_reducescatter as grouped_reducescatter
from tf_hvd.collectives.collectives import join as join
from tf_hvd.collectives.collectives import reducescatter as reducescatter
from tf_hvd.collectives.compression import BF16Compressor as BF16Compressor
from tf_hvd.collectives.compression import Compression as Compression
from tf_hvd.collectives.compression import Compressor as Compressor
from tf_hvd.collectives.compression import FP16Compressor as FP16Compressor
from tf_hvd.collectives.compression import NoneCompressor as NoneCompressor
from tf_hvd.collectives.objects import allgather_object as allgather_object
from tf_hvd.collectives.objects import broadcast_object as broadcast_object
from tf_hvd.collectives.objects import broadcast_object_fn as broadcast_object_fn
from tf_hvd.collectives.powersgd import PowerSGD as PowerSGD
from tf_hvd.collectives.reduce_ops import Adasum as Adasum
from tf_hvd.collectives.reduce_ops import Average as Average
from tf_hvd.collectives.reduce_ops import Max as Max
from tf_hvd.collectives.reduce_ops import Min as Min
from tf_hvd.collectives.reduce_ops import Product as Product
from tf_hvd.collectives.reduce_ops import Sum as Sum
from tf_hvd.collectives.variables import broadcast_ as broadcast_
from tf_hvd.collectives.variables import broadcast_global_variables as broadcast_global_variables
from tf_hvd.collectives.variables import broadcast_variables as broadcast_variables
from tf_hvd.core import _native
from tf_hvd.core.absent import ABSENT as _ABSENT
from tf_hvd.core.basics import ccl_built as ccl_built
from tf_hvd.core.basics import cross_rank as cross_rank
from tf_hvd.core.basics import cross_rank_op as cross_rank_op
from tf_hvd.core.basics import cross_size as cross_size
from tf_hvd.core.basics import cross_size_op as cross_size_op
from tf_hvd.core.basics import cuda_built as cuda_built
from tf_hvd.core.basics import ddl_built as ddl_built
from tf_hvd.core.basics import gloo_built as gloo_built
from tf_hvd.core.basics import gloo_enabled as gloo_enabled
from tf_hvd.core.basics import init as init
from tf_hvd.core.basics import is_homogeneous as is_homogeneous
from tf_hvd.core.basics import is_initialized as is_initialized
from tf_hvd.core.basics import local_rank as local_rank
from tf_hvd.core.basics import local_rank_op as local_rank_op
from tf_hvd.core.basics import local_size as local_size
from tf_hvd.core.basics import local_size_op as local_size_op
from tf_hvd.core.basics import mpi_built as mpi_built
from tf_hvd.core.basics import mpi_enabled as mpi_enabled
from tf_hvd.core.basics import mpi_threads_supported as mpi_threads_supported
from tf_hvd.core.basics import nccl_built as nccl_built
from tf_hvd.core.basics import process_set_included_op as process_set_included_op
from tf_hvd.core.basics import rank as rank
from tf_hvd.core.basics import rank_op as rank_op
from tf_hvd.core.basics import rocm_built as rocm_built
from tf_hvd.core.basics import shutdown as shutdown
from tf_hvd.core.basics import size as size
from tf_hvd.core.basics import size_op as size_op
from tf_hvd.core.exceptions import HorovodInitError as HorovodInitError
from tf_hvd.core.exceptions import HorovodInternalError as HorovodInternalError
from tf_hvd.core.exceptions import HorovodVersionMismatchError as HorovodVersionMismatchError
from tf_hvd.core.metrics import metrics as metrics
from tf_hvd.core.process_sets import ProcessSet as ProcessSet
from tf_hvd.core.process_sets import add_process_set as add_process_set
from tf_hvd.core.process_sets import global_process_set as global_process_set
from tf_hvd.core.process_sets import remove_process_set as remove_process_set
from tf_hvd.core.timeline import start_timeline as start_timeline
from tf_hvd.core.timeline import stop_timeline as stop_timeline
from tf_hvd.horovod.helpers import check_extension as check_extension
from tf_hvd.horovod.helpers import check_num_rank_power_of_2 as check_num_rank_power_of_2
from tf_hvd.horovod.helpers import gpu_available as gpu_available
from tf_hvd.horovod.helpers import (
    handle_average_backwards_compatibility as handle_average_backwards_compatibility,
)
from tf_hvd.horovod.helpers import refs_to_vars as refs_to_vars
from tf_hvd.horovod.helpers import split_list as split_list
from tf_hvd.horovod.helpers import vars_to_refs as vars_to_refs
from tf_hvd.horovod.names import install_as_horovod as install_as_horovod
from tf_hvd.keras.adapted import adapt as adapt
from tf_hvd.keras.adapted import broadcast_adapted as broadcast_adapted
from tf_hvd.keras.any_optimizer import DistributedOptimizer as DistributedOptimizer
from tf_hvd.keras.sync_batch_norm import SyncBatchNormalization as SyncBatchNormalization
from tf_hvd.launch.job.run_function import RankError as RankError
from tf_hvd.launch.job.run_function import run as run
from tf_hvd.strip import strip_ops as strip_ops
from tf_hvd.training.aggregation import GradientAggregation as GradientAggregation
from tf_hvd.training.data import shard as shard
from tf_hvd.training.data import steps_per_epoch as steps_per_epoch
from tf_hvd.training.gradient_tape import DistributedGradientTape as DistributedGradientTape
from tf_hvd.training.gradient_tape import (
    PartialDistributedGradientTape as PartialDistributedGradientTape,
)
from tf_hvd.training.preemption import on_preemption as on_preemption
from tf_hvd.training.session_hooks import (
    BroadcastGlobalVariablesHook as BroadcastGlobalVariablesHook,
)
from tf_hvd.training.session_hooks import MetricsHook as MetricsHook
from tf_hvd.training.session_hooks import MonitoredTrainingSession as MonitoredTrainingSession

__version__: str = _native.build_info.VERSION

if not typing.TYPE_CHECKING:  # which reads it from the imports
    __all__ = sorted(
        name
        for name, value in globals().items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    )

    # Pickles of their objects name the package alone, and outlive a move within it.
    for _public in [globals()[_name] for _name in __all__]:
        if isinstance(_public, type) and not _public.__module__.startswith("tf_hvd.keras"):
            _public.__module__ = "tf_hvd"

    # To a type checker it would say that there is every name.
    def __getattr__(name: str) -> typing.Any:
        why = f": {_ABSENT[name]}" if name in _ABSENT else ""
        raise AttributeError(f"module 'tf_hvd' has no attribute {name!r}{why}")
