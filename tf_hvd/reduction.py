"""The one path that gradients take: used by the optimizer and by the tape.

The whole gradient list is known here, so it is cut into buckets by a rule that
depends on the program alone: from the last gradient to the first (the order in
which a backward pass makes them), each dtype for itself, up to a size. One
HorovodGroupedAllreduce is issued for each bucket. What is reduced together is
thus the same on all ranks and in every run, and so are the bits of the result.
"""

import dataclasses
import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_hvd import basics, collectives, config
from tf_hvd.compression import Compression, Compressor
from tf_hvd.process_sets import ProcessSet, global_process_set

# Indices into the gradient list, those of one request together.
Plan = tuple[tuple[int, ...], ...]
# dtype's name and size in bytes of a dense gradient; size None if not known.
Spec = tuple[str, int | None]


def tf_variable(variable: Any) -> Any:
    """The tf.Variable of a Keras 3 variable; anything else is returned as it is."""
    inner = getattr(variable, "value", None)
    return inner if isinstance(inner, tf.Variable) else variable


def plan_buckets(specs: Sequence[Spec | None], limit: int) -> Plan:
    """Cuts gradients into buckets: last to first, per dtype, up to `limit` bytes.

    Args:
      specs: one for each gradient; None for those that are not in a bucket.
      limit: bytes per bucket. A larger gradient, or one of unknown size, has a
        bucket of its own.

    Returns:
      Buckets, ordered by their first (that is, last) gradient.
    """
    buckets: list[list[int]] = []
    current: dict[str, tuple[list[int], int]] = {}  # by dtype: the open bucket, its bytes
    for index in range(len(specs) - 1, -1, -1):
        spec = specs[index]
        if spec is None:
            continue
        dtype, known = spec
        size = limit if known is None else known
        bucket, used = current.get(dtype, ([], 0))
        if not bucket or used + size > limit:
            bucket, used = [], 0
            buckets.append(bucket)
        bucket.append(index)
        current[dtype] = (bucket, used + size)
    return tuple(tuple(bucket) for bucket in buckets)


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

    Raises:
      ValueError: a variable is in two groups.
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


@dataclasses.dataclass(frozen=True)
class _Settings:
    """How a planned list is reduced. Hashable: key of the compiled functions."""

    scope: str
    op: int
    compression: type[Compressor]
    prescale_factor: float
    postscale_factor: float
    device_dense: str
    device_sparse: str
    process_set: ProcessSet
    ignore_name_scope: bool


def _reduce_planned(settings: _Settings, plan: Plan, gradients: Sequence[Any]) -> list[Any]:
    """Issues one request for each bucket and two allgathers for each IndexedSlices."""
    results = list(gradients)
    options: dict[str, Any] = {
        "compression": settings.compression,
        "op": settings.op,
        "prescale_factor": settings.prescale_factor,
        "postscale_factor": settings.postscale_factor,
        "process_set": settings.process_set,
        "ignore_name_scope": settings.ignore_name_scope,
    }
    with tf.name_scope(settings.scope):
        for number, bucket in enumerate(plan):
            reduced = collectives.grouped_allreduce(
                [gradients[i] for i in bucket],
                device_dense=settings.device_dense,
                name=f"bucket_{number}",
                **options,
            )
            for index, tensor in zip(bucket, reduced, strict=True):
                results[index] = tensor
        for index, gradient in enumerate(gradients):
            if isinstance(gradient, tf.IndexedSlices):
                results[index] = collectives.allreduce(
                    gradient,
                    device_sparse=settings.device_sparse,
                    name=f"slices_{index}",
                    **options,
                )
    return results


@functools.lru_cache(maxsize=64)
def _compiled(settings: _Settings, plan: Plan) -> Callable[[list[Any]], list[Any]]:
    """`_reduce_planned` as one tf.function: in it the buckets travel side by side."""
    function: Callable[[list[Any]], list[Any]] = tf.function(
        functools.partial(_reduce_planned, settings, plan), autograph=False, reduce_retracing=True
    )
    return function


