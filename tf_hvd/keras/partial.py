"""PartialDistributedOptimizer: layers that each rank trains for itself."""

from typing import Any

from tf_hvd.keras.optimizer import DistributedOptimizer


def weights_of_layers(layers: Any) -> list[Any]:
    """The trainable weights of a layer, or of a list of layers.

    Args:
      layers: of Keras 3 or tf_keras; None for none.

    Raises:
      ValueError: one is no layer, or has no weights yet.
    """
    if layers is None:
        return []
    listed = list(layers) if isinstance(layers, (list, tuple)) else [layers]
    weights: list[Any] = []
    for layer in listed:
        found = getattr(layer, "trainable_weights", None)
        if found is None or isinstance(layer, type):
            raise ValueError(f"local_layers: {layer!r} is not a layer of Keras.")
        if not getattr(layer, "built", True):
            raise ValueError(
                f"local_layers: {layer.name} has no weights yet; build the model first, for "
                "example with keras.Input."
            )
        weights.extend(found)
    return weights


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
