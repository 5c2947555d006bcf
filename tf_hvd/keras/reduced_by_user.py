"""Detect gradients that the program has already reduced, so that they are not reduced again.

Gradients returned by the optimizer's `_allreduce` or `compute_gradients` are remembered. In a
graph, the ops show the origin of other gradients. In eager mode, a DistributedGradientTape marks
the gradients that it has reduced.
"""

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_hvd.collectives.sparse import each_row_once
from tf_hvd.core import config
from tf_hvd.core.convention import Convention
from tf_hvd.core.process_sets import ProcessSet
from tf_hvd.core.tensorflow_hooks import enclosing_graphs
from tf_hvd.keras import compat
from tf_hvd.keras.users_methods import IDEMPOTENT
from tf_hvd.training import agreement, dataflow, eager_marks


class ReducedByUser:
    """Detects gradients that the program has already reduced before one optimizer's update."""

    def __init__(self, name: str, op: int, process_set: ProcessSet) -> None:
        self._name = name
        self._op = op
        self._process_set = process_set
        self._passes = False  # whether any pass of this update was reduced
        self._gradients: list[Any] = []
        self._graph: Any = None

    def remember(self, gradients: Sequence[Any]) -> None:
        self._gradients = [gradient for gradient in gradients if gradient is not None]
        self._graph = next(iter(enclosing_graphs()), None)

    def forget(self) -> None:
        """Forget the remembered gradients; called at the end of an update."""
        self._gradients = []

    def take(self, gradients: Sequence[Any]) -> bool:
        """Whether these are the remembered gradients; called once per update.

        Raises:
          ValueError: the program got reduced gradients but passes other gradients, for which a
            second reduction may be wrong.
        """
        known, self._gradients = self._gradients, []
        here = self._graph in enclosing_graphs() if self._graph else tf.executing_eagerly()
        if not known or not here:
            return False
        if all(g is None or any(g is one for one in known) for g in gradients):
            return True
        if self._op not in IDEMPOTENT:
            raise ValueError(
                "apply_gradients() would reduce these gradients again, because they are not the "
                "gradients that compute_gradients() or _allreduce() returned. Compute gradients "
                "with a tf.GradientTape and change them before they are reduced, or clip them "
                "with the optimizer's own arguments."
            )
        return False

    def before_pass(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Record for `found` whether gradients are already reduced, before they are added up."""
        self._passes |= self._look(gradients, variables)

    def found(self, gradients: Sequence[Any], variables: Sequence[Any]) -> bool:
        """Whether an update must apply its gradients unchanged, because the program reduced them.

        If the program imports `horovod`, one reduced gradient is enough. Horovod's
        `apply_gradients` never reduces, and other gradients may be local to the rank.

        If the program imports `tf_hvd`, gradients are reduced again with Average, Min and Max,
        which changes nothing. With other ops this function raises an error.

        Args:
          gradients: the gradients as the program passed them, before they are scaled or added up.
          variables: their variables, in the same order.

        Raises:
          ValueError: a second reduction would be wrong, or may be wrong.
        """
        passes, self._passes = self._passes, False
        return passes or self._look(gradients, variables)

    def _look(self, gradients: Sequence[Any], variables: Sequence[Any]) -> bool:
        horovods = Convention.name == "horovod"
        refuses = self._op not in IDEMPOTENT and config.GUARD.read() == "on"
        if not ((horovods or refuses) and agreement.takes_part(self._process_set)):
            return False
        found, unknown = False, False
        graphs = compat.enclosing_functions()
        if graphs:
            found = dataflow.reduced(gradients, graphs)
        elif tf.executing_eagerly():
            found, marked = eager_marks.take(gradients, variables)
            unknown = marked and not found
        if found and horovods:
            return True
        if refuses and found:
            raise ValueError(
                f"{self._name} would reduce these gradients a second time, because they already "
                "come from a collective or a DistributedGradientTape. Pass each rank's own "
                "gradients to the optimizer, or do not wrap the optimizer."
            )
        if refuses and unknown:
            raise ValueError(
                f"{self._name} may reduce these gradients a second time. A DistributedGradientTape "
                "has reduced gradients of these variables since their last update, but the "
                "optimizer got other tensors. In eager mode tf_hvd cannot determine whether these "
                "were derived from the reduced gradients, for example by clipping. Run the step "
                "in a tf.function, pass each rank's own gradients to the optimizer, or do not wrap "
                "the optimizer."
            )
        return False


def as_given(gradients: Sequence[Any]) -> list[Any]:
    """Copy the program's own gradients; merge slices with the same index in IndexedSlices."""
    copied = functools.partial(tf.nest.map_structure, tf.identity, expand_composites=True)
    return [None if each is None else copied(each_row_once(each)) for each in gradients]
