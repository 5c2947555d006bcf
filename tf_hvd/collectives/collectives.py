"""The collectives as functions on tensors: eager, in a tf.function, in a v1 graph.

These rules apply to all collectives:

- Names. The ranks match calls by name. In eager mode, the name is `name=` or, by default, the
  op's type. In a graph, it is the name of the graph's node, which includes the current name
  scope. The node is named `name=` or, by default, `Horovod<Op>_<name of the tensor>`. No name
  contains a number that depends on this process.
- Order. In eager mode and in a tf.function every call runs, even if its result is unused. Only
  data dependencies order the calls in a tf.function. A function, and each iteration of a loop
  in it, ends only after all of its calls. The Session of a v1 graph runs only the ops that are
  fetched, so fetch the same collectives on all ranks.
- Errors. A collective raises TypeError for a RaggedTensor or SparseTensor, and for a name that is
  not a string. It raises tf.errors.FailedPreconditionError before `init`, and if the ranks
  disagree on dtype, shape, operation or root; the text shows the values of both ranks. It raises
  tf.errors.InvalidArgumentError if one rank's call is invalid on its own. It raises
  tf.errors.UnknownError if a rank left or died, or a wait timed out.
- dtypes. Collectives support bool, float16, bfloat16, float32, float64, complex64 and complex128.
  They also support signed and unsigned integers of 8, 16, 32 and 64 bits. allgather, broadcast
  and alltoall take all of these. Average, Sum and Product take all numbers; Min and Max take all
  numbers except complex ones. For bool, Sum and Max mean "or"; Product and Min mean "and".
- Arithmetic. Values are computed in their own dtype, and factors are rounded to this dtype. The
  exceptions are float16 and bfloat16, which are computed in float32. Averages of integers and
  scaled integers are computed in float64 and truncated toward zero. Sums and products of integers
  wrap around. Averages of integers of 8, 16 and 32 bits do not wrap around, because they are sent
  as int64. NaN and infinities follow IEEE 754. The Min or Max is NaN if any number is NaN.
- Shapes. Tensors may have any shape, including shapes without elements. A scalar has no rows, so
  it is an error where rows are gathered, scattered or exchanged.
- Effects. `barrier` and `join` transfer no tensors. In a tf.function they run in program order
  with other ops that have an effect.
- XLA. In a tf.function(jit_compile=True) XLA compiles the collectives. All ranks must then gather
  or exchange the same number of rows. Calls to `join`, and to `alltoall` with splits, are errors.
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

# Attributes of an allreduce that is called only with `op=`. A key is the op and TensorFlow's number
# for the dtype. Only dtypes that need no work before or after the op are listed.
_PLANS = {
    (op, dtype.as_datatype_enum): options.flat_attributes or ()
    for op in (None, *reduce_ops.ReduceOp)
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
) -> tf.Tensor:
    """Reduce a tensor across all ranks; every rank gets the result (MPI_Allreduce).

    result = postscale_factor * reduce over ranks(prescale_factor * tensor)

    For IndexedSlices the result is IndexedSlices, with each index once and in ascending order.
    The function is differentiable; see `tf_hvd.collectives.gradients`.

    Args:
      tensor: tensor, variable or IndexedSlices, with the same dtype and shape on all
        ranks. The number of rows of IndexedSlices may differ between ranks.
      average: deprecated; use `op`.
      device_dense: device for the op, such as "/GPU:0"; "" (default) for TensorFlow's choice.
      device_sparse: device for IndexedSlices; "" (default) for the CPU.
      compression: how the tensor is compressed for sending, such as `hvd.Compression.fp16`;
        `hvd.Compression.none` by default.
      op: Average (default), Sum, Adasum, Min, Max or Product.
      prescale_factor: factor applied before the reduction, 1.0 by default.
      postscale_factor: factor applied after the reduction, 1.0 by default.
      name: name of the call, the same on all ranks; None (default) for the default name.
      process_set: the participating ranks; all by default.
      ignore_name_scope: whether to omit the graph's name scope from the call's name; False by
        default.
      sparse: how IndexedSlices are sent: "rows", "dense", or "auto" to choose the way that
        moves fewer bytes. None (default) uses the setting TF_HVD_SPARSE.

    Returns:
      A tensor with the shape and dtype of `tensor`, or IndexedSlices. An average of integers is
      truncated toward zero.

    Raises:
      ValueError: both `op` and `average` were passed, `op` is invalid, or `process_set` is not
        registered.
      NotImplementedError: IndexedSlices with Adasum, Min, Max or Product.
      tf.errors.InvalidArgumentError: `op` does not support this dtype.

    Example:
      mean = hvd.allreduce(tf.constant([1.0, 2.0]) * hvd.rank())
      total = hvd.allreduce(tf.constant(1), op=hvd.Sum)
      assert total.numpy() == hvd.size()
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
) -> list[tf.Tensor]:
    """Reduce several tensors in one request, which costs less than separate calls.

    Tensors that are sent in different dtypes form one request for each dtype. Each IndexedSlices
    is sent separately.

    `tensors` is a list of tensors, variables and IndexedSlices. Their number, order, dtypes and
    shapes must be the same on all ranks. `member_names` is a list with one name for each tensor.
    Ranks with different names, or with the same names in another order, get an error. Without
    names, two tensors of the same shape could be swapped unnoticed. For the other arguments see
    `allreduce`.

    Returns:
      A list of results in the order of `tensors`; empty if `tensors` is empty.

    Raises:
      ValueError: `member_names` has the wrong length. This function also raises the errors of
        `allreduce`.

    Example:
      sums = hvd.grouped_allreduce([tf.ones([2]), tf.ones([3, 3])], op=hvd.Sum)
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
    """Reduce several tensors, like `grouped_allreduce`, for callers that have a ReductionOptions.

    Args:
      tensors: tensors, variables and IndexedSlices.
      options: the caller's options.
      name: name of the request; None for the default name.
      member_names: one name for each tensor, or None.
      step: the caller's step, an int64 scalar; negative for no step, None if it is unknown.
        Ranks that are at different steps get an error.
      opening: name of the first request if all tensors are IndexedSlices; "" for `name`.

    Returns:
      A list of results in the order of `tensors`.
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
) -> tf.Tensor:
    """Concatenate all ranks' tensors along dimension 0 (MPI_Allgatherv).

    The function is differentiable; see `tf_hvd.collectives.gradients`.

    Args:
      tensor: tensor or variable of at least one dimension, of any supported dtype. The
        first dimension may differ between ranks; the other dimensions must be the same.
      name: name of the call, the same on all ranks; None (default) for the default name.
      ignore_name_scope: see `allreduce`.
      process_set: the participating ranks; all by default.

    Returns:
      A tensor of the same dtype with all ranks' rows, in rank order. Its first dimension is the
      sum of the ranks' first dimensions.

    Raises:
      tf.errors.InvalidArgumentError: `tensor` is a scalar.

    Example:
      rows = hvd.allgather(tf.fill([hvd.rank() + 1, 2], hvd.rank()))  # 2 ranks: 3 rows
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
) -> list[tf.Tensor]:
    """Gather several tensors in one request, which costs less than separate calls.

    Tensors of different dtypes form one request for each dtype.

    Args:
      tensors: a list of tensors, each as for `allgather`. Their number, order and dtypes must be
        the same on all ranks.
      name: name of the call, the same on all ranks; None (default) for the default name.
      ignore_name_scope: see `allreduce`.
      process_set: the participating ranks; all by default.
      member_names: one name for each tensor, or None (default). Ranks with different names get
        an error.

    Returns:
      A list of results in the order of `tensors`; empty if `tensors` is empty.

    Raises:
      ValueError: `member_names` has the wrong length.
      tf.errors.InvalidArgumentError: one of the tensors is a scalar.

    Example:
      both = hvd.grouped_allgather([tf.ones([1, 2]), tf.zeros([2])])
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
) -> tf.Tensor:
    """Copy one rank's tensor to all ranks (MPI_Bcast).

    The function is differentiable; see `tf_hvd.collectives.gradients`.

    Args:
      tensor: tensor or variable of any shape and any supported dtype. Its dtype and shape must
        be the same on all ranks.
      root_rank: int, the rank that sends its tensor; the same on all ranks. With a process set,
        this is the rank in the job, not the index in the set.
      name: name of the call, the same on all ranks; None (default) for the default name.
      ignore_name_scope: see `allreduce`.
      process_set: the participating ranks; all by default.

    Returns:
      A tensor with the shape and dtype of `tensor`.

    Raises:
      TypeError: `root_rank` is not an integer.
      tf.errors.InvalidArgumentError: `root_rank` is not a rank of the set.
      tf.errors.FailedPreconditionError: the ranks passed different roots.

    Example:
      assert hvd.broadcast(tf.constant(hvd.rank()), root_rank=0).numpy() == 0
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
    """Convert `splits` to an int32 tensor."""
    if isinstance(splits, tf.Tensor | tf.Variable) and splits.dtype != tf.int32:
        raise ValueError(
            f"alltoall: splits have dtype {splits.dtype.name} but must be int32; use "
            "tf.cast(splits, tf.int32)."
        )
    try:
        return tf.convert_to_tensor(splits, tf.int32)
    except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
        raise ValueError(
            f"alltoall: splits={splits!r} cannot be converted to int32; pass a list with the "
            "number of rows for each rank."
        ) from error


@verbatim
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor | tuple[tf.Tensor, tf.Tensor]:
    """Send each rank some of the rows of this rank's tensor (MPI_Alltoallv).

    The first `splits[0]` rows go to the first rank of the set, the next `splits[1]` rows to the
    second rank, and so on. Rows beyond the sum of `splits` are not sent.
    The function is differentiable; see `tf_hvd.collectives.gradients`.

    Args:
      tensor: tensor or variable of at least one dimension, of any supported dtype. The
        first dimension may differ between ranks; the other dimensions must be the same.
      splits: int32 tensor or sequence with the number of rows for each rank of the set; a number
        may be 0. None (default) sends each rank the same number of rows; the first
        dimension must then be divisible by the number of ranks. Either all ranks pass
        `splits`, or none do.
      name: name of the call, the same on all ranks; None (default) for the default name.
      ignore_name_scope: see `tf_hvd.allreduce`.
      process_set: the participating ranks; all by default.

    Returns:
      The rows that this rank received, in the order of the sending ranks. With `splits`, a
      tuple: these rows, and an int32 tensor with the number of rows from each rank.

    Raises:
      ValueError: `splits` does not have the dtype int32.
      tf.errors.InvalidArgumentError: `tensor` is a scalar. `splits` does not have one element
        for each rank, has a negative element, or adds up to more rows than `tensor` has.
        Without `splits`, the number of rows is not divisible by the number of ranks.

    Example:
      from_each = hvd.alltoall(tf.fill([hvd.size()], hvd.rank()))
      assert list(from_each.numpy()) == list(range(hvd.size()))
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
) -> tf.Tensor:
    """Reduce a tensor across all ranks and give each rank some of the rows (MPI_Reduce_scatter).

    The rows are distributed in rank order. With R rows and N ranks, each rank gets R // N rows,
    and the first R % N ranks get one more. Each row is bitwise equal to the same row of the
    result of `tf_hvd.allreduce` with the same arguments. The function is differentiable; see
    `tf_hvd.collectives.gradients`.

    Args:
      tensor: tensor or variable of at least one dimension, with the same dtype and
        shape on all ranks. The dtypes are the same as for `tf_hvd.allreduce`.
      device_dense: device for the op, such as "/GPU:0"; "" (default) for TensorFlow's choice.
      compression: how the tensor is compressed for sending, such as `hvd.Compression.fp16`;
        `hvd.Compression.none` by default.
      op: Average (default), Sum, Min, Max or Product.
      name: name of the call, the same on all ranks; None (default) for the default name.
      process_set: the participating ranks; all by default.
      ignore_name_scope: see `tf_hvd.allreduce`.
      prescale_factor: factor applied before the reduction, 1.0 by default.
      postscale_factor: factor applied after the reduction, 1.0 by default.

    Returns:
      A tensor with this rank's rows, in the dtype of `tensor`. If there are more ranks than
      rows, the last ranks get a tensor without rows.

    Raises:
      ValueError: `op` is invalid, or `process_set` is not registered.
      tf.errors.InvalidArgumentError: `tensor` is a scalar, `op` is Adasum, or `op` does not
        support this dtype.

    Example:
      own_rows = hvd.reducescatter(tf.ones([2 * hvd.size(), 3]), op=hvd.Sum)
      assert own_rows.shape == [2, 3]
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
) -> list[tf.Tensor]:
    """Reduce and scatter several tensors in one request, which costs less than separate calls.

    Tensors of different dtypes form one request for each dtype. The number, order, dtypes and
    shapes of `tensors` must be the same on all ranks.

    Args:
      tensors: a list of tensors, each as for `reducescatter`.
      device_dense: see `reducescatter`.
      compression: see `reducescatter`.
      op: Average (default), Sum, Min, Max or Product.
      process_set: the participating ranks; all by default.
      prescale_factor: factor applied before the reduction, 1.0 by default.
      postscale_factor: factor applied after the reduction, 1.0 by default.
      name: name of the call, the same on all ranks; None (default) for the default name.
      ignore_name_scope: see `allreduce`.
      member_names: one name for each tensor, or None (default). Ranks with different names get
        an error.

    Returns:
      A list of results in the order of `tensors`; empty if `tensors` is empty.

    Raises:
      ValueError: `member_names` has the wrong length. This function also raises the errors of
        `reducescatter`.

    Example:
      parts = hvd.grouped_reducescatter([tf.ones([4]), tf.ones([6, 2])], op=hvd.Sum)
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
def barrier(
    *, process_set: ProcessSet = global_process_set, name: str | None = None
) -> tf.Operation | None:
    """Wait until all ranks of the set have called `barrier` (MPI_Barrier).

    In a tf.function the barrier always runs, in order with assignments, prints and other ops
    that have an effect. It is not ordered with collectives that return tensors; use
    tf.control_dependencies to order them. In a v1 graph it runs if the returned op is run, or
    is a control dependency of an op that is run.

    Args:
      process_set: the ranks that wait for each other; all by default.
      name: name of the call, the same on all ranks; "HorovodBarrier" by default.

    Returns:
      None in eager mode; the op in a graph.

    Raises:
      ValueError: `process_set` is not registered.
      tf.errors.InvalidArgumentError: this rank is not in the set.
      tf.errors.FailedPreconditionError: `init` was not called.

    Example:
      if hvd.is_root():
          pathlib.Path("ready").touch()
      hvd.barrier()  # from here on the file exists for all ranks
    """
    return _calls.run(
        _native.ops.horovod_barrier, "HorovodBarrier", None, name, process_set,
        ignore_name_scope=False,
    )  # fmt: skip


