"""SyncBatchNormalization: batch normalization over the batches of all ranks together.

Each rank sends four numbers per channel: the count n of its elements, n * mean,
n * mean^2, and the sum of squared deviations from its mean. One allreduce of these
4 * channels numbers adds them up, which combines the ranks as the parallel formula of
Chan, Golub and LeVeque does ("Updating Formulae and a Pairwise Algorithm for Computing
Sample Variances", 1979). They are float64, so that the result is as exact as if one
rank had seen everything.
Ranks may have batches of different sizes, also empty ones.

The layers have a `call` of their own, made of what Keras publishes; without training
it is the plain layer's. Their config says `synchronized=True`, Keras' own word for such
a layer, by which `synchronize_again` finds it in a model that was loaded.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_hvd.collectives import collectives, reduce_ops
from tf_hvd.collectives.scales import wide
from tf_hvd.core.process_sets import ProcessSet, global_process_set
from tf_hvd.core.tensorflow_hooks import verbatim


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
    totals = collectives.allreduce(tf.stack(parts), op=reduce_ops.Sum, process_set=process_set)
    sums, square_sums, deviation_sums, total = tf.unstack(totals)
    mean = tf.math.divide_no_nan(sums, total)
    spread = tf.math.divide_no_nan(deviation_sums + square_sums, total) - mean * mean
    variance = tf.maximum(spread, tf.zeros_like(spread))
    return tf.cast(mean, inputs.dtype), tf.cast(variance, inputs.dtype)


def _mask_of(inputs: Any, mask: Any) -> Any:
    """The mask with a last dimension for the channels; None stays None."""
    if mask is None:
        return None
    if len(mask.shape) != len(inputs.shape) - 1:
        raise ValueError(
            f"the mask's shape {mask.shape} should have one dimension less than the inputs', "
            f"{inputs.shape}."
        )
    return tf.expand_dims(mask, -1)


def _call_of_keras_3(keras: Any, base: Any, process_set: ProcessSet) -> Callable[..., Any]:
    @verbatim
    def call(self: Any, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        if not training or not self.trainable or process_set.included() is False:
            return base.call(self, inputs, training=training, mask=mask)
        dtype = keras.backend.result_type(inputs.dtype, "float32")
        x = keras.ops.cast(inputs, dtype)
        axes = [i for i in range(len(x.shape)) if i != self.axis % len(x.shape)]
        mean, variance = global_moments(x, axes, _mask_of(x, mask), process_set)
        mean, variance = tf.reshape(mean, [-1]), tf.reshape(variance, [-1])
        for moving, value in ((self.moving_mean, mean), (self.moving_variance, variance)):
            kept = keras.ops.cast(moving, dtype) * self.momentum
            moving.assign(kept + value * (1.0 - self.momentum))
        outputs = keras.ops.batch_normalization(
            x=x,
            mean=mean,
            variance=variance,
            axis=self.axis,
            offset=keras.ops.cast(self.beta, dtype) if self.center else None,
            scale=keras.ops.cast(self.gamma, dtype) if self.scale else None,
            epsilon=self.epsilon,
        )
        return keras.ops.cast(outputs, self.compute_dtype)

    return call


def _train_tf_keras(self: Any, inputs: Any, mask: Any, process_set: ProcessSet) -> Any:
    inputs = tf.cast(inputs, self.compute_dtype)
    x = wide(inputs)
    axes = [i for i in range(len(x.shape)) if i not in self.axis]
    mean, variance = global_moments(x, axes, _mask_of(x, mask), process_set)

    def update(moving: Any, value: Any) -> None:
        value = tf.cast(tf.reshape(value, tf.shape(moving)), moving.dtype)
        decay = tf.cast(1.0 - self.momentum, moving.dtype)
        self.add_update(lambda: moving.assign_sub((moving - value) * decay))

    update(self.moving_mean, mean)
    update(self.moving_variance, variance)

    def spread(parameter: Any) -> Any:
        if parameter is None:
            return None
        return tf.cast(tf.reshape(parameter, tf.shape(mean)), x.dtype)

    outputs = tf.nn.batch_normalization(
        x, mean, variance, spread(self.beta), spread(self.gamma), self.epsilon
    )
    outputs.set_shape(inputs.shape)
    return tf.cast(outputs, inputs.dtype)


def _call_of_tf_keras(keras: Any, base: Any, process_set: ProcessSet) -> Callable[..., Any]:
    """The `call` of a layer of tf_keras, where `training` may be a tensor."""

    @verbatim
    def call(self: Any, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        if training is None:
            training = keras.backend.learning_phase()
        if not self.trainable or process_set.included() is False:
            return base.call(self, inputs, training=training, mask=mask)
        known = tf.get_static_value(training)
        if known is None:
            return tf.cond(
                tf.cast(training, tf.bool),
                lambda: _train_tf_keras(self, inputs, mask, process_set),
                lambda: base.call(self, inputs, training=False, mask=mask),
            )
        if known:
            return _train_tf_keras(self, inputs, mask, process_set)
        return base.call(self, inputs, training=False, mask=mask)

    return call


def _library_of(base: Any) -> Any:
    """The module, `keras` or `tf_keras`, with the BatchNormalization that `base` derives from."""
    for name in ("keras", "tf_keras"):
        library = sys.modules.get(name)
        if library is not None and issubclass(base, library.layers.BatchNormalization):
            return library
    raise ValueError(f"{base!r} is not a class of BatchNormalization layers.")


_SYNCHRONIZED = "synchronized"


def _takes_synchronized(base: Any) -> bool:
    """Whether the plain class can be made with Keras' argument of that name."""
    kinds = {name: p.kind for name, p in inspect.signature(base.__init__).parameters.items()}
    return _SYNCHRONIZED in kinds or inspect.Parameter.VAR_KEYWORD in kinds.values()


