"""Alltoall and reducescatter, whose results differ from rank to rank; barrier and join.

The rules of `tf_hvd.collectives.collectives` hold here too, with one difference: of barrier and
join no tensor travels. They are called for their effect, so they run in a
tf.function in the order of the program among ops that are called for their effect.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_hvd.collectives import _calls, reduce_ops
from tf_hvd.collectives.compression import Compression, Compressor
from tf_hvd.collectives.dense import reduce_tensor, reduce_tensors
from tf_hvd.collectives.options import options_of_call
from tf_hvd.core import _native
from tf_hvd.core.process_sets import ProcessSet, global_process_set
from tf_hvd.core.tensorflow_hooks import to_tensor, verbatim


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
    Differentiable, see `tf_hvd.collectives.gradients`.

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
        to_tensor(tensor), given, name, process_set, ignore_name_scope
    )
    return output if splits is None else (output, received_splits)


@verbatim
def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: int = reduce_ops.Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduces a tensor over all ranks; each gets some of the rows (MPI_Reduce_scatter).

    Of R rows and N ranks each gets R // N, and the first R % N ranks one more, in
    the order of the ranks. Each row is that of `tf_hvd.allreduce` with the same
    arguments, to the bit. Differentiable, see `tf_hvd.collectives.gradients`.

    Args:
      tensor: tensor or variable of at least one dimension, the same dtype and
        shape on all ranks; dtypes as for `tf_hvd.allreduce`.
      device_dense: device for the op, "" for TensorFlow's choice.
      compression: how the tensor is compressed before it is sent.
      op: Average (default), Sum, Min, Max or Product.
      name: name of the request.
      process_set: who takes part.
      ignore_name_scope: see `tf_hvd.allreduce`.
      prescale_factor: factor before the reduction.
      postscale_factor: factor after the reduction.

    Returns:
      This rank's rows, of the dtype of `tensor`; none if there are more ranks
      than rows.

    Raises:
      ValueError: no such op; no such set.
      tf.errors.InvalidArgumentError: a scalar; Adasum; an op that is not
        supported for this dtype.
    """
    options = options_of_call(
        op,
        prescale_factor,
        postscale_factor,
        compression,
        process_set,
        ignore_name_scope,
        device_dense,
    )
    return reduce_tensor("Reducescatter", tensor, options, name)


@verbatim
def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: int = reduce_ops.Average,
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
      compression: how the tensors are compressed before they are sent.
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
      ValueError: a wrong number of names; else as `reducescatter`, which has the other errors too.
    """
    options = options_of_call(
        op,
        prescale_factor,
        postscale_factor,
        compression,
        process_set,
        ignore_name_scope,
        device_dense,
    )
    names = _calls.check_member_names(member_names, len(tensors))
    results = reduce_tensors("Reducescatter", dict(enumerate(tensors)), options, name, names)
    return [results[i] for i in range(len(tensors))]


@verbatim
def barrier(process_set: ProcessSet = global_process_set, name: str | None = None) -> Any:
    """Waits until all ranks of the set have come here (MPI_Barrier).

    In eager mode it returns when they have. In a tf.function it runs by itself, in
    order with assignments, prints and other ops with an effect, but not with
    collectives that return tensors: for those use tf.control_dependencies. In a v1
    graph it runs when its result is run, or is a control dependency of what is run.

    Args:
      process_set: who waits for each other.
      name: name of the request; "HorovodBarrier" by default.

    Returns:
      None in eager mode; in a graph the op.

    Raises:
      ValueError: no such set.
      tf.errors.InvalidArgumentError: this rank is not in the set.
      tf.errors.FailedPreconditionError: `init` was not called.
    """
    return _calls.run(
        _native.ops.horovod_barrier, "HorovodBarrier", None, name, process_set,
        ignore_name_scope=False,
    )  # fmt: skip


@verbatim
def join(process_set: ProcessSet = global_process_set) -> Any:
    """Says that this rank has no more data, and waits until all ranks have said so.

    A rank with fewer batches calls it after its last one. Until all have, it takes
    part in the others' allreduces with zeros (an Average still divides by the number
    of all ranks) and in their allgathers with no rows. Of broadcast, alltoall and
    reducescatter the others get an error, for these need every rank.

    Args:
      process_set: whose collectives it is about.

    Returns:
      An int32 scalar, the same on all ranks: which rank, of the whole job, joined
      last. In eager mode int() makes it a number; in a graph it is the op's
      result, and the op runs in a tf.function also where the result is not used.

    Raises:
      ValueError: no such set.
      tf.errors.InvalidArgumentError: this rank is not in the set.
      tf.errors.FailedPreconditionError: `init` was not called.
    """
    return _calls.run(_native.ops.horovod_join, "HorovodJoin", None, None, process_set)
