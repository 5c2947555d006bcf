"""What a training step of a model computes, and when its gradients are there.

For simulate_scale.py. A layer takes what a roofline says (Williams, Waterman and Patterson,
"Roofline: an insightful visual performance model for multicore architectures", 2009): its
multiplications and additions at the device's peak, or its bytes at the memory's rate, whichever is
longer. The backward pass takes each layer twice as long as the forward pass: once for the
gradients of its inputs, and once for those of its variables. What comes of it is scaled so that a
step takes as long as it was measured to: of the device only the ratio of the two rates counts.
"""

import dataclasses
import functools
import os
import types

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


@dataclasses.dataclass(frozen=True)
class Device:
    """Peak rates: floating point operations, and bytes of memory, per second."""

    flops: float
    bytes: float


# NVIDIA's data sheet of the Tesla P100 for PCIe, in single precision.
P100 = Device(9.3e12, 732e9)


@dataclasses.dataclass(frozen=True)
class Gradient:
    """Of one variable: its elements, and when it is there, as a part of a step's computation."""

    name: str
    elements: int
    ready: float


@functools.cache
def gradients(model: str, device: Device = P100, batch: int = 64) -> tuple[Gradient, ...]:
    """Those of a model of keras.applications, in the order of its variables.

    Args:
      model: as "VGG16".
      device: what it is computed on.
      batch: images of one rank.
    """
    import keras

    named = getattr(keras.applications, model, None)
    if not isinstance(named, types.FunctionType):
        raise SystemExit(f"keras.applications has no model {model}")
    network = named(weights=None)
    layers = [(layer, _seconds(layer, device, batch)) for layer in network.layers]
    forward = sum(seconds for _, seconds in layers)
    # With the head's variables first, as the backward pass goes.
    now, ready = forward, {}
    for layer, seconds in reversed(layers):
        now += 2 * seconds
        ready.update((id(each), now / (3 * forward)) for each in layer.trainable_variables)
    return tuple(
        Gradient(each.path.replace(" ", "_"), int(each.shape.num_elements()), ready[id(each)])
        for each in network.trainable_variables
    )


def _seconds(layer, device: Device, batch: int) -> float:
    """Of a layer's forward pass."""
    tensors = [*_shapes(layer.input), *_shapes(layer.output)]
    moved = 4 * batch * sum(map(_elements, tensors))
    moved += 4 * sum(_elements(each.shape) for each in layer.weights)
    return max(_operations(layer, batch) / device.flops, moved / device.bytes)


def _operations(layer, batch: int) -> float:
    """Multiplications and additions of a layer; those of what only moves bytes do not count."""
    kernel = getattr(layer, "kernel", None)
    if kernel is None:
        return 0.0
    positions = _elements(layer.output.shape[1:-1])  # 1 of a dense layer
    return 2.0 * batch * positions * _elements(kernel.shape)


def _shapes(tensors):
    return [each.shape for each in (tensors if isinstance(tensors, list) else [tensors])]


def _elements(shape) -> int:
    """Without the batch."""
    count = 1
    for size in shape:
        count *= size or 1
    return count
