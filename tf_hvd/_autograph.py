"""Keeps AutoGraph out of this package.

A tf.function converts what it calls, and what that calls. Our functions need no
conversion, and it would cost seconds in each program's first step.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import tensorflow as tf

F = TypeVar("F", bound=Callable[..., Any])


def verbatim(function: F) -> F:
    """Decorator: AutoGraph calls `function` as it is written."""
    return cast(F, tf.autograph.experimental.do_not_convert(function))
