"""Gradients of the collectives, registered with TensorFlow at import.

All gradients follow one rule. Each rank has its own loss. A rank's gradient is the
derivative of the sum of all ranks' losses with respect to that rank's own tensor.
DistributedGradientTape and DistributedOptimizer average these gradients across the ranks.
The average is the derivative of the mean loss, whatever collectives the model contains.

Let g_r be the incoming gradient of rank r, x_r its input, n the number of ranks, and
c = prescale_factor * postscale_factor. The gradient of rank r is then::

    allreduce Sum         c * sum of all g
    allreduce Average     c / n * sum of all g
    allreduce Min, Max    c * sum of all g / m, if x_r is the extremum; m is the
                          number of ranks that hold the extremum, as in
                          tf.reduce_min. Zero if x_r is not the extremum. A
                          negative prescale_factor turns Min of x into Max.
    allreduce Product     c * sum of all g * product of prescale_factor * x_s over
                          the other ranks s
    reducescatter         as for allreduce, with the gathered rows of all g instead
                          of their sum, because only one rank has a gradient of
                          each row
    allgather             the rows of the sum of all g that correspond to x_r
    broadcast             the sum of all g on the root, zero on other ranks
    alltoall              the receivers' gradients of this rank's rows;
                          zero for rows that were not sent

Complex numbers follow TensorFlow's rule: the gradient of a holomorphic function is the
conjugate of its derivative, times the incoming gradient. Only Product needs a conjugate.
Integers and bool have no gradients. Half-precision values are multiplied in float32.

Each gradient is computed by collectives, which have gradients too. A group's gradients
form one request. All ranks must therefore compute the same gradients.

Adasum, and broadcast_ of v1 reference variables, have no gradient; TensorFlow raises
LookupError for them.

`install_as_horovod` and `tf_hvd run --as-horovod` select Horovod's versions of three
gradients for the whole process, because existing scripts were tuned with these gradients.
With n ranks in the process set, Horovod's gradients differ from the table as follows::

    allgather, broadcast  1 / n of the above: averages, not sums
    reducescatter         n times the above, for Sum and for Average

`convention()` returns the current convention. Each gradient follows the convention that is
current when the gradient is computed or added to a graph. The ranks compare their conventions
and get an error if the conventions differ. The documentation's page on differences from
Horovod lists other differences in gradients.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_hvd.collectives import _calls, reduce_ops, scales
from tf_hvd.collectives.options import ReductionOptions
from tf_hvd.core import _native, basics, log
from tf_hvd.core.convention import Convention
from tf_hvd.core.kinds import OF_TENSORS, Yield
from tf_hvd.core.process_sets import WORLD
from tf_hvd.core.tensorflow_hooks import in_xla, on_host

# The name scope of the ops that this module adds. tf_hvd.training.dataflow recognises parts of the
# backward pass by this scope, even in a function that does not mark them.
DERIVATIVE = "tf_hvd_derivative"


def _registered(op_type: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that registers an op's gradient under the name scope DERIVATIVE."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def in_scope(op: Any, *gradients: Any) -> Any:
            with tf.name_scope(DERIVATIVE):
                return function(op, *gradients)

        registered: Callable[..., Any] = tf.RegisterGradient(op_type)(in_scope)
        return registered

    return register


def convention() -> str:
    """Return the convention for this process's gradients of allgather, broadcast, reducescatter.

    Process sets and Keras optimizers also follow this convention.

    Returns:
      "tf_hvd" by default; "horovod" once one of Horovod's modules has been imported.
    """
    return Convention.name


def use_horovods() -> None:
    """Switch to Horovod's gradients of allgather, broadcast and reducescatter.

    The switch is permanent and affects the whole process, but not existing graphs.

    Raises:
      ImportError: gradients with tf_hvd's convention were already computed.
    """
    if Convention.name == "tf_hvd" and Convention.asked:
        raise ImportError(
            "horovod was imported after tf_hvd had computed a gradient of allgather, broadcast or "
            "reducescatter. Horovod's gradients differ from tf_hvd's by a factor, the number of "
            "ranks. Import horovod at the start of the program, or not at all."
        )
    Convention.name = "horovod"


def _ask_convention(what: str) -> str:
    """Return the convention for a gradient that depends on it; warn at the first such gradient."""
    first, Convention.asked = not Convention.asked, True
    silent = basics.is_initialized() and (basics.size() == 1 or basics.rank() != 0)
    if first and Convention.name == "tf_hvd" and not silent:
        log.warning(
            "The gradient of %s is the derivative of the sum of all ranks' losses. With n ranks, "
            "Horovod's gradients of allgather and broadcast are 1/n of it, and Horovod's gradient "
            "of reducescatter is n times it. If your script was tuned with Horovod's gradients, "
            "start it with tf_hvd run --as-horovod, or call tf_hvd.install_as_horovod().",
            what,
        )
    return Convention.name


def _members(count: int, convention: str) -> list[str]:
    return [f"gradient {i} by {convention}'s rule" for i in range(count)]


def _options(op: Any) -> dict[str, Any]:
    """Return the arguments of the forward call that the gradient's collectives also need."""
    return {
        "process_set": _attribute(op, "process_set_id", WORLD),
        "ignore_name_scope": _attribute(op, "ignore_name_scope", False),
    }


