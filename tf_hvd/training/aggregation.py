"""Gradient aggregation: several backward passes, then one reduction and one update.

Each rank adds up its own gradients, and only their sum is sent. Optimizers of Keras and of
tf.compat.v1 use this implementation.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_hvd.core import log
from tf_hvd.core.tensorflow_hooks import ByVariables, state_variable, waits_for


def check_passes(backward_passes_per_step: int) -> int:
    """Return the number of passes; raise ValueError if it is less than 1."""
    if backward_passes_per_step < 1:
        raise ValueError(
            f"backward_passes_per_step={backward_passes_per_step} is not positive. Pass a number "
            "of at least 1."
        )
    return backward_passes_per_step


@dataclasses.dataclass
class _Passes:
    count: Any  # passes so far
    sums: list[Any]  # of the gradients; None for a missing gradient
    is_in_graph: bool  # of a v1 session, which may not have initialised the variables

    def live(self) -> list[Any]:
        return [total for total in self.sums if total is not None]

    def restore(self, collected: dict[str, Any]) -> None:
        """Restore the passes from a result of `GradientAggregation.collect`, in eager mode."""
        self.reset()
        if not collected["count"]:
            return
        sums = collected["sums"]
        if [_shape_in(each) for each in sums] != [_shape_in(each) for each in self.sums]:
            log.warning(
                "The saved sums of backward_passes_per_step are ignored, because they do not have "
                "the shapes of this program's gradients. The incomplete update starts again."
            )
            return
        self.count.assign(collected["count"])
        for total, value in zip(self.sums, sums, strict=True):
            if total is not None:
                total.assign(value)

    def reset(self) -> Any:
        """Set the sums and the count to 0; return a tensor that waits for this."""
        resets = [total.assign(tf.zeros(total.shape, total.dtype)) for total in self.live()]
        resets.append(self.count.assign(0))
        with tf.control_dependencies(waits_for(resets)):
            return tf.constant(True)


class GradientAggregation:
    """Sums of gradients over several backward passes, and a count of the passes.

    Each list of variables has separate sums and a separate count, because a program may use one
    optimizer for several lists. The passes over one list do not change the sums of another.

    The sums are stored in variables, which are created with the first gradients. Checkpoints do not
    contain these variables. In a v1 graph they are local variables.

    Args:
      passes: number of passes in a step.
      average: whether to divide the sums by `passes` (default: False).
      sparse_as_dense: whether to convert IndexedSlices to dense tensors first (default: False).

    Raises:
      ValueError: `passes` is less than 1.

    Example:
      aggregation = hvd.GradientAggregation(2)
      weight = tf.Variable([1.0])
      for _ in range(2):
          complete, sums = aggregation.add([tf.ones([1])], [weight])
      assert complete
    """

    def __init__(
        self, passes: int, *, average: bool = False, sparse_as_dense: bool = False
    ) -> None:
        self.passes = check_passes(passes)
        self._average = average
        self._sparse_as_dense = sparse_as_dense
        self._steps: ByVariables[_Passes] = ByVariables()
        self._restored: list[dict[str, Any]] = []  # for steps that do not exist yet

    def add(
        self, gradients: Sequence[Any], variables: Sequence[Any] | None = None
    ) -> tuple[Any, list[Any]]:
        """Add the gradients of one pass.

        Args:
          gradients: list of tensors and None. In every pass, the same gradients must be None.
          variables: list of the gradients' variables, in the same order. None (default) if the
            program has only one list of variables.

        Returns:
          Two values. The first is a bool scalar, whether the step is complete. It is the same on
          all ranks that make the same number of calls. The second is the list of sums (or averages)
          so far, in which missing gradients are None.

        Raises:
          ValueError: a gradient is an IndexedSlices; a gradient is None in only one of two
            successive passes; or a gradient's shape is not fully known.
        """
        if self._sparse_as_dense:
            gradients = [None if g is None else tf.convert_to_tensor(g) for g in gradients]
        step = self._step_of(gradients, variables)
        with tf.control_dependencies(waits_for(_restart_if_over(step, self.passes))):
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
        """Make the update if all passes of the step are complete, and then start the next step.

        Args:
          complete: the first result of `add`.
          step: function that makes the update; its result is ignored.
          variables: the variables passed to `add`.

        Returns:
          A bool scalar, whether `step` was run. In a graph, it waits until the update is made
          and the sums are reset for the next step.

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
        """Return the variables with the sums and counts; functions that call `add` capture them."""
        steps = self._steps.all()
        return [v for step in steps for v in (step.count, *step.sums) if v is not None]

    def collect(self) -> list[dict[str, Any]]:
        """Return the counts and sums of incomplete steps, as NumPy arrays; for eager mode."""
        collected = []
        for step in self._steps.all():
            count = int(step.count.numpy())
            sums = [None if each is None or not count else each.numpy() for each in step.sums]
            collected.append({"count": count, "sums": sums})
        return collected

    def restore(self, collected: Sequence[dict[str, Any]]) -> None:
        """Restore the result of `collect`.

        If a step does not exist yet, it is restored at its first pass. The program must create the
        steps in the same order as before.
        """
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
                "backward_passes_per_step > 1 does not support IndexedSlices, because sums over "
                "passes are dense. Pass sparse_as_dense=True."
            )
        step = self._steps.get(variables, lambda: self._first_pass(gradients, variables))
        present = [gradient is not None for gradient in gradients]
        if present != [total is not None for total in step.sums]:
            raise ValueError(
                "backward_passes_per_step > 1: this pass does not have gradients for the same "
                "variables as the previous one. Pass zeros for a missing gradient."
            )
        return step


def reduce_if_complete(
    complete: Any, sums: Sequence[Any], reduce: Callable[[], Sequence[Any]]
) -> list[Any]:
    """Return the reduced sums if the step is complete, or the rank's own sums unchanged."""
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
    """Return a gradient's shape, or its variable's shape if the former is not fully known."""
    shape = gradient.shape
    if not shape.is_fully_defined() and hasattr(variable, "shape"):
        shape = tf.TensorShape(variable.shape)
    if not shape.is_fully_defined():
        raise ValueError(
            f"backward_passes_per_step > 1: a gradient has the shape {shape}, which is not fully "
            "known. Pass the variables too, or call set_shape() on the gradient."
        )
    return shape


def _restart_if_over(step: _Passes, passes: int) -> Any:
    """Restart a complete step that was not applied, for example because its update is not finite.

    In a session that has not initialised its local variables, start the first step.
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
    raise ValueError(
        "when_complete: add() was not called with these variables. Pass the same list to both."
    )
