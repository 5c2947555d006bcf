"""GradientSynchronizer reduces, checks and counts for one optimizer of Keras that makes updates."""

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
    """Counts of an optimizer's updates in this process. No count follows from another one.

    Attributes:
      reduced: updates whose gradients are there. Keras' `iterations` count each call of `apply`,
        of which gradient_accumulation_steps make one update.
      applied: calls that have changed the variables, which the ranks compare. One rank may have
        loaded other `iterations` from a checkpoint, and those count a call that then fails.
      together: as `reduced`, since the ranks have joined, before which some have made more. By it
        all ranks find a check due at the same call, also one whose last update failed.
    """

    reduced: Counter
    applied: Counter
    together: Counter


class GradientSynchronizer:
    """Reduces the gradients of the one optimizer that it is hooked into, and counts.

    It compares the ranks' weights every `check_steps` updates; 0: never.
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
        self.process_set = reducer.process_set
        self._reducer = reducer
        self._check_steps = check_steps
        self._given = given
        self.aggregation: GradientAggregation | None = None
        """What adds up the passes of an update; None where each is an update."""
        self.reduced_by_user = ReducedByUser(name, reducer.op, reducer.process_set)
        self._gradients: list[Any] = []
        self._variables: list[Any] = []
        self._counts: _Counts | None = None  # in a v1 graph
        with tf.init_scope():
            if tf.executing_eagerly():
                self._counts = _Counts(
                    Counter("tf_hvd_updates"),
                    Counter("tf_hvd_applied"),
                    Counter("tf_hvd_together", self.process_set),
                )

    @property
    def updates(self) -> int | None:
        """Updates made so far; None in a v1 graph."""
        return None if self._counts is None else int(self._counts.reduced.value())

    def state(self) -> list[Any]:
        """The variables that functions have captured which make updates."""
        found = [counter.variable for counter in self._counts or ()]
        if found:
            found.append(_turn().variable)
        return found + (self.aggregation.variables() if self.aggregation is not None else [])

    def shared(self, variables: Sequence[Any]) -> list[Any]:
        """Those of `variables` that must be equal on all ranks."""
        return list(filter(self._is_shared, variables))

    def _is_shared(self, variable: Any) -> bool:
        return variable not in self.local and not compat.has_own_values(variable)

    @property
    def in_users_method(self) -> bool:
        return self._given.by is not None

    def giving(self, reduced: Sequence[Any]) -> contextlib.AbstractContextManager[None]:
        return self._given.update(self, reduced)

    def was_given(self, gradients: Sequence[Any], variables: Sequence[Any]) -> bool:
        """Whether a method of the user's hands on gradients that are reduced already.

        Others, which it has computed itself, are to be reduced.

        Raises:
          ValueError: that cannot be told.
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
        if self._given.by is not self:  # that of an outer optimizer has reduced them
            self._count(gradients)
        return True

    def begin(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Remembers what an update is about to be made of, with what Keras leaves out of it."""
        self._gradients, self._variables = list(gradients), list(variables)

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Reduces the gradients of one update.

        Raises:
          ValueError: with op=Sum or Product, the program has reduced them already, or may have.
          RuntimeError: it is within a tf.distribute strategy of several replicas.
        """
        refuse_replicas("a DistributedOptimizer was used")
        if self.reduced_by_user.take(gradients):
            self._gradients, self._variables = [], []  # they hold the graph
            return list(gradients)
        by_program = self.reduced_by_user.found(self._gradients, self._variables)
        checks, read = self._checks()
        self._gradients, self._variables = [], []  # they hold the graph
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
        """Horovod's `optimizer._allreduce`: reduces gradients; the next update does not again."""
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
        """Horovod's `optimizer._allreduce_grads`: reduces gradients, as a tape does."""
        reduced = self._reducer.reduce(list(grads), list(vars), use_generic_names)
        eager_marks.put(reduced, vars)
        return reduced

    def all_finite(self, finite: Any) -> Any:
        """Whether the gradients of all ranks are finite: all take a step, or none does.

        A sum and not a minimum: a rank that has joined takes part with zeros.
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
        """Ops that must have run before the gradients are reduced; and for `agreement.stamped`."""
        counts = self._compared()
        if counts is None:
            return [], None
        done = counts.together.value()
        checks = []
        compiled = in_xla()
        if not compiled:  # else a bucket's call has the names of those that have a gradient
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
        """Counts an update, when all the variables that it changes have been changed."""
        self.reduced_by_user.forget()
        counts = self._compared()
        if counts is None:
            return
        changed = [] if tf.executing_eagerly() else [tf_variable(v).read_value() for v in variables]
        with tf.control_dependencies(changed):
            counts.applied.add()

    def _compared(self) -> _Counts | None:
        """The counts; None too where there is no other rank to compare them with."""
        return self._counts if agreement.takes_part(self.process_set) else None

    def _count(self, reduced: Sequence[Any]) -> None:
        """Counts the update when its gradients are there: one that failed before is none."""
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
    """What all checks of this process write to, so that no two of a function run side by side."""
    return Counter("tf_hvd_checks")


def _check_if(due: Any, check: Callable[[], Any]) -> Any:
    """Runs a check where it is due; after those before it in the program, of all optimizers.

    Their requests have no scope and so may have one name. TensorFlow keeps the order of
    what writes to one variable, also where functions are called by another.
    """

    def in_turn() -> Any:
        with tf.control_dependencies([check()]):
            _turn().add()
        return tf.constant(True)

    return tf.cond(due, in_turn, lambda: tf.constant(True))
