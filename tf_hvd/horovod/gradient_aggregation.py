"""horovod.tensorflow.gradient_aggregation: one reduction for several backward passes.

This module is for programs that call Horovod's helper themselves. The optimizers'
`backward_passes_per_step` does not use it. tf_hvd.training.aggregation keeps the sums.
"""

from collections.abc import Callable, Sequence
from typing import Any

from tf_hvd.core.process_sets import ProcessSet, global_process_set
from tf_hvd.training._local import LocalVariables
from tf_hvd.training.aggregation import GradientAggregation, reduce_if_complete

__all__ = ["LocalGradientAggregationHelper"]


class LocalGradientAggregationHelper:
    """A helper that adds up the gradients of several passes, reduces the sums and applies them.

    Nothing is applied or counted between two steps. `iterations` and `global_step` therefore count
    updates; in Horovod they count passes.

    Args:
      backward_passes_per_step: int, number of passes in a step.
      allreduce_func: called with gradients and variables; returns the reduced gradients.
      sparse_as_dense: bool, whether to convert IndexedSlices to tensors first.
      average_aggregated_gradients: bool, whether to divide the sums by the number of passes.
      rank: Horovod's argument; unused.
      optimizer_type: Horovod's argument; unused.
      process_set: the ProcessSet of the ranks that train together.
      scale_local_gradients: bool, whether to divide the gradients of local variables by the
        number of ranks.
      name: Horovod's argument; unused.

    Raises:
      ValueError: `backward_passes_per_step` is less than 1.
    """

    _OPTIMIZER_TYPE_KERAS = "optimizer_type_keras"
    _OPTIMIZER_TYPE_LEGACY = "optimizer_type_legacy"

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: Callable[[list[Any], Sequence[Any]], Sequence[Any]],
        sparse_as_dense: bool,
        average_aggregated_gradients: bool,
        rank: int,
        optimizer_type: str,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
        name: str = "",
    ) -> None:
        self._aggregation = GradientAggregation(
            backward_passes_per_step,
            average=average_aggregated_gradients,
            sparse_as_dense=sparse_as_dense,
        )
        self._allreduce = allreduce_func
        self._process_set = process_set
        self._local = LocalVariables(scale_local_gradients)
        self._complete: Any = None
        self._variables: list[Any] = []

    def register_local_var(self, var: Any) -> None:
        """Make `var` a local variable. Each rank keeps its own gradient for it."""
        self._local.register(var)

    def compute_gradients(self, grads: Sequence[Any], vars: Sequence[Any]) -> list[Any]:  # noqa: A002 - the argument is Horovod's
        """Add the gradients of one pass.

        Args:
          grads: list of tensors or None, one for each variable; the same variables in every pass.
          vars: the variables that the gradients belong to.

        Returns:
          In the last pass of a step, the reduced sums. In earlier passes, the sums so far;
          `apply_gradients` does not apply them.
        """
        self._variables = list(vars)
        self._complete, sums = self._aggregation.add(list(grads), self._variables)
        return reduce_if_complete(
            self._complete,
            sums,
            lambda: self._local.reduce_others(
                self._allreduce, self._process_set, sums, self._variables
            ),
        )

    def apply_gradients(
        self, apply_grads_closure: Callable[[], Any], optimizer: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Call the closure in the last pass of a step; do nothing in earlier passes.

        Args:
          apply_grads_closure: applies the result of `compute_gradients`.
          optimizer: Horovod's argument; unused.
          *args: Horovod's arguments; unused.
          **kwargs: Horovod's arguments; unused.

        Raises:
          ValueError: `compute_gradients` was not called first.
        """
        if self._complete is None:
            raise ValueError("call compute_gradients() before apply_gradients().")
        return self._aggregation.when_complete(self._complete, apply_grads_closure, self._variables)
