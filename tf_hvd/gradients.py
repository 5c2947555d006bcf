"""Derivatives of the collectives, registered with TensorFlow at import.

Conventions are Horovod's. With one loss per rank:

- allreduce Sum and Average: the derivative of the sum (the average) of the
  ranks' losses: the incoming gradients, reduced with the same op and scales.
- allreduce Min, Max, Product: the derivative of the sum of the losses. Ties of
  Min and Max share the gradient equally, as in tf.reduce_min. (Horovod reduces
  the gradients with the same op here, which is no derivative.)
- allgather: the average over ranks of the incoming gradients, of which each rank
  takes its own rows. broadcast: the average, at the root; zero elsewhere. For
  the derivative of the sum of the losses multiply by size().
"""

from typing import Any

import numpy as np
import tensorflow as tf

from tf_hvd import _calls, basics, collectives
from tf_hvd.process_sets import ProcessSet


def _options(op: Any) -> dict[str, Any]:
    """The arguments of the forward call that its gradient's collectives share."""
    process_set = ProcessSet()
    process_set.process_set_id = op.get_attr("process_set_id")
    return {
        "process_set": process_set,
        "ignore_name_scope": op.get_attr("ignore_name_scope"),
    }


def _scales(op: Any) -> tuple[float, float]:
    """The factors as the kernel has them: float32, whatever Python gave."""
    prescale, postscale = op.get_attr("prescale_factor"), op.get_attr("postscale_factor")
    return float(np.float32(prescale)), float(np.float32(postscale))


def _dense(gradient: Any, like: Any) -> Any:
    """The incoming gradient as a tensor; TensorFlow may hand None or float32 zeros."""
    if gradient is None:
        return tf.zeros_like(like)
    return tf.cast(tf.convert_to_tensor(gradient), like.dtype)


def _linear(op: Any, gradients: list[Any]) -> list[Any]:
    """Gradient of Sum and Average."""
    return _calls.run_grouped_allreduce(
        gradients,
        op.get_attr("reduce_op"),
        op.get_attr("prescale_factor"),
        op.get_attr("postscale_factor"),
        **_options(op),
    )


def _extremum(op: Any, x: Any, y: Any, gradient: Any) -> Any:
    """Gradient of Min and Max: to the ranks that hold the extremum."""
    options = _options(op)
    pre, post = _scales(op)
    kind = op.get_attr("reduce_op")
    if pre == 1.0 and post == 1.0:
        extremum = y
    else:
        # Scaling rounds, so y cannot be compared with x. A negative scale before
        # the reduction turns the smallest into the largest.
        other = basics.Max if kind == basics.Min else basics.Min
        extremum = _calls.run_allreduce(x, kind if pre >= 0.0 else other, **options)
    mine = tf.cast(tf.equal(x, extremum), x.dtype)
    total, ties = _calls.run_grouped_allreduce([gradient, mine], basics.Sum, **options)
    return mine / ties * total * tf.constant(pre * post, x.dtype)


def _product(op: Any, x: Any, gradient: Any) -> Any:
    """Gradient of Product: the others' product, also where a factor is zero."""
    options = _options(op)
    pre, post = _scales(op)
    scaled = x * tf.constant(pre, x.dtype)
    is_zero = tf.equal(scaled, 0)
    nonzero = tf.where(is_zero, tf.ones_like(scaled), scaled)
    product = _calls.run_allreduce(nonzero, basics.Product, **options)
    total, zeros = _calls.run_grouped_allreduce(
        [gradient, tf.cast(is_zero, x.dtype)], basics.Sum, **options
    )
    others_zeros = zeros - tf.cast(is_zero, x.dtype)
    others = tf.where(tf.equal(others_zeros, 0), product / nonzero, tf.zeros_like(x))
    return total * others * tf.constant(pre * post, x.dtype)


def _allreduce_gradients(op: Any, gradients: list[Any]) -> list[Any]:
    inputs, outputs = list(op.inputs), list(op.outputs)
    dense = [_dense(g, x) for g, x in zip(gradients, inputs, strict=True)]
    kind = op.get_attr("reduce_op")
    if kind in (basics.Sum, basics.Average):
        return _linear(op, dense)
    if kind in (basics.Min, basics.Max):
        return [_extremum(op, x, y, g) for x, y, g in zip(inputs, outputs, dense, strict=True)]
    if kind == basics.Product:
        return [_product(op, x, g) for x, g in zip(inputs, dense, strict=True)]
    raise LookupError(f"allreduce with reduce_op={kind} has no gradient")


@tf.RegisterGradient("HorovodAllreduce")  # type: ignore[untyped-decorator]
def _allreduce_gradient(op: Any, gradient: Any) -> Any:
    return _allreduce_gradients(op, [gradient])[0]


@tf.RegisterGradient("HorovodGroupedAllreduce")  # type: ignore[untyped-decorator]
def _grouped_allreduce_gradient(op: Any, *gradients: Any) -> list[Any]:
    return _allreduce_gradients(op, list(gradients))


@tf.RegisterGradient("HorovodAllgather")  # type: ignore[untyped-decorator]
def _allgather_gradient(op: Any, gradient: Any) -> Any:
    x = op.inputs[0]
    options = _options(op)
    averaged = _calls.run_allreduce(_dense(gradient, op.outputs[0]), basics.Average, **options)
    rows = tf.shape(x, out_type=tf.int64)[:1]
    all_rows = collectives.allgather(rows, **options)
    start = tf.reduce_sum(all_rows[: basics.rank_op()])
    return averaged[start : start + rows[0]]


@tf.RegisterGradient("HorovodBroadcast")  # type: ignore[untyped-decorator]
def _broadcast_gradient(op: Any, gradient: Any) -> Any:
    x = op.inputs[0]
    averaged = _calls.run_allreduce(_dense(gradient, x), basics.Average, **_options(op))
    at_root = tf.equal(basics.rank_op(), op.get_attr("root_rank"))
    # Chosen, not multiplied by zero: an infinity must not become NaN elsewhere.
    return tf.where(at_root, averaged, tf.zeros_like(averaged))


for _scalar in ("HorovodRank", "HorovodSize", "HorovodLocalRank", "HorovodLocalSize"):
    tf.no_gradient(_scalar)
