"""SyncBatchNormalization: batch normalization over the batches on all ranks.

Each rank sends four numbers per channel: the number n of its elements, `n * mean`, `n * mean^2`,
and the sum of squared deviations from its mean. One allreduce sends these 4 * channels numbers. The
ranks' numbers are combined with the parallel formula by Chan, Golub and LeVeque ("Updating Formulae
and a Pairwise Algorithm for Computing Sample Variances", 1979). The numbers are float64, so the
result is as exact as if one rank had all of the data. Batches may differ in size, and may be empty.

The layers have their own `call` for training, which uses public Keras functions. Outside training
they use the plain layer's `call`. Their config contains `synchronized=True`, which is Keras' own
argument for such a layer. `synchronize_again` uses this argument to find the layers in a loaded
model.
"""

import functools
import inspect
import sys
import typing
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_hvd.collectives import collectives, reduce_ops
from tf_hvd.collectives.scales import wide
from tf_hvd.core.process_sets import ProcessSet, check_kind, global_process_set
from tf_hvd.core.tensorflow_hooks import verbatim

__all__ = ["SyncBatchNormalization"]


def global_moments(
    inputs: Any,
    axes: Sequence[int],
    mask: Any = None,
    process_set: ProcessSet = global_process_set,
    total_of: Callable[[Any], Any] | None = None,
) -> tuple[Any, Any]:
    """Return the mean and variance of a tensor over `axes` and across all ranks.

    This function is differentiable. Gradients of a rank's loss also reach the inputs on other
    ranks.

    Args:
      inputs: floating-point tensor. Its size along `axes` may differ between ranks, and may be 0.
      axes: dimensions to reduce.
      mask: tensor that can be broadcast to the shape of `inputs`. Elements are ignored where the
        mask is false. Default None: no element is ignored.
      process_set: the ranks with inputs; all of them must call this function.
      total_of: computes the sum of a tensor across the ranks. Default: an allreduce.

    Returns:
      Two tensors with the same dtype as `inputs`, in which the reduced dimensions have size 1. The
      variance is the population variance, without Bessel's correction.
    """
    wide = tf.float64
    kept = tf.broadcast_to(True if mask is None else tf.cast(mask, tf.bool), tf.shape(inputs))
    # Ignored elements have no effect, even if they are NaN.
    inputs = tf.where(kept, inputs, tf.zeros_like(inputs))
    counts = tf.reduce_sum(tf.cast(kept, inputs.dtype), axes, keepdims=True)
    mean = tf.math.divide_no_nan(tf.reduce_sum(inputs, axes, keepdims=True), counts)
    deviations = tf.where(kept, inputs - mean, tf.zeros_like(inputs))
    squares = tf.reduce_sum(deviations * deviations, axes, keepdims=True)

    count = tf.cast(counts, wide)
    weighted = count * tf.cast(mean, wide)
    parts = [weighted, weighted * tf.cast(mean, wide), tf.cast(squares, wide), count]
    if total_of is None:
        total_of = functools.partial(
            collectives.allreduce, op=reduce_ops.Sum, process_set=process_set
        )
    totals = total_of(tf.stack(parts))
    sums, square_sums, deviation_sums, total = tf.unstack(totals)
    mean = tf.math.divide_no_nan(sums, total)
    spread = tf.math.divide_no_nan(deviation_sums + square_sums, total) - mean * mean
    variance = tf.maximum(spread, tf.zeros_like(spread))
    return tf.cast(mean, inputs.dtype), tf.cast(variance, inputs.dtype)


def _mask_of(inputs: Any, mask: Any) -> Any:
    """The mask with an additional last dimension for the channels; None without a mask."""
    if mask is None:
        return None
    if len(mask.shape) != len(inputs.shape) - 1:
        raise ValueError(
            f"the mask has the shape {mask.shape}, but the inputs have the shape {inputs.shape}. "
            "Pass a mask with one dimension fewer than the inputs."
        )
    return tf.expand_dims(mask, -1)


