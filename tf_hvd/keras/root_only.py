"""Make Keras callbacks act on only one rank, the first rank that trains the model.

Subclasses of `RootOnly` in tf_hvd.keras.callbacks always act on that rank only. `hold` limits one
of Keras' own callbacks to that rank during `fit`.
"""

import functools
from collections.abc import Iterator
from typing import Any

from tf_hvd.keras import hooks, reduced_metrics


class RootOnly:
    """Keras' callback of the same name, active only on the first rank that trains the model.

    The arguments are the same as in Keras.
    """

    model: Any
    root_writes = True

    def _is_to_run(self) -> bool:
        return reduced_metrics.is_root(self.model)

    @classmethod
    def methods_around(cls, base: Any) -> dict[str, Any]:
        return {name: _method(base, name, nothing) for name, nothing in _hooks_of(base)}


def _hooks_of(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the name of each hook that a callback class overrides, and Keras' empty method."""
    base = _base_of(kind)
    for name in filter(_is_hook, dir(base)):
        if getattr(kind, name) is not getattr(base, name):
            yield name, getattr(base, name)


def _base_of(kind: type) -> Any:
    """Keras' base class of all callbacks; None if `kind` is not a callback."""
    return next((each for each in kind.__mro__ if each.__name__ == "Callback"), None)


def _is_hook(name: str) -> bool:
    return name == "set_model" or name.startswith("on_")


def _method(base: Any, name: str, nothing: Any) -> Any:
    @functools.wraps(getattr(base, name))
    def hook(self: Any, *args: Any, **kwargs: Any) -> Any:
        does = functools.partial(getattr(base, name), self)
        return _by_root(nothing, self, does, *args, **kwargs)

    return hook


def _by_root(nothing: Any, callback: Any, does: Any, *args: Any, **kwargs: Any) -> Any:
    if nothing.__name__ == "set_model":
        nothing(callback, *args, **kwargs)  # the model determines which ranks train it
    ours = isinstance(callback, RootOnly)
    runs = callback._is_to_run() if ours else reduced_metrics.is_root(callback.model)
    return does(*args, **kwargs) if runs else nothing(callback, *args, **kwargs)


def on_root(callback: Any) -> Any:
    """Make a callback act only on the first rank that trains the model.

    Use this function for callbacks that write files, log or print. These may be Keras' callbacks or
    your own. Do not use it for a callback that calls collectives or changes training, such as early
    stopping or a learning rate schedule. The other ranks would hang or train differently.

    Args:
      callback: a callback from Keras 3 or tf_keras. Its class is replaced with a subclass of the
        same name.

    Returns:
      `callback`, modified in place.

    Raises:
      TypeError: `callback` is not a Keras callback.

    Example:
      said = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: print(epoch, logs))
      used = [hvd.callbacks.OnRoot(said)]
    """
    kind: Any = type(callback)
    base = _base_of(kind)
    if base is None:
        raise TypeError(f"{callback!r} is not a Keras callback. Pass a Keras callback to OnRoot.")
    if isinstance(callback, RootOnly):
        return callback
    # LambdaCallback stores its functions on the instance.
    for name in filter(_is_hook, list(vars(callback))):
        does = functools.partial(_by_root, getattr(base, name), callback, vars(callback)[name])
        setattr(callback, name, does)
    callback.__class__ = _on_root_class(kind)
    return callback


@functools.lru_cache(maxsize=64)
def _on_root_class(kind: Any) -> Any:
    same = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(kind.__name__, (RootOnly, kind), {**same, **RootOnly.methods_around(kind)})


def is_held(callback: Any) -> bool:
    return bool(hooks.noted(callback))


def hold(callback: Any) -> None:
    """Make one of Keras' own callbacks act only on the first rank, until `release` is called.

    The callback is not changed if a user-defined class or the object itself overrides a hook. Such
    a hook may be meant for all ranks, for example because it calls a collective.

    The replacement methods stay in the callback's class, and check whether an object is held.
    """
    if is_held(callback) or getattr(callback, "root_writes", False):
        return
    for name in filter(_is_hook, dir(callback)):
        if name in vars(callback) or hooks.overrides(callback, name):
            return
    for name, nothing in _hooks_of(type(callback)):
        hooks.put_around(callback, name, functools.partial(_by_root, nothing))
    hooks.note(callback, True)


def release(callback: Any) -> None:
    if is_held(callback):
        hooks.forget(callback)
