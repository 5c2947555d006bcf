"""Mark gradients that were already reduced, in eager mode.

In a graph, tf_hvd.training.dataflow finds out where gradients come from. Eager tensors do not show
their origin. Therefore a DistributedGradientTape marks the gradients that it returns, and their
variables. A mark is an attribute: it disappears with its object, and copies do not have it.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_hvd.core.tensorflow_hooks import tf_variable

_MARK = "_tf_hvd_reduced"


class _Wanted:
    by_optimizers = False


def want() -> None:
    """Mark reduced gradients from now on, because an optimizer in this process reads the marks.

    Marks are off by default. They cost a tape about 2 us per variable, and most programs with a
    tape do not use a distributed optimizer.
    """
    _Wanted.by_optimizers = True


def wanted() -> bool:
    return _Wanted.by_optimizers and tf.executing_eagerly()


def put(gradients: Sequence[Any], sources: Sequence[Any]) -> None:
    """Mark reduced gradients and their sources, if an optimizer wants marks."""
    if not wanted():
        return
    for gradient, source in zip(gradients, sources, strict=True):
        if gradient is not None:
            vars(_tensor(gradient))[_MARK] = True
            variable = tf_variable(source)
            if isinstance(variable, tf.Variable):
                vars(variable)[_MARK] = True


def take(gradients: Sequence[Any], variables: Sequence[Any]) -> tuple[bool, bool]:
    """Read the marks of an eager update's gradients, and remove the variables' marks.

    Returns:
      Two bools. The first is whether a tape returned one of these tensors itself. The second is
      whether a tape has reduced a gradient of any of the variables since that variable's
      previous update.
    """
    removed = [vars(tf_variable(variable)).pop(_MARK, False) for variable in variables]
    # Not hasattr, which is slow on tensors without the attribute.
    given = any(_MARK in getattr(_tensor(each), "__dict__", ()) for each in gradients)
    return given, any(removed)


def _tensor(gradient: Any) -> Any:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
