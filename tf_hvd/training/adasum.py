"""Adasum for v1 optimizers, which combines the ranks' updates instead of their gradients.

Source: Maleki and others, "Scaling Distributed Training with Adaptive Summation", MLSys 2021.

On each rank the optimizer changes the weights. An allreduce with op=Adasum combines the changes.
The new weights are the old weights plus the combined change.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_hvd.core.tensorflow_hooks import ByVariables, state_variable, waits_for
from tf_hvd.training._local import LocalVariables
from tf_hvd.training.reduction import GradientReducer


@dataclasses.dataclass
class _Step:
    count: Any  # updates so far
    starts: list[Any]  # the variables' values before the first update


def _first_step(variables: list[Any]) -> _Step:
    with tf.init_scope():
        count = state_variable(tf.zeros([], tf.int64), "adasum/passes")
        starts = [
            state_variable(tf.zeros(v.shape, v.dtype.base_dtype), f"adasum/start_{i}")
            for i, v in enumerate(variables)
        ]
        return _Step(count, starts)


@dataclasses.dataclass
class AdasumUpdates:
    """The combination of the ranks' changes to the weights, after every `passes` updates."""

    reducer: GradientReducer
    local: LocalVariables
    passes: int
    _steps: ByVariables[_Step] = dataclasses.field(default_factory=ByVariables)

    def apply(self, update: Callable[[], Any], variables: Sequence[Any]) -> Any:
        """Run `update`; in the last pass, combine the ranks' changes to the variables.

        Returns:
          An op in a graph, None in eager mode.
        """
        if self.reducer.is_alone():
            return update()
        shared = [variable for variable in variables if variable not in self.local]
        if self.passes == 1:
            # Copies: the optimizer changes reference variables in place.
            starts = [tf.raw_ops.DeepCopy(x=variable.read_value()) for variable in shared]
            with tf.control_dependencies(starts), tf.control_dependencies([update()]):
                return self._group(self._combine(starts, shared))
        return self._apply_pass(update, shared)

    def _apply_pass(self, update: Callable[[], Any], shared: list[Any]) -> Any:
        step = self._steps.get(shared, lambda: _first_step(shared))
        begins = tf.equal(step.count.read_value(), 0)
        kept = [
            start.assign(tf.where(begins, variable.read_value(), start.read_value()))
            for start, variable in zip(step.starts, shared, strict=True)
        ]
        with tf.control_dependencies(waits_for(kept)), tf.control_dependencies([update()]):
            count = tf.identity(step.count.assign_add(1))

        def finish() -> Any:
            starts = [start.read_value() for start in step.starts]
            done = [*self._combine(starts, shared), step.count.assign(0)]
            with tf.control_dependencies(waits_for(done)):
                return tf.constant(True)

        with tf.control_dependencies([count]):
            done = tf.cond(tf.equal(count, self.passes), finish, lambda: tf.constant(False))
        return self._group([done])

    def _combine(self, starts: list[Any], variables: list[Any]) -> list[Any]:
        changes = [v.read_value() - s for v, s in zip(variables, starts, strict=True)]
        combined = self.reducer.reduce(changes, variables)
        return [
            variable.assign(start + change)
            for variable, start, change in zip(variables, starts, combined, strict=True)
        ]

    @staticmethod
    def _group(values: list[Any]) -> Any:
        return None if tf.executing_eagerly() else tf.group(*values)
