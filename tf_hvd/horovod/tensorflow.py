"""horovod.tensorflow: private names that scripts use."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_hvd.collectives.compression import Compressor
from tf_hvd.collectives.options import ReductionOptions, about_reduction
from tf_hvd.core.process_sets import ProcessSet
from tf_hvd.horovod.gradient_aggregation import LocalGradientAggregationHelper
from tf_hvd.horovod.helpers import refs_to_vars
from tf_hvd.training import eager_marks
from tf_hvd.training.optimizer import _DistributedAdasumOptimizer, _DistributedOptimizer
from tf_hvd.training.reduction import GradientReducer

__all__ = [
    "LocalGradientAggregationHelper",
    "_DistributedAdasumOptimizer",
    "_DistributedOptimizer",
    "_LegacyOptimizer",
    "_make_allreduce_grads_fn",
]

_LegacyOptimizer = tf.compat.v1.train.Optimizer
"""The base class of TensorFlow 1 optimizers; `DistributedOptimizer` checks for it."""


def _make_allreduce_grads_fn(
    name: str,
    device_dense: str,
    device_sparse: str,
    compression: type[Compressor],
    sparse_as_dense: bool,
    op: int,
    gradient_predivide_factor: float,
    groups: Any,
    process_set: ProcessSet,
) -> Callable[..., list[Any]]:
    """Return a function that takes gradients and their variables and reduces the gradients.

    The arguments and errors are the same as for `tf_hvd.DistributedGradientTape`. The variables may
    be omitted in calls to the function unless `groups` contains variables.
    """
    groups = refs_to_vars(groups) if isinstance(groups, tuple) else groups
    options = ReductionOptions.of_gradients(**about_reduction(locals()))
    reducer = GradientReducer(name, options)

    def allreduce_grads(
        grads: Sequence[Any],
        vars: Sequence[Any] | None = None,  # noqa: A002 - the argument is Horovod's
        use_generic_names: bool = False,
    ) -> list[Any]:
        variables = [None] * len(grads) if vars is None else list(vars)
        reduced = reducer.reduce(list(grads), variables, use_generic_names)
        eager_marks.put(reduced, variables)
        return reduced

    return allreduce_grads
