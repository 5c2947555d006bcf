"""Serialize plain values into bytes, for the file with rank states next to a backup.

The format is a NumPy archive of arrays, with JSON that refers to the arrays by number. Pickle is
not used, because a pickle file from another user could run arbitrary code.
"""

import io
import json
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

_CONTAINERS: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "dict": dict}


def dumps(value: Any) -> bytes:
    """Serialize None, a number, string, bytes, array or tensor, or a container of these.

    Raises:
      TypeError: the value has another type.
    """
    arrays: list[Any] = []
    head = json.dumps(_encode(value, arrays))
    file = io.BytesIO()
    np.savez(file, *arrays, json=np.frombuffer(head.encode(), np.uint8))
    return file.getvalue()


def loads(data: bytes) -> Any:
    """Return the value that was passed to `dumps`, with tensors as arrays.

    Raises:
      ValueError: the data was not written by `dumps` of this version of tf_hvd.
    """
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            return _decode(json.loads(arrays["json"].tobytes()), arrays)
    except (EOFError, KeyError, TypeError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(
            "this backup was not written by this version of tf_hvd. Remove the backup to train "
            "from the beginning, or install the version that wrote it."
        ) from error


def _encode(value: Any, arrays: list[Any]) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    for name, kind in _CONTAINERS.items():
        if type(value) is kind:
            members = value.items() if kind is dict else value
            return {name: [_encode(each, arrays) for each in members]}
    if type(value) is bytes:
        arrays.append(np.frombuffer(value, np.uint8))
        return {"bytes": len(arrays) - 1}
    if isinstance(value, (np.ndarray, np.generic)) or tf.is_tensor(value):
        return _encode_array(value, arrays)
    raise TypeError(f"the type {type(value).__name__} is not supported")


def _encode_array(value: Any, arrays: list[Any]) -> Any:
    if tf.is_tensor(value) and not hasattr(value, "numpy"):
        raise TypeError("a tensor in a graph does not have a value")
    array = np.asarray(value)
    try:
        name = tf.as_dtype(array.dtype).name
    except TypeError:
        name = "string"
    if name == "string":
        raise TypeError(f"an array with the dtype {array.dtype} is not supported")
    arrays.append(array)
    return {"array": len(arrays) - 1, "dtype": name, "scalar": isinstance(value, np.generic)}


def _decode(value: Any, arrays: Mapping[str, Any]) -> Any:
    if not isinstance(value, dict):
        return value
    if "array" in value:  # NumPy stores bfloat16 values, but not the name of the dtype
        kind = tf.as_dtype(value["dtype"]).as_numpy_dtype
        array = arrays[f"arr_{value['array']}"].view(kind)
        return array[()] if value["scalar"] else array
    if "bytes" in value:
        return arrays[f"arr_{value['bytes']}"].tobytes()
    ((name, members),) = value.items()
    return _CONTAINERS[name](_decode(each, arrays) for each in members)
