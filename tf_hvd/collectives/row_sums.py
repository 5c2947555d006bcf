"""Sums of one rank's rows that have the same index, with the same bits each time."""

from typing import Any

import tensorflow as tf

from tf_hvd.collectives.scales import wide
from tf_hvd.core.tensorflow_hooks import in_xla


def _may_be_on_gpu(device: str) -> bool:
    """Whether it could be a GPU; "" is wherever TensorFlow likes."""
    if device and "GPU" not in device.upper():
        return False
    return bool(tf.config.get_visible_devices("GPU"))


def _places(indices: Any, ascending: bool) -> tuple[Any, Any]:
    """The different indices, and for each row which of them is its own."""
    unique, places = tf.unique(indices, out_idx=tf.int64)
    if ascending:
        order = tf.argsort(unique, stable=True)
        places = tf.gather(tf.math.invert_permutation(order), places)
        unique = tf.gather(unique, order)
    return unique, places


def _bounded_order(indices: Any) -> tuple[Any, Any, Any, Any]:
    """As many sums as there are rows, for XLA: what is left over has none, and the last index.

    Returns:
      The rows' numbers in the order of the sums, where each sum's end there, for each row which
      sum is its own, and the sums' indices, ascending.
    """
    count = tf.size(indices)
    order = tf.argsort(indices, stable=True)
    ordered = tf.gather(indices, order)
    begins = tf.concat([tf.ones_like(ordered[:1], tf.bool), ordered[1:] != ordered[:-1]], axis=0)
    places = tf.cumsum(tf.cast(begins, tf.int32)) - 1
    counts = tf.math.unsorted_segment_sum(tf.ones_like(places, tf.int64), places, count)
    unique = tf.math.unsorted_segment_max(ordered, places, count)
    unique = tf.where(counts > 0, unique, tf.reduce_max(indices))
    # XLA inverts no permutation that depends on a collective's result.
    places = tf.scatter_nd(order[:, tf.newaxis], places, count[tf.newaxis])
    return tf.cast(order, tf.int64), tf.cumsum(counts), places, unique


def _summed_in_pairs(values: Any, order: Any, ends: Any) -> Any:
    """Sums of rows, by ops of TensorFlow's that have the same bits each time on a GPU.

    Each row is added to the next of its sum, then each of these to the second next, to the
    fourth next, and so on: the last one of a sum then holds all of them.
    """
    numbers = tf.range(tf.size(order, out_type=tf.int64))
    passed = tf.math.unsorted_segment_sum(tf.ones_like(ends), ends, tf.size(order) + 1)
    places = tf.cumsum(passed)[:-1]  # of the rows in order
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
    """Adds up rows with the same index, with the same bits each time.

    On the CPU in the order in which they lie, starting from zeros, so that no row of the result
    holds a negative zero (XLA leaves that out for a single row). On a GPU, where TensorFlow's
    sums take rows as they come, in pairs.

    Args:
      values: the rows.
      indices: of the rows.
      ascending: whether the sums' indices are to be.
      device: where it is computed; "" is wherever TensorFlow likes. XLA computes it on a GPU
        wherever there is one.

    Returns:
      The sums (half precisions: in float32), and the index of each. In a step that XLA
      compiles, which knows no numbers of rows that depend on values, as many as `values` has
      rows, in ascending order: the last ones are zeros, with the last index once more.
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
    with tf.device("CPU:0"):  # a few numbers, of which nothing is computed but an order
        unique, places = _places(indices, ascending)
        order = tf.cast(tf.argsort(places, stable=True), tf.int64)
        numbers = tf.range(tf.size(unique, out_type=places.dtype))
        ends = tf.searchsorted(tf.gather(places, order), numbers, "right", tf.int64)
    return _summed_in_pairs(values, order, ends), unique
