"""Which gradients travel together: decided by the program alone, not by time.

Thus it is the same on all ranks and in every run, and so are the bits of the sums.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_hvd.core.tensorflow_hooks import tf_variable

# Indices into the gradient list, those of one request together.
Plan = tuple[tuple[int, ...], ...]
# dtype's name and size in bytes of a dense gradient; size None if not known.
Spec = tuple[str, int | None]


def spec_of(gradient: Any, variable: Any) -> Spec | None:
    """What is known of a gradient; None for those that are in no bucket."""
    if gradient is None or isinstance(gradient, tf.IndexedSlices):
        return None
    count = gradient.shape.num_elements()
    if count is None and hasattr(variable, "shape"):
        count = tf.TensorShape(variable.shape).num_elements()
    return gradient.dtype.name, None if count is None else count * gradient.dtype.size


# A bucket leaves when its last gradient is there, while the others are still
# computed: one of all gradients would hide nothing. Below the least size, sending
# it costs hardly less than sending more.
_LEAST_BUCKETS = 8
_LEAST_BYTES = 1 << 20


def plan_buckets(specs: Sequence[Spec | None], most_bytes: int) -> Plan:
    """Cuts gradients into buckets: last to first, per dtype, each an eighth of all.

    Buckets have up to that many bytes, or 1 MiB if that is more, and in no case more
    than `most_bytes`; but a larger gradient, or one of unknown size, has a bucket of its own.
    The one with the first gradient is cut in halves, and the half with that one again, down to
    1 MiB.

    Returns:
      Buckets, ordered by their first (that is, last) gradient.
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
    """Cuts the bucket that is full when the backward pass ends.

    Nothing hides it any more: the less is left for then, the sooner the step ends. By simulation
    (docs/scaling.md) that is 1 to 2 % of a step of a convolutional network.
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
    """Cuts gradients into `chunks` runs of nearly equal length, split by dtype."""
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
    """Groups as the user listed them; variables in no list make groups of one.

    Variables are compared by identity: names need not be unique.
    """
    group_of: dict[int, int] = {}
    for number, group in enumerate(groups):
        for variable in group:
            if group_of.setdefault(id(tf_variable(variable)), number) != number:
                raise ValueError(f"groups=: {variable.name} is in two groups.")
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
