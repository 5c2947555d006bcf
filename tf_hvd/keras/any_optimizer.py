"""hvd.DistributedOptimizer for optimizers from Keras and tf.compat.v1.train."""

from typing import Any, TypeVar, cast

import tensorflow as tf

from tf_hvd.collectives import reduce_ops
from tf_hvd.collectives.compression import Compression, Compressor
from tf_hvd.collectives.options import ReductionOptions, about_reduction
from tf_hvd.collectives.powersgd import PowerSGD
from tf_hvd.core.process_sets import ProcessSet, global_process_set
from tf_hvd.keras import optimizer as keras_optimizer
from tf_hvd.training import optimizer as v1_optimizer
from tf_hvd.training._local import weights_of_layers
from tf_hvd.training.aggregation import check_passes

Optimizer = TypeVar("Optimizer")


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: Optimizer,
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
    check_weights_steps: int | None = None,
) -> Optimizer:
    """Make an optimizer reduce (by default average) its gradients across all ranks in each update.

    A Keras optimizer is modified in place and returned. It keeps its class, state and config, and
    saved models do not depend on tf_hvd. Copies made by `from_config`, `copy`, `deepcopy`, pickle
    or `load_model` are not distributed.

    A Keras optimizer reduces its gradients after loss unscaling and accumulation, and before
    clipping and weight decay. It does so in `fit`, in your own `train_step`, and when you call
    `apply_gradients`, so do not reduce the gradients yourself. An optimizer from tf.compat.v1.train
    is wrapped in a new optimizer, which reduces gradients in `compute_gradients`.

    Args:
      optimizer: an optimizer from Keras 3 or tf_keras (including legacy optimizers); a
        LossScaleOptimizer or MultiOptimizer, for which the inner optimizers are modified; or a
        tf.compat.v1.train.Optimizer.
      name: name of the collectives, used in errors and the timeline. Default: "Distributed" plus
        the class name.
      use_locking: the argument of the tf.compat.v1.train base class; ignored for Keras optimizers.
      device_dense: device for collectives of dense gradients. Default "": TensorFlow chooses.
      device_sparse: device for collectives of IndexedSlices. Default "": TensorFlow chooses.
      compression: how gradients are compressed for transport; see `tf_hvd.Compression`.
      sparse_as_dense: whether to convert IndexedSlices to dense tensors before the reduction.
      backward_passes_per_step: number of backward passes that a rank adds up before the sum is
        reduced and applied (default: 1). With Keras 3 you can instead set the optimizer's own
        `gradient_accumulation_steps`, which averages the passes.
      op: Average (default), Sum, Min, Max or Product. Adasum is supported only for optimizers from
        tf.compat.v1.train.
      gradient_predivide_factor: with Average, divide by this factor before the sum and by
        size() / factor after it.
      average_aggregated_gradients: whether to divide the sum of backward passes by their number.
      num_groups: deprecated; use `groups`.
      groups: how gradients are grouped for the reduction. Default None: buckets of
        TF_HVD_BUCKET_BYTES. An integer: this many groups, each with about the same number of
        gradients. Lists of variables: one group for each list.
      process_set: the ranks that train together; other ranks use their own gradients.
      scale_local_gradients: whether to divide the gradients of variables registered with
        `register_local_var` by the number of ranks.
      sparse: how IndexedSlices are sent; see `tf_hvd.allreduce`.
      check_weights_steps: number of updates between comparisons of the ranks' weights; training
        stops if the weights differ. 0: no comparisons except by the guard. Default None: the
        setting TF_HVD_CHECK_WEIGHTS_STEPS. For Keras optimizers only.

    Returns:
      The same Keras optimizer, or a new tf.compat.v1.train.Optimizer. The optimizer's method
      `register_local_var(variable)` keeps the gradient of `variable` local to each rank. A Keras
      optimizer also gets the attribute `horovod_distributed` with the value True.

    Raises:
      ValueError: `optimizer` is not an optimizer or is already distributed, or an argument is
        invalid.
      NotImplementedError: `op` is Adasum and `optimizer` is a Keras optimizer.
      RuntimeError: called within a tf.distribute strategy with several replicas.

    Example:
      model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
      model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1 * hvd.size())), "mse")
      same = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
      model.fit(np.ones([8, 3]), np.ones([8, 1]), callbacks=[same], verbose=0)
    """
    reduction = about_reduction(locals())
    if not isinstance(name, str | None) or not isinstance(use_locking, bool):
        raise ValueError(
            f"name={name!r}, use_locking={use_locking!r}: name= must be a string, and use_locking= "
            "must be True or False. Pass all arguments after the optimizer by keyword."
        )
    if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return cast(
            Optimizer,
            keras_optimizer.DistributedOptimizer(
                optimizer,
                name=name,
                backward_passes_per_step=backward_passes_per_step,
                average_aggregated_gradients=average_aggregated_gradients,
                scale_local_gradients=scale_local_gradients,
                check_weights_steps=check_weights_steps,
                **reduction,
            ),
        )
    if check_weights_steps is not None:
        raise ValueError(
            "check_weights_steps= is for Keras optimizers only. Remove it, and call "
            "hvd.check_weights(variables) every N steps instead."
        )
    wrapped = v1_optimizer.distributed(
        optimizer,
        name or f"Distributed{type(optimizer).__name__}",
        use_locking=use_locking,
        options=ReductionOptions.of_gradients(**reduction),
        passes=check_passes(backward_passes_per_step),
        average=average_aggregated_gradients,
        scale_local=scale_local_gradients,
    )
    return cast(Optimizer, wrapped)


def PartialDistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: Optimizer, *args: Any, local_layers: Any = None, **kwargs: Any
) -> Optimizer:
    """Make an optimizer reduce its gradients across all ranks, except for some layers.

    The gradients of these layers stay local to each rank.

    Args:
      optimizer: a Keras optimizer; see `DistributedOptimizer`.
      *args: other arguments for `DistributedOptimizer`.
      local_layers: a built layer, or a list of built layers, to exclude from the reduction.
      **kwargs: other arguments for `DistributedOptimizer`.

    Returns:
      `optimizer`, modified in place.

    Raises:
      ValueError: an entry in `local_layers` is not a layer or does not have weights yet, or
        `DistributedOptimizer` raised the error.

    Example:
      head = keras.layers.Dense(1)
      model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2), head])
      hvd.PartialDistributedOptimizer(keras.optimizers.SGD(0.1), local_layers=head)
    """
    weights = weights_of_layers(local_layers)
    wrapped: Any = DistributedOptimizer(optimizer, *args, **kwargs)
    for weight in weights:
        wrapped.register_local_var(weight)
    return cast(Optimizer, wrapped)