def _attribute(op: Any, name: str, default: Any) -> Any:
    try:
        return op.get_attr(name)
    except KeyError:
        return default


def _tensors(op: Any) -> list[Any]:
    """Return the op's inputs without the caller's step, which is the last input if given."""
    return list(op.inputs)[: len(op.outputs)]


def _as_they_travel(op: Any, tensors: list[Any]) -> list[Any]:
    """Cast tensors to the op's `wire_dtype`, which its gradient also uses."""
    wire_dtype = _attribute(op, "wire_dtype", "")
    if not wire_dtype:
        return tensors
    name = wire_dtype.decode() if isinstance(wire_dtype, bytes) else wire_dtype
    return [tf.cast(x, tf.as_dtype(name)) for x in tensors]


def _no_step(op: Any) -> list[None]:
    """Return None as the gradient of each input that `_tensors` omits."""
    return [None] * (len(op.inputs) - len(op.outputs))


def _dense(gradient: Any, like: Any) -> Any:
    """Convert an incoming gradient to a tensor; TensorFlow may pass None or float32 zeros."""
    if gradient is None:
        return tf.zeros_like(like)
    return tf.cast(tf.convert_to_tensor(gradient), like.dtype)


def _all_dense(gradients: Sequence[Any], like: Sequence[Any]) -> list[Any]:
    return [_dense(gradient, x) for gradient, x in zip(gradients, like, strict=True)]


def _times(tensor: Any, factor: float) -> Any:
    return tensor if factor == 1.0 else tensor * tf.constant(factor, tensor.dtype)


