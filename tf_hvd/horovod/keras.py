"""horovod.keras: functions with a different argument order than in horovod.tensorflow.keras."""

from typing import Any

from tf_hvd.collectives import reduce_ops
from tf_hvd.collectives.compression import Compression, Compressor
from tf_hvd.collectives.powersgd import PowerSGD
from tf_hvd.core.process_sets import ProcessSet, global_process_set
from tf_hvd.core.tensorflow_hooks import verbatim
from tf_hvd.horovod import tf_keras
from tf_hvd.keras import any_optimizer

__all__ = ["DistributedOptimizer", "PartialDistributedOptimizer", "allreduce"]


@verbatim
def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] | PowerSGD = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = reduce_ops.Average,
    num_groups: int = 0,
    groups: Any = None,
    **options: Any,
) -> Any:
    """Call `tf_hvd.DistributedOptimizer`; pass its remaining arguments by keyword."""
    given = dict(locals())
    more = given.pop("options")
    return any_optimizer.DistributedOptimizer(**given, **more)


@verbatim
def PartialDistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] | PowerSGD = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = reduce_ops.Average,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
    **options: Any,
) -> Any:
    """Call `tf_hvd.PartialDistributedOptimizer`; pass its remaining arguments by keyword."""
    given = dict(locals())
    more = given.pop("options")
    return any_optimizer.PartialDistributedOptimizer(**given, **more)


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool = True,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: type[Compressor] = Compression.none,
) -> Any:
    """Call `allreduce` from horovod.tensorflow.keras; `op` overrides the deprecated `average`."""
    if op is None:
        op = reduce_ops.Average if average else reduce_ops.Sum
    return tf_keras.allreduce(
        value, name=name, prescale_factor=prescale_factor, postscale_factor=postscale_factor,
        op=op, compression=compression,
    )  # fmt: skip
