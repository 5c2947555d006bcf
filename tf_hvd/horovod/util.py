"""horovod.common.util: small questions about the installation, and small functions."""

import sysconfig
import warnings
from collections.abc import Callable
from typing import Any

from packaging import version as versions

from tf_hvd.core import _native, basics
from tf_hvd.core.config import env
from tf_hvd.core.exceptions import HorovodVersionMismatchError
from tf_hvd.horovod.exceptions import get_version_mismatch_message
from tf_hvd.horovod.helpers import (
    _cache,
    check_extension,
    gpu_available,
    handle_average_backwards_compatibility,
    is_iterable,
    num_rank_is_power_2,
    split_list,
)

__all__ = [
    "EXTENSIONS",
    "_cache",
    "ccl_built",
    "check_extension",
    "check_installed_version",
    "ddl_built",
    "env",
    "extension_available",
    "get_average_backwards_compatibility_fun",
    "get_ext_suffix",
    "get_extension_full_path",
    "gloo_built",
    "gpu_available",
    "is_iterable",
    "is_version_greater_equal_than",
    "mpi_built",
    "nccl_built",
    "num_rank_is_power_2",
    "split_list",
]

EXTENSIONS = ["tensorflow", "torch", "mxnet"]
"""The frameworks that Horovod serves; `extension_available` says which of them are here."""


def get_ext_suffix() -> str:
    """The ending of extension modules of this Python."""
    return str(sysconfig.get_config_var("EXT_SUFFIX"))


def get_extension_full_path(pkg_path: str, *args: str) -> str:
    """The path of the native library. The arguments are those of Horovod, and not used."""
    del pkg_path, args
    return str(_native.library._name)


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether a framework is served: "tensorflow" is, "torch" and "mxnet" are not."""
    del verbose
    return ext_base_name == "tensorflow"


def mpi_built(verbose: bool = False) -> bool:
    """See `tf_hvd.mpi_built`."""
    del verbose
    return basics.mpi_built()


def gloo_built(verbose: bool = False) -> bool:
    """See `tf_hvd.gloo_built`."""
    del verbose
    return basics.gloo_built()


def nccl_built(verbose: bool = False) -> int:
    """See `tf_hvd.nccl_built`."""
    del verbose
    return basics.nccl_built()


def ddl_built(verbose: bool = False) -> bool:
    """See `tf_hvd.ddl_built`."""
    del verbose
    return basics.ddl_built()


def ccl_built(verbose: bool = False) -> bool:
    """See `tf_hvd.ccl_built`."""
    del verbose
    return basics.ccl_built()


def get_average_backwards_compatibility_fun(
    reduce_ops: Any,
) -> Callable[[int | None, bool | None], int]:
    """`handle_average_backwards_compatibility`; the reduce ops are always tf_hvd's."""
    del reduce_ops
    return handle_average_backwards_compatibility


def check_installed_version(name: str, version: str, exception: Exception | None = None) -> None:
    """Compares the version of a framework with the one that tf_hvd was built for.

    Args:
      name: "tensorflow"; others are not served, and not compared.
      version: what is installed.
      exception: why the library could not be loaded, if it could not.

    Raises:
      HorovodVersionMismatchError: they differ, and `exception` was given; without it
        a warning says so.
    """
    built_for = str(_native.build["tensorflow"])
    if name != "tensorflow" or version == built_for:
        return
    text = get_version_mismatch_message(name, version, built_for)
    if exception is not None:
        raise HorovodVersionMismatchError(text) from exception
    warnings.warn(text, stacklevel=2)


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Whether version `ver` is `target` or a later one.

    Args:
      ver: any version (PEP 440).
      target: one of three numbers, "2.21.0".

    Raises:
      ValueError: not strings, or `target` has not three parts.
    """
    if not isinstance(ver, str) or not isinstance(target, str):
        raise ValueError(f"versions are strings, not {ver!r} and {target!r}.")
    if len(target.split(".")) != 3:
        raise ValueError(f"target={target!r} must be major.minor.patch.")
    return versions.parse(ver) >= versions.parse(target)
