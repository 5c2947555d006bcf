"""horovod.common.util: small questions about the installation, and small functions."""

from tf_hvd.core import basics
from tf_hvd.core.config import env
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
"""The frameworks that Horovod serves; `extension_available` says which of them are here."""


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether a framework is served: "tensorflow" is, "torch" and "mxnet" are not."""
    return ext_base_name == "tensorflow"


def mpi_built(verbose: bool = False) -> bool:
    """See `tf_hvd.mpi_built`."""
    return basics.mpi_built()


def gloo_built(verbose: bool = False) -> bool:
    """See `tf_hvd.gloo_built`."""
    return basics.gloo_built()


def nccl_built(verbose: bool = False) -> int:
    """See `tf_hvd.nccl_built`."""
    return basics.nccl_built()


def ddl_built(verbose: bool = False) -> bool:
    """See `tf_hvd.ddl_built`."""
    return basics.ddl_built()


def ccl_built(verbose: bool = False) -> bool:
    """See `tf_hvd.ccl_built`."""
    return basics.ccl_built()
