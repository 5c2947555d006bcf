"""Divide gradients into buckets. One request reduces each bucket.

The division depends only on the program, not on timing. It is therefore the same on all ranks and
in every run, and so are the bits of the sums.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_hvd.core.tensorflow_hooks import tf_variable

# For each request, the indices of its gradients in the list.
Plan = tuple[tuple[int, ...], ...]
# A dense gradient's dtype name, and its size in bytes; None if unknown.
Spec = tuple[str, int | None]


def spec_of(gradient: Any, variable: Any) -> Spec | None:
    """Return a gradient's dtype name and size; None for missing gradients and IndexedSlices."""
    if gradient is None or isinstance(gradient, tf.IndexedSlices):
        return None
    count = gradient.shape.num_elements()
    if count is None and hasattr(variable, "shape"):
        count = tf.TensorShape(variable.shape).num_elements()
    return gradient.dtype.name, None if count is None else count * gradient.dtype.size


# A bucket is sent when its last gradient is ready, while other gradients are still being
# computed. A single bucket of all gradients would overlap with nothing. A bucket below the
# minimum size takes about as long to send as a bucket of that size.
_LEAST_BUCKETS = 8
_LEAST_BYTES = 1 << 20


def plan_buckets(specs: Sequence[Spec | None], most_bytes: int) -> Plan:
    """Divide gradients into buckets of one dtype, from the last gradient to the first.

    A bucket has at most an eighth of all bytes, or 1 MiB if that is more, and never more than
    `most_bytes`. A larger gradient, or a gradient of unknown size, gets its own bucket. The bucket
    with the first gradient is cut into halves repeatedly, down to 1 MiB.

    Args:
      specs: dtype and size of each gradient; None for gradients that are in no bucket.
      most_bytes: maximum size of a bucket in bytes.

    Returns:
      The buckets in the order in which their gradients are computed.
    """
    sizes = [spec[1] or 0 if spec else 0 for spec in specs]
    limit = min(most_bytes, max(_LEAST_BYTES, sum(sizes) // _LEAST_BUCKETS))
    buckets: list[list[int]] = []
    current: dict[str, tuple[list[int], int]] = {}  # by dtype: the open bucket, its bytes
    for index in range(len(specs) - 1, -1, -1):
        spec = specs[index]
        if spec is None:
            continue
        dtype, size = spec
        if size is None or size > limit:
            buckets.append([index])
            continue
        bucket, used = current.get(dtype, ([], 0))
        if not bucket or used + size > limit:
            bucket, used = [], 0
            buckets.append(bucket)
        bucket.append(index)
        current[dtype] = (bucket, used + size)
    if buckets:
        last = min(buckets, key=min)
        buckets.remove(last)
        buckets += _halves(last, sizes)
    return tuple(tuple(bucket) for bucket in sorted(buckets, reverse=True))


def _halves(bucket: list[int], sizes: Sequence[int]) -> list[list[int]]:
    """Divide the bucket that becomes ready at the end of the backward pass.

    No computation overlaps with this bucket, so the step ends sooner if the bucket is small. In
    simulations (docs/scaling.md), the division saves 1 to 2 % of a step of a convolutional network.
    """
    left = sum(sizes[index] for index in bucket)
    cut: list[list[int]] = [[]]
    used = 0
    for index in bucket:
        if left > _LEAST_BYTES and used >= left / 2:
            left -= used
            used = 0
            cut.append([])
        cut[-1].append(index)
        used += sizes[index]
    return cut


def plan_chunks(specs: Sequence[Spec | None], chunks: int) -> Plan:
    """Divide gradients into `chunks` groups with about equally many gradients, split by dtype."""
    indices = [i for i, spec in enumerate(specs) if spec is not None]
    short, longer = divmod(len(indices), chunks)
    runs, start = [], 0
    for chunk in range(chunks):
        end = start + short + (1 if chunk < longer else 0)
        runs.append(indices[start:end])
        start = end
    return _by_dtype(specs, runs)


def plan_groups(
    specs: Sequence[Spec | None], variables: Sequence[Any], groups: Sequence[Sequence[Any]]
) -> Plan:
    """Divide gradients into the groups of variables that the user listed, split by dtype.

    Each variable that is not in any list forms its own group. Variables are compared by identity,
    because names need not be unique.
    """
    group_of: dict[int, int] = {}
    for number, group in enumerate(groups):
        for variable in group:
            if group_of.setdefault(id(tf_variable(variable)), number) != number:
                raise ValueError(
                    f"groups=: the variable {variable.name} is in two groups. List each variable "
                    "once."
                )
    runs: list[list[int]] = [[] for _ in groups]
    for index, variable in enumerate(variables):
        if specs[index] is None:
            continue
        found = group_of.get(id(tf_variable(variable)))
        if found is None:
            runs.append([index])
        else:
            runs[found].append(index)
    return _by_dtype(specs, runs)


def _by_dtype(specs: Sequence[Spec | None], runs: Sequence[Sequence[int]]) -> Plan:
    plan: list[tuple[int, ...]] = []
    for run in runs:
        parts: dict[str, list[int]] = {}
        for index in run:
            spec = specs[index]
            assert spec is not None
            parts.setdefault(spec[0], []).append(index)
        plan.extend(tuple(part) for part in parts.values())
    return tuple(plan)
