"""`compute_gradients` of tf_keras' optimizers: a program gets reduced gradients, as from Horovod's.

Keras calls it too, in `minimize` and so in `fit`, and then reduces where it always does:
after a LossScaleOptimizer has unscaled the gradients.
"""

import contextlib
import weakref
from collections.abc import Sequence
from typing import Any

from tf_hvd.keras import compat, hooks

# What calls one of them, or get_gradients, and applies the result.
_WHOLE_UPDATES = ("minimize", "get_updates")


def hook(optimizer: Any, passes: int) -> Any:
    """Makes a wrapped optimizer of tf_keras reduce what the program has it compute; returns it.

    With `backward_passes_per_step` the gradients stay this rank's until their sum is
    applied, whatever `apply_gradients` is told.
    """
    names = [name for name in compat.COMPUTING if callable(getattr(optimizer, name, None))]
    if names:
        _Computed(passes).hook(optimizer, names)
    return optimizer


class _Computed:
    def __init__(self, passes: int) -> None:
        self._alone = passes > 1
        self._whole_updates = 0  # that are being made now
        self._given: list[Any] = []
        # Of the method of the user's that makes an update now: what ends with it.
        self._ends: contextlib.ExitStack | None = None

    def hook(self, optimizer: Any, names: Sequence[str]) -> None:
        """Puts them there; `names`: which of compat.COMPUTING it has."""
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
        # Horovod gives both to optimizers of either kind.
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
        """By a method of the user's, which may clip: what it has computed is reduced first."""
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
            synchronizer.reduced_by_user.forget()  # others than these are this rank's own
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
    """`compute_gradients` of an older optimizer, by a weak reference: the optimizer holds it."""

    def compute_gradients(loss: Any, var_list: Any, tape: Any = None) -> list[Any]:
        return compat.computed_by_legacy(optimizer(), loss, var_list, tape)

    return compute_gradients


def _private(optimizer: Any) -> Any:
    """`_compute_gradients` of a present optimizer; see `_public`."""

    def _compute_gradients(
        loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None
    ) -> list[Any]:
        if grad_loss is not None:
            raise ValueError(
                f"_compute_gradients: {type(optimizer()).__name__} takes no grad_loss. Multiply "
                "the loss by it, or use an optimizer of tf_keras.optimizers.legacy."
            )
        return list(optimizer().compute_gradients(loss, var_list, tape))

    return _compute_gradients
