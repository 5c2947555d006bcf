"""Plain values as bytes: what is written beside a backup, which runs no code when it is read.

A line of JSON, then the bytes of the arrays that it numbers. Not pickle, by which a file
of somebody else's could run what it likes.
"""

import json
from typing import Any

import numpy as np
import tensorflow as tf

_CONTAINERS: dict[str, Any] = {"list": list, "tuple": tuple, "set": set}


def dumps(value: Any) -> bytes:
    """The bytes of None, numbers, texts, bytes, arrays, tensors, and containers of them.

    Raises:
      TypeError: there is something else in it.
    """
    arrays: list[bytes] = []
    head = json.dumps(_encode(value, arrays))
    return b"\n".join([head.encode(), b"".join(arrays)])


def loads(data: bytes) -> Any:
    """The value that `dumps` was given; tensors are arrays.

    Raises:
      ValueError: `dumps` has not written this.
    """
    head, _, rest = data.partition(b"\n")
    try:
        return _decode(json.loads(head), memoryview(rest))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not written by tf_hvd: {error}") from error


def _encode(value: Any, arrays: list[bytes]) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    for name, kind in _CONTAINERS.items():
        if type(value) is kind:
            return {name: [_encode(each, arrays) for each in value]}
    if type(value) is dict:
        pairs = [[_encode(key, arrays), _encode(each, arrays)] for key, each in value.items()]
        return {"dict": pairs}
    if type(value) is bytes:
        return {"bytes": _place(value, arrays)}
    if isinstance(value, (np.ndarray, np.generic)) or tf.is_tensor(value):
        return _encode_array(value, arrays)
    raise TypeError(f"{type(value).__name__} is not supported")


def _place(data: bytes, arrays: list[bytes]) -> list[int]:
    begin = sum(map(len, arrays))
    arrays.append(data)
    return [begin, len(data)]


def _encode_array(value: Any, arrays: list[bytes]) -> Any:
    if tf.is_tensor(value) and not hasattr(value, "numpy"):
        raise TypeError("a tensor of a graph has no value")
    array = np.asarray(value)
    try:
        name = tf.as_dtype(array.dtype).name
    except TypeError:
        name = "string"
    if name == "string":
        raise TypeError(f"an array of {array.dtype} is not supported")
    return {
        "array": _place(array.tobytes(), arrays),
        "dtype": name,
        "shape": list(array.shape),
        "scalar": isinstance(value, np.generic),
    }


def _decode(value: Any, rest: memoryview) -> Any:
    if not isinstance(value, dict):
        return value
    if "array" in value:
        begin, length = value["array"]
        kind = tf.as_dtype(value["dtype"]).as_numpy_dtype
        array = np.frombuffer(rest[begin : begin + length], kind).reshape(value["shape"])
        return array[()] if value["scalar"] else array.copy()
    if "bytes" in value:
        begin, length = value["bytes"]
        return bytes(rest[begin : begin + length])
    if "dict" in value:
        return {_decode(key, rest): _decode(each, rest) for key, each in value["dict"]}
    ((name, members),) = value.items()
    return _CONTAINERS[name](_decode(each, rest) for each in members)
