"""Local variables, which each rank trains separately because their gradients are not reduced."""

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
      scale: whether to divide the gradients of local variables by the number of ranks in the
        process set, as in an average. Ranks outside the set do not divide.
    """

    def __init__(self, scale: bool) -> None:
        self._scale = scale
        self._registered: dict[int, Any] = {}  # keeps the variables, so that no id is reused

    def register(self, variable: Any) -> None:
        """Register a local variable, so that its gradient is not reduced."""
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
        """Reduce the gradients of all variables that are not local.

        Args:
          reduce: function that reduces a list of gradients for a list of variables. The list
            contains no local variables.
          process_set: the ranks that reduce.
          gradients: the gradients of `variables`.
          variables: local and other variables.

        Returns:
          A gradient for each of `variables`, in the same order.
        """
        # Local variables are omitted, not passed as None: ranks may have different numbers of them.
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
    """Return the trainable weights of a layer or a list of layers; empty for None."""
    if layers is None:
        return []
    listed = list(layers) if isinstance(layers, (list, tuple)) else [layers]
    weights: list[Any] = []
    for layer in listed:
        found = getattr(layer, "trainable_weights", None)
        if found is None or isinstance(layer, type):
            raise ValueError(
                f"local_layers: {layer!r} is not a Keras layer. Pass a layer or a list of layers."
            )
        if not getattr(layer, "built", True):
            raise ValueError(
                f"local_layers: {layer.name} has no weights yet. Build the model first, for "
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
