"""Losses and metrics of a step with divisors that depend on the rows of all ranks.

Each function replaces one of Keras' functions within a step. It scales the loss so that the mean
across the ranks, weighted by n/N, is the loss of the global batch (tf_hvd.keras.distribution.step).
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_hvd.keras.distribution.step import current

_MEANS = ("mean", "sum_over_batch_size")


def apply_mask(
    original: Callable[..., Any], sample_weight: Any, mask: Any, dtype: Any, reduction: Any
) -> Any:
    """Weights from a mask: Keras scales them by the number of all elements per valid one."""
    step = current()
    if step is None or mask is None or reduction not in _MEANS:
        return original(sample_weight, mask, dtype=dtype, reduction=reduction)
    weights = original(sample_weight, mask, dtype=dtype, reduction="sum")
    counts = [tf.size(mask, tf.int64), tf.math.count_nonzero(tf.cast(mask, tf.bool))]
    elements, valid = tf.unstack(step.sum(tf.cast(tf.stack(counts), tf.float64), "mask_of_loss"))
    return weights * tf.cast(tf.math.divide_no_nan(elements, valid), weights.dtype)


def reduce_values(
    original: Callable[..., Any],
    values: Any,
    sample_weight: Any = None,
    reduction: Any = "sum_over_batch_size",
) -> Any:
    """The loss from the values of samples."""
    step = current()
    if step is None or reduction in (None, "none") or len(values.shape) == 0:
        return original(values, sample_weight, reduction)
    if reduction == "sum":
        total = tf.reduce_sum(values)
        return total * step.per_rows(total.dtype)
    if reduction == "mean_with_sample_weight" and sample_weight is not None:
        total = tf.reduce_sum(values)
        weights = tf.reduce_sum(tf.cast(sample_weight, tf.float64))
        weights = tf.cast(step.sum(weights, "weights_of_loss"), total.dtype)
        return tf.math.divide_no_nan(total * step.per_rows(total.dtype), weights)
    if tuple(values.shape) == (0,):  # Keras would return the values
        return tf.reduce_sum(values)
    return original(values, sample_weight, reduction)


def samplewise(
    original: Callable[..., Any], values: Any, sample_weight: Any, *args: Any, **kwargs: Any
) -> Any:
    """The values for a Mean or Sum: a number for the whole batch has the weight n/N."""
    step = current()
    if step is not None and sample_weight is None:
        found = tf.convert_to_tensor(values)
        if found.shape.rank == 0 and found.dtype.is_floating and not step.is_even:
            share = step.per_total(found.dtype)
            weighted, _ = original(tf.math.multiply_no_nan(found, share), None, *args, **kwargs)
            return weighted, tf.cast(share, weighted.dtype)
    return original(values, sample_weight, *args, **kwargs)
