"""Hook the methods that a Keras optimizer uses to make an update.

The hooks are listed from the outermost, which is added last, to the innermost:

- `hook_passes` adds up gradients for backward_passes_per_step, and updates in the last pass only.
- `hook_users_methods` passes reduced gradients to methods that a user's class overrides.
- `hook_updates` reduces gradients where Keras itself expects a reduction (tf_hvd.keras.compat).

Some methods take pairs of gradients and variables, and others take two lists. Hooks get an `Update`
in both cases.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_hvd.keras import compat, hooks
from tf_hvd.keras.synchronizer import GradientSynchronizer


class Update(NamedTuple):
    """A call to a method that makes an update."""

    gradients: list[Any]
    variables: list[Any]
    make: Callable[[list[Any]], Any]  # makes the update with the given gradients
    says_reduced: bool = False  # whether an argument declares the gradients reduced


def _put_around(optimizer: Any, name: str, around: Callable[[Any, Update], Any]) -> None:
    """Replace an optimizer's method with `around(optimizer, update)`."""

    def of_pairs(target: Any, method: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        pairs = list(grads_and_vars)
        variables = [variable for _, variable in pairs]

        def make(gradients: list[Any]) -> Any:
            return method(list(zip(gradients, variables, strict=True)), *args, **kwargs)

        says_reduced = compat.says_reduced(target, args, kwargs)
        return around(target, Update([each for each, _ in pairs], variables, make, says_reduced))

    def of_lists(
        target: Any, method: Any, grads: Any, trainable_variables: Any = None, *more: Any, **kw: Any
    ) -> Any:
        given = None if trainable_variables is None else list(trainable_variables)
        variables = compat.trained_by(target) if given is None else given
        return around(
            target,
            Update(list(grads), variables, lambda gradients: method(gradients, given, *more, **kw)),
        )

    hooks.put_around(optimizer, name, of_lists if name in compat.OF_LISTS else of_pairs)


def hook_updates(optimizer: Any, kind: str, synchronizer: GradientSynchronizer) -> None:
    """Hook `synchronizer` into one optimizer that makes updates itself."""
    if kind == compat.KERAS:
        _hook_keras(optimizer, synchronizer)
    elif compat.has_mesh(optimizer):
        raise ValueError(
            "this optimizer has a DTensor mesh, and already reduces its gradients. Do not wrap it."
        )
    else:
        _hook_tf_keras(optimizer, compat.HOOKS[kind], synchronizer)


def _reduced(
    target: Any, synchronizer: GradientSynchronizer, gradients: Any, variables: Any
) -> list[Any]:
    """Reduce an update's gradients, unless a user's method already received reduced gradients.

    If the program has replaced the optimizer's `_allreduce`, as Horovod allows, that function
    reduces the gradients.
    """
    if synchronizer.was_given(gradients, variables):
        return list(gradients)
    replaced = vars(target).get("_allreduce")
    return list((replaced or synchronizer.reduce)(gradients, variables))


def _hook_keras(optimizer: Any, synchronizer: GradientSynchronizer) -> None:
    current: list[Any] = []

    def begun(target: Any, update: Update) -> Any:
        if not synchronizer.in_users_method:
            synchronizer.begin(update.gradients, update.variables)
        return update.make(update.gradients)

    def filtered(target: Any, update: Update) -> Any:
        current[:] = update.variables
        with tf.name_scope(compat.SCOPE):
            result = update.make(update.gradients)
        if not synchronizer.in_users_method:
            synchronizer.applied(update.variables)
        return result

    def clipped(target: Any, clip: Any, grads: Any) -> Any:
        return clip(_reduced(target, synchronizer, grads, current))

    apply, apply_filtered, clip_gradients = compat.HOOKS[compat.KERAS]
    _put_around(optimizer, apply, begun)
    _put_around(optimizer, apply_filtered, filtered)
    hooks.put_around(optimizer, clip_gradients, clipped)


def _hook_tf_keras(
    optimizer: Any, names: Sequence[str], synchronizer: GradientSynchronizer
) -> None:
    def aggregated(target: Any, update: Update) -> Any:
        with tf.name_scope(compat.SCOPE):
            if not synchronizer.in_users_method:
                synchronizer.begin(update.gradients, update.variables)
            reduced = _reduced(target, synchronizer, update.gradients, update.variables)
        return update.make(reduced)

    def applied(target: Any, update: Update) -> Any:
        result = update.make(update.gradients)
        if not synchronizer.in_users_method:
            synchronizer.applied(update.variables)
        return result

    apply_gradients, aggregate = names
    _put_around(optimizer, aggregate, aggregated)
    _put_around(optimizer, apply_gradients, applied)


def hook_users_methods(optimizer: Any, synchronizer: GradientSynchronizer) -> None:
    """Pass reduced gradients to the methods that a user's class overrides.

    The gradients of each update are reduced once, even if one such method calls another.
    """

    def hooked(name: str, target: Any, update: Update) -> Any:
        refused = len(update.gradients) != len(update.variables)  # Keras will raise an error
        if synchronizer.in_users_method or update.says_reduced or refused:
            return update.make(update.gradients)
        if name == compat.HOOKS[compat.KERAS][1]:  # `apply` has already unscaled the gradients
            return _give(target, synchronizer, update, None)
        synchronizer.begin(update.gradients, update.variables)
        return _give(target, synchronizer, update, compat.fixed_scale(target))

    for name in compat.overridden(optimizer):
        _put_around(optimizer, name, functools.partial(hooked, name))


def _give(target: Any, synchronizer: GradientSynchronizer, update: Update, scale: Any) -> Any:
    """Make an update with a user's method, and pass reduced gradients to the method.

    Gradients of variables that are meant to differ between ranks are passed unchanged. Unless
    `scale` is None, gradients are divided by it before the reduction and multiplied by it
    afterwards.
    """
    own = [compat.has_own_values(variable) for variable in update.variables]
    gradients = [None if mine else g for mine, g in zip(own, update.gradients, strict=True)]
    with tf.name_scope(compat.SCOPE):
        if scale is not None:
            gradients = [None if g is None else g / scale for g in gradients]
        reduced = _reduced(target, synchronizer, gradients, update.variables)
        if scale is not None:
            reduced = [None if g is None else g * scale for g in reduced]
    given = zip(own, update.gradients, reduced, strict=True)
    reduced = [g if mine else r for mine, g, r in given]
    with synchronizer.giving(reduced):
        result = update.make(reduced)
    synchronizer.applied(update.variables)
    return result


def hook_passes(optimizer: Any, synchronizer: GradientSynchronizer) -> None:
    """Make an optimizer add up the gradients from several calls and apply the sum in the last call.

    Until the last call, neither the weights nor the optimizer's iterations change.

    Args:
      optimizer: an optimizer that is already hooked. The optimizer makes updates itself, or it
        wraps another optimizer and a user-defined class overrides its update methods.
      synchronizer: the optimizer's synchronizer, with an aggregation for this optimizer only.
    """
    aggregation = synchronizer.aggregation
    assert aggregation is not None

    def added_up(target: Any, update: Update) -> Any:
        gradients, variables = update.gradients, update.variables
        # Either the user's method got the sum, or Keras will raise an error, because the variables
        # are not known yet.
        if synchronizer.in_users_method or (gradients and not variables):
            return update.make(gradients)
        compat.build_optimizer(target, variables)
        synchronizer.reduced_by_user.before_pass(gradients, variables)
        complete, sums = aggregation.add(gradients, variables)

        def apply() -> None:
            update.make(sums)

        return aggregation.when_complete(complete, apply, variables)

    is_keras = compat.kind_of(optimizer) == compat.KERAS
    # A wrapping optimizer adds up in its own method; otherwise inner optimizers would add up again.
    is_around = compat.inner_optimizers(optimizer) is not None
    if is_keras and not (is_around and not hooks.overrides(optimizer, "apply")):
        _put_around(optimizer, "apply", added_up)
    if not is_keras or hooks.overrides(optimizer, "apply_gradients"):
        _put_around(optimizer, "apply_gradients", added_up)
