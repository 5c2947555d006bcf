"""DistributedOptimizer for optimizers from Keras 3 and tf_keras."""

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
from tf_hvd.training._local import LocalVariables
from tf_hvd.training.aggregation import GradientAggregation, check_passes
from tf_hvd.training.reduction import GradientReducer


def _no_optimizer(found: Any) -> str:
    """Text that explains how to pass an optimizer instead of `found`."""
    if isinstance(found, str):
        return (
            f"{found!r} is a name, not an optimizer. Pass keras.optimizers.get({found!r}), or an "
            "optimizer with its learning rate, such as keras.optimizers.Adam(1e-3)."
        )
    if isinstance(found, type):
        return f"{found.__name__} is a class, not an optimizer. Pass {found.__name__}(...)."
    return (
        f"{type(found).__module__}.{type(found).__name__} is not an optimizer. "
        "Pass an optimizer of keras.optimizers, tf_keras.optimizers or tf.compat.v1.train."
    )


@dataclasses.dataclass
class _Wrapping:
    """One call to DistributedOptimizer: adds a synchronizer to each updating optimizer."""

    name: str | None
    check_steps: int
    local: LocalVariables
    options: ReductionOptions
    aggregation: dict[str, Any]
    given: Given = dataclasses.field(default_factory=Given)

    def wrap(self, optimizer: Any) -> None:
        """Hook into `optimizer`, or into its inner optimizers if it has any."""
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
        """Sum the gradients of several passes and reduce the sums before user methods run."""
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
    """`tf_hvd.DistributedOptimizer` for Keras, with the argument order of horovod.keras."""
    refuse_replicas("DistributedOptimizer was called")
    passes = check_passes(backward_passes_per_step)
    known = [optimizer, *compat.leaves(optimizer)]
    if any(compat.synchronizer_of(each) is not None for each in known):
        raise ValueError(
            "this optimizer is already distributed. A second DistributedOptimizer would reduce its "
            "gradients twice. Remove one of the two calls."
        )
    steps = (
        config.CHECK_WEIGHTS_STEPS.read() if check_weights_steps is None else check_weights_steps
    )
    if steps < 0:
        raise ValueError(
            f"check_weights_steps={steps} is negative. Pass a number of updates, or 0 to compare "
            "no weights."
        )
    options = ReductionOptions.of_gradients(**about_reduction(locals()))
    if op == reduce_ops.Adasum:
        raise NotImplementedError(
            "op=Adasum combines updates, which Keras optimizers do not expose. Use op=Average, "
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
