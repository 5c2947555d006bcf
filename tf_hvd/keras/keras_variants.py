"""One set of callbacks for Keras 3 and for tf_keras.

What a callback does is written once, in a class without a base; here it is put on
the base class of the Keras that will call it. Where it changes what Keras' class does in
methods that only some Keras has, `methods_around(base)` of it gives those, by name.
"""

import functools
import types
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tf_hvd.keras import compat

# The name of each class, what it does, and the name of its base in keras.callbacks.
Parts = Mapping[str, tuple[type, str]]


def _refusal(module: str, name: str) -> Any:
    def refuse(_: Any) -> bool:
        raise TypeError(
            f"{module}.{name} is the Keras 3 class; for a tf_keras model use "
            f"{module}.of(tf_keras).{name}."
        )

    return refuse


class KerasVariants:
    """The classes of a module for each Keras; those for `tf.keras` are its attributes."""

    def __init__(self, module: str, parts: Parts) -> None:
        self._module = module
        self._parts = parts

    @functools.lru_cache(maxsize=4)  # noqa: B019 - there is one object for each module
    def of(self, keras: Any) -> types.SimpleNamespace:
        """The classes for the module `keras` or `tf_keras`, under their names."""
        made = types.SimpleNamespace()
        for name, (behaviour, base) in self._parts.items():
            if not hasattr(keras.callbacks, base):
                continue  # not every Keras has each
            bases = (behaviour, getattr(keras.callbacks, base))
            contents = {"__module__": self._module, "__doc__": behaviour.__doc__}
            if not hasattr(bases[1], compat.ASKED_BY_TF_KERAS):
                contents[compat.ASKED_BY_TF_KERAS] = _refusal(self._module, name)
            if hasattr(behaviour, "methods_around"):
                contents |= behaviour.methods_around(bases[1])
            setattr(made, name, type(name, bases, contents))
        return made

    def attribute(self, name: str) -> Any:
        """For the module's `__getattr__`: the class for the Keras that `tf.keras` is."""
        if name in self._parts:
            return getattr(self.of(tf.keras), name)
        raise AttributeError(f"module {self._module!r} has no attribute {name!r}")


def internal_callback(behaviour: type, base: Any, /, **contents: Any) -> Any:
    """A callback of tf_hvd's own, which stands among the user's in a `fit`.

    `behaviour` is a class without a base, `contents` are attributes of the new one.
    """
    name = behaviour.__name__.lstrip("_")
    contents = {"__module__": behaviour.__module__, **contents}
    made = type(name, (behaviour, base), contents)()
    for trait, value in compat.CALLBACK_TRAITS.items():
        setattr(made, trait, value)
    return made
