"""horovod.tensorflow.mpi_ops: the ops and the object behind them."""

from tf_hvd.core import _native
from tf_hvd.horovod.basics import HorovodBasics, _basics
from tf_hvd.horovod.util import check_installed_version, get_ext_suffix, num_rank_is_power_2

__all__ = [
    "MPI_LIB",
    "HorovodBasics",
    "_basics",
    "check_installed_version",
    "get_ext_suffix",
    "num_rank_is_power_2",
]

MPI_LIB = _native.ops
"""TensorFlow's wrappers of the ops, `MPI_LIB.horovod_allreduce` and so on."""
