"""Small functions that Horovod scripts import from its helper modules.

New code does not need them. The names and signatures are Horovod's. One name is private, but
scripts also use it.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_hvd.collectives import reduce_ops
from tf_hvd.core.tensorflow_hooks import tf_variable

__all__ = [
    "_executing_eagerly",
    "check_extension",
    "check_num_rank_power_of_2",
    "gpu_available",
    "handle_average_backwards_compatibility",
    "refs_to_vars",
    "split_list",
    "vars_to_refs",
]


def handle_average_backwards_compatibility(op: int | None, average: bool | None) -> int:
    """Return the reduce op that `op` or the deprecated `average` selects.

    Raises:
      ValueError: both are given, or `op` is not a reduce op.
    """
    return reduce_ops.resolve(op, average)


def check_num_rank_power_of_2(num_rank: int) -> bool:
    """Return whether a number of ranks is a power of two."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return whether TensorFlow finds a GPU. The arguments are Horovod's and are not used."""
    return bool(tf.config.list_physical_devices("GPU"))


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: str) -> None:
    """Do nothing: the native library was loaded when tf_hvd was imported."""


def split_list(l: Sequence[Any], n: int) -> list[Any]:  # noqa: E741 - the argument is Horovod's
    """Divide a sequence into `n` consecutive parts of nearly equal length, longer parts first.

    Raises:
      ValueError: `n` is not positive.
    """
    if n < 1:
        raise ValueError(f"split_list: n={n} must be at least 1.")
    short, longer = divmod(len(l), n)
    starts = [i * short + min(i, longer) for i in range(n + 1)]
    return [l[start:end] for start, end in itertools.pairwise(starts)]


def vars_to_refs(vars: Any) -> Any:  # noqa: A002 - the argument is Horovod's
    """Return hashable references to variables, as a tuple or (for nested lists) nested tuples."""
    if isinstance(vars, list | tuple):
        return tuple(vars_to_refs(variable) for variable in vars)
    return tf_variable(vars).ref()


def refs_to_vars(refs: Any) -> Any:
    """Return the variables to which the references from `vars_to_refs` refer."""
    if isinstance(refs, list | tuple):
        return [refs_to_vars(ref) for ref in refs]
    return refs.deref()


def _executing_eagerly() -> bool:
    """Return whether TensorFlow runs ops immediately rather than in a graph."""
    return bool(tf.executing_eagerly())