@verbatim
def join(*, process_set: ProcessSet = global_process_set) -> tf.Tensor:
    """Signal that this rank has run out of data, and wait until all ranks have.

    Call `join` on every rank after its last batch if ranks may have different numbers of batches.
    Until all ranks have joined, this rank contributes zeros to the other ranks' allreduces and no
    rows to their allgathers. An Average still divides by the total number of ranks. The other
    ranks' broadcasts, alltoalls and reducescatters fail, because they need every rank.

    Args:
      process_set: the ranks that wait for each other to join; all by default.

    Returns:
      An int32 scalar tensor, the same on all ranks: the number of the rank that joined last. In
      eager mode, int() converts it to a number. In a tf.function the op runs even if its result
      is unused.

    Raises:
      ValueError: `process_set` is not registered.
      tf.errors.InvalidArgumentError: this rank is not in the set.
      tf.errors.FailedPreconditionError: `init` was not called.

    Example:
      for batch in range(3 + hvd.rank()):
          hvd.allreduce(tf.constant(float(batch)), name="loss")
      last = int(hvd.join())  # the rank with the most batches
    """
    last = _calls.run(_native.ops.horovod_join, "HorovodJoin", None, None, process_set)
    with tf.control_dependencies(waits_for(last)):
        restarted = waits_for([count.after_join() for count in counts_to_restart(process_set)])
    with tf.control_dependencies(restarted):
        return tf.identity(last) if restarted else last
