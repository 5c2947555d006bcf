"""SyncBatchNormalization: batch normalization over the batches of all ranks together.

Each rank sends, per channel, its mean, its sum of squared deviations and its
number of elements, and combines what all have sent by the parallel formula of
Chan, Golub and LeVeque ("Updating Formulae and a Pairwise Algorithm for Computing
Sample Variances", 1979). That is one allreduce of 3 * channels + 1 numbers. They
are float64, so that the result is as exact as if one rank had seen everything.
Ranks may have batches of different sizes, also empty ones.
"""

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_hvd import basics, collectives
from tf_hvd.process_sets import ProcessSet, global_process_set


def global_moments(
    inputs: Any,
    axes: Sequence[int],
    mask: Any = None,
    process_set: ProcessSet = global_process_set,
) -> tuple[Any, Any]:
    """Mean and variance of a tensor over `axes` and over all ranks.

    Differentiable: the gradient of a rank's loss reaches the inputs of the others.

    Args:
      inputs: floating tensor; its size may differ between ranks along `axes`,
        also be 0.
      axes: the dimensions to reduce.
      mask: None, or what broadcasts to `inputs`: where it is false, an element
        does not count.
      process_set: the ranks that take part.

    Returns:
      Two tensors of the dtype of `inputs`, whose reduced dimensions have size 1.
      The variance is that of the population (no Bessel's correction).
    """
    wide = tf.float64
    kept = tf.broadcast_to(True if mask is None else tf.cast(mask, tf.bool), tf.shape(inputs))
    # Where an element does not count, not even a NaN in it does.
    inputs = tf.where(kept, inputs, tf.zeros_like(inputs))
    counts = tf.reduce_sum(tf.cast(kept, inputs.dtype), axes, keepdims=True)
    mean = tf.math.divide_no_nan(tf.reduce_sum(inputs, axes, keepdims=True), counts)
    deviations = tf.where(kept, inputs - mean, tf.zeros_like(inputs))
    squares = tf.reduce_sum(deviations * deviations, axes, keepdims=True)

    count = tf.cast(counts, wide)
    weighted = count * tf.cast(mean, wide)
    parts = [weighted, weighted * tf.cast(mean, wide), tf.cast(squares, wide), count]
    totals = collectives.allreduce(tf.stack(parts), op=basics.Sum, process_set=process_set)
    sums, square_sums, deviation_sums, total = tf.unstack(totals)
    mean = tf.math.divide_no_nan(sums, total)
    spread = tf.math.divide_no_nan(deviation_sums + square_sums, total) - mean * mean
    variance = tf.maximum(spread, tf.zeros_like(spread))
    return tf.cast(mean, inputs.dtype), tf.cast(variance, inputs.dtype)


def _moments_of_keras_3(self: Any, inputs: Any, mask: Any) -> tuple[Any, Any]:
    """Takes the place of keras.layers.BatchNormalization._moments."""
    if mask is not None:
        mask = tf.expand_dims(mask, -1)
    mean, variance = global_moments(inputs, self._reduction_axes, mask)
    return tf.reshape(mean, [-1]), tf.reshape(variance, [-1])


def _moments_of_tf_keras(
    self: Any, inputs: Any, reduction_axes: Sequence[int], keep_dims: bool, mask: Any = None
) -> tuple[Any, Any]:
    """Takes the place of tf_keras.layers.BatchNormalization._moments."""
    del self
    if mask is not None:
        mask = tf.expand_dims(mask, -1)
    mean, variance = global_moments(inputs, reduction_axes, mask)
    if keep_dims:
        return mean, variance
    return tf.squeeze(mean, reduction_axes), tf.squeeze(variance, reduction_axes)


def _is_keras_3(base: Any) -> bool:
    return not hasattr(base, "_calculate_mean_and_var")


@functools.lru_cache(maxsize=8)
def synchronized(base: Any) -> Any:
    """The class of synchronized layers for a class of BatchNormalization layers.

    Args:
      base: `keras.layers.BatchNormalization`, `tf_keras.layers.BatchNormalization`
        or a subclass of one.

    Returns:
      A subclass with the name and module of `base`: a model that is saved with it
      loads where tf_hvd is not installed, as the plain layer (the two differ in
      training only).

    Raises:
      ValueError: `base` computes no moments that could be synchronized.
    """
    if not hasattr(base, "_moments"):
        raise ValueError(f"{base!r} is not a class of BatchNormalization layers.")
    keras_3 = _is_keras_3(base)

    def init(self: Any, fused: bool | None = False, **kwargs: Any) -> None:
        if fused or fused is None:
            raise ValueError(
                f"SyncBatchNormalization(fused={fused}): the fused kernel computes its moments "
                "by itself; leave fused= out."
            )
        if not keras_3:
            kwargs["fused"] = False
        super(made, self).__init__(**kwargs)

    made: Any = type(
        base.__name__,
        (base,),
        {
            "__init__": init,
            "__module__": "keras.layers" if keras_3 else base.__module__,
            "__qualname__": base.__qualname__,
            "__doc__": "Normalizes over the batches of all ranks; arguments as the plain layer's.",
            "_moments": _moments_of_keras_3 if keras_3 else _moments_of_tf_keras,
        },
    )
    return made


def SyncBatchNormalization(fused: bool | None = False, **kwargs: Any) -> Any:  # noqa: N802
    """A BatchNormalization layer over the batches of all ranks together.

    Of the Keras that `tf.keras` is; `synchronized` makes the class for another one.

    Args:
      fused: False; the fused kernel computes its moments by itself.
      **kwargs: the arguments of the plain layer.

    Returns:
      A layer that is saved as the plain one.

    Raises:
      ValueError: `fused` is True or None.
    """
    return synchronized(tf.keras.layers.BatchNormalization)(fused=fused, **kwargs)
