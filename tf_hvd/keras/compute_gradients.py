"""Make `compute_gradients` in tf_keras optimizers return reduced gradients, as in Horovod.

Keras also calls `compute_gradients` in `minimize`, and therefore in `fit`. In that case gradients
are reduced later, after a LossScaleOptimizer has unscaled them.
"""

import contextlib
import weakref
from collections.abc import Sequence
from typing import Any

from tf_hvd.keras import compat, hooks

# Methods that call `compute_gradients` or `get_gradients` and apply the result.
_WHOLE_UPDATES = ("minimize", "get_updates")


def hook(optimizer: Any, passes: int) -> Any:
    """Make a distributed tf_keras optimizer reduce the gradients that the program computes.

    If `passes` is above 1, gradients stay local until their sum is applied, whatever arguments the
    program passes to `apply_gradients`.

    Args:
      optimizer: a distributed optimizer; Keras 3 optimizers are not changed.
      passes: the argument `backward_passes_per_step` to `DistributedOptimizer`.

    Returns:
      `optimizer`.
    """
    names = [name for name in compat.COMPUTING if callable(getattr(optimizer, name, None))]
    if names:
        _Computed(passes).hook(optimizer, names)
    return optimizer


class _Computed:
    def __init__(self, passes: int) -> None:
        self._alone = passes > 1
        self._whole_updates = 0  # updates in progress
        self._given: list[Any] = []
        # Cleanup to run when the user's method that is making an update returns.
        self._ends: contextlib.ExitStack | None = None

    def hook(self, optimizer: Any, names: Sequence[str]) -> None:
        """Hook `names`, which are the methods in compat.COMPUTING that the optimizer has."""
        for name in names:
            hooks.put_around(optimizer, name, self._pairs)
        for name in _WHOLE_UPDATES:
            if callable(getattr(optimizer, name, None)):
                is_users = hooks.overrides(optimizer, name)
                around = self._users_update if is_users else self._whole_update
                hooks.put_around(optimizer, name, around)
        if hasattr(optimizer, "get_gradients"):
            hooks.put_around(optimizer, "get_gradients", self._gradients)
        if self._alone:
            hooks.put_around(optimizer, "apply_gradients", self._apply)
        # In Horovod, both kinds of optimizers have both methods.
        for name, made in zip(compat.COMPUTING, (_public, _private), strict=True):
            if name not in names:
                hooks.add(optimizer, name, made(weakref.ref(optimizer)))

    def _whole_update(self, target: Any, update: Any, *args: Any, **kwargs: Any) -> Any:
        self._whole_updates += 1
        try:
            return update(*args, **kwargs)
        finally:
            self._whole_updates -= 1

    def _users_update(self, target: Any, update: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the user's own update method, which gets reduced gradients to clip."""
        before = self._ends
        with contextlib.ExitStack() as self._ends:
            try:
                return update(*args, **kwargs)
            finally:
                self._ends = before

    def _pairs(self, target: Any, compute: Any, *args: Any, **kwargs: Any) -> Any:
        pairs = list(compute(*args, **kwargs))
        variables = [variable for _, variable in pairs]
        reduced = self._reduced(target, [gradient for gradient, _ in pairs], variables)
        return list(zip(reduced, variables, strict=True))

    def _gradients(self, target: Any, get: Any, loss: Any, params: Any) -> Any:
        return self._reduced(target, get(loss, params), list(params))

    def _reduced(
        self, target: Any, gradients: Sequence[Any], variables: Sequence[Any]
    ) -> list[Any]:
        if self._whole_updates:
            return list(gradients)
        if self._alone:
            self._given = [gradient for gradient in gradients if gradient is not None]
            return list(gradients)
        synchronizer = compat.synchronizer_of(target)
        reduced = list(synchronizer.allreduce(gradients, variables))
        if self._ends is not None and not synchronizer.in_users_method:
            synchronizer.reduced_by_user.forget()  # all other gradients are this rank's own
            self._ends.push(lambda kind, *_: None if kind else synchronizer.applied(variables))
            self._ends.enter_context(synchronizer.giving(reduced))
        return reduced

    def _apply(
        self, target: Any, apply_gradients: Any, grads_and_vars: Any, *args: Any, **kwargs: Any
    ) -> Any:
        pairs = list(grads_and_vars)
        given, self._given = self._given, []
        if any(gradient is one for gradient, _ in pairs for one in given):
            kwargs = {k: v for k, v in kwargs.items() if compat.REDUCED.get(k) is not v}
        return apply_gradients(pairs, *args, **kwargs)


def _public(optimizer: Any) -> Any:
    """Create `compute_gradients` for a legacy optimizer.

    `optimizer` is a weak reference, because the optimizer itself holds the new method.
    """

    def compute_gradients(loss: Any, var_list: Any, tape: Any = None) -> list[Any]:
        return compat.computed_by_legacy(optimizer(), loss, var_list, tape)

    return compute_gradients


def _private(optimizer: Any) -> Any:
    """Create `_compute_gradients` for a current optimizer; see `_public`."""

    def _compute_gradients(
        loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None
    ) -> list[Any]:
        if grad_loss is not None:
            raise ValueError(
                f"_compute_gradients: {type(optimizer()).__name__} does not support grad_loss=. "
                "Multiply the loss by grad_loss, or use an optimizer of "
                "tf_keras.optimizers.legacy."
            )
        return list(optimizer().compute_gradients(loss, var_list, tape))

    return _compute_gradients