# What the plain layer can do and the synchronized one cannot.
_REFUSED = ("renorm", "virtual_batch_size")


@functools.lru_cache(maxsize=32)
def synchronized(base: Any, process_set: ProcessSet = global_process_set) -> Any:
    """The class of synchronized layers for a class of BatchNormalization layers.

    Args:
      base: `keras.layers.BatchNormalization`, `tf_keras.layers.BatchNormalization`
        or a subclass of one.
      process_set: the ranks whose batches count together; other ranks have the
        plain layer.

    Returns:
      A subclass with the name and module of `base`: a model that is saved with it
      loads where tf_hvd is not installed, as the plain layer with `synchronized=True`
      (the two differ in training only). `from_config` of it, as in Keras'
      `clone_model`, makes layers for the same process set.

    Raises:
      ValueError: `base` is no such class.
    """
    keras = _library_of(base)
    keras_3 = keras.__name__ == "keras"

    def init(self: Any, fused: bool | None = False, **kwargs: Any) -> None:
        if fused or fused is None:
            raise ValueError(
                f"SyncBatchNormalization(fused={fused}): the fused kernel computes its moments "
                "by itself; leave fused= out."
            )
        for name in _REFUSED:
            if kwargs.get(name):
                raise ValueError(
                    f"SyncBatchNormalization({name}={kwargs[name]}): its moments are those of all "
                    f"ranks' whole batches; leave {name}= out."
                )
        kwargs.pop(_SYNCHRONIZED, None)  # of a config; base would ask tf.distribute
        if not keras_3:
            kwargs["fused"] = False
        super(made, self).__init__(**kwargs)

    def get_config(self: Any) -> dict[str, Any]:
        config: dict[str, Any] = super(made, self).get_config()
        if _takes_synchronized(base):
            config[_SYNCHRONIZED] = True
        return config

    make_call = _call_of_keras_3 if keras_3 else _call_of_tf_keras
    made: Any = type(
        base.__name__,
        (base,),
        {
            "__init__": init,
            "__module__": "keras.layers" if keras_3 else base.__module__,
            "__qualname__": base.__qualname__,
            "__doc__": "Normalizes over the batches of all ranks; arguments as the plain layer's.",
            "call": make_call(keras, base, process_set),
            "get_config": get_config,
        },
    )
    return made


def synchronize_again(layers: Sequence[Any], base: Any, process_set: ProcessSet) -> None:
    """Makes the batch normalizations of a loaded model what they were when it was saved, in place.

    Those with `synchronized=True` become layers over the batches of all members.
    """
    for layer in layers:
        if isinstance(layer, base) and layer.synchronized:
            plain: Any = type(layer)
            layer.__class__ = synchronized(plain, process_set)
            layer.synchronized = False


def SyncBatchNormalization(  # noqa: N802 - Horovod's name
    fused: bool | None = False, process_set: ProcessSet = global_process_set, **kwargs: Any
) -> Any:
    """A BatchNormalization layer over the batches of all ranks together.

    Of the Keras that `tf.keras` is; `synchronized` makes the class for another one.

    Args:
      fused: False; the fused kernel computes its moments by itself.
      process_set: the ranks whose batches count together; on a rank that is no
        member the layer is the plain one.
      **kwargs: the arguments of the plain layer, but for `renorm` and
        `virtual_batch_size`.

    Returns:
      A layer that is saved as the plain one with `synchronized=True`.

    Raises:
      ValueError: `fused` is True or None, or an argument that has no meaning here.
    """
    return synchronized(tf.keras.layers.BatchNormalization, process_set)(fused=fused, **kwargs)
