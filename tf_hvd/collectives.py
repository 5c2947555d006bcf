"""The collectives as functions on tensors: eager, in a tf.function, in a v1 graph.

Rules for all of them:

- Names. A request is known to the other ranks by a name. In a graph it is the
  node's name: `name=`, or `Horovod<Op>_<name of the tensor>`, under the current
  name scope. In eager mode it is `name=`, or the op's type. No name contains a
  number that a process counts for itself.
- A result that nothing uses is not computed, as with any TensorFlow op; a
  program in which one rank ignores a result that the others use stalls.
- They raise tf.errors.FailedPreconditionError if `init` was not called or the
  ranks disagree (dtype, shape, operation, root: the text has both sides'
  values), InvalidArgumentError if one rank's call is wrong by itself, and
  AbortedError if a rank left or died, or a wait ran out.
- There is no XLA lowering in this version: a tf.function with jit_compile=True
  that contains one raises TensorFlow's own error.
"""

import contextlib
import warnings
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_hvd import _calls, _native, basics
from tf_hvd._autograph import verbatim
from tf_hvd.compression import Compression, Compressor
from tf_hvd.process_sets import ProcessSet, global_process_set, id_of

_REDUCE_OPS = {
    basics.Average: "Average",
    basics.Sum: "Sum",
    basics.Min: "Min",
    basics.Max: "Max",
    basics.Product: "Product",
}


def check_op(op: int) -> int:
    """Returns `op` if this version reduces with it.

    Raises:
      NotImplementedError: Adasum.
      ValueError: no reduce op at all.
    """
    if op == basics.Adasum:
        raise NotImplementedError(
            "op=Adasum is not supported in this version of tf_hvd; use op=Average."
        )
    if op not in _REDUCE_OPS:
        raise ValueError(
            f"op={op!r} is no reduce op; use one of {', '.join(_REDUCE_OPS.values())}."
        )
    return op


def resolve_op(op: int | None, average: bool | None) -> int:
    """The reduce op that `op` and Horovod's older argument `average` mean together.

    Raises:
      ValueError: both are given, or `op` is none.
    """
    if average is None:
        return check_op(basics.Average if op is None else op)
    if op is not None:
        raise ValueError("give either op= or average=, not both; average= is deprecated.")
    warnings.warn(
        "average= is deprecated; use op=tf_hvd.Average or op=tf_hvd.Sum.",
        DeprecationWarning,
        stacklevel=3,
    )
    return basics.Average if average else basics.Sum


def _on(device: str) -> contextlib.AbstractContextManager[Any]:
    return tf.device(device) if device else contextlib.nullcontext()


def _divide_by_size(values: Any, process_set: ProcessSet) -> Any:
    """Average of what was summed; integers truncate toward zero, as in allreduce."""
    count = basics.size_op(id_of(process_set))
    if values.dtype.is_floating:
        return values / tf.cast(count, values.dtype)
    return tf.cast(tf.cast(values, tf.float64) / tf.cast(count, tf.float64), values.dtype)


def _times(values: Any, factor: float) -> Any:
    """Scales; integers truncate toward zero, as in allreduce."""
    if factor == 1.0:
        return values
    if values.dtype.is_floating:
        return values * tf.constant(factor, values.dtype)
    return tf.cast(tf.cast(values, tf.float64) * factor, values.dtype)


def _suffixed(name: str | None, suffix: str) -> str | None:
    return None if name is None else f"{name}_{suffix}"