class _Reduction:
    def __init__(self, op: Any, gradients: Sequence[Any], scatters: bool) -> None:
        self.inputs = _as_they_travel(op, _tensors(op))
        self.outputs = _as_they_travel(op, list(op.outputs))
        self.gradients = _all_dense(gradients, self.outputs)
        self.kind = op.get_attr("reduce_op")
        factors = op.get_attr("prescale_factor"), op.get_attr("postscale_factor")
        exact = _attribute(op, scales.ATTRIBUTE, ())
        self.prescale, self.postscale = scales.of_attributes(*factors, exact)
        self.options = _options(op)
        self.scatters = scatters
        self.convention = _ask_convention("reducescatter") if scatters else ""

    def reduce(self, tensors: list[Any], kind: int) -> list[Any]:
        options = ReductionOptions(op=kind, **self.options)
        return _calls.run_reduction("Allreduce", tensors, options)

    def _gathered_by_xla(self, names: list[str]) -> list[Any]:
        """Gather the rows in XLA, with padding because XLA needs equally many rows on each rank."""
        ranks = len(_native.process_set_ranks(self.options["process_set"]) or [0])
        padded, places = [], []
        for gradient, whole in zip(self.gradients, self.inputs, strict=True):
            rows, own = tf.shape(whole)[0], tf.shape(gradient)[0]
            each, more = rows // ranks, rows % ranks
            most = each + tf.minimum(more, 1)
            paddings = [[0, most - own], *[[0, 0]] * (gradient.shape.rank - 1)]
            padded.append(tf.pad(gradient, paddings))
            # The first ranks have one more row. Each later rank's rows follow a padding row.
            place = tf.range(rows)
            behind = (place - more * most) // tf.maximum(each, 1)
            places.append(place + tf.maximum(behind, 0) * (most - each))
        gathered = _calls.run_allgather(padded, member_names=names, **self.options)
        return [tf.gather(total, place) for total, place in zip(gathered, places, strict=True)]

    def totals(self) -> list[Any]:
        """Return the derivative of the sum of the losses with respect to the whole results."""
        if self.scatters:
            names = _members(len(self.gradients), self.convention)
            if in_xla():
                return self._gathered_by_xla(names)
            return _calls.run_allgather(self.gradients, member_names=names, **self.options)
        return self.reduce(self.gradients, reduce_ops.Sum)

    def linear(self) -> list[Any]:
        """Return the gradient of Sum or Average."""
        if not self.scatters:
            # The kernel scales without rounding in between.
            options = ReductionOptions(
                op=self.kind,
                prescale_factor=self.prescale,
                postscale_factor=self.postscale,
                **self.options,
            )
            return _calls.run_reduction("Allreduce", self.gradients, options)
        return [self._finished(scales.wide(total), total.dtype) for total in self.totals()]

    def extremum(self) -> list[Any]:
        """Return the gradient of Min or Max: nonzero where this rank holds the extremum."""
        if self.prescale == self.postscale == 1.0 and not self.scatters:
            extrema = self.outputs
        else:
            # Scaling rounds, so results cannot be compared with inputs. A negative scale
            # before the reduction turns the smallest into the largest.
            other = reduce_ops.Max if self.kind == reduce_ops.Min else reduce_ops.Min
            extrema = self.reduce(self.inputs, self.kind if self.prescale >= 0.0 else other)
        mine = [
            tf.cast(tf.equal(x, extremum), x.dtype)
            for x, extremum in zip(self.inputs, extrema, strict=True)
        ]
        if self.scatters:
            totals, ties = self.totals(), self.reduce(mine, reduce_ops.Sum)
        else:
            sums = self.reduce(self.gradients + mine, reduce_ops.Sum)
            totals, ties = sums[: len(mine)], sums[len(mine) :]
        return [
            self._finished(
                scales.wide(total) * (scales.wide(held) / scales.wide(count)), held.dtype
            )
            for total, held, count in zip(totals, mine, ties, strict=True)
        ]

    def product(self) -> list[Any]:
        """Return the gradient of Product: the product of the other ranks' values.

        The code multiplies the other ranks' values instead of dividing the product by this rank's
        value. The gradient and its own derivatives are therefore correct where a value is zero.
        """
        flat = [tf.reshape(x, [1, -1]) for x in self.inputs]
        factors = _calls.run_allgather(flat, **self.options)
        results = []
        for x, all_x, total in zip(self.inputs, factors, self.totals(), strict=True):
            scaled = _times(scales.wide(all_x), self.prescale)
            others = tf.reduce_prod(_without_own(scaled, self.options["process_set"]), axis=0)
            others = tf.math.conj(others) if x.dtype.is_complex else others
            others = tf.reshape(others, tf.shape(x))
            results.append(self._finished(scales.wide(total) * others, x.dtype))
        return results

    def _finished(self, wide: Any, dtype: tf.DType) -> Any:
        """Apply the factors that all reduce ops have in common, and cast the gradient."""
        result = _times(wide, self.prescale * self.postscale)
        count = tf.cast(basics.size_op(self.options["process_set"]), wide.dtype)
        # Horovod multiplies this gradient by the number of ranks.
        if self.kind == reduce_ops.Average and self.convention != "horovod":
            result /= count
        if self.kind == reduce_ops.Sum and self.convention == "horovod":
            result *= count
        return tf.cast(result, dtype)


def _place(process_set: int) -> Any:
    """Return this rank's index in the set as an int32 scalar, read when the graph runs."""
    if process_set == 0:
        return basics.rank_op()
    with on_host():
        (ranks,) = _calls.run_allgather(
            [basics.rank_op()[tf.newaxis]], process_set=process_set, grouped=False
        )
    return tf.argmax(tf.equal(ranks, basics.rank_op()), output_type=tf.int32)


def _without_own(rows: Any, process_set: int) -> Any:
    """Return the rows of all ranks, with this rank's row replaced by ones."""
    own = tf.equal(tf.range(tf.shape(rows)[0]), _place(process_set))
    return tf.where(own[:, tf.newaxis], tf.ones_like(rows), rows)


def _reduction_gradients(op: Any, *gradients: Any, scatters: bool) -> list[Any]:
    reduction = _Reduction(op, gradients, scatters)
    dtypes = [x.dtype for x in _tensors(op)]
    results = _derivatives(reduction)
    return [
        *(tf.cast(x, dtype) for x, dtype in zip(results, dtypes, strict=True)),
        *_no_step(op),
    ]


