"""horovod.tensorflow.mpi_ops: the native ops."""

import inspect

from tf_hvd.collectives.gradients import alltoall_gradient
from tf_hvd.core import _native

__all__ = ["MPI_LIB", "_alltoall_grad"]

MPI_LIB = _native.ops
"""TensorFlow's wrappers for the ops: `MPI_LIB.horovod_allreduce` and so on."""

_alltoall_grad = inspect.unwrap(alltoall_gradient)
"""Computes the gradient of `alltoall`; some programs replace the function's `__code__`."""
