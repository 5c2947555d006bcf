"""Allow one update without a reduction, because this update creates the optimizer's variables.

Programs often make one step with an optimizer that is not distributed, broadcast all variables, and
then train. The guard therefore allows an optimizer's first update if its function and its `fit`
make no other update. A check at run time ensures that the function is not run twice.
"""

import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_hvd.core.tensorflow_hooks import in_loop, in_xla
from tf_hvd.keras import compat
from tf_hvd.training import dataflow

# The innermost function in which an update of the optimizer was last allowed.
_functions: weakref.WeakKeyDictionary[Any, weakref.ReferenceType[Any]] = weakref.WeakKeyDictionary()
# The number of steps of the `fit` that uses an optimizer; None if not known.
_fits: weakref.WeakKeyDictionary[Any, int | None] = weakref.WeakKeyDictionary()


def begin_fit(optimizers: Sequence[Any], steps: int | None) -> None:
    for optimizer in optimizers:
        _fits[optimizer] = steps


def end_fit(optimizers: Sequence[Any]) -> None:
    """Forget the `fit` that uses these optimizers; called when the `fit` returns or raises."""
    for optimizer in optimizers:
        _fits.pop(optimizer, None)


def may_pass(optimizer: Any, graphs: Sequence[Any]) -> bool:
    """Whether the update being traced in these functions may be the allowed first update."""
    if in_xla() or in_loop(graphs) or _fits.get(optimizer, 1) != 1:
        return False
    if compat.updates_of(optimizer) != 0:
        return False
    known = _functions.get(optimizer)
    if known is not None and known() is graphs[0]:
        return False  # a second update in one function
    _functions[optimizer] = weakref.ref(graphs[0])
    return True


def has_passed(optimizer: Any) -> bool:
    return optimizer in _functions


def check(optimizer: Any, graphs: Sequence[Any], text: str) -> Any:
    """Return an op that fails with `text` at the second update and all later updates.

    The op runs after the collectives in the function. Otherwise rank A could fail before it calls a
    collective, and rank B after its call. Rank B's call would then be matched with a call in rank
    A's next step.
    """
    is_first = tf.equal(compat.iterations_of(optimizer), 0)
    with tf.control_dependencies(dataflow.collectives(graphs)):
        # TensorFlow would write a newline as two characters.
        return tf.debugging.Assert(is_first, [text.replace("\n", " ")])
