"""What a reduction over one process does to its tensor: multiplication with its factors.

The arithmetic is that of the kernels (compute/scaling.h): each factor by itself, rounded to the
type that the product is formed in; integers in float64, truncated toward zero and held at the ends
of their range; half precisions in float32, also between the two factors; bool not scaled at all.
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
    """The edge that carries `tensor`, scaled by the factors before and after the reduction."""
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
        # Of two products in a row TensorFlow would make one, which rounds otherwise.
        op = "MulNoNan" if i and value else "Mul"
        tensor = build.add(op, [tensor, build.constant(value, held)], "z", T=held)
    return build.cast(tensor, held, dtype)


def _wide_product(build: Builder, wide: str, factor: float) -> str:
    """An integer times a factor; what is no number is zero, as an integer."""
    number = build.constant(np.float64(0.0 if math.isnan(factor) else factor), tf.float64)
    if math.isinf(factor):  # of which zero times infinity is not a number
        return build.add("MulNoNan", [number, wide], "z", T=tf.float64)
    return build.add("Mul", [wide, number], "z", T=tf.float64)


def _truncated(build: Builder, product: str, held: tf.DType) -> str:
    limits = np.iinfo(held.as_numpy_dtype)
    # The largest integer that float64 has: of 64 bits the last one is not.
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
    """Each part by itself: a product of complex numbers would touch signs of zeros and NaN."""
    part = _PARTS[dtype]
    parts = [
        scaled(build, build.add(op, [tensor], "output", T=dtype, Tout=part), part, factors)
        for op in ("Real", "Imag")
    ]
    return build.add("Complex", parts, "out", T=part, Tout=dtype)
