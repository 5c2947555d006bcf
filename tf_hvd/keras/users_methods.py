"""An optimizer whose class overrides `apply` or `apply_gradients`: the reduction comes first.

Such a method may clip, and shall clip what all ranks have computed, as it would in one process.
So it is given reduced gradients, and the gradients that it hands on are not reduced again: a flag
for the duration of the call says so, for the method makes new tensors.

It may also compute gradients of its own, as SAM does at other weights, which come from this rank's
batch alone. Those are reduced when they are handed on. In a function the graph shows where they
come from; eagerly the ranks compare them, for derived gradients are equal on all ranks.
"""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_hvd.collectives import reduce_ops
from tf_hvd.core.process_sets import ProcessSet
from tf_hvd.core.tensorflow_hooks import enclosing_graphs
from tf_hvd.training import agreement, dataflow

# Reducing what is equal on all ranks changes nothing.
IDEMPOTENT = (reduce_ops.Average, reduce_ops.Min, reduce_ops.Max)


class Given(threading.local):
    """The method of the user's that makes an update on this thread, if one does.

    One for all optimizers of a call of DistributedOptimizer: the method of an outer optimizer
    hands on to inner ones.
    """

    def __init__(self) -> None:
        self.by: Any = None
        """Which synchronizer has reduced the gradients that the method was given."""
        self._gradients: list[Any] = []

    @contextlib.contextmanager
    def update(self, by: Any, gradients: Sequence[Any]) -> Iterator[None]:
        before = self.by, self._gradients
        self.by, self._gradients = by, list(gradients)
        try:
            yield
        finally:
            self.by, self._gradients = before

    def holds(self, gradients: Sequence[Any], op: int, process_set: ProcessSet, name: str) -> bool:
        """Whether these are derived from what the method was given.

        All ranks must ask at the same place, and leave out gradients that are each rank's own.

        Raises:
          ValueError: they differ between ranks, and to reduce them may be wrong, for all that
            can be told.
        """
        graphs = enclosing_graphs()
        if graphs:
            return not dataflow.Tracing(graphs).unreduced(gradients)
        if all(g is None or any(g is one for one in self._gradients) for g in gradients):
            return True
        values = tf.nest.flatten([g for g in gradients if g is not None], expand_composites=True)
        bits = agreement.fingerprints(values)
        if not agreement.unequal(bits, process_set, f"{name}_handed_on").numpy().any():
            return True
        if op not in IDEMPOTENT:
            raise ValueError(
                f"{name}: the gradients that a method of its class hands on differ between ranks. "
                "Either it computes them from this rank's batch, or it adds random numbers that "
                "differ; with op=Sum or Product this decides whether they are to be reduced. "
                "Call the step in a tf.function, where it can be seen; or use op=Average."
            )
        return False
