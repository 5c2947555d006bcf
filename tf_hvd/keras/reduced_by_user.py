"""Gradients that the program has reduced before the update: nothing reduces them again.

What Horovod's `_allreduce` or `compute_gradients` of the optimizer returned is remembered. Of the
rest a graph shows where it comes from, and in eager mode a DistributedGradientTape marks it.
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
    """Keeps what was reduced for the user from being reduced again by one optimizer."""

    def __init__(self, name: str, op: int, process_set: ProcessSet) -> None:
        self._name = name
        self._op = op
        self._process_set = process_set
        self._passes = False  # whether one of the passes so far was reduced
        self._gradients: list[Any] = []
        self._graph: Any = None

    def remember(self, gradients: Sequence[Any]) -> None:
        self._gradients = [gradient for gradient in gradients if gradient is not None]
        self._graph = next(iter(enclosing_graphs()), None)

    def forget(self) -> None:
        """The update is made, whether it asked or was told that all is reduced."""
        self._gradients = []

    def take(self, gradients: Sequence[Any]) -> bool:
        """Whether these are the gradients that the user was given; asked once for each update.

        Raises:
          ValueError: they are others, and reducing them again might be wrong.
        """
        known, self._gradients = self._gradients, []
        here = self._graph in enclosing_graphs() if self._graph else tf.executing_eagerly()
        if not known or not here:
            return False
        if all(g is None or any(g is one for one in known) for g in gradients):
            return True
        if self._op not in IDEMPOTENT:
            raise ValueError(
                "these are not the gradients that compute_gradients() or _allreduce() returned, "
                "so apply_gradients() would reduce them again: change gradients before they are "
                "reduced (compute them with a tf.GradientTape), or clip them by the optimizer's "
                "own arguments."
            )
        return False

    def before_pass(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Gradients are about to be added up, which hides where they come from; see `found`."""
        self._passes |= self._look(gradients, variables)

    def found(self, gradients: Sequence[Any], variables: Sequence[Any]) -> bool:
        """Whether an update applies its gradients as they are, because the program reduced them.

        So it is under Horovod's names, by which apply_gradients() never reduces. One reduced
        gradient is enough: the others may be the rank's own. Under tf_hvd's names a second Average,
        Min or Max changes nothing, and other ops raise. Gradients are here as the program gave
        them, before they are scaled or added up.

        Raises:
          ValueError: to reduce them is wrong, or may be.
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
                f"{self._name} would reduce these gradients a second time: they come from a "
                "collective or a DistributedGradientTape already. Give the optimizer the gradients "
                "of each rank, or do not wrap it."
            )
        if refuses and unknown:
            raise ValueError(
                f"{self._name} may reduce these gradients a second time: a DistributedGradientTape "
                "has reduced gradients of these variables since their last update, and these are "
                "other tensors. Eager mode does not show whether they were made from them, for "
                "example by clipping. Put the step into a tf.function, give the optimizer the "
                "gradients of each rank, or do not wrap it."
            )
        return False


def as_given(gradients: Sequence[Any]) -> list[Any]:
    """The program's own gradients, each index of IndexedSlices once, as ops made here."""
    copied = functools.partial(tf.nest.map_structure, tf.identity, expand_composites=True)
    return [None if each is None else copied(each_row_once(each)) for each in gradients]
