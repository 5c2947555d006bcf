"""Which gradients were reduced for the program, in eager mode.

In a graph tf_hvd.training.dataflow sees where gradients come from. Eager tensors do not show
it, so a DistributedGradientTape marks those that it returns, and their variables. A mark is an
attribute: it ends with its object, and no copy has it.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_hvd.core.tensorflow_hooks import tf_variable

_MARK = "_tf_hvd_reduced"


class _Wanted:
    by_optimizers = False


def want() -> None:
    """From now on reduced gradients are marked: an optimizer of this process may ask.

    Marks take a tape about 2 us for each variable, and most programs that have one wrap no
    optimizer as well.
    """
    _Wanted.by_optimizers = True


def wanted() -> bool:
    return _Wanted.by_optimizers and tf.executing_eagerly()


def put(gradients: Sequence[Any], sources: Sequence[Any]) -> None:
    """Marks the reduced gradients that a tape or its like returns, if it is wanted."""
    if not wanted():
        return
    for gradient, source in zip(gradients, sources, strict=True):
        if gradient is not None:
            vars(_tensor(gradient))[_MARK] = True
            variable = tf_variable(source)
            if isinstance(variable, tf.Variable):
                vars(variable)[_MARK] = True


def take(gradients: Sequence[Any], variables: Sequence[Any]) -> tuple[bool, bool]:
    """Looks at the gradients of an update in eager mode, and takes the variables' marks away.

    Returns:
      Whether one of the gradients is the very tensor that a tape has returned; and whether a tape
      has reduced a gradient of one of the variables since it was last updated.
    """
    removed = [vars(tf_variable(variable)).pop(_MARK, False) for variable in variables]
    # Not by hasattr: tensors take their time to say no.
    given = any(_MARK in getattr(_tensor(each), "__dict__", ()) for each in gradients)
    return given, any(removed)


def _tensor(gradient: Any) -> Any:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
