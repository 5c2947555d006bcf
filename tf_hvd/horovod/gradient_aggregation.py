"""horovod.tensorflow.gradient_aggregation: several backward passes, one reduction.

`backward_passes_per_step` of the optimizers does not use it; here it is for programs
that call Horovod's helper themselves. Sums are kept by tf_hvd.training.aggregation.
"""

from collections.abc import Callable, Sequence
from typing import Any

from tf_hvd.core.process_sets import ProcessSet, global_process_set
from tf_hvd.training._local import LocalVariables
from tf_hvd.training.aggregation import GradientAggregation, reduce_if_complete

__all__ = ["LocalGradientAggregationHelper"]


class LocalGradientAggregationHelper:
    """Adds up the gradients of several passes, reduces the sum, and applies it.

    Between two steps nothing is applied and nothing counted: `iterations` and
    `global_step` count updates, where Horovod's count passes.

    Args:
      backward_passes_per_step: how many passes make a step.
      allreduce_func: called with gradients and variables; returns the reduced gradients.
      sparse_as_dense: turn IndexedSlices into tensors first.
      average_aggregated_gradients: divide the sums by the number of passes.
      rank: Horovod's; not used.
      optimizer_type: Horovod's; not used.
      process_set: the ranks that train together.
      scale_local_gradients: divide the gradients of local variables by their number.
      name: Horovod's; not used.

    Raises:
      ValueError: `backward_passes_per_step` is not at least 1.
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
            backward_passes_per_step, average_aggregated_gradients, sparse_as_dense
        )
        self._allreduce = allreduce_func
        self._process_set = process_set
        self._local = LocalVariables(scale_local_gradients)
        self._complete: Any = None
        self._variables: list[Any] = []

    def register_local_var(self, var: Any) -> None:
        """From now on the gradient of `var` stays on this rank."""
        self._local.register(var)

    def compute_gradients(self, grads: Sequence[Any], vars: Sequence[Any]) -> list[Any]:  # noqa: A002 - the argument is Horovod's
        """Adds the gradients of one pass.

        Args:
          grads: tensors and None, the same ones in each pass.
          vars: what they belong to.

        Returns:
          With the last pass of a step the reduced sums, before it the sums so far,
          which `apply_gradients` does not apply.
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
        """Calls the closure with the last pass of a step, and else does nothing.

        Args:
          apply_grads_closure: applies what `compute_gradients` returned.
          optimizer: Horovod's; not used.
          *args: Horovod's; not used.
          **kwargs: Horovod's; not used.

        Raises:
          ValueError: `compute_gradients` was not called before.
        """
        if self._complete is None:
            raise ValueError("call compute_gradients() before apply_gradients().")
        return self._aggregation.when_complete(self._complete, apply_grads_closure, self._variables)
