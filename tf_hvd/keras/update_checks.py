"""Checks that run at some of a training's updates only."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_hvd.training.counter import Counter


@functools.cache
def _turn() -> Counter:
    """What all checks of this process write to, so that no two of a function run side by side."""
    return Counter("tf_hvd_checks")


def checks_state() -> Any:
    """The variable that functions with checks have captured."""
    return _turn().variable


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
            _turn().add()
        return tf.constant(True)

    return tf.cond(due, in_turn, lambda: tf.constant(True))
