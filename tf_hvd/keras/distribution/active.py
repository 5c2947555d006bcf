"""Whether a Keras distribution is set, and whether tf_hvd can train a model under it."""

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from tf_hvd.collectives import reduce_ops
from tf_hvd.core import basics
from tf_hvd.core.process_sets import global_process_set
from tf_hvd.keras import compat
from tf_hvd.keras.distribution import private


class Setup(NamedTuple):
    """Data parallelism across all ranks of the job."""

    rank: int
    ranks: int
    shards: bool
    """Whether each rank takes its rows of global batches; otherwise all its data are its rows."""


def _distribution() -> Any:
    keras = sys.modules.get("keras")
    found = getattr(keras, "distribution", None)
    return None if found is None else found.distribution()


def setup() -> Setup | None:
    """The setup of the current distribution; None without one, or in a single-rank job.

    Raises:
      ValueError: the distribution does not cover the ranks of the job.
    """
    distribution = _distribution()
    if distribution is None or not basics.is_initialized() or basics.size() == 1:
        return None
    ranks = basics.size()
    processes = private.processes_of(distribution)
    if processes != ranks:
        raise ValueError(
            f"keras.distribution: the distribution has {processes} processes, but "
            f"the job has {ranks} ranks. Create the distribution after "
            "keras.distribution.initialize() or hvd.init()."
        )
    mesh = distribution.device_mesh
    devices = math.prod(mesh.shape)
    if devices != ranks:
        raise ValueError(
            f"keras.distribution: the device mesh has {devices} devices, but the job has {ranks} "
            "ranks with one device each. Pass all devices of keras.distribution.list_devices()."
        )
    several = len([size for size in mesh.shape if size > 1]) > 1
    if several and isinstance(distribution, sys.modules["keras"].distribution.DataParallel):
        raise ValueError(
            f"keras.distribution: DataParallel needs a mesh of one dimension, not {mesh.shape}. "
            "Use DeviceMesh(shape=[number of devices], axis_names=['batch'])."
        )
    return Setup(basics.rank(), ranks, bool(distribution.auto_shard_dataset))


def divides_batches() -> bool:
    """Whether a distribution divides global batches, in a job with any number of ranks.

    All ranks then read the same data, so their position in the data does not depend on the number
    of ranks.
    """
    distribution = _distribution()
    return distribution is not None and bool(distribution.auto_shard_dataset)


def check_model(model: Any, strategy: Any) -> None:
    """Raises unless the model can be trained under the current distribution.

    `strategy` is the model's tf.distribute strategy.
    """
    distribution = _distribution()
    mesh = distribution.device_mesh
    divided = {name for name, size in zip(mesh.axis_names, mesh.shape, strict=True) if size > 1}
    for variable in model.variables:
        layout = distribution.get_variable_layout(variable)
        if any(axis in divided for axis in getattr(layout, "axes", ())):
            raise NotImplementedError(
                f"keras.distribution: the layout map shards {variable.path} over axes "
                f"{tuple(layout.axes)}, and tf_hvd trains with replicated variables only. Use "
                "keras.distribution.DataParallel(), or Keras' JAX backend."
            )
    axes = sorted(divided - {distribution.batch_dim_name})
    if axes:
        raise NotImplementedError(
            f"keras.distribution: the mesh has several devices along {', '.join(axes)}, and tf_hvd "
            "divides only the batch. Give all devices to the batch dimension: "
            "keras.distribution.DataParallel()."
        )
    if strategy.num_replicas_in_sync > 1:
        raise ValueError(
            "keras.distribution and a tf.distribute strategy cannot be combined: remove "
            f"{type(strategy).__name__}. Each rank has one device."
        )
    check_optimizer(model)


def check_optimizer(model: Any) -> None:
    """Raises if the user's DistributedOptimizer contradicts the distribution."""
    optimizer = getattr(model, "optimizer", None)
    for leaf in () if optimizer is None else compat.leaves(optimizer):
        synchronizer = compat.synchronizer_of(leaf)
        if synchronizer is None:
            continue
        if synchronizer.op != reduce_ops.Average:
            raise ValueError(
                f"keras.distribution: the DistributedOptimizer has op={synchronizer.op!r}, but a "
                "distribution averages gradients. Use op=hvd.Average, or pass the plain optimizer."
            )
        if synchronizer.process_set is not global_process_set:
            raise ValueError(
                "keras.distribution: the DistributedOptimizer has a process set, but a "
                "distribution covers all ranks. Remove process_set=, or do not set a distribution."
            )


@contextmanager
def without_distribution() -> Iterator[None]:
    """Hides the distribution from Keras, which would shard or refuse the data."""
    public = sys.modules["keras"].distribution
    distribution = public.distribution()
    public.set_distribution(None)
    try:
        yield
    finally:
        public.set_distribution(distribution)
