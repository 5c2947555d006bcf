"""Gradients that the user had reduced by Horovod's `_allreduce` or `compute_gradients`."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_hvd.collectives import reduce_ops
from tf_hvd.core.tensorflow_hooks import enclosing_graphs

# Reducing what is equal on all ranks changes nothing.
_IDEMPOTENT = (reduce_ops.Average, reduce_ops.Min, reduce_ops.Max)


class ReducedByUser:
    """Keeps what an optimizer has reduced for its user from being reduced again.

    Args:
      op: the optimizer's reduce op.
    """

    def __init__(self, op: int) -> None:
        self._op = op
        self._gradients: list[Any] = []
        self._graph: Any = None

    def remember(self, gradients: Sequence[Any]) -> None:
        """Takes down what the user was given."""
        self._gradients = [gradient for gradient in gradients if gradient is not None]
        self._graph = next(iter(enclosing_graphs()), None)

    def forget(self) -> None:
        """The update is made, whether it asked or was told that all is reduced."""
        self._gradients = []

    def take(self, gradients: Sequence[Any]) -> bool:
        """Whether these are the gradients that the user was given; asked once for each update.

        Raises:
          ValueError: they are others, and reducing them again might be wrong.
        """
        known, self._gradients = self._gradients, []
        here = self._graph in enclosing_graphs() if self._graph else tf.executing_eagerly()
        if not known or not here:
            return False
        if all(g is None or any(g is one for one in known) for g in gradients):
            return True
        if self._op not in _IDEMPOTENT:
            raise ValueError(
                "these are not the gradients that compute_gradients() or _allreduce() returned, "
                "so apply_gradients() would reduce them again: change gradients before they are "
                "reduced (compute them with a tf.GradientTape), or clip them by the optimizer's "
                "own arguments."
            )
        return False
