"""The reduce ops: Average, Sum, Adasum, Min, Max and Product, and the values of `op=`."""

import enum
from typing import Final

import numpy as np

from tf_hvd.core.kinds import REDUCE_OPS
from tf_hvd.core.tensorflow_hooks import warn_deprecated


class ReduceOp(enum.IntEnum):
    """The reduce ops, for the argument `op=`. Each op combines the ranks' values differently.

    The numbers are the same as in Horovod and in base/types.h, so `op=1` means `op=ReduceOp.Sum`.

    Example:
      hvd.allreduce(tf.constant([1.0, 2.0]), op=hvd.ReduceOp.Sum)
    """

    Average = 0
    Sum = 1
    Adasum = 2
    Min = 3
    Max = 4
    Product = 5


Average: Final = ReduceOp.Average
"""Reduce op: the mean across ranks."""
Sum: Final = ReduceOp.Sum
"""Reduce op: the sum across ranks."""
Adasum: Final = ReduceOp.Adasum
"""Reduce op: an adaptive sum, for floating-point types; only in `allreduce` of dense tensors."""
Min: Final = ReduceOp.Min
"""Reduce op: the smallest of the ranks' values; NaN if any value is NaN."""
Max: Final = ReduceOp.Max
"""Reduce op: the largest of the ranks' values; NaN if any value is NaN."""
Product: Final = ReduceOp.Product
"""Reduce op: the product across ranks."""

NAMES = dict(enumerate(REDUCE_OPS))


def check(op: int) -> int:
    """Return `op` if it is a reduce op; raise ValueError otherwise."""
    if op not in NAMES:
        raise ValueError(f"op={op!r} is not a reduce op; use one of {', '.join(NAMES.values())}.")
    return op


def resolve(op: int | None, average: bool | None) -> int:
    """Return the reduce op that `op` or Horovod's older argument `average` selects.

    Raises:
      ValueError: both arguments are given, or one is invalid.
    """
    if average is None:
        return check(Average if op is None else op)
    if not isinstance(average, bool | np.bool_):
        # Average is 0 and Sum is 1. As truth values, each would mean the other.
        name = NAMES.get(average) if isinstance(average, int) else None
        raise ValueError(
            f"average={average!r} is neither True nor False; pass a reduce op instead, "
            f"op=hvd.{name or 'Average'}."
        )
    if op is not None:
        raise ValueError("op= and average= were both passed; pass only op=.")
    warn_deprecated("average= is deprecated; use op=hvd.Average or op=hvd.Sum.")
    return Average if average else Sum
