"""Small functions that Horovod scripts import from its helper modules.

None of them is needed in new code. The names and signatures are Horovod's; the one
with an underscore is here because scripts use it all the same.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_hvd.collectives import reduce_ops
from tf_hvd.core.tensorflow_hooks import tf_variable


def handle_average_backwards_compatibility(op: int | None, average: bool | None) -> int:
    """The reduce op that `op` and the deprecated `average` mean together.

    Raises:
      ValueError: both are given, or `op` is no reduce op.
    """
    return reduce_ops.resolve(op, average)


def check_num_rank_power_of_2(num_rank: int) -> bool:
    """Whether a number of ranks is a power of two."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether TensorFlow sees a GPU. The arguments are those of Horovod, and not used."""
    return bool(tf.config.list_physical_devices("GPU"))


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: str) -> None:
    """Does nothing: the native library was loaded when tf_hvd was imported."""


def split_list(l: Sequence[Any], n: int) -> list[Any]:  # noqa: E741 - the argument is Horovod's
    """Cuts a sequence into `n` runs whose lengths differ by one at most, longer ones first.

    Raises:
      ValueError: `n` is not positive.
    """
    if n < 1:
        raise ValueError(f"split_list: n={n} must be at least 1.")
    short, longer = divmod(len(l), n)
    starts = [i * short + min(i, longer) for i in range(n + 1)]
    return [l[start:end] for start, end in itertools.pairwise(starts)]


def vars_to_refs(vars: Any) -> Any:  # noqa: A002 - the argument is Horovod's
    """Hashable references of variables, as a tuple; of nested lists a tuple of tuples."""
    if isinstance(vars, list | tuple):
        return tuple(vars_to_refs(variable) for variable in vars)
    return tf_variable(vars).ref()


def refs_to_vars(refs: Any) -> Any:
    """The variables of what `vars_to_refs` returned."""
    if isinstance(refs, list | tuple):
        return [refs_to_vars(ref) for ref in refs]
    return refs.deref()


def _executing_eagerly() -> bool:
    """Whether ops run at once, and not in a graph."""
    return bool(tf.executing_eagerly())
