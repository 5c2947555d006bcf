"""horovod.tensorflow.mpi_ops: the ops."""

import inspect

from tf_hvd.collectives.gradients import alltoall_gradient
from tf_hvd.core import _native

__all__ = ["MPI_LIB", "_alltoall_grad"]

MPI_LIB = _native.ops
"""TensorFlow's wrappers of the ops, `MPI_LIB.horovod_allreduce` and so on."""

_alltoall_grad = inspect.unwrap(alltoall_gradient)
"""What computes the gradient of `alltoall`; programs put other code in its place (`__code__`)."""
