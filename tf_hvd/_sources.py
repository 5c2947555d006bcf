"""What gradients belong to: variables of TensorFlow and of Keras."""

import re
from typing import Any

import tensorflow as tf


def tf_variable(variable: Any) -> Any:
    """The tf.Variable of a Keras 3 variable; anything else is returned as it is."""
    inner = getattr(variable, "value", None)
    return inner if isinstance(inner, tf.Variable) else variable


def member_name(variable: Any) -> str:
    """What the ranks compare, to be sure that they reduce the same variables together.

    Without what Keras appends to a name when it has given it before: that counts
    what a process made until then, and may differ between ranks. Empty for a
    source that is no variable.
    """
    path = getattr(variable, "path", None)
    if not isinstance(path, str):
        path = variable.name if isinstance(variable, tf.Variable) else ""
    return re.sub(r"_\d+(?=/|$)", "", path.partition(":")[0])
