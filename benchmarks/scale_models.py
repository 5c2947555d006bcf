"""The computation of a model's training step, and the times at which its gradients are ready.

For simulate_scale.py. The time of a layer comes from a roofline (Williams, Waterman and
Patterson, "Roofline: an insightful visual performance model for multicore architectures", 2009).
It is the longer of two times: the layer's multiplications and additions at the device's peak
rate, and its bytes at the memory's rate. The backward pass takes twice as long per layer as the
forward pass: it computes the gradients of the inputs and those of the variables. The result
is scaled to the measured time of a step, so only the ratio of the device's two rates matters.
"""

import dataclasses
import functools
import os
import types

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


@dataclasses.dataclass(frozen=True)
class Device:
    """Peak rates: floating point operations and bytes of memory per second."""

    flops: float
    bytes: float


# From NVIDIA's data sheet of the Tesla P100 for PCIe, in single precision.
P100 = Device(9.3e12, 732e9)


@dataclasses.dataclass(frozen=True)
class Gradient:
    """The elements of one variable, and when its gradient is ready, as a fraction of a step."""

    name: str
    elements: int
    ready: float


@functools.cache
def gradients(model: str, device: Device = P100, batch: int = 64) -> tuple[Gradient, ...]:
    """The gradients of a model of keras.applications, in the order of its variables.

    Args:
      model: the model's name, for example "VGG16".
      device: the device that computes it.
      batch: images per rank.
    """
    import keras

    named = getattr(keras.applications, model, None)
    if not isinstance(named, types.FunctionType):
        raise SystemExit(f"keras.applications has no model {model}")
    network = named(weights=None)
    layers = [(layer, _seconds(layer, device, batch)) for layer in network.layers]
    forward = sum(seconds for _, seconds in layers)
    # With the head's variables first, in the order of the backward pass.
    now, ready = forward, {}
    for layer, seconds in reversed(layers):
        now += 2 * seconds
        ready.update((id(each), now / (3 * forward)) for each in layer.trainable_variables)
    return tuple(
        Gradient(each.path.replace(" ", "_"), int(each.shape.num_elements()), ready[id(each)])
        for each in network.trainable_variables
    )


def _seconds(layer, device: Device, batch: int) -> float:
    """Time of a layer's forward pass."""
    tensors = [*_shapes(layer.input), *_shapes(layer.output)]
    moved = 4 * batch * sum(map(_elements, tensors))
    moved += 4 * sum(_elements(each.shape) for each in layer.weights)
    return max(_operations(layer, batch) / device.flops, moved / device.bytes)


def _operations(layer, batch: int) -> float:
    """Multiplications and additions of a layer; layers that only move bytes have none."""
    kernel = getattr(layer, "kernel", None)
    if kernel is None:
        return 0.0
    positions = _elements(layer.output.shape[1:-1])  # 1 for a dense layer
    return 2.0 * batch * positions * _elements(kernel.shape)


def _shapes(tensors):
    return [each.shape for each in (tensors if isinstance(tensors, list) else [tensors])]


def _elements(shape) -> int:
    """Number of elements, without the batch."""
    count = 1
    for size in shape:
        count *= size or 1
    return count
