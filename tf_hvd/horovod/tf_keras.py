"""horovod.tensorflow.keras and most of horovod.keras: the functions that differ from tf_hvd's.

`DistributedOptimizer` has a different argument order. The collectives take values rather than
graph tensors, and all ranks must call them in the same order. Each returns a value: an eager
tensor, or an array if TensorFlow does not run eagerly.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_hvd.collectives import collectives, reduce_ops, variables
from tf_hvd.collectives.compression import Compression, Compressor
from tf_hvd.core.tensorflow_hooks import on_host, to_tensor
from tf_hvd.keras.optimizer import DistributedOptimizer

__all__ = [
    "DistributedOptimizer",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "reducescatter",
]


def _value(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply `function` to a value immediately, on the host unless the value is already a tensor."""
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
    """Reduce a number, an array or a tensor across all ranks; see `tf_hvd.allreduce`.

    Args:
      value: a number, array or tensor, with the same dtype and shape on all ranks.
      name: name of the request, the same on all ranks.
      average: deprecated; use `op`.
      prescale_factor: float, multiplies the value before the reduction (default: 1.0).
      postscale_factor: float, multiplies the result of the reduction (default: 1.0).
      op: Average (default), Sum, Min, Max or Product.
      compression: a member of `tf_hvd.Compression` (default: none).

    Returns:
      The result, with the dtype and shape of `value`: an eager tensor, or an array if TensorFlow
      does not run eagerly.

    Raises:
      ValueError: both `op` and `average` are given, or `op` is invalid.
      tf.errors.InvalidArgumentError: this dtype does not support the op.
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
    """Concatenate all ranks' arrays or tensors along dimension 0; see `tf_hvd.allgather`.

    Args:
      value: an array or tensor of at least one dimension. The dtype and all
        dimensions except the first must be the same on all ranks.
      name: name of the request, the same on all ranks.

    Returns:
      The rows of all ranks in rank order, with the dtype of `value`: an eager
      tensor, or an array if TensorFlow does not run eagerly.

    Raises:
      tf.errors.InvalidArgumentError: `value` is a scalar.
      tf.errors.FailedPreconditionError: `init` was not called, or the ranks' dtypes or
        shapes do not match.
    """
    return _value(lambda tensor: collectives.allgather(tensor, name=name), value)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """Copy one rank's number, array or tensor to all ranks; see `tf_hvd.broadcast`.

    Args:
      value: a number, array or tensor, with the same dtype and shape on all ranks. Only
        the root's values are used.
      root_rank: int, the rank that sends its value; the same on all ranks.
      name: name of the request, the same on all ranks.

    Returns:
      The root's value, with the dtype and shape of `value`: an eager tensor, or an array if
      TensorFlow does not run eagerly.

    Raises:
      tf.errors.InvalidArgumentError: `root_rank` is not a rank of the job.
      tf.errors.FailedPreconditionError: `init` was not called, or the ranks' dtypes,
        shapes or roots differ.
    """
    return _value(lambda tensor: collectives.broadcast(tensor, root_rank, name=name), value)


def reducescatter(value: Any, name: str | None = None, op: int = reduce_ops.Average) -> Any:
    """Reduce an array or a tensor across all ranks, and return this rank's share of the rows.

    See `tf_hvd.reducescatter`.

    Args:
      value: an array or tensor of at least one dimension, with the same dtype
        and shape on all ranks.
      name: name of the request, the same on all ranks.
      op: Average (default), Sum, Min, Max or Product.

    Returns:
      This rank's rows, with the dtype of `value`: an eager tensor, or an array if TensorFlow does
      not run eagerly. The rows are distributed in rank order. With R rows and N ranks, each rank
      gets R // N rows, and the first R % N ranks get one more.

    Raises:
      ValueError: `op` is invalid.
      tf.errors.InvalidArgumentError: `value` is a scalar; `op` is Adasum; or this dtype does
        not support the op.
      tf.errors.FailedPreconditionError: `init` was not called, or the ranks' dtypes,
        shapes or ops differ.
    """
    return _value(lambda tensor: collectives.reducescatter(tensor, op=op, name=name), value)


def broadcast_global_variables(root_rank: int) -> Any:
    """Set all global variables of the default v1 graph to one rank's values.

    Raises:
      RuntimeError: TensorFlow runs eagerly and therefore has no list of global variables, or no
        default session is open.
    """
    operation = variables.broadcast_global_variables(root_rank)
    session = tf.compat.v1.get_default_session()
    if session is None:
        raise RuntimeError(
            "broadcast_global_variables() needs a default session: call it "
            "under `with session.as_default():`."
        )
    return session.run(operation)
