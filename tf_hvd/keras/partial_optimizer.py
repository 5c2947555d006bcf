"""PartialDistributedOptimizer: layers that each rank trains for itself."""

from typing import Any

from tf_hvd.keras.optimizer import DistributedOptimizer
from tf_hvd.training._local import weights_of_layers


def PartialDistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: Any, *args: Any, local_layers: Any = None, **kwargs: Any
) -> Any:
    """A DistributedOptimizer that leaves the gradients of some layers on their rank.

    Args:
      optimizer: see DistributedOptimizer.
      *args: the other arguments of DistributedOptimizer.
      local_layers: a layer or a list of layers, built already, whose trainable
        weights are each rank's own.
      **kwargs: as `args`.

    Returns:
      `optimizer`.

    Raises:
      ValueError: one of `local_layers` is no layer, or has no weights yet.
    """
    weights = weights_of_layers(local_layers)
    wrapped = DistributedOptimizer(optimizer, *args, **kwargs)
    for weight in weights:
        wrapped.register_local_var(weight)
    return wrapped
