"""Callbacks of Keras that act on one rank: the first of those that train a model together.

Those of tf_hvd.keras.callbacks are made so. One of Keras' own becomes so for a `fit`, by `hold`.
"""

import functools
from collections.abc import Iterator
from typing import Any

from tf_hvd.keras import hooks, metrics


class RootOnly:
    """Keras' callback of this name, on the first rank of those that train the model together.

    On the others it does nothing. Arguments are those of Keras.
    """

    model: Any
    root_writes = True

    def _is_to_run(self) -> bool:
        return metrics.is_root(self.model)

    @classmethod
    def methods_around(cls, base: Any) -> dict[str, Any]:
        return {name: _method(base, name, nothing) for name, nothing in _hooks_of(base)}


def _hooks_of(kind: type) -> Iterator[tuple[str, Any]]:
    """The names of those hooks in which a callback does something, and what does nothing."""
    base = next(each for each in kind.__mro__ if each.__name__ == "Callback")
    for name in filter(_is_hook, dir(base)):
        if getattr(kind, name) is not getattr(base, name):
            yield name, getattr(base, name)


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
        nothing(callback, *args, **kwargs)  # it says who trains the model
    ours = isinstance(callback, RootOnly)
    runs = callback._is_to_run() if ours else metrics.is_root(callback.model)
    return does(*args, **kwargs) if runs else nothing(callback, *args, **kwargs)


def is_held(callback: Any) -> bool:
    return bool(hooks.noted(callback))


def hold(callback: Any) -> None:
    """Makes a callback of Keras' own one that acts on the first rank, until `release`.

    If a class of the user's overrides a hook, or the object has one, it is left alone: nobody can
    tell whether that is for all ranks (a collective) or for one (a file). The callback's class
    keeps methods that look whether an object is held.
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
