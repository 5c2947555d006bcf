"""The one path that gradients take: used by the optimizer and by the tape.

The whole gradient list is known here, so it is cut into buckets by a rule that
depends on the program alone: from the last gradient to the first (the order in
which a backward pass makes them), each dtype for itself, up to a size. One
HorovodGroupedAllreduce is issued for each bucket. What is reduced together is
thus the same on all ranks and in every run, and so are the bits of the result.
IndexedSlices are in no bucket; they are one grouped call of their own.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

import tensorflow as tf

from tf_hvd.collectives import collectives
from tf_hvd.collectives.compression import Compression
from tf_hvd.collectives.options import ReductionOptions
from tf_hvd.collectives.powersgd import PowerSGD
from tf_hvd.collectives.sources import list_of
from tf_hvd.collectives.sparse import each_row_once
from tf_hvd.core import basics, config, log
from tf_hvd.core.process_sets import ProcessSet, id_of, registration_of
from tf_hvd.core.tensorflow_hooks import in_xla, member_name, on_host, retraced
from tf_hvd.training._local import LocalVariables
from tf_hvd.training.buckets import Plan, plan_buckets, plan_chunks, plan_groups, spec_of

_NO_STEP = -1
# The name scope of gradients that were to be reduced and stay, in a set without others.
ALONE = "tf_hvd_alone"


def _telling(names: Sequence[str], plan: Plan, slices: Sequence[int]) -> list[str]:
    """The names, of which the first of each bucket tells what else is in the list.

    So ranks whose lists differ in what is in no bucket, or is in another one, get a
    decision on the buckets that they have in common.
    """
    told = list(names)
    beside = ", ".join(names[i] or f"gradient {i}" for i in slices)
    for number, bucket in enumerate(plan):
        words = [f"bucket {number + 1} of {len(plan)}"] if len(plan) > 1 else []
        words += [f"beside IndexedSlices of {beside}"] if beside else []
        if words:
            told[bucket[0]] = f"{names[bucket[0]]} ({', '.join(words)})"
    return told


def _slices(gradients: Sequence[Any]) -> tuple[int, ...]:
    return tuple(i for i, g in enumerate(gradients) if isinstance(g, tf.IndexedSlices))


def _stamp(step: Any, listed: Any) -> Any:
    """What the ranks compare beside a request: the step, if known, and the list of sources."""
    # What XLA compiles is all on one device.
    with contextlib.nullcontext() if in_xla() else on_host():
        known = tf.constant(_NO_STEP, tf.int64) if step is None else step
        return tf.stack([known, listed])


def _reduce_planned(
    scope: str,
    options: ReductionOptions,
    plan: Plan,
    names: tuple[str, ...],
    gradients: Sequence[Any],
    step: Any,
    listed: Sequence[Any],
) -> list[Any]:
    """Issues one request for each bucket, and one grouped call for all IndexedSlices.

    The latter after the first bucket, which tells of them: where it gets no decision to
    run, no rank waits for the rest. (Embeddings are a model's first layers, so that their
    gradients come last anyway.) `listed` has the number of the list of sources of each bucket, and
    of the IndexedSlices.
    """
    results = list(gradients)
    slices = _slices(gradients)
    told = _telling(names, plan, slices)

    def reduce(name: str, members: Sequence[int], number: Any) -> None:
        reduced = collectives.reduce_group(
            [gradients[i] for i in members],
            options,
            name=name,
            member_names=[told[i] for i in members],
            step=_stamp(step, number),
            opening="" if plan else "bucket_0",
        )
        for index, tensor in zip(members, reduced, strict=True):
            results[index] = tensor

    with tf.name_scope(scope):
        for number, bucket in enumerate(plan):
            reduce(f"bucket_{number}", bucket, listed[number])
        if slices:
            with tf.control_dependencies([results[i] for i in plan[0]] if plan else []):
                reduce("slices", slices, listed[-1])
    return results


@functools.lru_cache(maxsize=64)
def _compiled(
    scope: str,
    options: ReductionOptions,
    plan: Plan,
    names: tuple[str, ...],
    _registration: tuple[int, int | None],
) -> Callable[[list[Any], Any, list[Any]], list[Any]]:
    """`_reduce_planned` as one tf.function: in it the buckets travel side by side."""
    function: Callable[[list[Any], Any, list[Any]], list[Any]] = retraced(
        tf.function(
            functools.partial(_reduce_planned, scope, options, plan, names),
            autograph=False,
            reduce_retracing=True,
        )
    )
    return function


def _reduce_by_powersgd(
    powersgd: PowerSGD,
    scope: str,
    options: ReductionOptions,
    gradients: Sequence[Any],
    variables: Sequence[Any],
    step: Any,
) -> list[Any]:
    """Dense gradients are approximated, IndexedSlices travel as they always do."""
    exact = dataclasses.replace(options, compression=Compression.none)
    listed = list_of(variables)

    def average(tensors: list[Any], stage: str) -> list[Any]:
        with tf.name_scope(scope):
            return collectives.reduce_group(tensors, exact, name=f"powersgd_{stage}", step=stamp)

    is_sparse = [isinstance(gradient, tf.IndexedSlices) for gradient in gradients]
    dense = [None if s else g for s, g in zip(is_sparse, gradients, strict=True)]
    stamp = _stamp(step, listed.tensor(tuple(i for i, g in enumerate(dense) if g is not None)))
    slices = [g if s else None for s, g in zip(is_sparse, gradients, strict=True)]
    results = powersgd.average(dense, variables, average)
    if any(is_sparse):
        names = tuple(member_name(variable) for variable in variables)
        numbers = [listed.tensor(_slices(slices))]
        reduced = _reduce_planned(scope, exact, (), names, slices, step, numbers)
        results = [r if s else g for s, r, g in zip(is_sparse, reduced, results, strict=True)]
    return results


def _marked(gradients: Sequence[Any]) -> list[Any]:
    """The gradients of a rank that has nobody to reduce with, for the guard to see it."""

    def marked(gradient: Any) -> Any:
        if not isinstance(gradient, tf.IndexedSlices):
            return None if gradient is None else tf.identity(gradient)
        values = tf.identity(gradient.values)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)

    with tf.name_scope(ALONE):
        return [marked(gradient) for gradient in gradients]


class GradientReducer:
    """Reduces the gradients of one optimizer or tape over all ranks, in a scope of its name."""

    def __init__(self, name: str, options: ReductionOptions) -> None:
        self._scope = f"{name}_Allreduce"
        self._options = options

    @property
    def op(self) -> int:
        return self._options.op

    @property
    def process_set(self) -> ProcessSet:
        return cast(ProcessSet, self._options.process_set)

    def reduce(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        generic_names: bool = False,
        step: Any = None,
        local: LocalVariables | None = None,
    ) -> list[Any]:
        """Reduced gradients, in the order given; None stays None.

        In eager mode one compiled function does all of it. On a rank that is no
        member of the process set, and where the set has one member, nothing is sent:
        gradients are returned as they are, IndexedSlices with each index once.

        Args:
          gradients: tensors, IndexedSlices and None. Which of them are None must
            be the same on all ranks.
          variables: what they belong to, one for each gradient; gives the shape
            where the gradient's is not known, the members of `groups`, and the
            names by which the ranks see that they reduce the same.
          generic_names: leave the graph's name scope out of the requests' names.
          step: how many updates were applied, an int64 scalar: ranks at different steps
            get an error. None for a caller that does not know, negative for none.
          local: variables whose gradients stay on this rank.

        Raises:
          ValueError: the process set is not registered.
        """
        reduce = functools.partial(self._reduce_all, generic_names, step)
        if local is None:
            return reduce(gradients, variables)
        return local.reduce_others(reduce, self.process_set, gradients, variables)

    def _reduce_all(
        self,
        generic_names: bool,
        step: Any,
        gradients: Sequence[Any],
        variables: Sequence[Any],
    ) -> list[Any]:
        gradients = [self._prepared(g, v) for g, v in zip(gradients, variables, strict=True)]
        if all(gradient is None for gradient in gradients):
            return gradients
        if self.is_alone():
            if self.process_set.included() is False:
                # It may be meant, as where each half of a job trains a model.
                log.warn_once(
                    "this rank is not in %s: an optimizer or tape of that set leaves its "
                    "gradients as they are, and this rank trains alone.",
                    self.process_set,
                )
            gradients = [each_row_once(gradient) for gradient in gradients]
            unseen = tf.executing_eagerly() or basics.size() == 1
            return gradients if unseen else _marked(gradients)
        plan = self._plan(gradients, variables)
        names = tuple(member_name(variable) for variable in variables)
        # The plan has what `groups` says; the cache must not keep the variables that are in it.
        options = dataclasses.replace(self._options, ignore_name_scope=generic_names, groups=None)
        if isinstance(options.compression, PowerSGD):
            return _reduce_by_powersgd(
                options.compression, self._scope, options, gradients, variables, step
            )
        listed = list_of(variables)
        parts = (*plan, _slices(gradients))
        numbers = [listed.tensor(part) for part in parts if part]
        if tf.executing_eagerly():
            registration = registration_of(self.process_set)
            reduce = _compiled(self._scope, options, plan, names, registration)
            return list(reduce(gradients, step, numbers))
        return _reduce_planned(self._scope, options, plan, names, gradients, step, numbers)

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
        return tf.convert_to_tensor(gradient) if self._options.sparse_as_dense else gradient

    def _plan(self, gradients: Sequence[Any], variables: Sequence[Any]) -> Plan:
        specs = [spec_of(g, v) for g, v in zip(gradients, variables, strict=True)]
        groups = self._options.groups
        if groups is None:
            return plan_buckets(specs, config.BUCKET_BYTES.read())
        if isinstance(groups, int):
            return plan_chunks(specs, groups)
        return plan_groups(specs, variables, groups)
