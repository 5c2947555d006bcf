"""DistributedOptimizer for the optimizers of Keras 3 and of tf_keras."""

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_hvd.collectives import collectives, reduce_ops
from tf_hvd.collectives.compression import Compression, Compressor
from tf_hvd.collectives.options import ReductionOptions, about_reduction
from tf_hvd.collectives.powersgd import PowerSGD
from tf_hvd.core import config
from tf_hvd.core._strategy import refuse_replicas
from tf_hvd.core.convention import Convention
from tf_hvd.core.process_sets import ProcessSet, global_process_set
from tf_hvd.core.tensorflow_hooks import in_xla, on_host, tf_variable, verbatim, waits_for
from tf_hvd.keras import compat, compute_gradients, hooks, users_methods
from tf_hvd.keras.aggregation import hook_passes
from tf_hvd.keras.reduced_by_user import ReducedByUser, as_given
from tf_hvd.keras.update_checks import check_if, checks_state
from tf_hvd.training import agreement, eager_marks, guard, initial_weights
from tf_hvd.training._local import LocalVariables, reduce_except_local, weights_of_layers
from tf_hvd.training.aggregation import GradientAggregation, check_passes
from tf_hvd.training.counter import Counter
from tf_hvd.training.reduction import GradientReducer


class GradientSynchronizer:
    """What is hooked into one optimizer: reduces its gradients, and counts.

    Args:
      name: what the requests are called after.
      reducer: does the reduction.
      local: the variables that each rank trains for itself.
      scale_local: see `reduce_except_local`.
      check_steps: compare the ranks' weights every so many updates; 0: never.
      given: which method of the user's makes an update.
    """

    def __init__(
        self,
        name: str,
        reducer: GradientReducer,
        local: LocalVariables,
        scale_local: bool,
        check_steps: int,
        given: users_methods.Given,
    ) -> None:
        self.name = name
        self.local = local
        self.process_set = reducer.process_set
        self._reducer = reducer
        self._scale_local = scale_local
        self._check_steps = check_steps
        self._given = given
        self.aggregation: GradientAggregation | None = None
        """What adds up the passes of an update; None where each is an update."""
        self.reduced_by_user = ReducedByUser(name, reducer.op, reducer.process_set)
        self._gradients: list[Any] = []
        self._variables: list[Any] = []
        # Updates whose gradients are there, all of them and those since the ranks have joined,
        # and updates that are made; not counted in a v1 graph.
        self._updates: Counter | None = None
        self._together: Counter | None = None
        self._applied: Counter | None = None
        with tf.init_scope():
            if tf.executing_eagerly():
                self._updates, self._applied = Counter("tf_hvd_updates"), Counter("tf_hvd_applied")
                self._together = Counter("tf_hvd_together", self.process_set)

    @property
    def updates(self) -> int | None:
        """Updates made so far, or None in a v1 graph, where they are not counted."""
        return None if self._updates is None else int(self._updates.value())

    def state(self) -> list[Any]:
        """The variables that functions have captured which make updates."""
        counters = (self._updates, self._applied, self._together)
        found = [counter.variable for counter in counters if counter is not None]
        if found:
            found.append(checks_state())
        return found + (self.aggregation.variables() if self.aggregation is not None else [])

    def shared(self, variables: Sequence[Any]) -> list[Any]:
        """Those of `variables` that must be equal on all ranks."""
        return [v for v in variables if v not in self.local and not compat.has_own_values(v)]

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
        shared = [g for g, v in pairs if not (v in self.local or compat.has_own_values(v))]
        op, process_set = self._reducer.op, self.process_set
        if agreement.takes_part(process_set) and not self._given.holds(
            shared, op, process_set, self.name
        ):
            self.begin(gradients, variables)
            return False
        if self._given.by is not self:  # that of an outer optimizer has reduced them
            self._count(gradients)
        return True

    def before_pass(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        self.reduced_by_user.before_pass(gradients, variables)

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
                step = agreement.stamped(self._step(), read)
                reduced = reduce_except_local(
                    functools.partial(self._reducer.reduce, step=step),
                    self._reducer.process_set,
                    self.local,
                    self._scale_local,
                    gradients,
                    variables,
                )
        if agreement.takes_part(self.process_set):
            self._count(reduced)
        return reduced

    @verbatim
    def allreduce(
        self,
        grads: Sequence[Any],
        vars: Sequence[Any],  # noqa: A002 - the argument is Horovod's
    ) -> list[Any]:
        """Horovod's `optimizer._allreduce`: reduces gradients; the next update does not again.

        Args:
          grads: tensors, IndexedSlices and None.
          vars: what they belong to.
        """
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
        """Horovod's `optimizer._allreduce_grads`: reduces gradients, as a tape does.

        Args:
          grads: tensors, IndexedSlices and None.
          vars: what they belong to.
          use_generic_names: requests are named by their place, not by the variables.
        """
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
        if self._together is None or not agreement.takes_part(self.process_set):
            return [], None
        done = self._together.value()
        checks = []
        compiled = in_xla()
        if not compiled:  # else a bucket's call has the names of those that have a gradient
            checks.append(check_if(tf.equal(done, 0), self._check_presence))
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
            checks.append(check_if(when, functools.partial(check, bits)))
        return waits_for(checks), read

    def applied(self, variables: Sequence[Any]) -> None:
        """Counts an update, when all the variables that it changes have been changed."""
        self.reduced_by_user.forget()
        if self._applied is None or not agreement.takes_part(self.process_set):
            return
        changed = [] if tf.executing_eagerly() else [tf_variable(v).read_value() for v in variables]
        with tf.control_dependencies(changed):
            self._applied.add()

    def _step(self) -> Any:
        """What the ranks compare, to see that they are at the same update.

        Not the optimizer's own count: one rank may have loaded another from a
        checkpoint, and Keras counts beside the update, also one that then fails.
        """
        if self._applied is None or not agreement.takes_part(self.process_set):
            return None
        return self._applied.value()

    def _count(self, reduced: Sequence[Any]) -> None:
        """Counts the update when its gradients are there: one that failed before is none."""
        if self._updates is None or self._together is None:
            return
        with tf.control_dependencies(waits_for(reduced)):
            self._updates.add()
            self._together.add()

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


def _no_optimizer(found: Any) -> str:
    """What to do with something that is not an optimizer."""
    if isinstance(found, str):
        return (
            f"{found!r} is a name, not an optimizer: pass keras.optimizers.get({found!r}), or an "
            "optimizer with its learning rate, such as keras.optimizers.Adam(1e-3)."
        )
    if isinstance(found, type):
        return f"{found.__name__} is a class, not an optimizer: pass {found.__name__}(...)."
    return (
        f"{type(found).__module__}.{type(found).__name__} is not an optimizer: "
        "give one of keras.optimizers, tf_keras.optimizers or tf.compat.v1.train."
    )


class _Wrapping:
    """Puts a synchronizer into each optimizer that makes updates, for one call of the user's."""

    def __init__(
        self,
        name: str | None,
        check_steps: int,
        scale_local: bool,
        options: ReductionOptions,
        aggregation: dict[str, Any],
    ) -> None:
        self._name = name
        self._check_steps = check_steps
        self._scale_local = scale_local
        self._options = options
        self._aggregation = aggregation
        self._local = LocalVariables()
        self._given = users_methods.Given()

    def wrap(self, optimizer: Any) -> None:
        """Hooks `optimizer`, or all that are inside of it.

        Raises:
          ValueError: one of them is hooked already, or is no optimizer.
        """
        inner = compat.inner_optimizers(optimizer)
        if inner is None:
            self._wrap_leaf(optimizer)
        for each in inner or ():
            self.wrap(each)
        if compat.grows(optimizer):
            self._wrap_growing(optimizer)
        if inner is not None and compat.overridden(optimizer):
            self._hook_users_methods(optimizer, compat.synchronizer_of(optimizer))
        hooks.add(optimizer, "register_local_var", self._local.register)
        hooks.add(optimizer, "horovod_distributed", True)

    def _wrap_leaf(self, optimizer: Any) -> None:
        kind = compat.kind_of(optimizer)
        if kind is None:
            raise ValueError(_no_optimizer(optimizer))
        synchronizer = self._synchronizer(optimizer)
        compat.hook_updates(optimizer, kind, synchronizer)
        if self._options.op not in users_methods.IDEMPOTENT or Convention.name == "horovod":
            eager_marks.want()
        hooks.track_when_saved(optimizer, synchronizer.state)
        self._hook_users_methods(optimizer, synchronizer)
        if self._aggregation["passes"] == 1:
            hooks.add(optimizer, "_allreduce", synchronizer.allreduce)
            hooks.add(optimizer, "_allreduce_grads", synchronizer.allreduce_grads)
        hooks.note(optimizer, synchronizer)

    def _hook_users_methods(self, optimizer: Any, synchronizer: GradientSynchronizer) -> None:
        """Puts the reduction before methods of the user's, and before it the sums of passes."""
        users_methods.hook(optimizer, synchronizer)
        if self._aggregation["passes"] > 1:
            if synchronizer.aggregation is None:
                synchronizer.aggregation = GradientAggregation(**self._aggregation)
            hook_passes(optimizer, synchronizer.aggregation, synchronizer)

    def _synchronizer(self, optimizer: Any) -> GradientSynchronizer:
        name = self._name or f"Distributed{type(optimizer).__name__}"
        reducer = GradientReducer(name, self._options)
        return GradientSynchronizer(
            name, reducer, self._local, self._scale_local, self._check_steps, self._given
        )

    def _wrap_growing(self, optimizer: Any) -> None:
        hooks.note(optimizer, self._synchronizer(optimizer))

        def wrap_new(target: Any) -> None:
            for each in compat.inner_optimizers(target) or ():
                if compat.synchronizer_of(each) is None:
                    self.wrap(each)

        compat.hook_build(optimizer, wrap_new)


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] | PowerSGD = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = reduce_ops.Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    *,
    sparse: str | None = None,
    check_weights_steps: int | None = None,
) -> Any:
    """Makes a Keras optimizer reduce its gradients over all ranks, once in each update.

    The optimizer is returned: it keeps its class, its state and its config, and what
    is saved from it does not show that it was here. Copies of it, however made
    (`from_config`, `copy`, `deepcopy`, pickle, `load_model`), are plain.

    Gradients are reduced after loss unscaling and accumulation, before clipping and
    weight decay, in `fit`, in a `train_step` of your own, and where you call
    `apply_gradients` yourself: do not reduce them before.

    Args:
      optimizer: an optimizer of Keras 3 or of tf_keras (also a legacy one); a
        LossScaleOptimizer or MultiOptimizer, whose inner ones are wrapped.
      name: name of the requests; the default is "Distributed" and the type's name.
      device_dense: device for the collectives, "" for TensorFlow's choice.
      device_sparse: device for those of IndexedSlices.
      compression: see `tf_hvd.Compression`.
      sparse_as_dense: turn IndexedSlices into tensors first.
      gradient_predivide_factor: with Average, divide by this before the sum and
        by size() / this after it.
      op: Average, Sum, Min, Max or Product.
      backward_passes_per_step: how many calls' gradients a rank adds up before the
        sum is reduced and applied. (Keras 3's own gradient_accumulation_steps
        averages, and works as well.)
      average_aggregated_gradients: divide that sum by the number of passes.
      num_groups: deprecated; use `groups`.
      groups: None for buckets (TF_HVD_BUCKET_BYTES); a number of groups of about
        the same length; or lists of variables, each reduced as one request.
      process_set: the ranks that train together.
      scale_local_gradients: divide the gradients of variables registered with
        `register_local_var` by the number of ranks.
      sparse: how IndexedSlices are sent, see `tf_hvd.allreduce`.
      check_weights_steps: compare the ranks' weights every so many updates and
        stop if they differ; 0: only what the guard does; None: the setting
        TF_HVD_CHECK_WEIGHTS_STEPS.

    Returns:
      `optimizer`, which now has a method `register_local_var(variable)`: the
      gradient of that variable stays on its rank; and an attribute
      `horovod_distributed`, which is True.

    Raises:
      ValueError: not an optimizer of Keras, distributed already, or an argument
        that makes no sense.
      NotImplementedError: Adasum.
      RuntimeError: within a tf.distribute strategy of several replicas.
    """
    refuse_replicas("DistributedOptimizer was called")
    passes = check_passes(backward_passes_per_step)
    known = [optimizer, *compat.leaves(optimizer)]
    if any(compat.synchronizer_of(each) is not None for each in known):
        raise ValueError("this optimizer is distributed already; it would reduce twice.")
    steps = (
        config.CHECK_WEIGHTS_STEPS.read() if check_weights_steps is None else check_weights_steps
    )
    if steps < 0:
        raise ValueError(f"check_weights_steps={steps} must be 0 or more.")
    options = ReductionOptions.of_gradients(**about_reduction(locals()))
    if op == reduce_ops.Adasum:
        raise NotImplementedError(
            "op=Adasum combines updates, which Keras optimizers do not expose; use op=Average, "
            "an optimizer of tf.compat.v1.train, or DistributedGradientTape(op=Adasum)."
        )
    aggregation = {
        "passes": passes,
        "average": average_aggregated_gradients,
        "sparse_as_dense": sparse_as_dense,
    }
    _Wrapping(name, steps, scale_local_gradients, options, aggregation).wrap(optimizer)
    return compute_gradients.hook(optimizer, passes)


def PartialDistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: Any, *args: Any, local_layers: Any = None, **kwargs: Any
) -> Any:
    """A DistributedOptimizer that leaves the gradients of some layers on their rank.

    Args:
      optimizer: see DistributedOptimizer.
      *args: the other arguments of DistributedOptimizer.
      local_layers: a layer or a list of layers, built already, whose trainable
        weights are each rank's own.
      **kwargs: as `args`.

    Returns:
      `optimizer`.

    Raises:
      ValueError: one of `local_layers` is no layer, or has no weights yet.
    """
    weights = weights_of_layers(local_layers)
    wrapped = DistributedOptimizer(optimizer, *args, **kwargs)
    for weight in weights:
        wrapped.register_local_var(weight)
    return wrapped
