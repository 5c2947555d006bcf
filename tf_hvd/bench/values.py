"""The inputs to an operation on each rank, and the expected results.

The values are 0, 1 and 2, so sums across a hundred ranks are exact in every type.
"""

import math
from typing import Any

import numpy as np
import tensorflow as tf

from tf_hvd.bench.workloads import Workload
from tf_hvd.core.kinds import Yield

_VALUES = 3


def numpy_type(dtype: str) -> Any:
    return tf.as_dtype(dtype).as_numpy_dtype


def _values(rank: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    turn = np.array([(rank + step) % _VALUES for step in range(_VALUES)], numpy_type(dtype))
    return np.resize(turn, shape)


def inputs(workload: Workload, rank: int) -> list[np.ndarray]:
    """Return a rank's inputs: for an allgather the rank's part, otherwise the whole tensors."""
    shapes = workload.shapes
    if workload.operation == "allgather":
        shapes = tuple((math.prod(shape) // workload.ranks,) for shape in shapes)
    return [_values(rank, shape, workload.dtype) for shape in shapes]


def outputs(workload: Workload, rank: int) -> list[np.ndarray]:
    return [_output(workload, rank, shape) for shape in workload.shapes]


def _output(workload: Workload, rank: int, shape: tuple[int, ...]) -> np.ndarray:
    ranks, dtype = range(workload.ranks), workload.dtype
    if workload.operation == "broadcast":
        return _values(0, shape, dtype)
    part = math.prod(shape) // workload.ranks
    if workload.operation == "allgather":
        return np.concatenate([_values(other, (part,), dtype) for other in ranks])
    mine = slice(part * rank, part * (rank + 1))
    if workload.operation == "alltoall":
        return np.concatenate([_values(other, shape, dtype)[mine] for other in ranks])
    # The sums have the same period as the values, so one period of sums is enough.
    few = sum(_values(other, (_VALUES,), "float64") for other in ranks)
    total = np.resize(np.asarray(few).astype(numpy_type(dtype)), shape)
    return total[mine] if workload.kind.yields is Yield.OWN_ROWS else total


def output_shapes(workload: Workload) -> list[tuple[int, ...]]:
    if workload.kind.yields is Yield.OWN_ROWS:
        return [(math.prod(shape) // workload.ranks,) for shape in workload.shapes]
    return list(workload.shapes)
