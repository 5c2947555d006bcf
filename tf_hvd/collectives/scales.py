"""The two factors of a reduction: as attributes of its op, and as numbers of a tensor's type.

TensorFlow has no attribute of float64. Where a float32 is not the factor, an attribute of integers
holds the bits of both as float64 (IEEE 754 binary64). Tensors are multiplied as compute/scaling.h
does it: with the factor rounded to the type that products are formed in.
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
"""The types that are reduced, each by the ops that it is defined for."""

NARROW = frozenset((tf.uint8, tf.int8, tf.uint16, tf.int16, tf.uint32, tf.int32))
"""Integers whose sum over ranks may exceed their type, and whose average does not.

int64 holds the sum of 2^31 of them: an average is sent in it.
"""

_BITS = struct.Struct("=qq")
_DOUBLES = struct.Struct("=dd")


def type_of_products(dtype: tf.DType) -> tf.DType:
    """What products of a real type are formed in: float64 of integers, float32 of half ones."""
    if dtype.is_integer:
        return tf.float64
    return tf.float32 if dtype in _HALVES else dtype


def wide(tensor: Any) -> Any:
    """Half precisions as float32, everything else as it is."""
    return tf.cast(tensor, tf.float32) if tensor.dtype in _HALVES else tensor


def narrowed(result: Any, dtype: tf.DType, clamp: bool) -> Any:
    """An int64 result in its own type, one of NARROW.

    With `clamp`, a result outside of the type becomes the type's end.
    """
    if clamp:
        result = tf.clip_by_value(result, int(dtype.min), int(dtype.max))
    return tf.cast(result, dtype)


def in_type(factor: float, dtype: tf.DType) -> Any:
    """The factor as a NumPy number of that type; infinite where it is too large for it."""
    with np.errstate(over="ignore"):
        return dtype.as_numpy_dtype(factor)


def _rounded(factor: float) -> float:
    return float(in_type(factor, tf.float32))


def exact(prescale: float, postscale: float) -> list[int]:
    """The attribute: empty where float32 has both factors."""
    if prescale == 1.0 == postscale:
        return []
    factors = float(prescale), float(postscale)
    if all(_rounded(factor) == factor for factor in factors):
        return []
    return list(_BITS.unpack(_DOUBLES.pack(*factors)))


def of_attributes(prescale: float, postscale: float, bits: Sequence[int]) -> tuple[float, float]:
    """The factors, from the op's three attributes; `exact` gave the bits."""
    if bits:
        before, after = _DOUBLES.unpack(_BITS.pack(*bits))
        return before, after
    return _rounded(prescale), _rounded(postscale)
