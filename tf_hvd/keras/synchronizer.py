"""Reduce the gradients of one Keras optimizer, count its updates, and compare the ranks."""

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_hvd.collectives import collectives, reduce_ops
from tf_hvd.core._strategy import refuse_replicas
from tf_hvd.core.tensorflow_hooks import in_xla, on_host, tf_variable, verbatim, waits_for
from tf_hvd.keras import compat
from tf_hvd.keras.reduced_by_user import ReducedByUser, as_given
from tf_hvd.keras.users_methods import Given
from tf_hvd.training import agreement, eager_marks, guard, initial_weights
from tf_hvd.training._local import LocalVariables
from tf_hvd.training.aggregation import GradientAggregation
from tf_hvd.training.counter import Counter
from tf_hvd.training.reduction import GradientReducer


class _Counts(NamedTuple):
    """Three counts of an optimizer's updates in this process.

    Attributes:
      reduced: number of updates with reduced gradients. Keras' `iterations` is not used, because
        with gradient_accumulation_steps several calls to `apply` make up one update.
      applied: number of updates that have changed the variables. The ranks compare this number.
        Keras' `iterations` is not used, because it may differ between ranks after a checkpoint is
        loaded, and includes updates that fail later.
      together: like `reduced`, but counted from the last join, because ranks may have made
        different numbers of updates before it. With this count, all ranks make each check in the
        same call, even if their last update failed.
    """

    reduced: Counter
    applied: Counter
    together: Counter


