"""The collectives as functions on tensors: eager, in a tf.function, in a v1 graph.

Rules for all of them:

- Names. A request is known to the other ranks by a name. In a graph it is the
  node's name: `name=`, or `Horovod<Op>_<name of the tensor>`, under the current
  name scope. In eager mode it is `name=`, or the op's type. No name contains a
  number that a process counts for itself.
- Each call runs, in a tf.function too and whether or not its result is used, and
  in no order but that of the data. A function returns, and an iteration of a loop
  in it ends, when all of its calls have. Only the Session of a v1 graph runs what
  is fetched and nothing else: there all ranks must fetch alike.
- They raise TypeError for what is no dense tensor (RaggedTensor, SparseTensor) and for a
  name that is no string, tf.errors.FailedPreconditionError if `init` was not called or the
  ranks disagree (dtype, shape, operation, root: the text has both sides'
  values), InvalidArgumentError if one rank's call is wrong by itself, and
  UnknownError if a rank left or died, or a wait ran out.
- dtypes: uint8, int8, uint16, int16, uint32, int32, uint64, int64, float16,
  bfloat16, float32, float64, complex64, complex128 and bool. What moves tensors
  (allgather, broadcast, alltoall) takes all of them. What computes takes all
  numbers for Average, Sum and Product, all but complex ones for Min and Max, and
  bool for Sum and Max (or) and for Product and Min (and).
- How numbers are computed: in their own type, with factors rounded to it, but float16
  and bfloat16 in float32, and averages and scales of integers in float64, truncated
  toward zero; sums and products of integers wrap around, but averages of integers of 8, 16
  and 32 bits do not: they travel as int64. NaN and infinities follow
  IEEE 754, and the Min or Max of numbers with a NaN among them is NaN.
- Shapes: any, including those without elements; a scalar has no rows and so is an error where
  rows are gathered, scattered or exchanged.
- Of barrier and join no tensor travels. They are called for their effect, so they run in
  a tf.function in the order of the program among ops that are called for their effect.
- In a tf.function(jit_compile=True) XLA compiles them. All ranks must then have as
  many rows where rows are gathered or exchanged; alltoall with splits, and join, are errors.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_hvd.collectives import _calls, reduce_ops, scales
from tf_hvd.collectives.compression import Compression, Compressor
from tf_hvd.collectives.dense import reduce_tensor, reduce_tensors
from tf_hvd.collectives.options import ReductionOptions, options_of_call
from tf_hvd.collectives.sparse import allreduce_slices
from tf_hvd.core import _native, call_sites
from tf_hvd.core.process_sets import ProcessSet, counts_to_restart, global_process_set
from tf_hvd.core.tensorflow_hooks import at_once, to_tensor, verbatim, waits_for

# Of allreduce with nothing but `op=`, what needs no work before the op and after it: by the op and
# TensorFlow's number of the dtype.
_PLANS = {
    (op, dtype.as_datatype_enum): options.attributes_in_turn or ()
    for op in (None, *reduce_ops.NAMES)
    for options in [
        options_of_call(
            reduce_ops.resolve(op, None), 1.0, 1.0, Compression.none, global_process_set, False, ""
        )
    ]
    for dtype in scales.REDUCED
    if not options.averages_in_int64(dtype)
}


@at_once("HorovodAllreduce", _PLANS, call_sites)
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
    *,
    sparse: str | None = None,
) -> Any:
    """Reduces a tensor over all ranks; every rank gets the result (MPI_Allreduce).

    result = postscale_factor * reduce over ranks(prescale_factor * tensor)

    IndexedSlices give IndexedSlices, each index once and in ascending order.
    Differentiable, see `tf_hvd.collectives.gradients`.

    Args:
      tensor: tensor, variable or IndexedSlices, the same dtype and shape on all
        ranks (of IndexedSlices: the same but for the number of rows).
      average: deprecated; use `op`.
      device_dense: device for the op, "" for TensorFlow's choice.
      device_sparse: the same for IndexedSlices.
      compression: how the tensor is compressed before it is sent.
      op: Average (default), Sum, Adasum, Min, Max or Product.
      prescale_factor: factor before the reduction.
      postscale_factor: factor after the reduction.
      name: name of the request.
      process_set: who takes part.
      ignore_name_scope: leave the graph's name scope out of the request's name.
      sparse: how IndexedSlices are sent: "rows", "dense", or "auto" for what
        moves fewer bytes (docs/sparse.md); None for the setting TF_HVD_SPARSE.

    Returns:
      A tensor of the shape and dtype of `tensor`, or IndexedSlices. An average of integers is
      truncated toward zero.

    Raises:
      ValueError: `op` and `average` together; no such op; no such set.
      NotImplementedError: IndexedSlices with Adasum, Min, Max or Product.
      tf.errors.InvalidArgumentError: the op is not supported for this dtype.
    """
    options = options_of_call(
        reduce_ops.resolve(op, average),
        prescale_factor,
        postscale_factor,
        compression,
        process_set,
        ignore_name_scope,
        device_dense,
        device_sparse,
        sparse,
    )
    if isinstance(tensor, tf.IndexedSlices):
        opening = name or ("HorovodAllreduce" if tf.executing_eagerly() else "")
        return allreduce_slices([tensor], [name], options, opening=opening)[0]
    return reduce_tensor("Allreduce", tensor, options, name)


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
    *,
    member_names: Sequence[str] | None = None,
    sparse: str | None = None,
) -> list[Any]:
    """Reduces several tensors as one request: agreed on once, executed together.

    Tensors that travel in different dtypes make one request for each dtype; IndexedSlices
    among them have requests of their own.

    Number, order, dtypes and shapes of `tensors` (tensors, variables and
    IndexedSlices) must be the same on all ranks. With `member_names`, one for each
    tensor, ranks whose tensors have other names, or the same in another order, get
    an error; without, two tensors of one shape could change places unnoticed. The
    other arguments are those of `allreduce`.

    Returns:
      The results in the order of `tensors`; an empty list for an empty one.

    Raises:
      ValueError: a wrong number of names; else as `allreduce`, which has the other errors too.
    """
    options = options_of_call(
        reduce_ops.resolve(op, average),
        prescale_factor,
        postscale_factor,
        compression,
        process_set,
        ignore_name_scope,
        device_dense,
        device_sparse,
        sparse,
    )
    return reduce_group(tensors, options, name=name, member_names=member_names)


def reduce_group(
    tensors: Sequence[Any],
    options: ReductionOptions,
    *,
    name: str | None = None,
    member_names: Sequence[str] | None = None,
    step: Any = None,
    opening: str = "",
) -> list[Any]:
    """`grouped_allreduce`, for callers that have its options already.

    Ranks that are at different steps (int64 scalars; None for a caller that does not know, a
    negative one for none) get an error. `opening` is the name of the first request where there are
    IndexedSlices only; "" for that of the group.
    """
    options.check_slices(*tensors)
    names = _calls.check_member_names(member_names, len(tensors))
    dense = {i: t for i, t in enumerate(tensors) if not isinstance(t, tf.IndexedSlices)}
    slices = [i for i in range(len(tensors)) if i not in dense]
    results = reduce_tensors("Allreduce", dense, options, name, names, step)
    if slices:
        default = "HorovodGroupedAllreduce" if tf.executing_eagerly() else ""
        rows = allreduce_slices(
            [tensors[i] for i in slices],
            [_calls.suffixed(name, str(i)) for i in slices],
            options,
            step=step,
            opening="" if dense else opening or name or default,
        )
        results.update(zip(slices, rows, strict=True))
    return [results[i] for i in range(len(tensors))]


@verbatim
def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """All ranks' tensors, one after the other along dimension 0 (MPI_Allgatherv).

    Differentiable, see `tf_hvd.collectives.gradients`.

    Args:
      tensor: tensor or variable of at least one dimension, of any of the dtypes
        above. The first dimension may differ between ranks, the others not.
      name: name of the request.
      ignore_name_scope: see `allreduce`.
      process_set: who takes part.

    Returns:
      A tensor of the same dtype whose first dimension is the sum of the ranks'
      first dimensions, in the order of the ranks.

    Raises:
      tf.errors.InvalidArgumentError: a scalar.
    """
    return _calls.run_allgather(
        [to_tensor(tensor)], name, process_set, ignore_name_scope, grouped=False
    )[0]


@verbatim
def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    *,
    member_names: Sequence[str] | None = None,
) -> list[Any]:
    """Gathers several tensors as one request.

    Tensors of different dtypes make one request for each dtype.

    Args:
      tensors: as `tensor` of `allgather`, each; number, order and dtypes the same
        on all ranks.
      name: name of the request.
      ignore_name_scope: see `allreduce`.
      process_set: who takes part.
      member_names: one name for each tensor, for the ranks to compare.

    Returns:
      The results in the order of `tensors`; an empty list for an empty one.

    Raises:
      ValueError: a wrong number of names.
      tf.errors.InvalidArgumentError: one of them is a scalar.
    """
    names = _calls.check_member_names(member_names, len(tensors))
    plain = {i: to_tensor(tensor) for i, tensor in enumerate(tensors)}

    def call(members: list[int], request: str | None, member_names: list[str]) -> list[Any]:
        return _calls.run_allgather(
            [plain[i] for i in members],
            request,
            process_set,
            ignore_name_scope,
            member_names=member_names,
        )

    results = _calls.run_by_dtype(plain, name, names, call)
    return [results[i] for i in plain]


@verbatim
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The tensor of one rank, on all of them (MPI_Bcast).

    Differentiable, see `tf_hvd.collectives.gradients`.

    Args:
      tensor: tensor or variable of any shape, the same dtype and shape on all
        ranks, any of the dtypes above.
      root_rank: whose tensor it is: a rank of the job, the same on all ranks.
      name: name of the request.
      ignore_name_scope: see `allreduce`.
      process_set: who takes part.

    Returns:
      A tensor of the same shape and dtype.

    Raises:
      TypeError: `root_rank` is no integer.
      tf.errors.InvalidArgumentError: there is no such root rank.
      tf.errors.FailedPreconditionError: the ranks named different roots.
    """
    return _calls.run(
        _native.ops.horovod_broadcast,
        "HorovodBroadcast",
        to_tensor(tensor),
        name,
        process_set,
        root_rank=_calls.checked_root(root_rank),
        ignore_name_scope=ignore_name_scope,
    )


def _splits_tensor(splits: Any) -> Any:
    """`splits` as an int32 tensor."""
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
    """Waits until all ranks of the set have called it (MPI_Barrier).

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
    of all ranks) and in their allgathers with no rows. Their broadcasts, alltoalls and
    reducescatters fail, because these need every rank.

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
    last = _calls.run(_native.ops.horovod_join, "HorovodJoin", None, None, process_set)
    with tf.control_dependencies(waits_for(last)):
        restarted = waits_for([count.after_join() for count in counts_to_restart(process_set)])
    with tf.control_dependencies(restarted):
        return tf.identity(last) if restarted else last
