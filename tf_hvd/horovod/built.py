"""Horovod's functions about parts of its installation that tf_hvd does not have."""

__all__ = ["ccl_built", "ddl_built", "gloo_built", "gloo_enabled", "rocm_built"]


def gloo_built(verbose: bool = False) -> bool:
    """Return False: tf_hvd does not use Gloo."""
    return False


def gloo_enabled() -> bool:
    """Return False: tf_hvd does not use Gloo."""
    return False


def ddl_built(verbose: bool = False) -> bool:
    """Return False: tf_hvd does not use DDL."""
    return False


def ccl_built(verbose: bool = False) -> bool:
    """Return False: tf_hvd does not use oneCCL."""
    return False


def rocm_built() -> bool:
    """Return False: tf_hvd has no kernels for AMD GPUs."""
    return False
