"""Checks that run at some of a training's updates only."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_hvd.core.tensorflow_hooks import on_host


def counter() -> Any:
    """An int64 variable that no model tracks; None where TensorFlow does not run eagerly."""
    with tf.init_scope():
        if not tf.executing_eagerly():
            return None
        with on_host():
            return tf.Variable(0, trainable=False, dtype=tf.int64, name="tf_hvd_updates")


@functools.cache
def _turn() -> Any:
    """What all checks of this process write to, so that no two of a function run side by side."""
    return counter()


def check_if(due: Any, check: Callable[[], Any]) -> Any:
    """Runs a check where it is due; after those before it in the program, of all optimizers.

    Their requests have no scope and so may have one name. TensorFlow keeps the order of
    what writes to one variable, also where functions are called by another.

    Args:
      due: a bool scalar, the same on all ranks.
      check: gives a tensor that waits for what it does.
    """

    def in_turn() -> Any:
        with tf.control_dependencies([check()]):
            _turn().assign_add(1)
        return tf.constant(True)

    return tf.cond(due, in_turn, lambda: tf.constant(True))
