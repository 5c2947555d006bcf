"""backward_passes_per_step for Keras optimizers: most calls only add gradients up."""

from collections.abc import Sequence
from typing import Any

from tf_hvd.keras import compat, hooks
from tf_hvd.training.aggregation import GradientAggregation


def hook_passes(
    optimizer: Any, aggregation: GradientAggregation, synchronizer: compat.GradientSynchronizer
) -> None:
    """Makes one optimizer apply the sum of several calls' gradients, with the last of them.

    Between, neither the weights change nor the optimizer's count of iterations.

    Args:
      optimizer: one that makes updates itself, hooked already; or one around it, whose class
        overrides how.
      aggregation: of this optimizer alone.
      synchronizer: what is hooked into it.
    """
    is_keras = compat.kind_of(optimizer) == compat.KERAS
    # What is around others adds up in its own method, or those add the same up once more.
    is_around = compat.inner_optimizers(optimizer) is not None
    if is_keras and not (is_around and not hooks.overrides(optimizer, "apply")):
        _hook_apply(optimizer, aggregation, synchronizer)
    if not is_keras or hooks.overrides(optimizer, "apply_gradients"):
        _hook_apply_gradients(optimizer, aggregation, synchronizer)


def _hook_apply(
    optimizer: Any, aggregation: GradientAggregation, synchronizer: compat.GradientSynchronizer
) -> None:
    def apply_when_complete(
        target: Any, apply: Any, grads: Any, trainable_variables: Any = None, *more: Any, **kw: Any
    ) -> Any:
        if synchronizer.in_users_method:  # which was given the sum
            return apply(grads, trainable_variables, *more, **kw)
        if trainable_variables is None:
            known = compat.trained_by(target)
        else:
            known = list(trainable_variables)
            compat.build_optimizer(target, known)
        gradients = list(grads)
        synchronizer.before_pass(gradients, known)
        return _step(aggregation, gradients, known, lambda sums: apply(sums, known, *more, **kw))

    hooks.put_around(optimizer, "apply", apply_when_complete)


def _hook_apply_gradients(
    optimizer: Any, aggregation: GradientAggregation, synchronizer: compat.GradientSynchronizer
) -> None:
    def apply_when_complete(
        target: Any, apply_gradients: Any, grads_and_vars: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if synchronizer.in_users_method:
            return apply_gradients(grads_and_vars, *args, **kwargs)
        pairs = list(grads_and_vars)
        variables = [variable for _, variable in pairs]
        compat.build_optimizer(target, variables)
        gradients = [gradient for gradient, _ in pairs]
        synchronizer.before_pass(gradients, variables)
        return _step(
            aggregation,
            gradients,
            variables,
            lambda sums: apply_gradients(list(zip(sums, variables, strict=True)), *args, **kwargs),
        )

    hooks.put_around(optimizer, "apply_gradients", apply_when_complete)


def _step(
    aggregation: GradientAggregation, gradients: Sequence[Any], variables: Sequence[Any], apply: Any
) -> Any:
    complete, sums = aggregation.add(gradients, variables)

    def update() -> None:
        apply(sums)

    return aggregation.when_complete(complete, update, variables)
