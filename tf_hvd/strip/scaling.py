"""The effect of a reduction with a single process: the tensor is multiplied by the factors.

The arithmetic is the same as in the kernels (compute/scaling.h). Each factor is applied separately,
and each product is rounded to its type. Integers are scaled in float64, truncated toward zero and
clamped to their range. Half-precision values are scaled in float32, and stay in float32 between the
two factors. bool is not scaled.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tensorflow as tf

from tf_hvd.collectives import scales
from tf_hvd.strip.builder import Builder

_PARTS = {tf.complex64: tf.float32, tf.complex128: tf.float64}


def scaled(build: Builder, tensor: str, dtype: tf.DType, factors: tuple[float, float]) -> str:
    """Return an edge from `tensor` scaled by the prescale and postscale factors."""
    wanted = [factor for factor in factors if factor != 1.0]
    if not wanted or dtype == tf.bool:
        return tensor
    if dtype in _PARTS:
        return _scaled_complex(build, tensor, dtype, factors)
    held = scales.type_of_products(dtype)
    if dtype.is_integer:
        for factor in wanted:
            wide = build.cast(tensor, dtype, held)
            tensor = _truncated(build, _wide_product(build, wide, factor), dtype)
        return tensor
    tensor = build.cast(tensor, dtype, held)
    for i, factor in enumerate(wanted):
        value = scales.in_type(factor, held)
        # TensorFlow would merge two successive products into one product, which rounds differently.
        op = "MulNoNan" if i and value else "Mul"
        tensor = build.add(op, [tensor, build.constant(value, held)], "z", T=held)
    return build.cast(tensor, held, dtype)


def _wide_product(build: Builder, wide: str, factor: float) -> str:
    """Return an integer times a factor. A NaN factor counts as zero."""
    number = build.constant(np.float64(0.0 if math.isnan(factor) else factor), tf.float64)
    if math.isinf(factor):  # zero times infinity would be NaN
        return build.add("MulNoNan", [number, wide], "z", T=tf.float64)
    return build.add("Mul", [wide, number], "z", T=tf.float64)


def _truncated(build: Builder, product: str, held: tf.DType) -> str:
    limits = np.iinfo(held.as_numpy_dtype)
    # The type's largest integer in float64, which is below the maximum of 64-bit types.
    largest = float(limits.max)
    if largest > limits.max:
        largest = math.nextafter(largest, 0.0)
    low = build.constant(np.float64(limits.min), tf.float64)
    high = build.constant(np.float64(largest), tf.float64)
    inside = build.add("Minimum", [product, high], "z", T=tf.float64)
    inside = build.add("Maximum", [inside, low], "z", T=tf.float64)
    number = build.cast(inside, tf.float64, held)
    if int(largest) == limits.max:
        return number
    end = build.constant(np.float64(float(limits.max)), tf.float64)
    beyond = build.add("GreaterEqual", [product, end], "z", T=tf.float64)
    last = build.constant(np.array(limits.max, held.as_numpy_dtype), held)
    return build.add("SelectV2", [beyond, last, number], "output", T=held)


def _scaled_complex(build: Builder, tensor: str, dtype: tf.DType, factors: Any) -> str:
    """Scale real and imaginary parts separately.

    Complex products would change the signs of zeros and produce NaN.
    """
    part = _PARTS[dtype]
    parts = [
        scaled(build, build.add(op, [tensor], "output", T=dtype, Tout=part), part, factors)
        for op in ("Real", "Imag")
    ]
    return build.add("Complex", parts, "out", T=part, Tout=dtype)
