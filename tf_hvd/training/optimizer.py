"""DistributedOptimizer for optimizers of tf.compat.v1.train."""

import dataclasses
from typing import Any

import tensorflow as tf

from tf_hvd.collectives import reduce_ops
from tf_hvd.collectives.options import ReductionOptions
from tf_hvd.core.tensorflow_hooks import ByVariables, verbatim
from tf_hvd.training import agreement, initial_weights
from tf_hvd.training._local import LocalVariables
from tf_hvd.training.adasum import AdasumUpdates
from tf_hvd.training.aggregation import GradientAggregation, reduce_if_complete
from tf_hvd.training.counter import Counter
from tf_hvd.training.reduction import GradientReducer
from tf_hvd.training.v1_guard import AnsweredFor, GradientCheck, refuse_in_loss_scaler


def _updates() -> Counter:
    """Create a counter of updates. global_step is unsuitable, because other train ops change it."""
    return Counter("distributed/updates")


@dataclasses.dataclass
class _Begun:
    complete: Any  # whether this pass is the last of several passes
    variables: list[Any]
    present: set[int]  # ids of the variables that have a gradient
    updates: Counter | None  # counts the list's updates; None if there are no other ranks

    def is_of(self, variables: list[Any]) -> bool:
        return list(map(id, variables)) == list(map(id, self.variables))

    def may_update(self, variables: list[Any]) -> bool:
        return set(map(id, variables)) <= self.present


def _collect_train_op(op: Any) -> None:
    """Replace the train ops of a branch with `op`, which runs the branch, in the collection.

    TensorFlow's optimizers add ops of the branch to the collection of train ops. A meta graph that
    refers to such an op cannot be imported.
    """
    kept = tf.compat.v1.get_collection_ref(tf.compat.v1.GraphKeys.TRAIN_OP)
    kept[:] = [known for known in kept if known.graph is op.graph and known is not op] + [op]


