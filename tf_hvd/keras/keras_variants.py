"""Make callback classes for both Keras 3 and tf_keras.

A callback's behaviour is written once, in a class without a base. This module combines that class
with a base class from the Keras version that will call the callback. A behaviour may define
`methods_around(base)` for methods that only some Keras versions have. This function returns a
dictionary of additional methods, with their names as keys.
"""

import functools
import inspect
import types
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tf_hvd.keras import compat

# For each class: its name, its behaviour, and the name of its base in keras.callbacks.
Parts = Mapping[str, tuple[type, str]]


def _refusal(module: str, name: str) -> Any:
    def refuse(_: Any) -> bool:
        raise TypeError(
            f"{module}.{name} is a Keras 3 callback, but the model is a tf_keras model. Use "
            f"{module}.of(tf_keras).{name}."
        )

    return refuse


def _doc(behaviour: type, base: Any) -> str:
    """The behaviour's docstring, followed by that of `base` if `base` defines the arguments."""
    text = inspect.getdoc(behaviour) or ""
    return text if "__init__" in vars(behaviour) else f"{text}\n\n{inspect.getdoc(base)}"


class KerasVariants:
    """A module's classes for each Keras version. Those for `tf.keras` are module attributes."""

    def __init__(self, module: str, parts: Parts) -> None:
        self._module = module
        self._parts = parts

    @property
    def names(self) -> list[str]:
        """The names of the classes for the Keras version that `tf.keras` refers to."""
        return [name for name in self._parts if hasattr(self.of(tf.keras), name)]

    @functools.lru_cache(maxsize=4)  # noqa: B019 - there is one object for each module
    def of(self, keras: Any) -> types.SimpleNamespace:
        """The classes for the module `keras` or `tf_keras`, by name."""
        made = types.SimpleNamespace()
        for name, (behaviour, base) in self._parts.items():
            if not hasattr(keras.callbacks, base):
                continue  # this Keras version does not have the base class
            bases = (behaviour, getattr(keras.callbacks, base))
            contents = {"__module__": self._module, "__doc__": _doc(behaviour, bases[1])}
            if not hasattr(bases[1], compat.ASKED_BY_TF_KERAS):
                contents[compat.ASKED_BY_TF_KERAS] = _refusal(self._module, name)
            if hasattr(behaviour, "methods_around"):
                contents |= behaviour.methods_around(bases[1])
            setattr(made, name, type(name, bases, contents))
        return made

    def attribute(self, name: str) -> Any:
        """Return the class `name` for `tf.keras`; used as the module's `__getattr__`."""
        if name in self._parts:
            return getattr(self.of(tf.keras), name)
        raise AttributeError(f"module {self._module!r} has no attribute {name!r}")


def internal_callback(behaviour: type, base: Any, /, **contents: Any) -> Any:
    """Create an internal callback to run alongside the user's callbacks in `fit`.

    Args:
      behaviour: class without a base, which defines the callback's methods.
      base: base class of all callbacks in the Keras version that calls the callback.
      **contents: attributes of the new class.
    """
    name = behaviour.__name__.lstrip("_")
    contents = {"__module__": behaviour.__module__, **contents}
    made = type(name, (behaviour, base), contents)()
    for trait, value in compat.CALLBACK_TRAITS.items():
        setattr(made, trait, value)
    return made