def _derivatives(reduction: _Reduction) -> list[Any]:
    if reduction.kind in (reduce_ops.Sum, reduce_ops.Average):
        return reduction.linear()
    if reduction.kind in (reduce_ops.Min, reduce_ops.Max):
        return reduction.extremum()
    if reduction.kind == reduce_ops.Product:
        return reduction.product()
    name = reduce_ops.NAMES[reduction.kind]
    raise LookupError(f"{name} (reduce_op={reduction.kind}) has no gradient; use op=Average.")


for _kind in OF_TENSORS.values():
    if _kind.reduces and not _kind.has_root:
        for _op_type in _kind.functions:
            _registered(_op_type)(
                functools.partial(_reduction_gradients, scatters=_kind.yields is Yield.OWN_ROWS)
            )


def _totals(what: str, gradients: list[Any], options: dict[str, Any]) -> list[Any]:
    """Return the sums of all ranks' gradients; the averages under Horovod's convention."""
    convention = _ask_convention(what)
    kind = reduce_ops.Average if convention == "horovod" else reduce_ops.Sum
    names = _members(len(gradients), convention)
    return _calls.run_reduction(
        "Allreduce", gradients, ReductionOptions(op=kind, **options), member_names=names
    )


def _allgather_gradients(op: Any, gradients: Sequence[Any]) -> list[Any]:
    inputs, options = _tensors(op), _options(op)
    totals = _totals("allgather", _all_dense(gradients, op.outputs), options)
    # One column for each tensor, after the column of ranks.
    with on_host():
        rows = tf.stack([tf.shape(x, out_type=tf.int64)[0] for x in inputs])
        me = tf.cast(basics.rank_op(), tf.int64)
        mine = tf.concat([[me], rows], axis=0)[tf.newaxis]
        (all_rows,) = _calls.run_allgather([mine], grouped=False, **options)
        before = tf.where(all_rows[:, :1] < me, all_rows[:, 1:], 0)
        starts = tf.reduce_sum(before, axis=0)
    results = []
    for i, (x, total) in enumerate(zip(inputs, totals, strict=True)):
        # Not total[start:end], because XLA would not know the size of this slice.
        shape = tf.shape(x, out_type=tf.int64)
        begin = tf.concat([starts[i : i + 1], tf.zeros_like(shape[1:])], axis=0)
        own = tf.slice(total, begin, shape)
        own.set_shape(x.shape)
        results.append(own)
    return results


@_registered("HorovodAllgather")
def _allgather_gradient(op: Any, gradient: Any) -> Any:
    return _allgather_gradients(op, [gradient])[0]


@_registered("HorovodGroupedAllgather")
def _grouped_allgather_gradient(op: Any, *gradients: Any) -> list[Any]:
    return _allgather_gradients(op, gradients) + _no_step(op)


@_registered("HorovodBroadcast")
def _broadcast_gradient(op: Any, gradient: Any) -> Any:
    total = _totals("broadcast", [_dense(gradient, op.inputs[0])], _options(op))[0]
    at_root = tf.equal(basics.rank_op(), op.get_attr("root_rank"))
    # Selected, not multiplied by zero, so that an infinity does not become NaN on other ranks.
    return tf.where(at_root, total, tf.zeros_like(total))


@_registered("HorovodAlltoall")
def alltoall_gradient(
    op: Any, grad_wrt_output: Any, grad_wrt_received_splits: Any
) -> tuple[Any, None]:
    """Return the gradient of alltoall by sending rows back to the ranks that they came from.

    Args:
      op: the forward op.
      grad_wrt_output: gradient of the op's first output, the received rows.
      grad_wrt_received_splits: gradient of the op's second output, the numbers of rows; unused.

    Returns:
      A tuple: the gradient of the sent rows, and None for the splits.
    """
    x, (output, received_splits) = op.inputs[0], op.outputs
    # XLA compiles only equal parts, so equal parts come back.
    splits = received_splits[:0] if in_xla() else received_splits
    sent, _ = _calls.run_alltoall(_dense(grad_wrt_output, output), splits, **_options(op))
    shape = tf.shape(x, out_type=tf.int64)
    kept = shape[:1] - tf.shape(sent, out_type=tf.int64)[:1]
    zeros = tf.zeros(tf.concat([kept, shape[1:]], axis=0), x.dtype)
    result = tf.concat([sent, zeros], axis=0)
    result.set_shape(x.shape)
    return result, None


for _scalar in (
    "HorovodRank",
    "HorovodSize",
    "HorovodLocalRank",
    "HorovodLocalSize",
    "HorovodCrossRank",
    "HorovodCrossSize",
    "HorovodProcessSetIncluded",
    "HorovodBarrier",
):
    tf.no_gradient(_scalar)
