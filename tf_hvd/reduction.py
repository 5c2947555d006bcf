"""The one path that gradients take: used by the optimizer and by the tape.

The whole gradient list is known here, so it is cut into buckets by a rule that
depends on the program alone: from the last gradient to the first (the order in
which a backward pass makes them), each dtype for itself, up to a size. One
HorovodGroupedAllreduce is issued for each bucket. What is reduced together is
thus the same on all ranks and in every run, and so are the bits of the result.
IndexedSlices are in no bucket; they are one grouped call of their own.
"""

import dataclasses
import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_hvd import basics, collectives, config
from tf_hvd._sources import member_name
from tf_hvd.buckets import Plan, plan_buckets, plan_chunks, plan_groups, spec_of
from tf_hvd.compression import Compression, Compressor
from tf_hvd.powersgd import PowerSGD
from tf_hvd.process_sets import ProcessSet, global_process_set, id_of
from tf_hvd.sparse import resolve_sparse


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
    sparse: str | None


def _reduce_planned(
    settings: _Settings, plan: Plan, names: tuple[str, ...], gradients: Sequence[Any]
) -> list[Any]:
    """Issues one request for each bucket, and one grouped call for all IndexedSlices."""
    results = list(gradients)
    slices = tuple(i for i, g in enumerate(gradients) if isinstance(g, tf.IndexedSlices))
    runs = [(f"bucket_{number}", bucket) for number, bucket in enumerate(plan)]
    with tf.name_scope(settings.scope):
        for name, members in [*runs, ("slices", slices)]:
            reduced = collectives.grouped_allreduce(
                [gradients[i] for i in members],
                device_dense=settings.device_dense,
                device_sparse=settings.device_sparse,
                compression=settings.compression,
                op=settings.op,
                prescale_factor=settings.prescale_factor,
                postscale_factor=settings.postscale_factor,
                process_set=settings.process_set,
                ignore_name_scope=settings.ignore_name_scope,
                name=name,
                member_names=[names[i] for i in members],
                sparse=settings.sparse,
            )
            for index, tensor in zip(members, reduced, strict=True):
                results[index] = tensor
    return results


@functools.lru_cache(maxsize=64)
def _compiled(
    settings: _Settings, plan: Plan, names: tuple[str, ...]
) -> Callable[[list[Any]], list[Any]]:
    """`_reduce_planned` as one tf.function: in it the buckets travel side by side."""
    function: Callable[[list[Any]], list[Any]] = tf.function(
        functools.partial(_reduce_planned, settings, plan, names),
        autograph=False,
        reduce_retracing=True,
    )
    return function