def _resolve_groups(groups: Any, num_groups: int) -> Any:
    """None, a positive number, or a list of lists of variables.

    Raises:
      ValueError: anything else.
    """
    if num_groups:
        warnings.warn("num_groups= is deprecated; use groups=.", DeprecationWarning, stacklevel=4)
        groups = num_groups if groups is None else groups
    if groups is None:
        return None
    if isinstance(groups, int):
        if isinstance(groups, bool) or groups <= 0:
            raise ValueError(f"groups={groups!r} must be a positive number or lists of variables.")
        return groups
    if not isinstance(groups, (list, tuple)) or not all(
        isinstance(group, (list, tuple)) for group in groups
    ):
        raise ValueError("groups= must be a positive number or a list of lists of variables.")
    return groups


class GradientReducer:
    """Reduces the gradients of one optimizer or tape over all ranks.

    Args:
      name: name scope of the requests is `<name>_Allreduce`.
      The others: see `tf_hvd.DistributedGradientTape`.

    Raises:
      ValueError: no such op; `gradient_predivide_factor` with an op other than
        Average; `groups` is neither a positive number nor lists of variables.
      NotImplementedError: Adasum.
    """

    def __init__(
        self,
        name: str,
        device_dense: str = "",
        device_sparse: str = "",
        compression: type[Compressor] = Compression.none,
        sparse_as_dense: bool = False,
        op: int = basics.Average,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        groups: Any = None,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        collectives.check_op(op)
        if gradient_predivide_factor != 1.0 and op != basics.Average:
            raise ValueError("gradient_predivide_factor needs op=Average.")
        self._sparse_as_dense = sparse_as_dense
        self._groups = _resolve_groups(groups, num_groups)
        self._settings = _Settings(
            scope=f"{name}_Allreduce",
            op=op,
            compression=compression,
            prescale_factor=1.0 / gradient_predivide_factor,
            postscale_factor=gradient_predivide_factor,
            device_dense=device_dense,
            device_sparse=device_sparse,
            process_set=process_set,
            ignore_name_scope=False,
        )

    @property
    def process_set(self) -> ProcessSet:
        """The ranks that take part."""
        return self._settings.process_set

    def reduce(
        self, gradients: Sequence[Any], variables: Sequence[Any], generic_names: bool = False
    ) -> list[Any]:
        """Reduced gradients, in the order given; None stays None.

        In eager mode one compiled function does all of it.

        Args:
          gradients: tensors, IndexedSlices and None. Which of them are None must
            be the same on all ranks.
          variables: what they belong to, one for each gradient; gives the shape
            where the gradient's is not known, and the members of `groups`.
          generic_names: leave the graph's name scope out of the requests' names.
        """
        gradients = [self._densify(gradient) for gradient in gradients]
        plan = self._plan(gradients, variables)
        if not plan and not any(isinstance(g, tf.IndexedSlices) for g in gradients):
            return gradients
        settings = dataclasses.replace(self._settings, ignore_name_scope=generic_names)
        if tf.executing_eagerly():
            return list(_compiled(settings, plan)(gradients))
        return _reduce_planned(settings, plan, gradients)

    def _densify(self, gradient: Any) -> Any:
        if self._sparse_as_dense and isinstance(gradient, tf.IndexedSlices):
            return tf.convert_to_tensor(gradient)
        return gradient

    def _plan(self, gradients: Sequence[Any], variables: Sequence[Any]) -> Plan:
        specs = [_spec(g, v) for g, v in zip(gradients, variables, strict=True)]
        if self._groups is None:
            return plan_buckets(specs, config.bucket_bytes())
        if isinstance(self._groups, int):
            return plan_chunks(specs, self._groups)
        return plan_groups(specs, variables, self._groups)


def _spec(gradient: Any, variable: Any) -> Spec | None:
    if gradient is None or isinstance(gradient, tf.IndexedSlices):
        return None
    count = gradient.shape.num_elements()
    if count is None and hasattr(variable, "shape"):
        count = tf.TensorShape(variable.shape).num_elements()
    return gradient.dtype.name, None if count is None else count * gradient.dtype.size
