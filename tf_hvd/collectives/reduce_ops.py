"""The reduce ops: Average, Sum, Adasum, Min, Max and Product, and what `op=` may be."""

from typing import Final

import numpy as np

from tf_hvd.core.kinds import REDUCE_OPS
from tf_hvd.core.tensorflow_hooks import warn_deprecated

# Values of `op=`; Horovod's numbers, which are also those of base/types.h.
Average: Final = 0
"""Reduce op: the mean over ranks."""
Sum: Final = 1
"""Reduce op: the sum over ranks."""
Adasum: Final = 2
"""Reduce op: an adaptive sum of floating types; only for `allreduce` of dense tensors."""
Min: Final = 3
"""Reduce op: the smallest of the ranks' values; NaN if one is NaN."""
Max: Final = 4
"""Reduce op: the largest of the ranks' values; NaN if one is NaN."""
Product: Final = 5
"""Reduce op: the product over ranks."""

NAMES = dict(enumerate(REDUCE_OPS))


def check(op: int) -> int:
    """Returns `op` if it is a reduce op."""
    if op not in NAMES:
        raise ValueError(f"op={op!r} is not a reduce op; use one of {', '.join(NAMES.values())}.")
    return op


def resolve(op: int | None, average: bool | None) -> int:
    """The reduce op that `op` and Horovod's older argument `average` mean together."""
    if average is None:
        return check(Average if op is None else op)
    if not isinstance(average, bool | np.bool_):
        # Average is 0 and Sum is 1: taken as truth values they are each other.
        name = NAMES.get(average) if isinstance(average, int) else None
        raise ValueError(
            f"average={average!r} is not True or False; the reduce op has a name: "
            f"op=hvd.{name or 'Average'}."
        )
    if op is not None:
        raise ValueError("give either op= or average=, not both; average= is deprecated.")
    warn_deprecated("average= is deprecated; use op=hvd.Average or op=hvd.Sum.")
    return Average if average else Sum
