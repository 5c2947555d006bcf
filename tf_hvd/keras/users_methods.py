"""Track the update that a user's own `apply` or `apply_gradients` is making.

A user's optimizer class may override these methods, for example to clip gradients. Such a method
must clip the gradients reduced across all ranks, as in one process. The method therefore gets
reduced gradients, and the gradients that it passes on are not reduced again. It may create new
tensors, so a flag is set for the duration of its call.

The method may also compute its own gradients from this rank's batch. SAM, for example, computes
gradients at other weights. Such gradients are reduced when the method passes them on. In a
tf.function, the graph shows where gradients come from. In eager mode the ranks compare gradients,
because gradients derived from reduced gradients are the same on all ranks.
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

# With these ops, reducing values that are the same on all ranks changes nothing.
IDEMPOTENT = (reduce_ops.Average, reduce_ops.Min, reduce_ops.Max)


class Given(threading.local):
    """State of the user's method that is making an update on this thread, if any.

    All optimizers in one call to DistributedOptimizer share this object, because the method of an
    outer optimizer calls inner optimizers.
    """

    def __init__(self) -> None:
        self.by: Any = None
        """The synchronizer that reduced the gradients for the method; None outside a method."""
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
        """Whether these gradients are derived from the reduced gradients that the method got.

        All ranks must call this function at the same point. Gradients that are local to a rank must
        not be passed.

        Raises:
          ValueError: the gradients differ between ranks, so reducing them may be wrong.
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
                f"{name}: the optimizer's own update method passes on gradients that differ "
                "between ranks. The method may compute gradients from this rank's batch, or add "
                "random numbers to reduced gradients. With op=Sum or Product, only the former must "
                "be reduced. Call the step in a tf.function, in which tf_hvd can distinguish these "
                "cases, or use op=Average."
            )
        return False
