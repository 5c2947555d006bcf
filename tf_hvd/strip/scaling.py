"""What a reduction over one process does to its tensor: multiplication with its factors.

The arithmetic is that of the kernels (kernels/buffer_ops.h): each factor by itself, the product
formed in float64 and rounded once; integers truncated toward zero and held at the ends of their
range; half precisions held in float32 between the two factors; bool not scaled at all.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tensorflow as tf

from tf_hvd.strip.builder import Builder

_HALVES = (tf.float16, tf.bfloat16)
_PARTS = {tf.complex64: tf.float32, tf.complex128: tf.float64}


def scaled(build: Builder, tensor: str, dtype: tf.DType, factors: tuple[float, float]) -> str:
    """The edge that carries `tensor`, scaled by both factors in turn.

    Args:
      build: takes the nodes that are needed.
      tensor: the edge to scale.
      dtype: its type.
      factors: the factor before and the factor after the reduction.
    """
    wanted = [factor for factor in factors if factor != 1.0]
    if not wanted or dtype == tf.bool:
        return tensor
    if dtype in _PARTS:
        return _scaled_complex(build, tensor, dtype, factors)
    held = tf.float32 if dtype in _HALVES else dtype
    source = dtype
    for i, factor in enumerate(wanted):
        wide = build.cast(tensor, source, tf.float64)
        tensor, source = _narrow(build, _product(build, wide, factor, held, i), held), held
    return build.cast(tensor, held, dtype)


def _product(build: Builder, wide: str, factor: float, held: tf.DType, stage: int) -> str:
    """`wide` times a factor."""
    number = build.constant(np.float64(0.0 if _is_void(factor, held) else factor), tf.float64)
    if held.is_integer and math.isinf(factor):
        # Zero times infinity is not a number, which as an integer is zero.
        return build.add("MulNoNan", [number, wide], "z", T=tf.float64)
    # Of two products in a row TensorFlow would make one, which rounds otherwise.
    op = "MulNoNan" if stage and held == tf.float64 and factor else "Mul"
    return build.add(op, [wide, number], "z", T=tf.float64)


def _is_void(factor: float, held: tf.DType) -> bool:
    """Whether every product is no number, which as an integer is zero."""
    return bool(held.is_integer) and math.isnan(factor)


def _narrow(build: Builder, product: str, held: tf.DType) -> str:
    """A float64 product in the type that holds it."""
    if not held.is_integer:
        return build.cast(product, tf.float64, held)
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
