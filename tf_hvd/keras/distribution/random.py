"""Random numbers of a step: those that one process would draw for this rank's rows.

All ranks have equal seeds. If a result has a row for each row of the batch, each rank draws the
numbers of the global batch and takes its rows. Other results are the same on all ranks.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_hvd.keras.distribution.step import Step, as_int, current

# Functions of Keras' backend, and the arguments that may have a row for each row of the result.
OF_SHAPES = {
    "normal": ("mean", "stddev"),
    "truncated_normal": ("mean", "stddev"),
    "uniform": ("minval", "maxval"),
    "randint": ("minval", "maxval"),
    "gamma": ("alpha",),
    "beta": ("alpha", "beta"),
    "binomial": ("counts", "probabilities"),
}


class _Part:
    """A rank's rows of a result in which each row of the batch has one or several rows."""

    def __init__(self, step: Step, rows: Any) -> None:
        if step.is_known and isinstance(rows, int):
            repeats = rows // max(step.rows, 1)
            self.total = max(repeats * step.total, repeats * step.begin + rows)
        else:
            repeats = rows // tf.maximum(step.rows, 1)
            self.total = tf.maximum(repeats * step.total, repeats * step.begin + rows)
        self._begin, self._rows = repeats * step.begin, rows

    def of(self, everything: Any) -> Any:
        return everything[self._begin : self._begin + self._rows]

    def spread(self, parameter: Any) -> Any:
        """A parameter for all rows; the values of other ranks' rows do not matter."""
        after = self.total - self._begin - self._rows
        paddings = [[self._begin, after], *([0, 0] for _ in parameter.shape[1:])]
        return tf.pad(parameter, paddings, constant_values=tf.cast(1, parameter.dtype))


def _part(step: Step, rows: Any, seed: Any) -> _Part | None:
    """The rank's part of a result with `rows` rows; None if they are not the rows of the batch."""
    rows = as_int(rows)
    if not isinstance(rows, int):
        return _Part(step, rows)
    # Initializers have numbers as seeds, and their results have fixed shapes.
    if step.is_known and rows == step.rows and not isinstance(seed, int):
        return _Part(step, rows)
    return None


def of_shape(name: str, original: Callable[..., Any], shape: Any, *args: Any, **kwargs: Any) -> Any:
    """Replaces the function `name`, which gets the shape of its result as first argument."""
    step = current()
    if step is None:
        return original(shape, *args, **kwargs)
    shape = list(tf.unstack(shape)) if tf.is_tensor(shape) else list(shape)
    named = dict(zip(OF_SHAPES[name], args, strict=False))
    rest = args[len(named) :]
    named |= kwargs
    part = _part(step, shape[0], named.get("seed")) if shape else None
    if part is None:
        return original(shape, *args, **kwargs)
    for key in OF_SHAPES[name]:
        value = named.get(key)
        of_value: Any = getattr(value, "shape", ())
        if len(of_value) == len(shape) and of_value[0] != 1:
            named[key] = part.spread(tf.convert_to_tensor(value))
    if rest:  # dtype and seed, by position
        named |= dict(zip(("dtype", "seed"), rest, strict=False))
    return part.of(original([part.total, *shape[1:]], **named))


def categorical(
    original: Callable[..., Any], logits: Any, num_samples: Any, *args: Any, **kwargs: Any
) -> Any:
    step = current()
    if step is None:
        return original(logits, num_samples, *args, **kwargs)
    part = _part(step, tf.shape(logits)[0], kwargs.get("seed"))
    if part is None:
        return original(logits, num_samples, *args, **kwargs)
    return part.of(original(part.spread(logits), num_samples, *args, **kwargs))


def dropout(
    original: Callable[..., Any], inputs: Any, rate: Any, noise_shape: Any = None, seed: Any = None
) -> Any:
    step = current()
    if step is None or rate in (0.0, 1.0) or len(inputs.shape) == 0:
        return original(inputs, rate, noise_shape, seed)
    rows = tf.shape(inputs)[0]
    shape = [rows, *tf.unstack(tf.shape(inputs))[1:]]
    if noise_shape is not None:
        shape = [
            own if each is None else each for own, each in zip(shape, noise_shape, strict=True)
        ]
    part = _part(step, shape[0], seed)
    if part is None:
        return original(inputs, rate, noise_shape, seed)
    ones = tf.ones([part.total, *shape[1:]], inputs.dtype)
    scale = part.of(original(ones, rate, None, seed))
    return tf.where(scale == 0, tf.zeros_like(inputs), inputs * scale)
