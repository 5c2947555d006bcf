"""backward_passes_per_step for Keras optimizers: most calls only add gradients up."""

from collections.abc import Sequence
from typing import Any

from tf_hvd.keras import compat, instance_methods
from tf_hvd.training.aggregation import GradientAggregation


def hook_passes(optimizer: Any, kind: str, aggregation: GradientAggregation) -> None:
    """Makes one optimizer apply the sum of several calls' gradients, with the last of them.

    Between, neither the weights change nor the optimizer's count of iterations.

    Args:
      optimizer: one that makes updates itself, hooked already.
      kind: which of `compat.HOOKS` it has.
      aggregation: of this optimizer alone.
    """
    if kind == compat.KERAS:
        _hook_apply(optimizer, aggregation)
    else:
        _hook_apply_gradients(optimizer, aggregation)


def _hook_apply(optimizer: Any, aggregation: GradientAggregation) -> None:
    def apply_when_complete(
        target: Any, apply: Any, grads: Any, trainable_variables: Any = None
    ) -> Any:
        if trainable_variables is None:
            known = compat.trained_by(target)
        else:
            known = list(trainable_variables)
            compat.build_optimizer(target, known)
        return _step(aggregation, list(grads), known, lambda sums: apply(sums, known))

    instance_methods.put_around(optimizer, "apply", apply_when_complete)


def _hook_apply_gradients(optimizer: Any, aggregation: GradientAggregation) -> None:
    def apply_when_complete(
        target: Any, apply_gradients: Any, grads_and_vars: Any, *args: Any, **kwargs: Any
    ) -> Any:
        pairs = list(grads_and_vars)
        variables = [variable for _, variable in pairs]
        compat.build_optimizer(target, variables)
        return _step(
            aggregation,
            [gradient for gradient, _ in pairs],
            variables,
            lambda sums: apply_gradients(list(zip(sums, variables, strict=True)), *args, **kwargs),
        )

    instance_methods.put_around(optimizer, "apply_gradients", apply_when_complete)


def _step(
    aggregation: GradientAggregation, gradients: Sequence[Any], variables: Sequence[Any], apply: Any
) -> Any:
    complete, sums = aggregation.add(gradients, variables)

    def update() -> None:
        apply(sums)

    return aggregation.when_complete(complete, update, variables)
