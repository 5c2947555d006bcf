"""horovod.common.util: functions that describe the installation, and small helpers."""

from tf_hvd.core import basics
from tf_hvd.core.config import env
from tf_hvd.horovod.built import ccl_built, ddl_built, gloo_built
from tf_hvd.horovod.helpers import check_extension, gpu_available, split_list

__all__ = [
    "EXTENSIONS",
    "ccl_built",
    "check_extension",
    "ddl_built",
    "env",
    "extension_available",
    "gloo_built",
    "gpu_available",
    "mpi_built",
    "nccl_built",
    "split_list",
]

EXTENSIONS = ["tensorflow", "torch", "mxnet"]
"""The frameworks that Horovod supports; see `extension_available` for tf_hvd's support."""


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return whether tf_hvd supports a framework: True only for "tensorflow"."""
    return ext_base_name == "tensorflow"


def mpi_built(verbose: bool = False) -> bool:
    """Return the result of `tf_hvd.mpi_built`."""
    return basics.mpi_built()


def nccl_built(verbose: bool = False) -> int:
    """Return the result of `tf_hvd.nccl_built`."""
    return basics.nccl_built()