def allreduce_slices(
    slices: tf.IndexedSlices,
    op: int,
    compression: type[Compressor] = Compression.none,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> tf.IndexedSlices:
    """Sum or average of IndexedSlices: all ranks' rows one below the other.

    Rows with the same index are not added up here; whoever applies the slices
    does that. Two allgathers: values, then indices.

    Raises:
      NotImplementedError: `op` is neither Sum nor Average.
    """
    if op not in (basics.Sum, basics.Average):
        raise NotImplementedError(
            f"allreduce of IndexedSlices with op={_REDUCE_OPS[op]} is not defined; "
            "use Sum or Average, or convert them with tf.convert_to_tensor."
        )
    values, context = compression.compress(_times(slices.values, prescale_factor))
    options: dict[str, Any] = {"ignore_name_scope": ignore_name_scope, "process_set": process_set}
    values = allgather(values, name=_suffixed(name, "values"), **options)
    indices = allgather(slices.indices, name=_suffixed(name, "indices"), **options)
    values = compression.decompress(values, context)
    if op == basics.Average:
        values = _divide_by_size(values, process_set)
    values = _times(values, postscale_factor)
    return tf.IndexedSlices(values, indices, dense_shape=slices.dense_shape)


@verbatim
def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Reduces a tensor over all ranks; every rank gets the result (MPI_Allreduce).

    result = postscale_factor * reduce over ranks(prescale_factor * tensor)

    Sums of float16 and bfloat16 are formed in float32. Averages and scales of
    integers are computed in float64 and truncated toward zero. IndexedSlices are
    gathered, see `allreduce_slices`. Differentiable, see `tf_hvd.gradients`.

    Args:
      tensor: tensor, variable or IndexedSlices; uint8, int8, int32, int64,
        float16, bfloat16, float32, float64 (and bool for Sum, Min, Max,
        Product), the same dtype and shape on all ranks. Any shape.
      average: deprecated; use `op`.
      device_dense: device for the op, "" for TensorFlow's choice.
      device_sparse: the same for IndexedSlices.
      compression: how the tensor is made smaller for the way.
      op: Average (default), Sum, Min, Max or Product.
      prescale_factor: factor before the reduction (an attribute of float32).
      postscale_factor: factor after the reduction.
      name: name of the request.
      process_set: `global_process_set`.
      ignore_name_scope: leave the graph's name scope out of the request's name.

    Returns:
      A tensor of the shape and dtype of `tensor`, or IndexedSlices.

    Raises:
      ValueError: `op` and `average` together; no such op; no such set.
      NotImplementedError: Adasum; IndexedSlices with Min, Max or Product.
    """
    op = resolve_op(op, average)
    if isinstance(tensor, tf.IndexedSlices):
        with _on(device_sparse):
            return allreduce_slices(
                tensor, op, compression, prescale_factor, postscale_factor, name, process_set,
                ignore_name_scope,
            )  # fmt: skip
    with _on(device_dense):
        compressed, context = compression.compress(tf.convert_to_tensor(tensor))
        reduced = _calls.run_allreduce(
            compressed, op, prescale_factor, postscale_factor, name, process_set, ignore_name_scope
        )
        return compression.decompress(reduced, context)


@verbatim
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """Reduces several tensors as one request: agreed on once, executed together.

    Tensors of different dtypes make one request for each dtype; IndexedSlices
    among them are gathered one by one.

    Number, order, dtypes and shapes of `tensors` (tensors, variables and
    IndexedSlices) must be the same on all ranks. The other arguments are those
    of `allreduce`.

    Returns:
      The results in the order of `tensors`; an empty list for an empty one.

    Raises:
      As `allreduce`.
    """
    op = resolve_op(op, average)
    if not tensors:
        return list(tensors)
    results: list[Any] = list(tensors)
    groups: dict[tf.DType, list[int]] = {}
    contexts: dict[int, Any] = {}
    with _on(device_dense):
        for i, tensor in enumerate(tensors):
            if not isinstance(tensor, tf.IndexedSlices):
                results[i], contexts[i] = compression.compress(tf.convert_to_tensor(tensor))
                groups.setdefault(results[i].dtype, []).append(i)
        for dtype, members in groups.items():
            reduced = _calls.run_grouped_allreduce(
                [results[i] for i in members],
                op,
                prescale_factor,
                postscale_factor,
                _suffixed(name, dtype.name) if len(groups) > 1 else name,
                process_set,
                ignore_name_scope,
            )
            for i, tensor in zip(members, reduced, strict=True):
                results[i] = compression.decompress(tensor, contexts[i])
    with _on(device_sparse):
        for i, tensor in enumerate(tensors):
            if isinstance(tensor, tf.IndexedSlices):
                results[i] = allreduce_slices(
                    tensor, op, compression, prescale_factor, postscale_factor,
                    _suffixed(name, str(i)), process_set, ignore_name_scope,
                )  # fmt: skip
    return results


@verbatim
def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """All ranks' tensors, one after the other along dimension 0 (MPI_Allgatherv).

    Args:
      tensor: tensor or variable of at least one dimension; uint8, int8, uint16,
        int16, int32, int64, float16, bfloat16, float32, float64 or bool. The
        first dimension may differ between ranks, the others not.
      name: name of the request.
      ignore_name_scope: see `allreduce`.
      process_set: `global_process_set`.

    Returns:
      A tensor of the same dtype whose first dimension is the sum of the ranks'
      first dimensions, in the order of the ranks.

    Raises:
      tf.errors.InvalidArgumentError: a scalar (ValueError where TensorFlow knows
        the shape while it builds a graph).
    """
    return _calls.run(
        _native.ops.horovod_allgather,
        "HorovodAllgather",
        tf.convert_to_tensor(tensor),
        name,
        process_set,
        ignore_name_scope=ignore_name_scope,
    )


@verbatim
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The tensor of one rank, on all of them (MPI_Bcast).

    Args:
      tensor: tensor or variable of any shape, the same dtype and shape on all
        ranks; dtypes as for `allgather`.
      root_rank: whose tensor it is: a rank of the job, the same on all ranks.
      name: name of the request.
      ignore_name_scope: see `allreduce`.
      process_set: `global_process_set`.

    Returns:
      A tensor of the same shape and dtype.

    Raises:
      tf.errors.InvalidArgumentError: there is no such root rank.
      tf.errors.FailedPreconditionError: the ranks named different roots.
    """
    return _calls.run(
        _native.ops.horovod_broadcast,
        "HorovodBroadcast",
        tf.convert_to_tensor(tensor),
        name,
        process_set,
        root_rank=root_rank,
        ignore_name_scope=ignore_name_scope,
    )
