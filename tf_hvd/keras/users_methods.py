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
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_hvd.collectives import reduce_ops
from tf_hvd.core.process_sets import ProcessSet
from tf_hvd.core.tensorflow_hooks import enclosing_graphs
from tf_hvd.keras import compat, hooks
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

        All ranks must ask at the same place.

        Args:
          gradients: tensors, IndexedSlices and None; without those of each rank's own.
          op: by which they would be reduced.
          process_set: the ranks.
          name: of the request by which they are compared, and of the optimizer in an error.

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


def hook(optimizer: Any, synchronizer: compat.GradientSynchronizer) -> None:
    """Has the methods of `overridden` get reduced gradients; each update is reduced once."""
    # The third argument of `apply_gradients` that says so, without its name.
    says_reduced = compat.kind_of(optimizer) == compat.TF_KERAS

    def hooked_apply_gradients(
        target: Any, apply_gradients: Any, grads_and_vars: Any, *args: Any, **kwargs: Any
    ) -> Any:
        told = any(kwargs.get(name) is value for name, value in compat.REDUCED.items())
        if synchronizer.in_users_method or told or args[1:2] == (says_reduced,):
            return apply_gradients(grads_and_vars, *args, **kwargs)
        pairs = list(grads_and_vars)
        variables = [variable for _, variable in pairs]

        def update(reduced: Any) -> Any:
            return apply_gradients(list(zip(reduced, variables, strict=True)), *args, **kwargs)

        synchronizer.begin([gradient for gradient, _ in pairs], variables)
        return _give(target, synchronizer, pairs, update, _scale_of(target))

    def hooked_apply(
        target: Any, apply: Any, grads: Any, trainable_variables: Any = None, *more: Any, **kw: Any
    ) -> Any:
        grads, known = list(grads), trainable_variables
        known = compat.trained_by(target) if known is None else list(known)
        given = trainable_variables if trainable_variables is None else known
        if synchronizer.in_users_method or len(grads) != len(known):  # which Keras refuses
            return apply(grads, given, *more, **kw)
        synchronizer.begin(grads, known)
        return _give(
            target,
            synchronizer,
            list(zip(grads, known, strict=True)),
            lambda reduced: apply(reduced, given, *more, **kw),
            _scale_of(target),
        )

    def hooked_apply_filtered(
        target: Any, apply_filtered: Any, grads: Any, trainable_variables: Any
    ) -> Any:
        if synchronizer.in_users_method:
            return apply_filtered(grads, trainable_variables)
        pairs = list(zip(grads, trainable_variables, strict=True))
        return _give(
            target,
            synchronizer,
            pairs,
            lambda reduced: apply_filtered(reduced, trainable_variables),
        )

    around: Sequence[Any] = (hooked_apply_gradients, hooked_apply, hooked_apply_filtered)
    by_name = dict(zip(compat.UPDATING[compat.KERAS], around, strict=True))
    for name in compat.overridden(optimizer):
        hooks.put_around(optimizer, name, by_name[name])


def _scale_of(optimizer: Any) -> Any:
    """The fixed factor of the loss, by which Keras 3 divides gradients within `apply`, or None."""
    return getattr(optimizer, "loss_scale_factor", None)


def _give(
    target: Any,
    synchronizer: compat.GradientSynchronizer,
    pairs: Sequence[Any],
    update: Callable[[list[Any]], Any],
    scale: Any = None,
) -> Any:
    """Makes an update by a method of the user's, which gets reduced gradients.

    But for those that Keras would not reduce either.

    Args:
      target: the optimizer.
      synchronizer: reduces.
      pairs: gradients and variables.
      update: calls the method with the gradients.
      scale: what the gradients are multiplied by, and stay so; None for nothing.
    """
    variables = [variable for _, variable in pairs]
    own = [compat.has_own_values(variable) for variable in variables]
    gradients = [None if mine else g for mine, (g, _) in zip(own, pairs, strict=True)]
    with tf.name_scope(compat.SCOPE):
        if scale is not None:
            gradients = [None if g is None else g / scale for g in gradients]
        reduced = compat.reduced(target, synchronizer, gradients, variables)
        if scale is not None:
            reduced = [None if g is None else g * scale for g in reduced]
    reduced = [g if mine else r for mine, (g, _), r in zip(own, pairs, reduced, strict=True)]
    with synchronizer.giving(reduced):
        result = update(reduced)
    synchronizer.applied(variables)
    return result
