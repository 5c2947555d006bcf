"""Collectives on values and not on tensors of a graph, as horovod.keras has them.

Each gives the value itself: an eager tensor, or an array where TensorFlow does not
run eagerly. All ranks must call them, in the same order.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_hvd.collectives import collectives, reduce_ops, variables
from tf_hvd.collectives.compression import Compression, Compressor
from tf_hvd.core.tensorflow_hooks import on_host, to_tensor


def _value(function: Callable[[Any], Any], value: Any) -> Any:
    """`function` of the value, run now: on the host, unless it is a tensor already."""
    with tf.init_scope():
        if tf.executing_eagerly():
            with contextlib.nullcontext() if tf.is_tensor(value) else on_host():
                return function(to_tensor(value))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session, on_host():
        return session.run(function(to_tensor(value)))


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: type[Compressor] = Compression.none,
) -> Any:
    """Reduces a number, an array or a tensor over all ranks; see `tf_hvd.allreduce`.

    Args:
      value: what `tf.convert_to_tensor` takes; the same dtype and shape on all ranks.
      name: name of the request.
      average: deprecated; use `op`.
      prescale_factor: factor before the reduction.
      postscale_factor: factor after it.
      op: Average (default), Sum, Min, Max or Product.
      compression: see `tf_hvd.Compression`.

    Returns:
      The result, of the dtype and shape of `value`: an eager tensor, or an array where
      TensorFlow does not run eagerly.

    Raises:
      ValueError: `op` and `average` together, or no such op.
      tf.errors.InvalidArgumentError: the op is not supported for this dtype.
      tf.errors.FailedPreconditionError: `init` was not called, or the ranks' dtypes,
        shapes or arguments differ.
    """
    return _value(
        lambda tensor: collectives.allreduce(
            tensor, average=average, compression=compression, op=op, name=name,
            prescale_factor=prescale_factor, postscale_factor=postscale_factor,
        ),
        value,
    )  # fmt: skip


def allgather(value: Any, name: str | None = None) -> Any:
    """All ranks' arrays or tensors, joined along dimension 0; see `tf_hvd.allgather`.

    Args:
      value: what `tf.convert_to_tensor` takes, of at least one dimension. The dtype and all
        dimensions but the first are the same on all ranks.
      name: name of the request.

    Returns:
      The rows of all ranks, in the order of the ranks, in the dtype of `value`: an eager
      tensor, or an array where TensorFlow does not run eagerly.

    Raises:
      tf.errors.InvalidArgumentError: a scalar.
      tf.errors.FailedPreconditionError: `init` was not called, or the ranks' dtypes or
        shapes do not fit together.
    """
    return _value(lambda tensor: collectives.allgather(tensor, name=name), value)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """The number, array or tensor of one rank, on all of them; see `tf_hvd.broadcast`.

    Args:
      value: what `tf.convert_to_tensor` takes; the same dtype and shape on all ranks. Only
        the root's values count.
      root_rank: whose value it is: a rank of the job, the same on all ranks.
      name: name of the request.

    Returns:
      The root's value, of the dtype and shape of `value`: an eager tensor, or an array
      where TensorFlow does not run eagerly.

    Raises:
      tf.errors.InvalidArgumentError: there is no such root rank.
      tf.errors.FailedPreconditionError: `init` was not called, or the ranks' dtypes,
        shapes or roots differ.
    """
    return _value(lambda tensor: collectives.broadcast(tensor, root_rank, name=name), value)


def reducescatter(value: Any, name: str | None = None, op: int = reduce_ops.Average) -> Any:
    """Reduces an array or a tensor over all ranks; each gets some of the rows.

    See `tf_hvd.reducescatter`.

    Args:
      value: what `tf.convert_to_tensor` takes, of at least one dimension; the same dtype
        and shape on all ranks.
      name: name of the request.
      op: Average (default), Sum, Min, Max or Product.

    Returns:
      This rank's rows, of the dtype of `value`. Of R rows and N ranks each rank gets R // N,
      the first R % N ranks one more, in the order of the ranks. An eager tensor, or an array
      where TensorFlow does not run eagerly.

    Raises:
      ValueError: no such op.
      tf.errors.InvalidArgumentError: a scalar; Adasum; an op that is not supported for
        this dtype.
      tf.errors.FailedPreconditionError: `init` was not called, or the ranks' dtypes,
        shapes or ops differ.
    """
    return _value(lambda tensor: collectives.reducescatter(tensor, op=op, name=name), value)


def broadcast_global_variables(root_rank: int) -> Any:
    """Sets all global variables of the default v1 graph to one rank's values.

    Raises:
      RuntimeError: in eager mode, which has no list of them; or no session is open.
    """
    operation = variables.broadcast_global_variables(root_rank)
    session = tf.compat.v1.get_default_session()
    if session is None:
        raise RuntimeError(
            "broadcast_global_variables() runs in the default session, and there is none: call it "
            "under `with session.as_default():`."
        )
    return session.run(operation)