class GradientSynchronizer:
    """The gradient reduction, update counts and checks for one optimizer.

    Args:
      name: name of the collectives.
      reducer: object that reduces the gradients.
      local: the variables with gradients that are not reduced.
      check_steps: number of updates between comparisons of the ranks' weights; 0: no comparisons.
      given: the user's method that is making an update, if any.
    """

    def __init__(
        self,
        name: str,
        reducer: GradientReducer,
        local: LocalVariables,
        check_steps: int,
        given: Given,
    ) -> None:
        self.name = name
        self.local = local
        self.op = reducer.op
        self.process_set = reducer.process_set
        self._reducer = reducer
        self._check_steps = check_steps
        self._given = given
        self.aggregation: GradientAggregation | None = None
        """The sums of an update's backward passes; None if each pass is an update."""
        self.reduced_by_user = ReducedByUser(name, reducer.op, reducer.process_set)
        self._gradients: list[Any] = []
        self._variables: list[Any] = []
        self._counts: _Counts | None = None  # None in a v1 graph
        with tf.init_scope():
            if tf.executing_eagerly():
                self._counts = _Counts(
                    Counter("tf_hvd_updates"),
                    Counter("tf_hvd_applied"),
                    Counter("tf_hvd_together", self.process_set),
                )

    @property
    def updates(self) -> int | None:
        """The number of updates with reduced gradients so far; None in a v1 graph."""
        return None if self._counts is None else int(self._counts.reduced.value())

    def state(self) -> list[Any]:
        """The tf_hvd variables that are used in functions with an update."""
        found = [counter.variable for counter in self._counts or ()]
        if found:
            found.append(_turn().variable)
        return found + (self.aggregation.variables() if self.aggregation is not None else [])

    def shared(self, variables: Sequence[Any]) -> list[Any]:
        """The variables that must be the same on all ranks."""
        return list(filter(self._is_shared, variables))

    def _is_shared(self, variable: Any) -> bool:
        return variable not in self.local and not compat.has_own_values(variable)

    @property
    def in_users_method(self) -> bool:
        return self._given.by is not None

    def giving(self, reduced: Sequence[Any]) -> contextlib.AbstractContextManager[None]:
        return self._given.update(self, reduced)

    def was_given(self, gradients: Sequence[Any], variables: Sequence[Any]) -> bool:
        """Whether a user's method passes on gradients that are already reduced.

        Gradients that the method has computed itself must still be reduced.

        Raises:
          ValueError: the origin of the gradients cannot be determined.
        """
        if not self.in_users_method:
            return False
        pairs = zip(gradients, variables, strict=True)
        shared = [gradient for gradient, variable in pairs if self._is_shared(variable)]
        op, process_set = self._reducer.op, self.process_set
        if agreement.takes_part(process_set) and not self._given.holds(
            shared, op, process_set, self.name
        ):
            self.begin(gradients, variables)
            return False
        if self._given.by is not self:  # an outer optimizer's synchronizer reduced them
            self._count(gradients)
        return True

    def begin(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Store the gradients and variables of an update, including those that Keras drops."""
        self._gradients, self._variables = list(gradients), list(variables)

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Reduce the gradients of one update.

        Raises:
          ValueError: with op=Sum or Product, the program has already reduced these gradients, or
            may have done so.
          RuntimeError: called within a tf.distribute strategy with several replicas.
        """
        refuse_replicas("a DistributedOptimizer was used")
        if self.reduced_by_user.take(gradients):
            self._gradients, self._variables = [], []  # these keep the graph alive
            return list(gradients)
        by_program = self.reduced_by_user.found(self._gradients, self._variables)
        checks, read = self._checks()
        self._gradients, self._variables = [], []  # these keep the graph alive
        with tf.control_dependencies(checks):
            if by_program:
                reduced = as_given(gradients)
            else:
                counts = self._compared()
                step = agreement.stamped(counts and counts.applied.value(), read)
                reduced = self._reducer.reduce(gradients, variables, step=step, local=self.local)
        self._count(reduced)
        return reduced

    @verbatim
    def allreduce(
        self,
        grads: Sequence[Any],
        vars: Sequence[Any],  # noqa: A002 - the argument is Horovod's
    ) -> list[Any]:
        """Reduce gradients for the next update, as Horovod's `optimizer._allreduce` does."""
        with tf.name_scope(compat.SCOPE):
            self.begin(grads, vars)
            reduced = self.reduce(grads, vars)
        self.reduced_by_user.remember(reduced)
        return reduced

    @verbatim
    def allreduce_grads(
        self,
        grads: Sequence[Any],
        vars: Sequence[Any],  # noqa: A002 - the argument is Horovod's
        use_generic_names: bool = False,
    ) -> list[Any]:
        """Reduce gradients like a tape, as Horovod's `optimizer._allreduce_grads` does."""
        reduced = self._reducer.reduce(list(grads), list(vars), use_generic_names)
        eager_marks.put(reduced, vars)
        return reduced

    def all_finite(self, finite: Any) -> Any:
        """Whether the gradients on all ranks are finite, so that either all ranks step or none.

        The ranks' values are combined with a sum, not a minimum, because a rank that has joined
        contributes zeros.
        """
        if not agreement.takes_part(self.process_set):
            return finite
        with tf.name_scope(compat.SCOPE), on_host():
            bad = collectives.allreduce(
                tf.cast(tf.logical_not(finite), tf.int32),
                op=reduce_ops.Sum,
                name=f"{self.name}_non_finite",
                process_set=self.process_set,
            )
        return tf.equal(bad, 0)

    def _checks(self) -> tuple[list[Any], Any | None]:
        """The check ops to run before gradients are reduced, and the value to pass to `stamped`."""
        counts = self._compared()
        if counts is None:
            return [], None
        done = counts.together.value()
        checks = []
        compiled = in_xla()
        if not compiled:  # otherwise a bucket's call lists the variables with a gradient
            checks.append(_check_if(tf.equal(done, 0), self._check_presence))
        due: dict[Callable[[Any | None], Any], Any] = {}
        if guard.watches():
            due[self._check_start] = tf.equal(done, initial_weights.REDUCTION - 1)
        if self._check_steps:
            due[self._check_weights] = tf.logical_and(
                done > 0, tf.equal(done % self._check_steps, 0)
            )
        shared = self.shared(self._variables) if compiled else []
        bits, read = agreement.read_before(shared, [*due.values()])
        for check, when in due.items():
            checks.append(_check_if(when, functools.partial(check, bits)))
        return waits_for(checks), read

    def applied(self, variables: Sequence[Any]) -> None:
        """Count an update after all of its variables have changed."""
        self.reduced_by_user.forget()
        counts = self._compared()
        if counts is None:
            return
        changed = [] if tf.executing_eagerly() else [tf_variable(v).read_value() for v in variables]
        with tf.control_dependencies(changed):
            counts.applied.add()

    def _compared(self) -> _Counts | None:
        """The counts; None in a v1 graph or without other ranks to compare with."""
        return self._counts if agreement.takes_part(self.process_set) else None

    def _count(self, reduced: Sequence[Any]) -> None:
        """Count an update after its gradients are reduced; ignore updates that fail earlier."""
        counts = self._compared()
        if counts is not None:
            with tf.control_dependencies(waits_for(reduced)):
                counts.reduced.add()
                counts.together.add()

    def _check_presence(self) -> Any:
        pairs = zip(self._gradients, self._variables, strict=True)
        present = {id(v): g is not None for g, v in pairs}
        variables = self.shared(self._variables)
        return agreement.assert_present(
            [present[id(variable)] for variable in variables],
            variables,
            self.process_set,
            f"{self.name}_gradients",
        )

    def _check_start(self, bits: Any | None) -> Any:
        return initial_weights.compare(self.shared(self._variables), self.process_set, bits)

    def _check_weights(self, bits: Any | None) -> Any:
        return agreement.assert_equal(
            self.shared(self._variables), self.process_set, f"{self.name}_weights", bits
        )


@functools.cache
def _turn() -> Counter:
    """The counter that all checks of this process write to, so that they never run in parallel."""
    return Counter("tf_hvd_checks")


def _check_if(due: Any, check: Callable[[], Any]) -> Any:
    """Run a check if it is due, after all earlier checks of all optimizers.

    Checks must not run in parallel, because their collectives may have the same name. TensorFlow
    keeps the order of ops that write to the same variable, even if functions call each other.
    """

    def in_turn() -> Any:
        with tf.control_dependencies([check()]):
            _turn().add()
        return tf.constant(True)

    return tf.cond(due, in_turn, lambda: tf.constant(True))