def _reduce_by_powersgd(
    powersgd: PowerSGD, settings: _Settings, names: tuple[str, ...], gradients: Sequence[Any]
) -> list[Any]:
    """Dense gradients are approximated, IndexedSlices travel as they always do."""

    def average(tensors: list[Any], step: str) -> list[Any]:
        with tf.name_scope(settings.scope):
            return collectives.grouped_allreduce(
                tensors,
                op=basics.Average,
                device_dense=settings.device_dense,
                process_set=settings.process_set,
                ignore_name_scope=settings.ignore_name_scope,
                name=f"powersgd_{step}",
            )

    is_sparse = [isinstance(gradient, tf.IndexedSlices) for gradient in gradients]
    dense = [None if s else g for s, g in zip(is_sparse, gradients, strict=True)]
    slices = [g if s else None for s, g in zip(is_sparse, gradients, strict=True)]
    results = powersgd.average(dense, average)
    if any(is_sparse):
        reduced = _reduce_planned(settings, (), names, slices)
        results = [r if s else g for s, r, g in zip(is_sparse, reduced, results, strict=True)]
    return results


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
      takes_adasum: whether the caller knows what to do with op=Adasum.
      The others: see `tf_hvd.DistributedGradientTape`.

    Raises:
      ValueError: no such op; `gradient_predivide_factor` with an op other than
        Average; `groups` is neither a positive number nor lists of variables.
      NotImplementedError: Adasum without `takes_adasum`.
    """

    def __init__(
        self,
        name: str,
        device_dense: str = "",
        device_sparse: str = "",
        compression: type[Compressor] | PowerSGD = Compression.none,
        sparse_as_dense: bool = False,
        op: int = basics.Average,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        groups: Any = None,
        process_set: ProcessSet = global_process_set,
        sparse: str | None = None,
        takes_adasum: bool = False,
    ) -> None:
        if collectives.check_op(op) == basics.Adasum and not takes_adasum:
            raise NotImplementedError(
                "op=Adasum combines updates, which Keras optimizers do not show; use op=Average, "
                "an optimizer of tf.compat.v1.train, or DistributedGradientTape(op=Adasum)."
            )
        resolve_sparse(sparse)
        if gradient_predivide_factor != 1.0 and op != basics.Average:
            raise ValueError("gradient_predivide_factor needs op=Average.")
        self._powersgd: PowerSGD | None = None
        if isinstance(compression, PowerSGD):
            if op != basics.Average or gradient_predivide_factor != 1.0:
                raise ValueError("PowerSGD needs op=Average and gradient_predivide_factor=1.")
            self._powersgd, compression = compression, Compression.none
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
            sparse=sparse,
        )

    @property
    def process_set(self) -> ProcessSet:
        """The ranks that take part."""
        return self._settings.process_set

    def reduce(
        self, gradients: Sequence[Any], variables: Sequence[Any], generic_names: bool = False
    ) -> list[Any]:
        """Reduced gradients, in the order given; None stays None.

        In eager mode one compiled function does all of it. On a rank that is no
        member of the process set, and where the set has one member, gradients are
        returned as they are, and nothing is sent.

        Args:
          gradients: tensors, IndexedSlices and None. Which of them are None must
            be the same on all ranks.
          variables: what they belong to, one for each gradient; gives the shape
            where the gradient's is not known, the members of `groups`, and the
            names by which the ranks see that they reduce the same.
          generic_names: leave the graph's name scope out of the requests' names.

        Raises:
          ValueError: the process set is not registered.
        """
        gradients = [self._prepared(g, v) for g, v in zip(gradients, variables, strict=True)]
        if all(gradient is None for gradient in gradients) or self.is_alone():
            return gradients
        plan = self._plan(gradients, variables)
        names = tuple(member_name(variable) for variable in variables)
        settings = dataclasses.replace(self._settings, ignore_name_scope=generic_names)
        if self._powersgd is not None:
            return _reduce_by_powersgd(self._powersgd, settings, names, gradients)
        if tf.executing_eagerly():
            return list(_compiled(settings, plan, names)(gradients))
        return _reduce_planned(settings, plan, names, gradients)

    def is_alone(self) -> bool:
        """Whether there is nobody to reduce with; False before `init`: the ops say so."""
        process_set = self.process_set
        id_of(process_set)
        return process_set.included() is False or process_set.size() == 1

    def _prepared(self, gradient: Any, variable: Any) -> Any:
        """Dense if that was asked for, and with a dense shape if there is one to be had."""
        if not isinstance(gradient, tf.IndexedSlices):
            return gradient
        if gradient.dense_shape is None and hasattr(variable, "shape"):
            shape = tf.TensorShape(variable.shape)
            if shape.is_fully_defined():
                shape = tf.constant(shape.as_list(), tf.int64)
                gradient = tf.IndexedSlices(gradient.values, gradient.indices, shape)
        return tf.convert_to_tensor(gradient) if self._sparse_as_dense else gradient

    def _plan(self, gradients: Sequence[Any], variables: Sequence[Any]) -> Plan:
        specs = [spec_of(g, v) for g, v in zip(gradients, variables, strict=True)]
        if self._groups is None:
            return plan_buckets(specs, config.bucket_bytes())
        if isinstance(self._groups, int):
            return plan_chunks(specs, self._groups)
        return plan_groups(specs, variables, self._groups)
