"""Variables of a state: read all at once, without a copy where that can be, and assigned."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_hvd.core.tensorflow_hooks import on_host, tf_variable
from tf_hvd.training.agreement import name_of


def named(variables: Sequence[Any]) -> dict[str, Any]:
    """TensorFlow's variables by their path, or name, and a number where several have it."""
    found: dict[str, Any] = {}
    seen: set[int] = set()
    for variable in variables:
        plain = tf_variable(variable)
        if id(plain) in seen or not plain.dtype.is_numpy_compatible or plain.dtype == tf.string:
            continue
        seen.add(id(plain))
        name = base = name_of(variable).partition(":")[0]
        number = 1
        while name in found:
            number += 1
            name = f"{base}#{number}"
        found[name] = plain
    return found


class Reader:
    def __init__(self, session: Any = None) -> None:
        self._session = session
        self._key: tuple[int, ...] = ()
        self._read: Callable[[], Sequence[Any]] = tuple

    def __call__(self, variables: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Their values, by name.

        On the CPU they are the variables' own memory, which who assigns to one leaves as it is as
        long as somebody has it.
        """
        if self._session is not None:
            values = self._session.run(list(variables.values()))
            return dict(zip(variables, values, strict=True))
        key = tuple(map(id, variables.values()))
        if key != self._key:
            # Retraced only when there are others: one call, where each reading takes microseconds.
            own = list(variables.values())
            self._key, self._read = key, tf.function(lambda: [v.read_value() for v in own])
        with tf.init_scope():
            values = self._read()
        return {name: _array(value) for name, value in zip(variables, values, strict=True)}


def _array(tensor: Any) -> np.ndarray:
    """A tensor's own memory if it lies on the CPU, else a copy."""
    if "GPU" in tensor.backing_device:
        return np.asarray(tensor.numpy())
    try:
        return np.asarray(memoryview(tensor))
    except (TypeError, ValueError, BufferError):  # bfloat16 and its like: NumPy has no name for it
        same = {1: tf.uint8, 2: tf.uint16}.get(tensor.dtype.size)
        if same is None:
            return np.asarray(tensor.numpy())
        return np.asarray(memoryview(tf.bitcast(tensor, same)))


def is_same(before: np.ndarray, now: np.ndarray) -> bool:
    """Whether nobody has assigned to a variable since `before`, which somebody has kept."""
    if before.shape != now.shape or before.dtype != now.dtype:
        return False
    if now.ctypes.data == before.ctypes.data:
        return True
    copies = now.base is None and before.base is None
    return copies and bool(np.array_equal(before, now))


def assign(session: Any, variables: Mapping[str, Any], values: Mapping[str, np.ndarray]) -> None:
    """Gives variables values: as `Reader` has read them, or their bytes; session: as there."""
    with tf.init_scope():
        for name, value in values.items():
            variable = variables[name]
            value = value.view(variable.dtype.as_numpy_dtype).reshape(variable.shape)
            if session is not None:
                variable.load(value, session)
            elif "GPU" in variable.device:
                variable.assign(value)
            else:
                with on_host():
                    variable.assign(value)
