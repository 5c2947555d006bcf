"""Gradient aggregation: several backward passes, then one reduction and one update.

Each rank adds up its own gradients; only their sum travels. The one implementation
for the v1 optimizer, the tape and Keras optimizers.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_hvd.core import log
from tf_hvd.core.tensorflow_hooks import ByVariables, state_variable, waits_for


def check_passes(backward_passes_per_step: int) -> int:
    """Returns the number of passes."""
    if backward_passes_per_step < 1:
        raise ValueError(f"backward_passes_per_step={backward_passes_per_step} must be at least 1.")
    return backward_passes_per_step


@dataclasses.dataclass
class _Passes:
    count: Any  # passes so far
    sums: list[Any]  # of the gradients; None where there is none
    is_in_graph: bool  # of a v1 session, which may not have initialised them

    def live(self) -> list[Any]:
        return [total for total in self.sums if total is not None]

    def restore(self, collected: dict[str, Any]) -> None:
        """Takes what `GradientAggregation.collect` gave; eagerly."""
        self.reset()
        if not collected["count"]:
            return
        sums = collected["sums"]
        if [_shape_in(each) for each in sums] != [_shape_in(each) for each in self.sums]:
            log.warning(
                "The saved sums of backward_passes_per_step are of other gradients than this "
                "program has: the update that was not complete begins again."
            )
            return
        self.count.assign(collected["count"])
        for total, value in zip(self.sums, sums, strict=True):
            if total is not None:
                total.assign(value)

    def reset(self) -> Any:
        """Starts the step; an op, or a tensor, that waits for it."""
        resets = [total.assign(tf.zeros(total.shape, total.dtype)) for total in self.live()]
        resets.append(self.count.assign(0))
        with tf.control_dependencies(waits_for(resets)):
            return tf.constant(True)


class GradientAggregation:
    """Sums of gradients over passes, and a count of the passes.

    Each list of variables has sums and a count of its own: an optimizer may be used
    on several in turn. A step that is not complete when another list takes over
    waits for its next pass.

    The sums live in variables that are in no checkpoint: local variables of a v1
    graph, and unknown to models and optimizers otherwise. They are made when the
    first gradients come.

    Args:
      passes: how many passes make a step.
      average: divide the sums by `passes`.
      sparse_as_dense: turn IndexedSlices into tensors first.

    Raises:
      ValueError: `passes` is not at least 1.
    """

    def __init__(self, passes: int, average: bool = False, sparse_as_dense: bool = False) -> None:
        self.passes = check_passes(passes)
        self._average = average
        self._sparse_as_dense = sparse_as_dense
        self._steps: ByVariables[_Passes] = ByVariables()
        self._restored: list[dict[str, Any]] = []  # for steps that are not there yet

    def add(
        self, gradients: Sequence[Any], variables: Sequence[Any] | None = None
    ) -> tuple[Any, list[Any]]:
        """Adds the gradients of one pass.

        Args:
          gradients: tensors and None, the same ones in each pass over a list.
          variables: the list, one for each gradient; None if there is but one list.

        Returns:
          Whether the step is complete (a bool scalar, equal on all ranks that call
          this equally often), and the sums or averages so far. None stays None.

        Raises:
          ValueError: IndexedSlices, other gradients than in the pass before, or shapes
            that neither the gradient nor the variable tells.
        """
        if self._sparse_as_dense:
            gradients = [None if g is None else tf.convert_to_tensor(g) for g in gradients]
        step = self._step_of(gradients, variables)
        with tf.control_dependencies(waits_for(_begin_anew(step, self.passes))):
            added = [
                None if total is None else total.assign_add(gradient)
                for total, gradient in zip(step.sums, gradients, strict=True)
            ]
        with tf.control_dependencies(waits_for(added)):
            count = tf.identity(step.count.assign_add(1))
        with tf.control_dependencies([count]):
            sums = [None if total is None else self._scaled(total) for total in step.sums]
        return tf.equal(count, self.passes), sums

    def when_complete(
        self, complete: Any, step: Callable[[], Any], variables: Sequence[Any] | None = None
    ) -> Any:
        """Makes the update if all passes of the step are there, and starts the next step then.

        Args:
          complete: what `add` has returned.
          step: makes the update; its result is ignored.
          variables: those that `add` was given.

        Returns:
          Whether `step` was run, a bool scalar. In a graph it waits for the update and for
          the start of the next step.

        Raises:
          ValueError: `add` was not called with these variables.
        """
        passes = self._steps.get(variables, _never_added)

        def finish() -> Any:
            done = step()
            with tf.control_dependencies(waits_for(done)):
                return passes.reset()

        return tf.cond(complete, finish, lambda: tf.constant(False))

    def variables(self) -> list[Any]:
        """Where it adds up; functions that add have captured them."""
        steps = self._steps.all()
        return [v for step in steps for v in (step.count, *step.sums) if v is not None]

    def collect(self) -> list[dict[str, Any]]:
        """What the steps have added up that are not complete; eagerly, as NumPy arrays."""
        collected = []
        for step in self._steps.all():
            count = int(step.count.numpy())
            sums = [None if each is None or not count else each.numpy() for each in step.sums]
            collected.append({"count": count, "sums": sums})
        return collected

    def restore(self, collected: Sequence[dict[str, Any]]) -> None:
        """Takes it back, also before there are steps, which are made in the same order."""
        steps = self._steps.all()
        for step, found in zip(steps, collected, strict=False):
            step.restore(found)
        for step in steps[len(collected) :]:
            step.reset()
        self._restored = list(collected[len(steps) :])

    def _scaled(self, total: Any) -> Any:
        value = total.read_value()
        return value / tf.cast(self.passes, value.dtype) if self._average else value

    def _first_pass(self, gradients: Sequence[Any], variables: Sequence[Any] | None) -> _Passes:
        step = _first_pass(gradients, variables)
        if self._restored:
            with tf.init_scope():
                step.restore(self._restored.pop(0))
        return step

    def _step_of(self, gradients: Sequence[Any], variables: Sequence[Any] | None) -> _Passes:
        if any(isinstance(gradient, tf.IndexedSlices) for gradient in gradients):
            raise ValueError(
                "backward_passes_per_step > 1 needs sparse_as_dense=True for IndexedSlices: sums "
                "of passes are dense."
            )
        step = self._steps.get(variables, lambda: self._first_pass(gradients, variables))
        present = [gradient is not None for gradient in gradients]
        if present != [total is not None for total in step.sums]:
            raise ValueError(
                "backward_passes_per_step > 1 needs gradients for the same variables in every "
                "pass; pass zeros where there is none."
            )
        return step


def reduce_if_complete(
    complete: Any, sums: Sequence[Any], reduce: Callable[[], Sequence[Any]]
) -> list[Any]:
    """The reduced sums of a complete step; else the rank's own, which are not applied."""
    known = [i for i, total in enumerate(sums) if total is not None]

    def reduced() -> list[Any]:
        results = reduce()
        return [results[i] for i in known]

    values = tf.cond(complete, reduced, lambda: [tf.identity(sums[i]) for i in known])
    results: list[Any] = [None] * len(sums)
    for i, value in zip(known, values, strict=True):
        results[i] = value
    return results


