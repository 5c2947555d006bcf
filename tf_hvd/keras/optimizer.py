"""DistributedOptimizer for the optimizers of Keras 3 and of tf_keras."""

import dataclasses
from typing import Any

from tf_hvd.collectives import reduce_ops
from tf_hvd.collectives.compression import Compression, Compressor
from tf_hvd.collectives.options import ReductionOptions, about_reduction
from tf_hvd.collectives.powersgd import PowerSGD
from tf_hvd.core import config
from tf_hvd.core._strategy import refuse_replicas
from tf_hvd.core.convention import Convention
from tf_hvd.core.process_sets import ProcessSet, global_process_set
from tf_hvd.keras import compat, compute_gradients, hooks, update_hooks
from tf_hvd.keras.synchronizer import GradientSynchronizer
from tf_hvd.keras.users_methods import IDEMPOTENT, Given
from tf_hvd.training import eager_marks
from tf_hvd.training._local import LocalVariables, weights_of_layers
from tf_hvd.training.aggregation import GradientAggregation, check_passes
from tf_hvd.training.reduction import GradientReducer


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


@dataclasses.dataclass
class _Wrapping:
    """Puts a synchronizer into each optimizer that makes updates, for one call of the user's."""

    name: str | None
    check_steps: int
    local: LocalVariables
    options: ReductionOptions
    aggregation: dict[str, Any]
    given: Given = dataclasses.field(default_factory=Given)

    def wrap(self, optimizer: Any) -> None:
        """Hooks `optimizer`, or all that are inside of it; raises if one is hooked already."""
        inner = compat.inner_optimizers(optimizer)
        if inner is None:
            self._wrap_leaf(optimizer)
        for each in inner or ():
            self.wrap(each)
        if compat.grows(optimizer):
            self._wrap_growing(optimizer)
        if inner is not None and compat.overridden(optimizer):
            self._hook_users_methods(optimizer, compat.synchronizer_of(optimizer))
        hooks.add(optimizer, "register_local_var", self.local.register)
        hooks.add(optimizer, "horovod_distributed", True)

    def _wrap_leaf(self, optimizer: Any) -> None:
        kind = compat.kind_of(optimizer)
        if kind is None:
            raise ValueError(_no_optimizer(optimizer))
        synchronizer = self._synchronizer(optimizer)
        update_hooks.hook_updates(optimizer, kind, synchronizer)
        if self.options.op not in IDEMPOTENT or Convention.name == "horovod":
            eager_marks.want()
        hooks.track_when_saved(optimizer, synchronizer.state)
        self._hook_users_methods(optimizer, synchronizer)
        if self.aggregation["passes"] == 1:
            hooks.add(optimizer, "_allreduce", synchronizer.allreduce)
            hooks.add(optimizer, "_allreduce_grads", synchronizer.allreduce_grads)
        hooks.note(optimizer, synchronizer)

    def _hook_users_methods(self, optimizer: Any, synchronizer: GradientSynchronizer) -> None:
        """Puts the reduction before methods of the user's, and before it the sums of passes."""
        update_hooks.hook_users_methods(optimizer, synchronizer)
        if self.aggregation["passes"] > 1:
            if synchronizer.aggregation is None:
                synchronizer.aggregation = GradientAggregation(**self.aggregation)
            update_hooks.hook_passes(optimizer, synchronizer)

    def _synchronizer(self, optimizer: Any) -> GradientSynchronizer:
        name = self.name or f"Distributed{type(optimizer).__name__}"
        reducer = GradientReducer(name, self.options)
        return GradientSynchronizer(name, reducer, self.local, self.check_steps, self.given)

    def _wrap_growing(self, optimizer: Any) -> None:
        hooks.note(optimizer, self._synchronizer(optimizer))

        def wrap_new(target: Any, build: Any, var_list: Any) -> None:
            build(var_list)
            for each in compat.inner_optimizers(target) or ():
                if compat.synchronizer_of(each) is None:
                    self.wrap(each)

        hooks.put_around(optimizer, "build", wrap_new)


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
    local = LocalVariables(scale_local_gradients)
    _Wrapping(name, steps, local, options, aggregation).wrap(optimizer)
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
