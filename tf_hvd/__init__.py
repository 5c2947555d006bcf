"""tf_hvd: data-parallel training for TensorFlow. Use it with `import tf_hvd as hvd`.

This module only collects names. They are documented where they are defined. Importing the package
loads the native library, which registers the ops.
"""

import importlib.util
import sys
import types
import typing

if "tensorflow" not in sys.modules and importlib.util.find_spec("tensorflow") is None:
    raise ModuleNotFoundError(
        f"{sys.executable} has tf_hvd but no TensorFlow: pip install 'tf_hvd[cpu]' (or "
        "tf_hvd[gpu]), or start the program with the Python that has both",
        name="tensorflow",
    )

# Imported first, because it reports a wheel built for another TensorFlow version. The other
# modules depend on TensorFlow's internals.
from tf_hvd.core import _native

# isort: split
# The names, each once: `as` marks them as public for type checkers. Importing keras makes the
# guard watch Keras; gradients registers the derivatives.
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
from tf_hvd.collectives.reduce_ops import ReduceOp as ReduceOp
from tf_hvd.collectives.reduce_ops import Sum as Sum
from tf_hvd.collectives.variables import broadcast_ as broadcast_
from tf_hvd.collectives.variables import broadcast_global_variables as broadcast_global_variables
from tf_hvd.collectives.variables import broadcast_variables as broadcast_variables
from tf_hvd.core import absent as _absent
from tf_hvd.core.basics import cross_rank as cross_rank
from tf_hvd.core.basics import cross_rank_op as cross_rank_op
from tf_hvd.core.basics import cross_size as cross_size
from tf_hvd.core.basics import cross_size_op as cross_size_op
from tf_hvd.core.basics import cuda_built as cuda_built
from tf_hvd.core.basics import init as init
from tf_hvd.core.basics import is_homogeneous as is_homogeneous
from tf_hvd.core.basics import is_initialized as is_initialized
from tf_hvd.core.basics import is_root as is_root
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
from tf_hvd.core.basics import shutdown as shutdown
from tf_hvd.core.basics import size as size
from tf_hvd.core.basics import size_op as size_op
from tf_hvd.core.devices import pin_gpu as pin_gpu
from tf_hvd.core.exceptions import HorovodInitError as HorovodInitError
from tf_hvd.core.exceptions import HorovodInternalError as HorovodInternalError
from tf_hvd.core.exceptions import HorovodVersionMismatchError as HorovodVersionMismatchError
from tf_hvd.core.exceptions import JobError as JobError
from tf_hvd.core.exceptions import NotInitializedError as NotInitializedError
from tf_hvd.core.exceptions import ProcessSetError as ProcessSetError
from tf_hvd.core.metrics import metrics as metrics
from tf_hvd.core.process_sets import ProcessSet as ProcessSet
from tf_hvd.core.process_sets import add_process_set as add_process_set
from tf_hvd.core.process_sets import global_process_set as global_process_set
from tf_hvd.core.process_sets import remove_process_set as remove_process_set
from tf_hvd.core.timeline import start_timeline as start_timeline
from tf_hvd.core.timeline import stop_timeline as stop_timeline
from tf_hvd.horovod.names import install_as_horovod as install_as_horovod
from tf_hvd.keras import callbacks as callbacks
from tf_hvd.keras import learning_rate as _learning_rate
from tf_hvd.keras import sync_batch_norm as _sync_batch_norm
from tf_hvd.keras.adapted import adapt as adapt
from tf_hvd.keras.adapted import broadcast_adapted as broadcast_adapted
from tf_hvd.keras.any_optimizer import DistributedOptimizer as DistributedOptimizer
from tf_hvd.keras.any_optimizer import PartialDistributedOptimizer as PartialDistributedOptimizer
from tf_hvd.keras.evaluation import evaluate as evaluate
from tf_hvd.keras.evaluation import predict as predict
from tf_hvd.keras.guard import check_weights as check_weights
from tf_hvd.keras.models import load_model as load_model
from tf_hvd.keras.random_seed import set_random_seed as set_random_seed
from tf_hvd.launch.job.run_function import RankError as RankError
from tf_hvd.launch.job.run_function import run as run
from tf_hvd.strip import strip_ops as strip_ops
from tf_hvd.training.aggregation import GradientAggregation as GradientAggregation
from tf_hvd.training.data import shard as shard
from tf_hvd.training.data import shard_files as shard_files
from tf_hvd.training.data import steps_per_epoch as steps_per_epoch
from tf_hvd.training.gradient_tape import DistributedGradientTape as DistributedGradientTape
from tf_hvd.training.gradient_tape import (
    PartialDistributedGradientTape as PartialDistributedGradientTape,
)
from tf_hvd.training.guard import GuardError as GuardError
from tf_hvd.training.guard import NotDistributedError as NotDistributedError
from tf_hvd.training.guard import RanksDifferError as RanksDifferError
from tf_hvd.training.guard import unguarded as unguarded
from tf_hvd.training.preemption import Preemption as Preemption
from tf_hvd.training.preemption import on_preemption as on_preemption
from tf_hvd.training.session_hooks import (
    BroadcastGlobalVariablesHook as BroadcastGlobalVariablesHook,
)
from tf_hvd.training.session_hooks import MetricsHook as MetricsHook
from tf_hvd.training.session_hooks import MonitoredTrainingSession as MonitoredTrainingSession

__version__: str = _native.build_info.VERSION

if typing.TYPE_CHECKING:
    from tf_hvd.keras.learning_rate import WarmupSchedule as WarmupSchedule
    from tf_hvd.keras.sync_batch_norm import SyncBatchNormalization as SyncBatchNormalization
else:
    # Created on first use, because the Keras behind `tf.keras` is not known earlier.
    _LAZY = {"SyncBatchNormalization": _sync_batch_norm, "WarmupSchedule": _learning_rate}
    __all__ = sorted(
        [
            name
            for name, value in globals().items()
            if not name.startswith("_") and not isinstance(value, types.ModuleType)
        ]
        + ["callbacks", "elastic", *_LAZY]
    )

    # Pickled objects of public classes name only the package, so classes can move within it.
    for _public in [globals()[_name] for _name in __all__ if _name not in _LAZY]:
        if isinstance(_public, type):
            _public.__module__ = "tf_hvd"

    # Hidden from type checkers, which would otherwise accept any name.
    def __getattr__(name: str) -> typing.Any:
        if name in _LAZY:
            return getattr(_LAZY[name], name)
        raise AttributeError(f"module 'tf_hvd' has no attribute {name!r}{_absent.why(name)}")

    def __dir__() -> list[str]:
        return sorted([*__all__, "keras", *(name for name in globals() if name.startswith("__"))])

    sys.modules["tf_hvd.callbacks"] = callbacks
