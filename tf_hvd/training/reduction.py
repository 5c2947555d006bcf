"""Reduce lists of gradients, for the optimizers and the tape.

A list of gradients is divided into buckets by a rule that depends only on the program. A bucket has
gradients of one dtype and a limited size. Buckets are filled from the last gradient to the first,
which is the order in which a backward pass computes them.

Each bucket is one HorovodGroupedAllreduce. The gradients that are reduced together are therefore
the same on all ranks and in every run, and so are the bits of the result. IndexedSlices are in no
bucket, and are reduced by a separate grouped call.
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
# The name scope of gradients that need no reduction, because the set has only one rank.
ALONE = "tf_hvd_alone"


def _telling(names: Sequence[str], plan: Plan, slices: Sequence[int]) -> list[str]:
    """Return gradient names for errors; the first name in a bucket also describes the whole list.

    The ranks' lists may differ in another bucket, or in gradients outside all buckets. The
    description then differs even in buckets with the same gradients, so the ranks get an error.
    """
    told = list(names)
    beside = ", ".join(names[i] or f"gradient {i}" for i in slices)
    for number, bucket in enumerate(plan):
        words = [f"bucket {number + 1} of {len(plan)}"] if len(plan) > 1 else []
        words += [f"with IndexedSlices of {beside}"] if beside else []
        if words:
            told[bucket[0]] = f"{names[bucket[0]]} ({', '.join(words)})"
    return told


def _slices(gradients: Sequence[Any]) -> tuple[int, ...]:
    return tuple(i for i, g in enumerate(gradients) if isinstance(g, tf.IndexedSlices))


def _stamp(step: Any, listed: Any) -> Any:
    """Return the numbers that ranks compare for a request: the step or _NO_STEP, and the list."""
    # Everything that XLA compiles is on one device.
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
    """Reduce each bucket by one request, and all IndexedSlices by one grouped call.

    The call for IndexedSlices comes after the first bucket, which describes the IndexedSlices in
    its name. If the bucket fails, no rank waits for the IndexedSlices. This costs little, because
    embeddings are a model's first layers, and their gradients are computed last.

    `listed` has the number of the source list of each bucket, and then of the IndexedSlices.
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
    """Create a tf.function of `_reduce_planned`, which sends the buckets concurrently."""
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
    """Average dense gradients approximately by PowerSGD, and reduce IndexedSlices as usual."""
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
    """Mark gradients that need no reduction, so that the guard does not refuse them."""

    def marked(gradient: Any) -> Any:
        if not isinstance(gradient, tf.IndexedSlices):
            return None if gradient is None else tf.identity(gradient)
        values = tf.identity(gradient.values)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)

    with tf.name_scope(ALONE):
        return [marked(gradient) for gradient in gradients]


class GradientReducer:
    """The reduction of the gradients of one optimizer or tape across all ranks.

    Args:
      name: name of the optimizer or tape, for the name scope of its collectives.
      options: options of the reduction.
    """

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
        """Return the reduced gradients in the same order; None stays None.

        In eager mode one compiled function reduces all of them.

        On a rank outside the process set, or in a set with one rank, nothing is sent. Gradients are
        then returned unchanged, except that each index of IndexedSlices occurs only once.

        Args:
          gradients: tensors, IndexedSlices and None. The same gradients must be None on all ranks.
          variables: the sources, one for each gradient. They provide shapes that are unknown in a
            gradient, the members of `groups`, and the names that ranks compare.
          generic_names: whether to omit the graph's name scope from the names of requests.
          step: number of applied updates, an int64 scalar. Ranks at different steps get an error.
            Default None, or negative: ranks do not compare steps.
          local: variables with gradients that are not reduced. None (default) for no variables.

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
                # It may be intended, for example if each half of a job trains one model.
                log.warn_once(
                    "this rank trains on its own, because it is not in %s. An optimizer or tape of "
                    "that set leaves this rank's gradients unchanged.",
                    self.process_set,
                )
            gradients = [each_row_once(gradient) for gradient in gradients]
            unseen = tf.executing_eagerly() or basics.size() == 1
            return gradients if unseen else _marked(gradients)
        plan = self._plan(gradients, variables)
        names = tuple(member_name(variable) for variable in variables)
        # The plan includes `groups`; the cache must not keep the variables in it.
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
        """Return whether this rank has no other ranks to reduce with; False before `init`."""
        process_set = self.process_set
        id_of(process_set)
        return process_set.included() is False or process_set.size() == 1

    def _prepared(self, gradient: Any, variable: Any) -> Any:
        """Add the dense shape to IndexedSlices if it is known, and make them dense if requested."""
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
