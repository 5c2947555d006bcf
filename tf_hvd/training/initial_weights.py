"""Check once, early in training, that all ranks have started from the same weights.

`fit` compares the weights at the end of each epoch, but custom loops and v1 sessions do not. In
these, ranks with different initial values would train different models with the same gradients.

Therefore one small collective compares the variables' bits at the tenth reduction of gradients for
a list of variables. Programs have made their broadcast by then. A difference causes a warning, not
an error, because it may be intended.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_hvd.collectives.sources import SourceList, list_of
from tf_hvd.core import _native
from tf_hvd.core.process_sets import (
    ProcessSet,
    id_of,
    registration_of,
    restart_after_join,
    restart_in_each_job,
)
from tf_hvd.core.tensorflow_hooks import in_xla, tf_variable, waits_for
from tf_hvd.training import agreement, guard
from tf_hvd.training.counter import Counter

REDUCTION = 10
"""Number of the reduction before which the weights are compared, counted from 1."""

_LOOP = (
    "call hvd.broadcast_variables(model.variables + optimizer.variables, root_rank=0) after the "
    "first step"
)
_SESSION = (
    "give the session the hook hvd.BroadcastGlobalVariablesHook(0), or use "
    "hvd.MonitoredTrainingSession"
)


def _text() -> tuple[str, str]:
    """Return the texts of the warning before and after the variables' names."""
    with tf.init_scope():
        cure = _LOOP if tf.executing_eagerly() else _SESSION
    return (
        f"at reduction {REDUCTION} the ranks' weights differ, first in ",
        ". The ranks did not start from the same values, so each rank trains its own model. To "
        f"synchronize the ranks, {cure}. For weights that are meant to differ, call "
        f"register_local_var. (This is checked once. {guard.OFF})",
    )


def compare(variables: Sequence[Any], process_set: ProcessSet, bits: Any = None) -> Any:
    """Compare the variables, and log a warning on the first rank if they differ.

    All ranks of the set must call this function at the same point, or run the ops that it adds to a
    graph.

    Args:
      variables: the variables to compare.
      process_set: the ranks that are compared.
      bits: the variables' fingerprints. None (default) to compute them here.

    Returns:
      True, as a tensor that waits for the comparison.
    """
    bits = agreement.fingerprints(variables) if bits is None else bits
    wrong = agreement.unequal(
        bits, process_set, "comparison_of_initial_weights", ignore_name_scope=False
    )
    told = wrong
    if process_set.rank() == 0:
        told = agreement.tell(wrong, variables, *_text(), fails=False)
    with tf.control_dependencies(waits_for(told)):
        return tf.constant(True)


class _Reductions:
    """The number of reductions for one list of variables and one set of ranks."""

    def __init__(self, listed: SourceList, process_set: ProcessSet) -> None:
        self._listed = listed
        self._process_set = process_set
        self._made = 0  # in eager mode, where a variable would be slower
        self._count: Counter | None = None
        restart_in_each_job(self)
        restart_after_join(self, process_set)

    def restart(self) -> None:
        self._made = 0

    def after_join(self) -> None:
        self._made = 0

    def is_due(self, sources: Sequence[Any]) -> Any:
        """Count a reduction; return whether it is number REDUCTION, as a bool or a bool tensor."""
        if tf.executing_eagerly():
            self._made += 1
            return self._made == REDUCTION
        if not in_xla():
            plain = map(tf_variable, sources)
            first = next(each for each in plain if isinstance(each, tf.Variable))
            made = _native.ops.horovod_count_reduction(
                [first.handle] if hasattr(first, "handle") else [],
                source_list=self._listed.number(),
                process_set_id=id_of(self._process_set),
            )
            return tf.equal(made, REDUCTION)
        if self._count is None:
            self._count = Counter("distributed/reductions", self._process_set)
        return tf.equal(self._count.add(), REDUCTION)


def _reductions_of(listed: SourceList, process_set: ProcessSet) -> _Reductions:
    # By process set: the ranks of one set may have been in others before.
    registration = registration_of(process_set)
    if registration not in listed.kept:
        for number, size in list(listed.kept):
            if _native.process_set_ranks(number) is None:  # the set was removed
                del listed.kept[number, size]
        listed.kept[registration] = _Reductions(listed, process_set)
    made: _Reductions = listed.kept[registration]
    return made


def before_reduction(
    sources: Sequence[Any], process_set: ProcessSet
) -> tuple[list[Any], Any | None]:
    """Compare the variables among `sources` if the next reduction is number REDUCTION.

    Returns:
      Two values: the list of ops that the reduction must wait for (empty in eager mode), and the
      `read` argument for `agreement.stamped`.
    """
    listed = list_of(sources)
    if not (listed.has_variables and agreement.takes_part(process_set) and guard.watches()):
        return [], None
    due = _reductions_of(listed, process_set).is_due(sources)
    if due is False:
        return [], None
    variables = [v for v in map(tf_variable, sources) if isinstance(v, tf.Variable)]
    if due is True:
        compare(variables, process_set)
        return [], None
    with tf.name_scope("distributed_start"):
        bits, read = agreement.read_before(variables, [due])
        compared = tf.cond(
            due, lambda: compare(variables, process_set, bits), lambda: tf.constant(True)
        )
    return [compared], read
