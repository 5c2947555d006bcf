"""hvd.DistributedOptimizer: an optimizer of Keras or of tf.compat.v1, by what it is given."""

from typing import Any

import tensorflow as tf

from tf_hvd.collectives import reduce_ops
from tf_hvd.collectives.compression import Compression, Compressor
from tf_hvd.collectives.options import ReductionOptions, about_reduction
from tf_hvd.collectives.powersgd import PowerSGD
from tf_hvd.core.process_sets import ProcessSet, global_process_set
from tf_hvd.keras import optimizer as keras_optimizer
from tf_hvd.training import optimizer as v1_optimizer
from tf_hvd.training.aggregation import check_passes


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] | PowerSGD = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = reduce_ops.Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    *,
    sparse: str | None = None,
) -> Any:
    """Wraps an optimizer so that its gradients are reduced over all ranks.

    Args:
      optimizer: a tf.compat.v1.train.Optimizer, or one of Keras: for it see
        `tf_hvd.keras.DistributedOptimizer`, which then does the work.
      name: name of the wrapper; the default is "Distributed" and the type's name.
      use_locking: passed on to the base class; Keras' optimizers have no locks.
      device_dense: device for the collectives, "" for TensorFlow's choice.
      device_sparse: device for those of IndexedSlices.
      compression: see `tf_hvd.Compression`.
      sparse_as_dense: turn IndexedSlices into tensors first.
      backward_passes_per_step: how many backward passes a rank adds up before the
        sum is reduced and applied.
      op: Average, Sum, Min, Max or Product; or Adasum, see docs/optimizers.md.
      gradient_predivide_factor: with Average, divide by this before the sum and
        by size() / this after it.
      average_aggregated_gradients: divide that sum by the number of passes.
      num_groups: deprecated; use `groups`.
      groups: None for buckets (TF_HVD_BUCKET_BYTES); a number of groups of about
        the same length; or lists of variables, each reduced as one request.
      process_set: the ranks that train together; the others keep their gradients.
      scale_local_gradients: divide the gradients of variables registered with
        `register_local_var` by the number of ranks.
      sparse: how IndexedSlices are sent, see `tf_hvd.allreduce`.

    Returns:
      A tf.compat.v1.train.Optimizer; or the Keras optimizer, changed in place.

    Raises:
      NotImplementedError: Adasum with an optimizer of Keras.
      ValueError: not an optimizer, or an argument that makes no sense.
    """
    reduction = about_reduction(locals())
    if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return keras_optimizer.DistributedOptimizer(
            optimizer,
            name=name,
            backward_passes_per_step=backward_passes_per_step,
            average_aggregated_gradients=average_aggregated_gradients,
            scale_local_gradients=scale_local_gradients,
            **reduction,
        )
    return v1_optimizer.distributed(
        optimizer,
        name or f"Distributed{type(optimizer).__name__}",
        use_locking=use_locking,
        options=ReductionOptions.of_gradients(**reduction),
        passes=check_passes(backward_passes_per_step),
        average=average_aggregated_gradients,
        scale_local=scale_local_gradients,
    )
