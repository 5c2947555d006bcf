"""Callbacks of Keras that act on one rank: the first of those that train a model together.

Those of tf_hvd.keras.callbacks are made so. One of Keras' own becomes so for a `fit`, by `hold`.
"""

import functools
from typing import Any

from tf_hvd.keras import instance_methods, metrics


class RootOnly:
    """Keras' callback of this name, on the first rank of those that train the model together.

    On the others it does nothing. Arguments are those of Keras.
    """

    model: Any
    root_writes = True

    def _is_to_run(self) -> bool:
        return metrics.is_root(self.model)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        base = next((kind for kind in cls.__mro__ if kind.__name__ == "Callback"), None)
        # Without one it is to be put on a class of Keras'; on one already, it is a user's own,
        # which may do more.
        if base is None or any(
            RootOnly in kind.__mro__ and issubclass(kind, base) for kind in cls.__bases__
        ):
            return
        for name in filter(_is_hook, dir(base)):
            does, nothing = getattr(cls, name), getattr(base, name)
            if does is not nothing:
                setattr(cls, name, _by_root(cls, does, nothing))


def _is_hook(name: str) -> bool:
    return name == "set_model" or name.startswith("on_")


def _by_root(cls: Any, does: Any, nothing: Any) -> Any:
    @functools.wraps(does)
    def hook(self: Any, *args: Any, **kwargs: Any) -> Any:
        name = does.__name__
        if name == "set_model":
            nothing(self, *args, **kwargs)
            runs = metrics.is_root(self.model)
        else:
            runs = self._is_to_run()
        if not runs:
            return nothing(self, *args, **kwargs)
        return getattr(super(cls, self), name)(*args, **kwargs)

    return hook


# Of each class that an object had when it was held, the class that it has meanwhile.
@functools.lru_cache(maxsize=256)
def _held(kind: type) -> type:
    named = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(kind.__name__, (RootOnly, kind), {**named, "held_class": kind})


def is_held(callback: Any) -> bool:
    return hasattr(type(callback), "held_class")


def hold(callback: Any) -> None:
    """Makes a callback of Keras' own one that acts on the first rank, until `release`.

    If a class of the user's overrides a hook, or the object has one, it is left alone: nobody can
    tell whether that is for all ranks (a collective) or for one (a file).
    """
    if getattr(callback, "root_writes", False):
        return
    for name in filter(_is_hook, dir(callback)):
        if name in vars(callback) or instance_methods.overrides(callback, name):
            return
    kind: Any = type(callback)
    callback.__class__ = _held(kind)


def release(callback: Any) -> None:
    """Makes it what it was before `hold`, if it was held."""
    if is_held(callback):
        callback.__class__ = type(callback).held_class
