"""Small functions that Horovod scripts import from its helper modules.

None of them is needed in new code. The names and signatures are Horovod's; those
with an underscore are here because scripts use them all the same.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_hvd.collectives import collectives, reduce_ops
from tf_hvd.core.process_sets import ProcessSet, global_process_set
from tf_hvd.core.tensorflow_hooks import tf_variable


def handle_average_backwards_compatibility(op: int | None, average: bool | None) -> int:
    """The reduce op that `op` and the deprecated `average` mean together.

    Raises:
      ValueError: both are given, or `op` is no reduce op.
    """
    return reduce_ops.resolve(op, average)


def num_rank_is_power_2(num_rank: int) -> bool:
    """Whether a number of ranks is a power of two."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


check_num_rank_power_of_2 = num_rank_is_power_2
"""Another name of `num_rank_is_power_2`."""


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether TensorFlow sees a GPU. The arguments are those of Horovod, and not used."""
    del ext_base_name, verbose
    return bool(tf.config.list_physical_devices("GPU"))


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: str) -> None:
    """Does nothing: the native library was loaded when tf_hvd was imported."""
    del ext_name, ext_env_var, pkg_path, args


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


def is_iterable(x: Any) -> bool:
    """Whether iter(x) works."""
    try:
        iter(x)
    except TypeError:
        return False
    return True


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


def _make_subgraph(f: Callable[..., Any]) -> Any:
    """tf.function(f)."""
    return tf.function(f)


def _cache(f: Callable[..., Any]) -> Callable[..., Any]:
    """Remembers the results of `f`, for eager mode and graphs apart."""
    results: dict[Any, Any] = {}

    @functools.wraps(f)
    def cached(*args: Any, **kwargs: Any) -> Any:
        key = (args, frozenset(kwargs.items()), tf.executing_eagerly())
        if key not in results:
            results[key] = f(*args, **kwargs)
        return results[key]

    return cached


def _allreduce(
    tensor: Any,
    name: str | None = None,
    op: int = reduce_ops.Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """`tf_hvd.allreduce` of a dense tensor; the sum by default."""
    return collectives.allreduce(
        tensor, op=op, prescale_factor=prescale_factor, postscale_factor=postscale_factor,
        name=name, process_set=process_set, ignore_name_scope=ignore_name_scope,
    )  # fmt: skip


def _grouped_allreduce(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = reduce_ops.Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """`tf_hvd.grouped_allreduce` of dense tensors; sums by default."""
    return collectives.grouped_allreduce(
        tensors, op=op, prescale_factor=prescale_factor, postscale_factor=postscale_factor,
        name=name, process_set=process_set, ignore_name_scope=ignore_name_scope,
    )  # fmt: skip


def _reducescatter(
    tensor: Any,
    name: str | None = None,
    op: int = reduce_ops.Sum,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """`tf_hvd.reducescatter`; the sum by default."""
    return collectives.reducescatter(
        tensor, op=op, name=name, process_set=process_set, ignore_name_scope=ignore_name_scope,
        prescale_factor=prescale_factor, postscale_factor=postscale_factor,
    )  # fmt: skip


def _grouped_reducescatter(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = reduce_ops.Sum,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """`tf_hvd.grouped_reducescatter`; sums by default."""
    return collectives.grouped_reducescatter(
        tensors, op=op, name=name, process_set=process_set, ignore_name_scope=ignore_name_scope,
        prescale_factor=prescale_factor, postscale_factor=postscale_factor,
    )  # fmt: skip
