"""Collectives whose result differs from rank to rank: alltoall and reducescatter.

The rules of `tf_hvd.collectives` hold here too.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_hvd import _calls, basics
from tf_hvd._autograph import verbatim
from tf_hvd._groups import check_member_names, run_by_dtype
from tf_hvd.collectives import check_op, on_device
from tf_hvd.compression import Compression, Compressor, describe, describe_all
from tf_hvd.process_sets import ProcessSet, global_process_set


def _splits_tensor(splits: Any) -> Any:
    """`splits` as an int32 tensor.

    Raises:
      ValueError: a tensor of another dtype, or numbers that are no int32.
    """
    if isinstance(splits, tf.Tensor | tf.Variable) and splits.dtype != tf.int32:
        raise ValueError(
            f"alltoall: splits are {splits.dtype.name} but must be int32; use "
            "tf.cast(splits, tf.int32)."
        )
    try:
        return tf.convert_to_tensor(splits, tf.int32)
    except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
        raise ValueError(
            f"alltoall: splits={splits!r} are not numbers of rows; give one int32 for each rank."
        ) from error


@verbatim
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends each rank some of the rows of this rank's tensor (MPI_Alltoallv).

    The first `splits[0]` rows go to the first rank of the set, the next
    `splits[1]` to the second, and so on; rows beyond their sum go nowhere.
    Differentiable, see `tf_hvd.gradients`.

    Args:
      tensor: tensor or variable of at least one dimension; any dtype that
        `tf_hvd.allgather` takes. The first dimension may differ between ranks,
        the others not.
      splits: int32 tensor or sequence with the number of rows for each rank of
        the set, also 0. None to send each the same number of rows; the first
        dimension must be divisible by the number of ranks then. All ranks give
        `splits` or none does.
      name: name of the request.
      ignore_name_scope: see `tf_hvd.allreduce`.
      process_set: who takes part.

    Returns:
      What the other ranks sent to this one, one after the other in the order of
      the ranks. With `splits` a tuple: that, and an int32 tensor of how many
      rows came from each rank.

    Raises:
      ValueError: `splits` are not int32.
      tf.errors.InvalidArgumentError: a scalar; splits that do not have one
        element for each rank, are negative or add up to more rows than there
        are; without splits, rows that cannot be divided.
    """
    given = tf.zeros([0], tf.int32) if splits is None else _splits_tensor(splits)
    output, received_splits = _calls.run_alltoall(
        tf.convert_to_tensor(tensor), given, name, process_set, ignore_name_scope
    )
    return output if splits is None else (output, received_splits)


@verbatim
def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: int = basics.Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduces a tensor over all ranks; each gets some of the rows (MPI_Reduce_scatter).

    Of R rows and N ranks each gets R // N, and the first R % N ranks one more, in
    the order of the ranks. Each row is that of `tf_hvd.allreduce` with the same
    arguments, to the bit. Differentiable, see `tf_hvd.gradients`.

    Args:
      tensor: tensor or variable of at least one dimension, the same dtype and
        shape on all ranks; dtypes as for `tf_hvd.allreduce`.
      device_dense: device for the op, "" for TensorFlow's choice.
      compression: how the tensor is made smaller for the way.
      op: Average (default), Sum, Min, Max or Product.
      name: name of the request.
      process_set: who takes part.
      ignore_name_scope: see `tf_hvd.allreduce`.
      prescale_factor: factor before the reduction (an attribute of float32).
      postscale_factor: factor after the reduction.

    Returns:
      This rank's rows, of the dtype of `tensor`; none if there are more ranks
      than rows.

    Raises:
      ValueError: no such op; no such set.
      tf.errors.InvalidArgumentError: a scalar; Adasum; an op that the dtype has not.
    """
    return _scatter([tensor], device_dense, compression, op, name, process_set, ignore_name_scope,
                    prescale_factor, postscale_factor, None, single=True)[0]  # fmt: skip


@verbatim
def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: int = basics.Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    name: str | None = None,
    ignore_name_scope: bool = False,
    member_names: Sequence[str] | None = None,
) -> list[Any]:
    """Reduces and scatters several tensors as one request.

    Tensors of different dtypes make one request for each dtype. Number, order,
    dtypes and shapes of `tensors` must be the same on all ranks.

    Args:
      tensors: as `tensor` of `reducescatter`, each.
      device_dense: see `reducescatter`, as all that follow.
      compression: how the tensors are made smaller for the way.
      op: Average (default), Sum, Min, Max or Product.
      process_set: who takes part.
      prescale_factor: factor before the reduction.
      postscale_factor: factor after the reduction.
      name: name of the request.
      ignore_name_scope: leave the graph's name scope out of it.
      member_names: one name for each tensor, for the ranks to compare.

    Returns:
      The results in the order of `tensors`; an empty list for an empty one.

    Raises:
      As `reducescatter`; ValueError also for a wrong number of names.
    """
    return _scatter(tensors, device_dense, compression, op, name, process_set, ignore_name_scope,
                    prescale_factor, postscale_factor, member_names)  # fmt: skip


def _scatter(
    tensors: Sequence[Any],
    device: str,
    compression: type[Compressor],
    op: int,
    name: str | None,
    process_set: ProcessSet,
    ignore_name_scope: bool,
    prescale_factor: float,
    postscale_factor: float,
    member_names: Sequence[str] | None,
    single: bool = False,
) -> list[Any]:
    check_op(op)
    names = check_member_names(member_names, len(tensors))
    with on_device(device):
        plain = [tf.convert_to_tensor(tensor) for tensor in tensors]
        compressed = [compression.compress(tensor) for tensor in plain]
        words = [describe(compression, t, c) for t, (c, _) in zip(plain, compressed, strict=True)]
        factors = (prescale_factor, postscale_factor)

        def call(members: list[int], request: str | None, member_names: list[str]) -> list[Any]:
            sent = [compressed[i][0] for i in members]
            how = describe_all([words[i] for i in members])
            common = (op, *factors, request, process_set, ignore_name_scope, how)
            if single:
                return [_calls.run_reducescatter(sent[0], *common)]
            return _calls.run_grouped_reducescatter(sent, *common, member_names)

        results = run_by_dtype({i: c for i, (c, _) in enumerate(compressed)}, name, names, call)
        return [compression.decompress(results[i], c) for i, (_, c) in enumerate(compressed)]
