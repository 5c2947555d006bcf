"""The one update that each rank may make by itself: it makes the optimizer's variables.

A common idiom: one step with an optimizer that is not distributed, then a broadcast of
all variables, then training. The first update of an optimizer, alone in its function
and in its `fit`, passes; that the function does not make a second one is checked when
it runs.
"""

import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_hvd.core.tensorflow_hooks import in_loop, in_xla
from tf_hvd.keras import compat
from tf_hvd.training import dataflow

# The innermost function in which an optimizer was let through last.
_functions: weakref.WeakKeyDictionary[Any, weakref.ReferenceType[Any]] = weakref.WeakKeyDictionary()
# The number of steps of the `fit` that an optimizer is used in, None if it is not known.
_fits: weakref.WeakKeyDictionary[Any, int | None] = weakref.WeakKeyDictionary()


def begin_fit(optimizers: Sequence[Any], steps: int | None) -> None:
    for optimizer in optimizers:
        _fits[optimizer] = steps


def end_fit(optimizers: Sequence[Any]) -> None:
    """It has ended, be it by an exception."""
    for optimizer in optimizers:
        _fits.pop(optimizer, None)


def may_pass(optimizer: Any, graphs: Sequence[Any]) -> bool:
    """Whether the update that is being traced in these functions may be its first one."""
    if in_xla() or in_loop(graphs) or _fits.get(optimizer, 1) != 1:
        return False
    if compat.updates_of(optimizer) != 0:
        return False
    known = _functions.get(optimizer)
    if known is not None and known() is graphs[0]:
        return False  # twice in one function
    _functions[optimizer] = weakref.ref(graphs[0])
    return True


def has_passed(optimizer: Any) -> bool:
    return optimizer in _functions


def check(optimizer: Any, graphs: Sequence[Any], text: str) -> Any:
    """An op that fails with `text` from the second update on.

    It comes after the collectives of the function. Else a rank could fail before it has called
    one, and another after it, whose call would then be answered by the first one's next step.
    """
    is_first = tf.equal(compat.iterations_of(optimizer), 0)
    with tf.control_dependencies(dataflow.collectives(graphs)):
        # TensorFlow would write an end of a line as two characters.
        return tf.debugging.Assert(is_first, [text.replace("\n", " ")])
