"""Gradient aggregation: several backward passes, then one reduction and one update.

Each rank adds up its own gradients; only their sum travels. The one implementation
for the v1 optimizer, the tape and Keras optimizers.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_hvd._tensorflow import state_variable


def check_passes(backward_passes_per_step: int) -> int:
    """Returns the number of passes.

    Raises:
      ValueError: it is not at least 1.
    """
    if backward_passes_per_step < 1:
        raise ValueError(f"backward_passes_per_step={backward_passes_per_step} must be at least 1.")
    return backward_passes_per_step


class GradientAggregation:
    """Sums of gradients over passes, and a count of the passes.

    The sums live in variables that are in no checkpoint: local variables of a v1
    graph, and unknown to models and optimizers otherwise. They are made when the
    first gradients come.

    Args:
      passes: how many passes make a step.
      average: divide the sums by `passes`.
      sparse_as_dense: turn IndexedSlices into tensors first.

    Raises:
      ValueError: `passes` is not at least 1.
    """

    def __init__(self, passes: int, average: bool = False, sparse_as_dense: bool = False) -> None:
        self.passes = check_passes(passes)
        self._average = average
        self._sparse_as_dense = sparse_as_dense
        self._count: Any = None
        self._sums: list[Any] = []

    def add(self, gradients: Sequence[Any]) -> tuple[Any, list[Any]]:
        """Adds the gradients of one pass.

        Args:
          gradients: tensors and None, the same ones in each pass.

        Returns:
          Whether the step is complete (a bool scalar, equal on all ranks that call
          this equally often), and the sums or averages so far. None stays None.

        Raises:
          ValueError: IndexedSlices, or other gradients than in the pass before.
        """
        if self._sparse_as_dense:
            gradients = [None if g is None else tf.convert_to_tensor(g) for g in gradients]
        self._prepare(gradients)
        added = [
            None if total is None else total.assign_add(gradient)
            for total, gradient in zip(self._sums, gradients, strict=True)
        ]
        with tf.control_dependencies([total for total in added if total is not None]):
            count = tf.identity(self._count.assign_add(1))
        with tf.control_dependencies([count]):
            sums = [None if total is None else self._scaled(total) for total in self._sums]
        return tf.equal(count, self.passes), sums

    def when_complete(self, complete: Any, step: Callable[[], Any]) -> Any:
        """Runs `step` if the step is complete, and starts the next one then.

        Args:
          complete: what `add` has returned.
          step: makes the update; its result is ignored.

        Returns:
          An op in a graph; in eager mode nothing to wait for.
        """

        def finish() -> Any:
            done = step()
            with tf.control_dependencies(_ops_of(done)):
                resets = [total.assign(tf.zeros_like(total)) for total in self._live()]
                resets.append(self._count.assign(0))
            with tf.control_dependencies(_ops_of(resets)):
                return tf.constant(True)

        return tf.cond(complete, finish, lambda: tf.constant(False))

    def _live(self) -> list[Any]:
        return [total for total in self._sums if total is not None]

    def _scaled(self, total: Any) -> Any:
        value = total.read_value()
        return value / tf.cast(self.passes, value.dtype) if self._average else value

    def _prepare(self, gradients: Sequence[Any]) -> None:
        if any(isinstance(gradient, tf.IndexedSlices) for gradient in gradients):
            raise ValueError(
                "backward_passes_per_step > 1 needs sparse_as_dense=True for IndexedSlices: sums "
                "of passes are dense."
            )
        if self._count is None:
            with tf.init_scope():
                self._count = state_variable(tf.zeros([], tf.int64), "aggregation/passes")
                self._sums = [
                    None
                    if g is None
                    else state_variable(tf.zeros(g.shape, g.dtype), f"aggregation/sum_{i}")
                    for i, g in enumerate(gradients)
                ]
        present = [gradient is not None for gradient in gradients]
        if present != [total is not None for total in self._sums]:
            raise ValueError(
                "backward_passes_per_step > 1 needs gradients for the same variables in each pass; "
                "give zeros where a pass has none."
            )


def _ops_of(values: Any) -> list[Any]:
    """What a control dependency can wait for; nothing in eager mode."""
    if tf.executing_eagerly():
        return []
    return [value for value in tf.nest.flatten(values) if value is not None]
