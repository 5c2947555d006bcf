"""Bitwise reproducible sums of rows that have the same index."""

from typing import Any

import tensorflow as tf

from tf_hvd.collectives.scales import wide
from tf_hvd.core.tensorflow_hooks import in_xla


def _may_be_on_gpu(device: str) -> bool:
    """Return whether a device could be a GPU; "" leaves the choice to TensorFlow."""
    if device and "GPU" not in device.upper():
        return False
    return bool(tf.config.get_visible_devices("GPU"))


def _places(indices: Any, ascending: bool) -> tuple[Any, Any]:
    """Return the distinct indices, and for each row the position of its index among them."""
    unique, places = tf.unique(indices, out_idx=tf.int64)
    if ascending:
        order = tf.argsort(unique, stable=True)
        places = tf.gather(tf.math.invert_permutation(order), places)
        unique = tf.gather(unique, order)
    return unique, places


def _bounded_order(indices: Any) -> tuple[Any, Any, Any, Any]:
    """Order rows by index for XLA, which needs as many sums as rows; unused sums are at the end.

    Returns:
      The rows' numbers, ordered by sum; the end of each sum in that order; the number of each
      row's sum; and the sums' indices, ascending. Unused sums are empty and have the last index.
    """
    count = tf.size(indices)
    order = tf.argsort(indices, stable=True)
    ordered = tf.gather(indices, order)
    begins = tf.concat([tf.ones_like(ordered[:1], tf.bool), ordered[1:] != ordered[:-1]], axis=0)
    places = tf.cumsum(tf.cast(begins, tf.int32)) - 1
    counts = tf.math.unsorted_segment_sum(tf.ones_like(places, tf.int64), places, count)
    unique = tf.math.unsorted_segment_max(ordered, places, count)
    unique = tf.where(counts > 0, unique, tf.reduce_max(indices))
    # XLA cannot invert a permutation that depends on a collective's result.
    places = tf.scatter_nd(order[:, tf.newaxis], places, count[tf.newaxis])
    return tf.cast(order, tf.int64), tf.cumsum(counts), places, unique


def _summed_in_pairs(values: Any, order: Any, ends: Any) -> Any:
    """Add up rows with TensorFlow ops that are bitwise reproducible on a GPU.

    Within a sum, each row is added to the row after it. Each result is then added to the row two
    places later, then four places later, and so on. The last row of a sum then has the total.
    """
    numbers = tf.range(tf.size(order, out_type=tf.int64))
    passed = tf.math.unsorted_segment_sum(tf.ones_like(ends), ends, tf.size(order) + 1)
    places = tf.cumsum(passed)[:-1]  # the sum of each ordered row
    sizes = ends - tf.concat([tf.zeros_like(ends[:1]), ends[:-1]], axis=0)
    longest = tf.reduce_max(tf.concat([sizes, [0]], axis=0))

    def by_row(flags: Any, rows: Any) -> Any:
        return tf.reshape(flags, tf.concat([[-1], tf.ones_like(tf.shape(rows)[1:])], axis=0))

    def add(step: Any, rows: Any) -> tuple[Any, Any]:
        alike = tf.logical_and(numbers >= step, tf.roll(places, step, axis=0) == places)
        others = tf.roll(rows, step, axis=0)
        return 2 * step, rows + tf.where(by_row(alike, rows), others, tf.zeros_like(others))

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def summed(values: Any) -> Any:
        start = (tf.constant(1, tf.int64), tf.gather(values, order))
        _, rows = tf.while_loop(lambda step, _: step < longest, add, start)
        sums = tf.gather(rows, tf.maximum(ends - 1, 0))
        sums = tf.where(by_row(sizes > 0, sums), sums, tf.zeros_like(sums))

        def gradient(upstream: Any) -> Any:
            return tf.gather(upstream, tf.gather(places, tf.math.invert_permutation(order)))

        return sums, gradient

    return summed(values)


def sum_by_index(values: Any, indices: Any, ascending: bool, device: str) -> tuple[Any, Any]:
    """Add up rows with the same index, bitwise reproducibly.

    On the CPU, rows are added in their order. Each sum starts from zero, so no result is a
    negative zero. (XLA skips this zero for a single row.) On a GPU, TensorFlow's own sums add
    rows in no fixed order, so this function adds rows in pairs there.

    Args:
      values: the rows, a tensor of shape [rows, ...].
      indices: the rows' indices, an integer tensor of shape [rows].
      ascending: whether the sums' indices must be ascending.
      device: the device for the computation; "" leaves the choice to TensorFlow. XLA uses a GPU
        if the process has one.

    Returns:
      A tuple: the sums (in float32 for half-precision types), and the index of each sum. XLA
      cannot handle numbers of rows that depend on values. A step compiled by XLA therefore gets
      as many sums as rows, in ascending order. Unused sums at the end are zero and have the last
      index.
    """
    values = wide(values)
    if in_xla():
        order, ends, places, unique = _bounded_order(indices)
        if _may_be_on_gpu(""):
            return _summed_in_pairs(values, order, ends), unique
        return tf.math.unsorted_segment_sum(values, places, tf.size(unique)), unique
    if not _may_be_on_gpu(device):
        unique, places = _places(indices, ascending)
        return tf.math.unsorted_segment_sum(values, places, tf.size(unique)), unique
    with tf.device("CPU:0"):  # few numbers, used only to find an order
        unique, places = _places(indices, ascending)
        order = tf.cast(tf.argsort(places, stable=True), tf.int64)
        numbers = tf.range(tf.size(unique, out_type=places.dtype))
        ends = tf.searchsorted(tf.gather(places, order), numbers, "right", tf.int64)
    return _summed_in_pairs(values, order, ends), unique
