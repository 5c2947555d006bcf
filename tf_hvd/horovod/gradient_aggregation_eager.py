"""horovod.tensorflow.gradient_aggregation_eager: the same helper with fewer arguments."""

from collections.abc import Callable, Sequence
from typing import Any

from tf_hvd.core.process_sets import ProcessSet, global_process_set
from tf_hvd.horovod.gradient_aggregation import LocalGradientAggregationHelper

__all__ = ["LocalGradientAggregationHelperEager"]


class LocalGradientAggregationHelperEager(LocalGradientAggregationHelper):
    """A LocalGradientAggregationHelper, which works in eager mode and in graphs alike.

    Arguments and errors are those of its base.
    """

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: Callable[[list[Any], list[Any]], Sequence[Any]],
        sparse_as_dense: bool,
        average_aggregated_gradients: bool,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
    ) -> None:
        super().__init__(
            backward_passes_per_step, allreduce_func, sparse_as_dense,
            average_aggregated_gradients, 0, self._OPTIMIZER_TYPE_KERAS, process_set,
            scale_local_gradients,
        )  # fmt: skip
