"""One set of callbacks for Keras 3 and for tf_keras.

What a callback does is written once, in a class without a base; here it is put on
the base class of the Keras that will call it.
"""

import functools
import types
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tf_hvd.core.tensorflow_hooks import tf_variable
from tf_hvd.keras import compat

# The name of each class, what it does, and the name of its base in keras.callbacks.
Parts = Mapping[str, tuple[type, str]]


def _refusal(module: str, name: str) -> Any:
    def refuse(_: Any) -> bool:
        raise TypeError(
            f"{module}.{name} is for Keras 3 here; a fit() of tf_keras takes "
            f"{module}.of(tf_keras).{name}."
        )

    return refuse


class KerasVariants:
    """The classes of a module for each Keras; those for `tf.keras` are its attributes.

    Args:
      module: the name of the module that offers the classes.
      parts: what they are made of.
    """

    def __init__(self, module: str, parts: Parts) -> None:
        self._module = module
        self._parts = parts

    @functools.lru_cache(maxsize=4)  # noqa: B019 - there is one object for each module
    def of(self, keras: Any) -> types.SimpleNamespace:
        """The classes for a Keras.

        Args:
          keras: the module `keras` or `tf_keras`.

        Returns:
          A namespace with the classes under their names.
        """
        made = types.SimpleNamespace()
        for name, (behaviour, base) in self._parts.items():
            bases = (behaviour, getattr(keras.callbacks, base))
            contents = {"__module__": self._module, "__doc__": behaviour.__doc__}
            if not hasattr(bases[1], compat.ASKED_BY_TF_KERAS):
                contents[compat.ASKED_BY_TF_KERAS] = _refusal(self._module, name)
            setattr(made, name, type(name, bases, contents))
        return made

    def attribute(self, name: str) -> Any:
        """For the module's `__getattr__`: the class for the Keras that `tf.keras` is."""
        if name in self._parts:
            return getattr(self.of(tf.keras), name)
        raise AttributeError(f"module {self._module!r} has no attribute {name!r}")


def variables_of(optimizer: Any) -> list[Any]:
    """All variables of a Keras optimizer; a method, a property or both, by its version."""
    variables = optimizer.variables
    found = list(variables() if callable(variables) else variables)
    # tf_keras does not list it.
    rate = tf_variable(getattr(optimizer, "learning_rate", None))
    if isinstance(rate, tf.Variable) and all(tf_variable(v) is not rate for v in found):
        found.append(rate)
    return found


def innermost(optimizer: Any) -> Any:
    """The optimizer inside of loss scaling wrappers."""
    while getattr(optimizer, "inner_optimizer", None) is not None:
        optimizer = optimizer.inner_optimizer
    return optimizer
