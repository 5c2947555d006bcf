"""Variables that training needs and nobody saves."""

from typing import Any

import tensorflow as tf


def state_variable(value: Any, name: str) -> Any:
    """A variable for this rank's own state; call it inside `tf.init_scope`.

    In a v1 graph it is a local variable, which `local_variables_initializer`
    initialises and a Saver leaves out.

    Args:
      value: what it starts with.
      name: its name; made unique in a v1 graph.
    """
    if tf.executing_eagerly():
        return tf.Variable(value, trainable=False, name=name)
    return tf.compat.v1.get_variable(
        tf.compat.v1.get_default_graph().unique_name(name),
        initializer=value,
        trainable=False,
        use_resource=True,
        collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES],
    )