class _DistributedOptimizer(tf.compat.v1.train.Optimizer):  # type: ignore[misc]
    """A v1 optimizer that wraps another one, and reduces gradients in `compute_gradients`.

    Slots, hyperparameters and their names in checkpoints are those of the inner optimizer.
    Checkpoints are therefore the same as without the wrapper.
    """

    def __init__(
        self,
        optimizer: Any,
        name: str,
        use_locking: bool,
        reducer: GradientReducer,
        scale_local_gradients: bool,
        aggregation: GradientAggregation | None,
    ) -> None:
        super().__init__(use_locking=use_locking, name=name)
        self._optimizer = optimizer
        self._reducer = reducer
        self._local = LocalVariables(scale_local_gradients)
        self._aggregation = aggregation
        self._begun: list[_Begun] = []
        self._applied: ByVariables[Counter] = ByVariables()
        self._check = GradientCheck()

    def __repr__(self) -> str:
        # Scripts look for "horovod" in str(optimizer).
        return f"<tf_hvd (horovod) {self.get_name()} of {self._optimizer!r}>"

    def register_local_var(self, var: Any) -> None:
        """Register a local variable, so that its gradient is not reduced from now on."""
        self._local.register(var)

    @verbatim
    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Run the inner optimizer's compute_gradients, then reduce the gradients across all ranks.

        Raises:
          ValueError: backward_passes_per_step is above 1, and this optimizer is wrapped by an
            optimizer that scales the loss by a changing factor.
        """
        if self._aggregation is not None:
            refuse_in_loss_scaler(f"backward_passes_per_step={self._aggregation.passes}")
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        gradients = [gradient for gradient, _ in pairs]
        variables = [variable for _, variable in pairs]
        updates = None if self._reducer.is_alone() else self._applied.get(variables, _updates)
        present = {id(v) for g, v in pairs if g is not None}
        begun = _Begun(None, variables, present, updates)
        if self._aggregation is None:
            reduced = self._reduce(gradients, begun)
        else:
            begun.complete, sums = self._aggregation.add(gradients, variables)
            reduced = reduce_if_complete(begun.complete, sums, lambda: self._reduce(sums, begun))
        # For each list, only the last pass can be applied.
        self._begun = [pass_ for pass_ in self._begun if not pass_.is_of(variables)]
        self._begun.append(begun)
        return list(zip(reduced, variables, strict=True))

    def _reduce(self, gradients: list[Any], begun: _Begun) -> list[Any]:
        pairs = zip(gradients, begun.variables, strict=True)
        shared = [v for g, v in pairs if g is not None and v not in self._local]
        checks, read = initial_weights.before_reduction(shared, self._reducer.process_set)
        with tf.control_dependencies(checks):
            step = None if begun.updates is None else begun.updates.value()
            step = agreement.stamped(step, read)
            return self._reducer.reduce(gradients, begun.variables, step=step, local=self._local)

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """Run the inner optimizer's apply_gradients, without a reduction.

        If backward_passes_per_step is above 1, this method does nothing until the passes are
        complete.

        Raises:
          GuardError: the gradients were not reduced.
          ValueError: backward_passes_per_step is above 1, and the gradients are not from this
            optimizer's `compute_gradients`.
        """
        pairs = list(grads_and_vars)
        begun = self._begun_with([variable for _, variable in pairs])
        self._check_reduced(begun, pairs)
        with AnsweredFor():
            return self._apply_if_complete(begun, pairs, *args, **kwargs)

    @verbatim
    def _check_reduced(self, begun: _Begun | None, pairs: list[Any]) -> None:
        if not self._reducer.is_alone():
            shared = [(g, v) for g, v in pairs if g is not None and v not in self._local]
            # A pass that does not complete a step sends nothing.
            only_added = begun is not None and self._aggregation is not None
            self._check.before_update(self.get_name(), shared, only_added)

    def _apply_if_complete(
        self, begun: _Begun | None, pairs: list[Any], *args: Any, **kwargs: Any
    ) -> Any:
        if self._aggregation is None:
            return self._apply(begun, pairs, *args, **kwargs)
        if begun is None:
            raise ValueError(
                "backward_passes_per_step > 1: apply_gradients() got gradients that are not from "
                "this optimizer. Pass the result of its compute_gradients()."
            )
        done = self._aggregation.when_complete(
            begun.complete,
            lambda: self._apply(begun, pairs, *args, **kwargs),
            begun.variables,
        )
        if not tf.executing_eagerly():
            _collect_train_op(done.op)
        return done

    def _apply(self, begun: _Begun | None, pairs: list[Any], *args: Any, **kwargs: Any) -> Any:
        if begun is None or begun.updates is None:
            return self._optimizer.apply_gradients(pairs, *args, **kwargs)
        # The returned op gets the requested name.
        name = kwargs.pop("name", None)
        if name is not None:
            kwargs["name"] = f"{name}_update"
        done = self._optimizer.apply_gradients(pairs, *args, **kwargs)
        if tf.executing_eagerly():
            begun.updates.add()
            return done
        with tf.control_dependencies([] if done is None else [done]):
            return tf.group(begun.updates.add(), name=name)

    def _begun_with(self, variables: list[Any]) -> _Begun | None:
        """Return the pass that computed the gradients of at least `variables`; None if none did."""
        exactly = [pass_ for pass_ in self._begun if pass_.is_of(variables)]
        partly = [pass_ for pass_ in reversed(self._begun) if pass_.may_update(variables)]
        return next(iter(exactly + partly), None)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.variables(*args, **kwargs)


class _DistributedAdasumOptimizer(_DistributedOptimizer):
    """A v1 optimizer that combines the ranks' updates instead of their gradients."""

    def __init__(
        self, optimizer: Any, name: str, use_locking: bool, reducer: GradientReducer, passes: int
    ) -> None:
        super().__init__(optimizer, name, use_locking, reducer, False, None)
        self._updates = AdasumUpdates(reducer, self._local, passes)

    @verbatim
    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Run the inner optimizer's compute_gradients, without a reduction.

        Raises:
          ValueError: this optimizer is wrapped by an optimizer that scales the loss by a changing
            factor.
        """
        refuse_in_loss_scaler("op=Adasum")
        pairs: list[tuple[Any, Any]] = self._optimizer.compute_gradients(*args, **kwargs)
        return pairs

    @verbatim
    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """Run the inner optimizer's apply_gradients, then combine the ranks' updates."""
        pairs = list(grads_and_vars)
        with AnsweredFor():
            return self._updates.apply(
                lambda: self._optimizer.apply_gradients(pairs, *args, **kwargs),
                [variable for gradient, variable in pairs if gradient is not None],
            )


def distributed(
    optimizer: Any,
    name: str,
    *,
    use_locking: bool,
    options: ReductionOptions,
    passes: int,
    average: bool,
    scale_local: bool,
) -> _DistributedOptimizer:
    """Wrap an optimizer of tf.compat.v1.train; see `tf_hvd.DistributedOptimizer`."""
    if isinstance(optimizer, _DistributedOptimizer):
        raise ValueError(
            "this optimizer is already distributed. A second DistributedOptimizer would reduce its "
            "gradients twice. Remove one of the two calls."
        )
    reducer = GradientReducer(name, options)
    if options.op == reduce_ops.Adasum:
        if average:
            raise ValueError(
                "op=Adasum applies each pass separately, so average_aggregated_gradients=True has "
                "no effect. Pass False."
            )
        return _DistributedAdasumOptimizer(optimizer, name, use_locking, reducer, passes)
    aggregation = None
    if passes > 1:
        aggregation = GradientAggregation(
            passes, average=average, sparse_as_dense=options.sparse_as_dense
        )
    return _DistributedOptimizer(optimizer, name, use_locking, reducer, scale_local, aggregation)
