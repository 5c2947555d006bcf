"""The prescale and postscale factors of a reduction, as attributes of its op and as numbers.

TensorFlow has no float64 attributes. If float32 cannot represent both factors, an integer
attribute holds their bits as float64 (IEEE 754 binary64). As in compute/scaling.h, a factor is
rounded to the type in which products are computed before a tensor is multiplied by it.
"""

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

ATTRIBUTE = "exact_factors"
_HALVES = (tf.float16, tf.bfloat16)

REDUCED = frozenset(
    {
        tf.bool, tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.complex64, tf.complex128,
        tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16, tf.uint32, tf.uint64,
    }
)  # fmt: skip
"""The dtypes that at least one reduce op supports."""

NARROW = frozenset((tf.uint8, tf.int8, tf.uint16, tf.int16, tf.uint32, tf.int32))
"""Integer dtypes in which a sum across ranks may overflow, but an average cannot.

int64 can hold the sum of 2^31 such numbers, so averages are sent as int64.
"""

_BITS = struct.Struct("=qq")
_DOUBLES = struct.Struct("=dd")


def type_of_products(dtype: tf.DType) -> tf.DType:
    """Return the dtype in which products are computed: float64 for integers, float32 for halves."""
    if dtype.is_integer:
        return tf.float64
    return tf.float32 if dtype in _HALVES else dtype


def wide(tensor: Any) -> Any:
    """Cast half-precision tensors to float32; return all other tensors unchanged."""
    return tf.cast(tensor, tf.float32) if tensor.dtype in _HALVES else tensor


def narrowed(result: Any, dtype: tf.DType, clamp: bool) -> Any:
    """Convert an int64 result back to its original dtype.

    With `clamp`, results outside the type's range become its minimum or maximum.
    """
    if clamp:
        result = tf.clip_by_value(result, int(dtype.min), int(dtype.max))
    return tf.cast(result, dtype)


def in_type(factor: float, dtype: tf.DType) -> Any:
    """Return the factor as a NumPy number of a dtype; infinity if it is too large for the dtype."""
    with np.errstate(over="ignore"):
        return dtype.as_numpy_dtype(factor)


def _rounded(factor: float) -> float:
    return float(in_type(factor, tf.float32))


def exact(prescale: float, postscale: float) -> list[int]:
    """Return the value of the integer attribute; empty if float32 can represent both factors."""
    if prescale == 1.0 == postscale:
        return []
    factors = float(prescale), float(postscale)
    if all(_rounded(factor) == factor for factor in factors):
        return []
    return list(_BITS.unpack(_DOUBLES.pack(*factors)))


def of_attributes(prescale: float, postscale: float, bits: Sequence[int]) -> tuple[float, float]:
    """Return both factors from the op's three attributes; `bits` is the result of `exact`."""
    if bits:
        before, after = _DOUBLES.unpack(_BITS.pack(*bits))
        return before, after
    return _rounded(prescale), _rounded(postscale)
