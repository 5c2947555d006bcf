"""Collectives on values and not on tensors of a graph, as horovod.keras has them.

Each gives the value itself: an eager tensor, or an array where TensorFlow does not
run eagerly. All ranks must call them, in the same order.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_hvd.collectives import alltoall as exchange
from tf_hvd.collectives import collectives, reduce_ops, variables
from tf_hvd.collectives.compression import Compression, Compressor
from tf_hvd.core.tensorflow_hooks import on_host


def _value(function: Callable[[Any], Any], value: Any) -> Any:
    """`function` of the value, run now: on the host, unless it is a tensor already."""
    with tf.init_scope():
        if tf.executing_eagerly():
            with contextlib.nullcontext() if tf.is_tensor(value) else on_host():
                return function(tf.convert_to_tensor(value))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session, on_host():
        return session.run(function(tf.convert_to_tensor(value)))


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
      The result, of the dtype and shape of `value`.
    """
    return _value(
        lambda tensor: collectives.allreduce(
            tensor, average=average, compression=compression, op=op, name=name,
            prescale_factor=prescale_factor, postscale_factor=postscale_factor,
        ),
        value,
    )  # fmt: skip


def allgather(value: Any, name: str | None = None) -> Any:
    """All ranks' values along dimension 0; see `tf_hvd.allgather`."""
    return _value(lambda tensor: collectives.allgather(tensor, name=name), value)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """The value of one rank; see `tf_hvd.broadcast`."""
    return _value(lambda tensor: collectives.broadcast(tensor, root_rank, name=name), value)


def reducescatter(value: Any, name: str | None = None, op: int = reduce_ops.Average) -> Any:
    """The part of the values' reduction that is this rank's; see `tf_hvd.reducescatter`."""
    return _value(lambda tensor: exchange.reducescatter(tensor, op=op, name=name), value)


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
