"""All that is put around the methods by which an optimizer of Keras makes an update.

From the outside in, which is the order of the last hook to the first:

- `hook_passes`: with backward_passes_per_step most calls only add gradients up.
- `hook_users_methods`: a method that a class of the user's overrides gets reduced gradients.
- `hook_updates`: the place where Keras itself has gradients to be reduced (tf_hvd.keras.compat).

Some methods take pairs and some take two lists; what is hooked gets an `Update` of either.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_hvd.keras import compat, hooks
from tf_hvd.keras.synchronizer import GradientSynchronizer


class Update(NamedTuple):
    """A call of a method that makes an update."""

    gradients: list[Any]
    variables: list[Any]
    make: Callable[[list[Any]], Any]  # with other gradients in their place, and all else as it was
    says_reduced: bool = False  # whether an argument says that the gradients are reduced


def _put_around(optimizer: Any, name: str, around: Callable[[Any, Update], Any]) -> None:
    """From now on the method is `around(optimizer, update)`."""

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
    """Puts `synchronizer` into one optimizer that makes updates itself."""
    if kind == compat.KERAS:
        _hook_keras(optimizer, synchronizer)
    elif compat.has_mesh(optimizer):
        raise ValueError("an optimizer with a DTensor mesh reduces its gradients itself.")
    else:
        _hook_tf_keras(optimizer, compat.HOOKS[kind], synchronizer)


def _reduced(
    target: Any, synchronizer: GradientSynchronizer, gradients: Any, variables: Any
) -> list[Any]:
    """The gradients of an update, reduced.

    By the program's own function, if it has put one in the place of Horovod's `_allreduce`. Those
    that a method of the user's was given are.
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
    """Has the methods of `compat.overridden` get reduced gradients; each update is reduced once."""

    def hooked(name: str, target: Any, update: Update) -> Any:
        refused = len(update.gradients) != len(update.variables)  # by Keras
        if synchronizer.in_users_method or update.says_reduced or refused:
            return update.make(update.gradients)
        if name == compat.HOOKS[compat.KERAS][1]:  # `apply` has begun, and unscaled
            return _give(target, synchronizer, update, None)
        synchronizer.begin(update.gradients, update.variables)
        return _give(target, synchronizer, update, compat.fixed_scale(target))

    for name in compat.overridden(optimizer):
        _put_around(optimizer, name, functools.partial(hooked, name))


def _give(target: Any, synchronizer: GradientSynchronizer, update: Update, scale: Any) -> Any:
    """Makes an update by a method of the user's, which gets reduced gradients.

    But for those that Keras would not reduce either. They are multiplied by `scale`, if it is not
    None, and stay so.
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
    """Makes one optimizer apply the sum of several calls' gradients, with the last of them.

    Between, neither the weights change nor the optimizer's count of iterations. The optimizer,
    hooked already, makes updates itself; or it is around such a one, and its class overrides how.
    The synchronizer's aggregation is of this optimizer alone.
    """
    aggregation = synchronizer.aggregation
    assert aggregation is not None

    def added_up(target: Any, update: Update) -> Any:
        gradients, variables = update.gradients, update.variables
        # The method was given the sum; or Keras refuses, as the variables are not known yet.
        if synchronizer.in_users_method or (gradients and not variables):
            return update.make(gradients)
        compat.build_optimizer(target, variables)
        synchronizer.reduced_by_user.before_pass(gradients, variables)
        complete, sums = aggregation.add(gradients, variables)

        def apply() -> None:
            update.make(sums)

        return aggregation.when_complete(complete, apply, variables)

    is_keras = compat.kind_of(optimizer) == compat.KERAS
    # What is around others adds up in its own method, or those add the same up once more.
    is_around = compat.inner_optimizers(optimizer) is not None
    if is_keras and not (is_around and not hooks.overrides(optimizer, "apply")):
        _put_around(optimizer, "apply", added_up)
    if not is_keras or hooks.overrides(optimizer, "apply_gradients"):
        _put_around(optimizer, "apply_gradients", added_up)