def _first_pass(gradients: Sequence[Any], variables: Sequence[Any] | None) -> _Passes:
    owners = variables or [None] * len(gradients)
    shapes = [
        None if gradient is None else _shape_of(gradient, owner)
        for gradient, owner in zip(gradients, owners, strict=True)
    ]
    with tf.init_scope():
        sums = [
            None
            if gradient is None
            else state_variable(tf.zeros(shape, gradient.dtype), f"aggregation/sum_{i}")
            for i, (gradient, shape) in enumerate(zip(gradients, shapes, strict=True))
        ]
        count = state_variable(tf.zeros([], tf.int64), "aggregation/passes")
        return _Passes(count, sums, is_in_graph=not tf.executing_eagerly())


def _shape_of(gradient: Any, variable: Any) -> tf.TensorShape:
    """The gradient's, as far as it is known: that of an embedding knows no rows."""
    shape = gradient.shape
    if not shape.is_fully_defined() and hasattr(variable, "shape"):
        shape = tf.TensorShape(variable.shape)
    if not shape.is_fully_defined():
        raise ValueError(
            f"backward_passes_per_step > 1 needs the whole shape of each gradient, not {shape}: "
            "give the variables too, or call set_shape() on the gradient."
        )
    return shape


def _begin_anew(step: _Passes, passes: int) -> Any:
    """Starts the step again where the one before was complete and nobody applied it.

    As where the program skips updates that are not finite. Also where no step was
    yet, as in a session that has not initialised its local variables.
    """

    def is_over() -> Any:
        return step.count.read_value() >= passes

    if step.is_in_graph:
        over = tf.cond(step.count.is_initialized(), is_over, lambda: tf.constant(True))
    else:
        over = is_over()
    return tf.cond(over, step.reset, lambda: tf.constant(False))


def _shape_in(value: Any) -> tuple[int, ...] | None:
    return None if value is None else tuple(value.shape)


def _never_added() -> _Passes:
    raise ValueError("when_complete: add() was not called with these variables.")