def train_keras_3(
    keras: Any,
    layer: Any,
    inputs: Any,
    mask: Any,
    process_set: ProcessSet = global_process_set,
    total_of: Callable[[Any], Any] | None = None,
) -> Any:
    """The training outputs of a Keras 3 BatchNormalization layer, normalized across all ranks."""
    dtype = keras.backend.result_type(inputs.dtype, "float32")
    x = keras.ops.cast(inputs, dtype)
    axes = [i for i in range(len(x.shape)) if i != layer.axis % len(x.shape)]
    mean, variance = global_moments(x, axes, _mask_of(x, mask), process_set, total_of)
    mean, variance = tf.reshape(mean, [-1]), tf.reshape(variance, [-1])
    for moving, value in ((layer.moving_mean, mean), (layer.moving_variance, variance)):
        kept = keras.ops.cast(moving, dtype) * layer.momentum
        moving.assign(kept + value * (1.0 - layer.momentum))
    outputs = keras.ops.batch_normalization(
        x=x,
        mean=mean,
        variance=variance,
        axis=layer.axis,
        offset=keras.ops.cast(layer.beta, dtype) if layer.center else None,
        scale=keras.ops.cast(layer.gamma, dtype) if layer.scale else None,
        epsilon=layer.epsilon,
    )
    return keras.ops.cast(outputs, layer.compute_dtype)


