"""Whether all ranks have started from the same weights: looked at once, early, and told once.

`fit` compares the weights at the end of each epoch. In a loop of one's own and in a v1 session
nobody does, and ranks that were never made alike train models of their own with the same
averages. At the tenth reduction of the gradients of a list of variables, when programs have made
their broadcast, one small collective compares the variables' bits. It is told and is no error:
it may be meant.
"""

import sys
import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_hvd.core import log
from tf_hvd.core.process_sets import ProcessSet
from tf_hvd.core.tensorflow_hooks import on_host, state_variable, tf_variable
from tf_hvd.training import agreement, guard

REDUCTION = 10
"""Before this one, counted from 1, the weights are compared."""

_LOOP = (
    "after the first step call hvd.broadcast_variables(model.variables + optimizer.variables, "
    "root_rank=0)"
)
_SESSION = (
    "give the session the hook hvd.BroadcastGlobalVariablesHook(0), or take "
    "hvd.MonitoredTrainingSession"
)


def _text() -> tuple[str, str]:
    """What comes before the variables' names, and after them."""
    with tf.init_scope():
        cure = _LOOP if tf.executing_eagerly() else _SESSION
    return (
        f"at reduction {REDUCTION} the ranks' weights differ, first in ",
        ": the ranks did not start from the same values, and each trains a model of its own. Make "
        f"them alike: {cure}. (This is looked at once. Weights that are meant to differ are "
        f"registered by register_local_source or register_local_var. {guard.OFF})",
    )


def compare(variables: Sequence[Any], process_set: ProcessSet) -> Any:
    """Compares the variables, and has the first rank tell if they differ; gives True.

    All ranks of the set call it, or run what it puts into a graph, at the same place.
    """
    before, after = _text()
    wrong = agreement.unequal(
        agreement.fingerprints(variables), process_set, "tf_hvd_start", ignore_name_scope=False
    )
    tells = process_set.rank() == 0
    if tf.executing_eagerly():
        if tells and bool(tf.reduce_any(wrong)):
            first = int(tf.argmax(tf.cast(wrong, tf.int32)))
            log.warning("%s%s%s", before, agreement.name_of(variables[first]), after)
        return tf.constant(True)
    # The type is said for models that have no variables.
    names = tf.constant([agreement.name_of(variable) for variable in variables], tf.string)

    def tell() -> Any:
        name = tf.boolean_mask(names, wrong)[0]
        line = tf.strings.join([log.who(), before, name, after])
        shown = tf.print(line, output_stream=sys.stderr)
        with tf.control_dependencies([shown]):
            return tf.constant(True)

    told = tf.cond(tf.reduce_any(wrong), tell, lambda: tf.constant(True)) if tells else wrong
    with tf.control_dependencies([told]):
        return tf.constant(True)


class _Reductions:
    """Counts those of one list of variables."""

    def __init__(self) -> None:
        self._made = 0
        self._count: Any = None

    def is_due(self) -> Any:
        """Counts one, now or when the graph runs, and says whether it is the one."""
        if tf.executing_eagerly():
            self._made += 1
            return self._made == REDUCTION
        return tf.equal(self._next(), REDUCTION)

    def _next(self) -> Any:
        if self._count is None:
            with tf.init_scope(), on_host():
                self._count = state_variable(tf.zeros([], tf.int64), "distributed/reductions")
                self._is_in_graph = not tf.executing_eagerly()
        if not self._is_in_graph:
            return self._count.assign_add(1)

        def first() -> Any:  # a program may initialise no local variables
            with tf.control_dependencies([self._count.assign(1)]):
                return tf.constant(1, tf.int64)

        return tf.cond(
            self._count.is_initialized(),
            lambda: self._count.assign_add(1, read_value=True),
            first,
        )


# By the ids of the variables, until one of them is gone: another may have its id then, and on some
# ranks alone.
_reductions: dict[tuple[int, ...], tuple[list[Any], _Reductions]] = {}


def _reductions_of(variables: Sequence[Any]) -> _Reductions:
    key = tuple(map(id, variables))
    if key not in _reductions:

        def forget(_: Any) -> None:
            _reductions.pop(key, None)

        _reductions[key] = [weakref.ref(each, forget) for each in variables], _Reductions()
    return _reductions[key][1]


def before_reduction(sources: Sequence[Any], process_set: ProcessSet) -> list[Any]:
    """Gradients of these sources are about to be reduced.

    Args:
      sources: what they are gradients of; only variables are compared.
      process_set: who reduces.

    Returns:
      What the reduction waits for in a graph; nothing in eager mode.
    """
    variables = [v for v in map(tf_variable, sources) if isinstance(v, tf.Variable)]
    if not variables or not agreement.takes_part(process_set) or not guard.watches():
        return []
    due = _reductions_of(variables).is_due()
    if tf.executing_eagerly():
        if due:
            compare(variables, process_set)
        return []
    with tf.name_scope("distributed_start"):
        compared = tf.cond(due, lambda: compare(variables, process_set), lambda: tf.constant(True))
    return [compared]


__all__ = ["REDUCTION", "before_reduction", "compare"]
