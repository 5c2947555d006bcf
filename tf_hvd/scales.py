"""The two factors of a reduction as attributes of its op.

TensorFlow has no attribute of float64. Where a float32 is not the factor, an attribute of integers
holds the bits of both as float64 (IEEE 754 binary64).
"""

import struct
from collections.abc import Sequence

import numpy as np

ATTRIBUTE = "exact_factors"

_BITS = struct.Struct("=qq")
_DOUBLES = struct.Struct("=dd")


def _rounded(factor: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(factor))


def exact(prescale: float, postscale: float) -> list[int]:
    """The attribute: empty where float32 has both factors."""
    if prescale == 1.0 == postscale:
        return []
    factors = float(prescale), float(postscale)
    if all(_rounded(factor) == factor for factor in factors):
        return []
    return list(_BITS.unpack(_DOUBLES.pack(*factors)))


def of_attributes(prescale: float, postscale: float, bits: Sequence[int]) -> tuple[float, float]:
    """The factors, from the op's three attributes.

    Args:
      prescale: `prescale_factor`, as Python or an op has it.
      postscale: `postscale_factor`.
      bits: what `exact` gave.
    """
    if bits:
        before, after = _DOUBLES.unpack(_BITS.pack(*bits))
        return before, after
    return _rounded(prescale), _rounded(postscale)
