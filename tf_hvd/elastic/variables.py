"""Functions that read all variables of a state, without a copy if possible, and assign them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_hvd.core.tensorflow_hooks import on_host, tf_variable
from tf_hvd.training.agreement import name_of


def named(variables: Sequence[Any]) -> dict[str, Any]:
    """Return TensorFlow's variables by path or name, with a number added to repeated names."""
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
        """Return the values of the variables, by name.

        On the CPU, a value is the variable's own memory. An assignment to the variable does not
        change this memory while the value is referenced.
        """
        if self._session is not None:
            values = self._session.run(list(variables.values()))
            return dict(zip(variables, values, strict=True))
        key = tuple(map(id, variables.values()))
        if key != self._key:
            # One call reads all variables, because each separate read would take microseconds.
            own = list(variables.values())
            self._key, self._read = key, tf.function(lambda: [v.read_value() for v in own])
        with tf.init_scope():
            values = self._read()
        return {name: _array(value) for name, value in zip(variables, values, strict=True)}


def _array(tensor: Any) -> np.ndarray:
    """Return a tensor's own memory if the tensor is on the CPU, and a copy otherwise."""
    if "GPU" in tensor.backing_device:
        return np.asarray(tensor.numpy())
    try:
        return np.asarray(memoryview(tensor))
    except (TypeError, ValueError, BufferError):  # types that NumPy lacks, such as bfloat16
        same = {1: tf.uint8, 2: tf.uint16}.get(tensor.dtype.size)
        if same is None:
            return np.asarray(tensor.numpy())
        return np.asarray(memoryview(tf.bitcast(tensor, same)))


def is_same(before: np.ndarray, now: np.ndarray) -> bool:
    """Return whether a variable still has the value `before`.

    `before` must have been referenced since it was read.
    """
    if before.shape != now.shape or before.dtype != now.dtype:
        return False
    if now.ctypes.data == before.ctypes.data:
        return True
    copies = now.base is None and before.base is None
    return copies and bool(np.array_equal(before, now))


def assign(session: Any, variables: Mapping[str, Any], values: Mapping[str, np.ndarray]) -> None:
    """Assign values to variables.

    Args:
        session: the session with the variables; None in eager mode.
        variables: the variables, by name.
        values: the values that `Reader` returned, or their bytes, by name.
    """
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