def _call_of_keras_3(keras: Any, base: Any) -> Callable[..., Any]:
    @verbatim
    def call(self: Any, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        process_set = self._process_set
        if not training or not self.trainable or process_set.included() is False:
            return base.call(self, inputs, training=training, mask=mask)
        return train_keras_3(keras, self, inputs, mask, process_set)

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


def _call_of_tf_keras(keras: Any, base: Any) -> Callable[..., Any]:
    """The `call` of a synchronized tf_keras layer, which accepts a tensor as `training`."""

    @verbatim
    def call(self: Any, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        process_set = self._process_set
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
    """The module, `keras` or `tf_keras`, with the BatchNormalization class of `base`."""
    for name in ("keras", "tf_keras"):
        library = sys.modules.get(name)
        if library is not None and issubclass(base, library.layers.BatchNormalization):
            return library
    raise ValueError(
        f"{base!r} is not a class of BatchNormalization layers. Pass the BatchNormalization of "
        "Keras 3 or tf_keras, or a subclass."
    )


_SYNCHRONIZED = "synchronized"


def _takes_synchronized(base: Any) -> bool:
    """Whether the plain layer's class accepts Keras' argument `synchronized`."""
    kinds = {name: p.kind for name, p in inspect.signature(base.__init__).parameters.items()}
    return _SYNCHRONIZED in kinds or inspect.Parameter.VAR_KEYWORD in kinds.values()


# Arguments of the plain layer that the synchronized layer does not support.
_REFUSED = ("renorm", "virtual_batch_size")


class _Synchronized:
    """A BatchNormalization layer that normalizes over the batches on all ranks.

    The class is for the Keras version that `tf.keras` refers to. If a program imports `keras` or
    `tf_keras` directly, use `SyncBatchNormalization.of(keras)` or
    `SyncBatchNormalization.of(tf_keras)`.

    The layer is saved as Keras' plain BatchNormalization with `synchronized=True`. A saved model
    can be loaded without tf_hvd.

    Args:
      fused: must be False (default), because the fused kernel cannot use moments computed across
        all ranks.
      process_set: the ranks that normalize together. On other ranks the layer behaves like Keras'
        BatchNormalization. Default None: all ranks.
      **kwargs: arguments for Keras' BatchNormalization, except `renorm` and
        `virtual_batch_size`.

    Raises:
      ValueError: `fused` is True or None, or an argument is not supported.

    Example:
      layer = hvd.SyncBatchNormalization(momentum=0.9)
      layer(tf.ones([4, 3]) * hvd.rank(), training=True)
    """

    _process_set: Any = global_process_set
    _is_keras_3 = True

    def __init__(
        self, fused: bool | None = False, *, process_set: ProcessSet | None = None, **kwargs: Any
    ) -> None:
        if not isinstance(fused, bool | None):
            raise ValueError(
                f"SyncBatchNormalization({fused!r}): the first argument is `fused`, as in Horovod, "
                "and must be False. Pass axis= and other arguments by keyword."
            )
        if fused or fused is None:
            raise ValueError(
                f"SyncBatchNormalization(fused={fused}): the fused kernel cannot use moments "
                "computed across all ranks. Remove the `fused` argument."
            )
        for name in _REFUSED:
            if kwargs.get(name):
                raise ValueError(
                    f"SyncBatchNormalization({name}={kwargs[name]}): this argument is not "
                    "supported, because moments are computed over the whole batches of all ranks. "
                    f"Remove the `{name}` argument."
                )
        kwargs.pop(_SYNCHRONIZED, None)  # from a config; the base class would use tf.distribute
        if not self._is_keras_3:
            kwargs["fused"] = False
        super().__init__(**kwargs)
        if process_set is not None:
            check_kind(process_set)
            kind: Any = type(self)
            self.__class__ = _for_set(kind, process_set)

    def get_config(self) -> dict[str, Any]:
        """Return the plain layer's config, plus `synchronized=True` if its class accepts it."""
        config: dict[str, Any] = super().get_config()  # type: ignore[misc]
        plain = next(kind for kind in type(self).__mro__ if not issubclass(kind, _Synchronized))
        if _takes_synchronized(plain):
            config[_SYNCHRONIZED] = True
        return config

    @staticmethod
    def of(keras: Any) -> Any:
        """Return the class for a Keras module, `keras` or `tf_keras`."""
        return synchronized(keras.layers.BatchNormalization)


@functools.lru_cache(maxsize=32)
def _for_set(kind: Any, process_set: ProcessSet) -> Any:
    """Return the subclass of `kind` for a process set.

    Because the process set is part of the class, `from_config` and `clone_model` keep it.
    """
    if kind._process_set is process_set:
        return kind
    same = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    made = type(kind.__name__, (kind,), {**same, "_process_set": process_set})
    saving = _library_of(kind).saving
    package, registered, name = saving.get_registered_name(kind).partition(">")
    if registered:  # a layer is saved with the registered name, and loads as the class `kind`
        saving.register_keras_serializable(package, name)(made)
        saving.register_keras_serializable(package, name)(kind)
    return made


@functools.lru_cache(maxsize=32)
def synchronized(base: Any, process_set: ProcessSet = global_process_set) -> Any:
    """Return the synchronized counterpart of a BatchNormalization layer class.

    Args:
      base: `keras.layers.BatchNormalization`, `tf_keras.layers.BatchNormalization`, or a subclass
        of either class.
      process_set: the ranks that normalize together.

    Returns:
      A subclass of `base` with the same name.

    Raises:
      ValueError: `base` is not a BatchNormalization layer class.
    """
    keras = _library_of(base)
    keras_3 = keras.__name__ == "keras"
    made = type(
        base.__name__,
        (_Synchronized, base),
        {
            "__module__": "keras.layers" if keras_3 else base.__module__,
            "__qualname__": base.__qualname__,
            "__doc__": _Synchronized.__doc__,
            "_is_keras_3": keras_3,
            "call": (_call_of_keras_3 if keras_3 else _call_of_tf_keras)(keras, base),
        },
    )
    return _for_set(made, process_set)


def synchronize_again(layers: Sequence[Any], base: Any, process_set: ProcessSet) -> None:
    """Turn a loaded model's layers with `synchronized=True` into synchronized layers, in place.

    As before saving, the layers then normalize over the batches on all ranks in the process set.
    """
    for layer in layers:
        if isinstance(layer, base) and layer.synchronized:
            plain: Any = type(layer)
            layer.__class__ = synchronized(plain, process_set)
            layer.synchronized = False


if typing.TYPE_CHECKING:
    import keras as _keras

    class SyncBatchNormalization(_Synchronized, _keras.layers.BatchNormalization):  # type: ignore[misc]
        pass

else:

    def __getattr__(name: str) -> Any:
        if name == "SyncBatchNormalization":
            return _Synchronized.of(tf.keras)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
