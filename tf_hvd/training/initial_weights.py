"""Whether all ranks have started from the same weights: looked at once, early, and told once.

`fit` compares the weights at the end of each epoch. In a loop of one's own and in a v1 session
nobody does, and ranks that were never made alike train models of their own with the same
averages. At the tenth reduction of the gradients of a list of variables, when programs have made
their broadcast, one small collective compares the variables' bits. It is told and is no error:
it may be meant.
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
"""Before this one, counted from 1, the weights are compared."""

_LOOP = (
    "after the first step call hvd.broadcast_variables(model.variables + optimizer.variables, "
    "root_rank=0)"
)
_SESSION = (
    "give the session the hook hvd.BroadcastGlobalVariablesHook(0), or use "
    "hvd.MonitoredTrainingSession"
)


def _text() -> tuple[str, str]:
    """What comes before the variables' names, and after them."""
    with tf.init_scope():
        cure = _LOOP if tf.executing_eagerly() else _SESSION
    return (
        f"at reduction {REDUCTION} the ranks' weights differ, first in ",
        ": the ranks did not start from the same values, and each trains a model of its own. To "
        f"synchronize them, {cure}. (This is checked once. Weights that are meant to differ are "
        f"registered by register_local_source or register_local_var. {guard.OFF})",
    )


def compare(variables: Sequence[Any], process_set: ProcessSet, bits: Any = None) -> Any:
    """Compares the variables, and has the first rank tell if they differ; gives True.

    All ranks of the set call it, or run what it puts into a graph, at the same place. `bits`: the
    variables' fingerprints, if they were taken before.
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
    """Counts those of one list of variables, by one set of ranks."""

    def __init__(self, listed: SourceList, process_set: ProcessSet) -> None:
        self._listed = listed
        self._process_set = process_set
        self._made = 0  # in eager mode, where a variable would cost more
        self._count: Counter | None = None
        restart_in_each_job(self)
        restart_after_join(self, process_set)

    def restart(self) -> None:
        self._made = 0

    def after_join(self) -> None:
        self._made = 0

    def is_due(self, sources: Sequence[Any]) -> Any:
        """Counts one, now or when the graph runs, and says whether it is the one."""
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
    # By who reduces: the ranks of one set may have been in others before.
    registration = registration_of(process_set)
    if registration not in listed.kept:
        for number, size in list(listed.kept):
            if _native.process_set_ranks(number) is None:  # it was removed
                del listed.kept[number, size]
        listed.kept[registration] = _Reductions(listed, process_set)
    made: _Reductions = listed.kept[registration]
    return made


def before_reduction(
    sources: Sequence[Any], process_set: ProcessSet
) -> tuple[list[Any], Any | None]:
    """Gradients of these sources, of which variables are compared, are about to be reduced.

    Returns:
      What the reduction waits for in a graph, nothing in eager mode; and for `agreement.stamped`.
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
