"""The workloads: operations on tensors of one size or on a model's gradients."""

import dataclasses
import math
from collections.abc import Iterator

from tf_hvd.core.kinds import OF_TENSORS, Kind, Yield

Shape = tuple[int, ...]

OPERATIONS = tuple(OF_TENSORS)
GROUPED = tuple(name for name, kind in OF_TENSORS.items() if kind.grouped)
MODES = ("eager", "function", "grouped")
"""One eager call per tensor; all calls in a tf.function; one grouped call in a tf.function."""
ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}

_UNITS = {"": 0, "K": 10, "M": 20, "G": 30}


@dataclasses.dataclass(frozen=True)
class Workload:
    """One operation on tensors with given shapes. The workload is the same on all ranks."""

    name: str
    """The size as the user entered it, or the name of a gradient set."""
    operation: str
    dtype: str
    mode: str
    shapes: tuple[Shape, ...]
    """The shapes of the whole data: the result of a gather, or the input of a scatter."""
    ranks: int

    @property
    def kind(self) -> Kind:
        return OF_TENSORS[self.operation]

    @property
    def elements(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes)

    @property
    def size_bytes(self) -> int:
        """The size in bytes that nccl-tests uses to compute bandwidths."""
        return self.elements * ITEM_BYTES[self.dtype]

    @property
    def bus_factor(self) -> float:
        """The bytes sent on a link per byte of `size_bytes`, as in PERFORMANCE.md in nccl-tests."""
        others = (self.ranks - 1) / self.ranks
        return {"allreduce": 2 * others, "broadcast": 1.0}.get(self.operation, others)

    def __str__(self) -> str:
        return f"{self.operation} {self.name} {self.dtype} {self.mode}"


def parse_bytes(text: str) -> int:
    """Parse a size in bytes such as `4`, `64K` or `1M`, where K is 1024.

    Raises:
      ValueError: the text is not a size.
    """
    number, unit = text.strip().upper().removesuffix("B").removesuffix("I"), ""
    if number[-1:] in _UNITS:
        number, unit = number[:-1], number[-1:]
    if not (number.isascii() and number.isdigit() and int(number) > 0):
        raise ValueError(f"{text!r} is not a size; use, for example, 4, 64K or 16M")
    return int(number) << _UNITS[unit]


def of_size(size: str, operation: str, dtype: str, mode: str, ranks: int) -> Workload:
    """Return a workload of one tensor.

    Args:
      size: approximate size in bytes, such as `64K`. The tensor has the same number of values for
        each rank, at least one.
      operation: one of OPERATIONS.
      dtype: element type, a key of ITEM_BYTES.
      mode: one of MODES.
      ranks: number of ranks.

    Raises:
      ValueError: the size is invalid, or the operation has no grouped form.
    """
    count = max(1, parse_bytes(size) // ITEM_BYTES[dtype])
    _check_mode(operation, mode)
    return Workload(size, operation, dtype, mode, (_shared((count,), operation, ranks),), ranks)


def of_gradients(name: str, operation: str, dtype: str, mode: str, ranks: int) -> Workload:
    """Return a workload with the gradients of a model.

    For operations that need equal shares for all ranks, all values form one row.

    Args:
      name: name of the model, a key of GRADIENT_SETS.
      operation: one of OPERATIONS.
      dtype: element type, a key of ITEM_BYTES.
      mode: one of MODES.
      ranks: number of ranks.

    Raises:
      ValueError: the model is unknown, or the operation has no grouped form.
    """
    if name not in GRADIENT_SETS:
        raise ValueError(f"unknown model {name!r}; choose from {', '.join(GRADIENT_SETS)}")
    _check_mode(operation, mode)
    shapes = tuple(_shared(shape, operation, ranks) for shape in GRADIENT_SETS[name])
    return Workload(name, operation, dtype, mode, shapes, ranks)


def _shared(shape: Shape, operation: str, ranks: int) -> Shape:
    # Some operations accept tensors of any shape; the rest need equal shares for all ranks.
    if OF_TENSORS[operation].yields is Yield.WHOLE:
        return shape
    return (max(1, math.prod(shape) // ranks) * ranks,)


def _check_mode(operation: str, mode: str) -> None:
    if mode == "grouped" and operation not in GROUPED:
        raise ValueError(f"{operation} has no grouped form; choose from {', '.join(GROUPED)}")


def _with_norm(kernel: Shape) -> Iterator[Shape]:
    """Yield the shapes of a kernel and of the following normalization's scale and offset."""
    yield kernel
    yield from [(kernel[-1],)] * 2


def _with_bias(kernel: Shape) -> Iterator[Shape]:
    yield kernel
    yield (kernel[-1],)


def _resnet50() -> Iterator[Shape]:
    """Yield the shapes in He et al. 2015, table 1, for 50 layers. Convolutions have no biases."""
    yield from _with_norm((7, 7, 3, 64))
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            yield from _with_norm((1, 1, inputs, width))
            yield from _with_norm((3, 3, width, width))
            yield from _with_norm((1, 1, width, 4 * width))
            if block == 0:
                yield from _with_norm((1, 1, inputs, 4 * width))
            inputs = 4 * width
    yield from _with_bias((inputs, 1000))


def _vgg16() -> Iterator[Shape]:
    """Yield the shapes in Simonyan and Zisserman 2014, table 1, column D."""
    inputs = 3
    for width, layers in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(layers):
            yield from _with_bias((3, 3, inputs, width))
            inputs = width
    yield from _with_bias((7 * 7 * 512, 4096))
    yield from _with_bias((4096, 4096))
    yield from _with_bias((4096, 1000))


def _bert_large() -> Iterator[Shape]:
    """Yield the shapes of BERT-large uncased (Devlin et al. 2018), with a pooler but no head."""
    width, inner = 1024, 4096
    for rows in (30522, 512, 2):  # words, positions, segments
        yield (rows, width)
    yield from [(width,)] * 2
    for _ in range(24):
        for _ in range(4):  # query, key, value, output
            yield from _with_bias((width, width))
        yield from [(width,)] * 2
        yield from _with_bias((width, inner))
        yield from _with_bias((inner, width))
        yield from [(width,)] * 2
    yield from _with_bias((width, width))


GRADIENT_SETS: dict[str, tuple[Shape, ...]] = {
    "resnet50": tuple(_resnet50()),
    "vgg16": tuple(_vgg16()),
    "bert-large": tuple(_bert_large()),
}
