"""Variables that each rank trains for itself: their gradients are not reduced."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_hvd.collectives.sparse import each_row_once
from tf_hvd.core import basics
from tf_hvd.core.process_sets import ProcessSet, id_of
from tf_hvd.core.tensorflow_hooks import tf_variable


class LocalVariables:
    """The registered local variables of one optimizer or tape, compared by identity.

    Args:
      scale: divide their gradients by the number of ranks of the set, which is the weight that a
        rank's gradient has in the averages; not on ranks outside of it.
    """

    def __init__(self, scale: bool) -> None:
        self._scale = scale
        self._registered: dict[int, Any] = {}  # holds them, so that no id is reused

    def register(self, variable: Any) -> None:
        """From now on the gradient of `variable` stays on this rank."""
        variable = tf_variable(variable)
        self._registered[id(variable)] = variable

    def __contains__(self, variable: object) -> bool:
        return id(tf_variable(variable)) in self._registered

    def reduce_others(
        self,
        reduce: Callable[[list[Any], Sequence[Any]], Sequence[Any]],
        process_set: ProcessSet,
        gradients: Sequence[Any],
        variables: Sequence[Any],
    ) -> list[Any]:
        """Reduces the gradients of all variables but these, for which `reduce` is not called."""
        # These are left out, and not None: ranks may have different numbers of them.
        shared = [i for i, variable in enumerate(variables) if variable not in self]
        reduced = reduce([gradients[i] for i in shared], [variables[i] for i in shared])
        results = list(gradients)
        for index, gradient in zip(shared, reduced, strict=True):
            results[index] = gradient
        scales = self._scale and process_set.included() is not False
        for index in set(range(len(results))) - set(shared):
            gradient = each_row_once(gradients[index])
            results[index] = _scaled(gradient, process_set) if scales else gradient
        return results


def weights_of_layers(layers: Any) -> list[Any]:
    """The trainable weights of a layer, or of a list of layers; None for none."""
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


def _scaled(gradient: Any, process_set: ProcessSet) -> Any:
    if gradient is None:
        return None
    count = basics.size_op(id_of(process_set))
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values / tf.cast(count, gradient.values.dtype)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient / tf.cast(count, gradient.dtype)
