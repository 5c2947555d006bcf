"""Reductions of IndexedSlices, the gradients of embeddings and of tf.gather.

Each rank first adds up its rows that have the same index. The ranks then send either these rows or
the dense tensor, whichever moves fewer bytes; docs/sparse.md has the rule. All ranks choose the
same way.

Both ways give bitwise equal results: each index appears once, in ascending order, with the same
row as in the dense allreduce. Three things ensure this:

- Rows are summed in rank order, in the same kind of accumulator.
- The factor after the sum is computed and applied as in the kernel.
- No negative zero enters a sum, because every row has been added to a zero before.

The results may differ if a call has both a compressor and a prescale_factor. Rows are then scaled
before they are compressed, but dense tensors are compressed before they are scaled.
"""

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_hvd.collectives import _calls, reduce_ops, scales
from tf_hvd.collectives.options import ReductionOptions, resolve_sparse
from tf_hvd.collectives.row_sums import sum_by_index
from tf_hvd.core import basics, config, log
from tf_hvd.core.tensorflow_hooks import in_xla

AUTO, ROWS, DENSE = config.SPARSE.choices
# The suffix of the first message of each way. An undecided request sends the count first.
_FIRST = ("count", "dense", "values")
# Tensors of at most this size, in bytes, are always sent dense. Asking the other ranks for their
# numbers of rows would cost more than it could save.
SMALL_BYTES = 4096


@dataclasses.dataclass(frozen=True)
class _Request:
    name: str
    options: ReductionOptions
    step: Any = None  # the caller's step, an int64 scalar
    # The name of the very first request. A rank that has a dense tensor under that name gets an
    # error; "" if another request has the name.
    opening: str = ""

    def allreduce(self, tensor: Any, suffix: str, op: int, postscale: float = 1.0) -> Any:
        options = dataclasses.replace(
            self.options, op=op, prescale_factor=1.0, postscale_factor=postscale
        )
        name = self._name_of(suffix)
        (reduced,) = _calls.run_reduction(
            "Allreduce",
            [tensor],
            options,
            name,
            grouped=self.step is not None,
            compression="IndexedSlices" if name == self.opening else "",
            step=self.step,
        )
        return reduced

    def after_opening(self, result: Any) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which ops wait for the first request, which may fail on all ranks."""
        waits: contextlib.AbstractContextManager[Any]
        waits = tf.control_dependencies([result] if self.opening else [])
        return waits

    def _name_of(self, suffix: str) -> str:
        if self.opening and suffix in _FIRST:
            return self.opening
        return f"{self.name}_{suffix}"

    def reduce(self, tensor: Any, suffix: str) -> Any:
        """Reduce with the caller's options except the prescale factor: rows are already scaled."""
        return self.allreduce(tensor, suffix, self.options.op, self.options.postscale_factor)

    def allgather(self, tensor: Any, suffix: str) -> Any:
        (gathered,) = _calls.run_allgather(
            [tensor],
            self._name_of(suffix),
            self.options.process_set,
            self.options.ignore_name_scope,
            grouped=self.step is not None,
            step=self.step,
        )
        return gathered

    def finish(self, sums: Any) -> Any:
        """Scale and average sums; the results are bitwise equal to those of the kernel."""
        count = None
        if self.options.op == reduce_ops.Average:
            count = basics.size_op(self.options.set_id)
        return _scaled(sums, self.options.postscale_factor, count)


@dataclasses.dataclass(frozen=True)
class _Rows:
    """The rows that this rank contributes to a request, ready for sending, each index once."""

    request: _Request
    values: Any
    indices: Any
    context: Any  # the context for decompress
    dense_shape: Any
    way: str | None  # None: the ranks choose when the request runs

    def row_bytes(self) -> Any:
        """Return the size of a row of values in bytes: an int, or a tensor for an unknown shape."""
        count = self.values.shape[1:].num_elements()
        if count is None:
            count = tf.reduce_prod(tf.shape(self.values, out_type=tf.int64)[1:])
        return count * self.values.dtype.size

    def dense_bytes(self) -> int | None:
        """Return the size of the dense tensor and one mark per row, in bytes; None if unknown."""
        shape = None if self.dense_shape is None else tf.get_static_value(self.dense_shape)
        row = self.row_bytes()
        return int(shape[0]) * (row + 1) if shape is not None and isinstance(row, int) else None

    def ranks(self) -> int | None:
        return self.request.options.set_size


def _scaled(values: Any, factor: float, divisor: Any = None) -> Any:
    """Scale values as the kernel does (compute/scaling.h).

    Integers are scaled in float64 and truncated toward zero.
    """
    if values.dtype.is_complex:
        parts = (tf.math.real(values), tf.math.imag(values))
        return tf.complex(*(_scaled(part, factor, divisor) for part in parts))
    held = scales.type_of_products(values.dtype)
    result = tf.cast(values, held)
    if factor != 1.0:
        result *= tf.constant(scales.in_type(factor, held), held)
    if divisor is not None:
        result /= tf.cast(divisor, held)
    return tf.cast(result, values.dtype)


def _widened(values: Any, options: ReductionOptions) -> Any:
    """Cast rows to int64 if their sums, on this rank or across all ranks, could wrap around."""
    return tf.cast(values, tf.int64) if options.averages_in_int64(values.dtype) else values


def _narrowed(values: Any, dtype: tf.DType) -> Any:
    if values.dtype == dtype or dtype not in scales.NARROW:
        return values
    return scales.narrowed(values, dtype, clamp=True)


def _device_of(options: ReductionOptions) -> str:
    return options.device_sparse or "CPU:0"


def each_row_once(gradient: Any) -> Any:
    """Return IndexedSlices with each index once, in ascending order; other tensors unchanged.

    This is for IndexedSlices that are not sent to other ranks. Functions of the rows, such as a
    norm for clipping, then give the same results on one rank as on several ranks.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    values = tf.convert_to_tensor(gradient.values)
    sums, indices = sum_by_index(values, gradient.indices, ascending=True, device="")
    return tf.IndexedSlices(tf.cast(sums, values.dtype), indices, gradient.dense_shape)


def _send_rows(rows: _Rows) -> tuple[Any, Any]:
    """Send rows and indices in two allgathers, then add up all ranks' rows in rank order."""
    request = rows.request
    values = request.allgather(rows.values, "values")
    with request.after_opening(values):
        indices = request.allgather(rows.indices, "indices")
    device = _device_of(request.options)
    sums, indices = sum_by_index(values, indices, ascending=True, device=device)
    if request.options.op == reduce_ops.Average or request.options.postscale_factor != 1.0:
        sums = request.finish(sums)
    return tf.cast(sums, rows.values.dtype), indices


def _send_dense(rows: _Rows) -> tuple[Any, Any]:
    """Send the dense tensor in one allreduce, and a mark for each touched row in another."""
    request = rows.request
    count = tf.cast(rows.dense_shape[0], tf.int64)
    places = tf.cast(rows.indices, tf.int64)
    # Fails for an invalid index; the following line would ignore negative ones.
    ones = tf.ones_like(places, tf.uint8)
    marks = tf.scatter_nd(places[:, tf.newaxis], ones, count[tf.newaxis])
    dense = tf.math.unsorted_segment_sum(rows.values, places, count)
    dense = request.reduce(dense, "dense")
    if in_xla():  # the number of touched rows depends on values
        return dense, tf.range(count, dtype=rows.indices.dtype)
    with request.after_opening(dense):
        touched = tf.where(request.allreduce(marks, "touched", reduce_ops.Max))[:, 0]
    return tf.gather(dense, touched), tf.cast(touched, rows.indices.dtype)


def _exchange(rows: _Rows, is_dense: Any) -> tf.IndexedSlices:
    """Reduce one IndexedSlices in the way that `rows.way` names.

    If `rows.way` is None, `is_dense` chooses the way, and must be the same on all ranks. The
    gradient does not depend on the way. The ranks' incoming gradients are reduced like the rows,
    and each rank takes the rows with the indices that it sent.
    """
    # Passed as arguments: values read from a variable would count as inputs of the derivative.
    others = {"step": rows.request.step, "is_dense": is_dense}
    others = {name: value for name, value in others.items() if value is not None}

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def exchange(values: Any, indices: Any, *given: Any) -> Any:
        known = dict(zip(others, given, strict=True))
        request = dataclasses.replace(rows.request, step=known.get("step"))
        part = dataclasses.replace(rows, values=values, indices=indices, request=request)
        if rows.way is None:
            request = dataclasses.replace(request, opening="")  # the count had this name
            part = dataclasses.replace(part, request=request)
            sums, places = tf.cond(
                known["is_dense"], lambda: _send_dense(part), lambda: _send_rows(part)
            )
        else:
            sums, places = (_send_dense if rows.way == DENSE else _send_rows)(part)

        def gradient(upstream: Any, _: Any) -> tuple[Any, ...]:
            upstream = tf.convert_to_tensor(upstream)
            total = rows.request.reduce(upstream, "gradient")
            return (tf.gather(total, tf.searchsorted(places, indices)), None, *[None] * len(given))

        return (sums, places), gradient

    return exchange(rows.values, rows.indices, *others.values())


def _excess_bytes(rows: _Rows) -> Any:
    """Return this rank's share of the bytes that rows cost in excess of the dense tensor.

    The ranks compare only the sum of their shares, so all ranks make the same choice. An index
    outside the dense tensor selects rows, because the dense way could fail on one rank while
    the other ranks wait.
    """
    ranks = tf.cast(basics.size_op(rows.request.options.set_id), tf.int64)
    row_bytes = rows.row_bytes()
    count = tf.cast(rows.dense_shape[0], tf.int64)
    as_rows = tf.size(rows.indices, out_type=tf.int64) * (row_bytes + rows.indices.dtype.size)
    as_dense = 2 * (ranks - 1) * count * (row_bytes + 1) // (ranks * ranks)
    indices = tf.cast(rows.indices, tf.int64)
    outside = tf.reduce_any(tf.logical_or(indices < 0, indices >= count))
    return tf.where(outside, -tf.constant(1 << 60, tf.int64) // ranks, as_rows - as_dense)


def _opened(parts: Sequence[_Rows], opening: str) -> list[_Rows]:
    undecided = [i for i, part in enumerate(parts) if part.way is None]
    first = undecided[0] if undecided else 0
    return [
        dataclasses.replace(part, request=dataclasses.replace(part.request, opening=opening))
        if i == first
        else part
        for i, part in enumerate(parts)
    ]


def _choices(parts: Sequence[_Rows], name: str) -> list[Any]:
    """Return whether dense moves fewer bytes, for each part; None if its way is already decided.

    The ranks choose in one small allreduce for all parts.
    """
    open_parts = [part for part in parts if part.way is None]
    if not open_parts:
        return [None] * len(parts)
    request = dataclasses.replace(open_parts[0].request, name=name)
    excess = request.allreduce(
        tf.stack([_excess_bytes(part) for part in open_parts]), "count", reduce_ops.Sum
    )
    answers = iter(tf.unstack(excess > 0, len(open_parts)))
    return [next(answers) if part.way is None else None for part in parts]


def _static_way(rows: _Rows, wanted: str) -> str | None:
    """Return the way if facts that all ranks know at tracing time decide it; None otherwise.

    This rank's number of rows must not affect the choice, because another rank may have a
    different number.
    """
    if rows.dense_shape is None:
        return ROWS
    if wanted != AUTO:
        return wanted
    if rows.ranks() == 1:
        return ROWS
    size = rows.dense_bytes()
    if size is not None and size <= SMALL_BYTES:
        return DENSE
    return _compiled_way(rows, size) if in_xla() else None


def _compiled_way(rows: _Rows, dense_bytes: int | None) -> str:
    """Return the way that moves fewer bytes in XLA, where all ranks have equally many rows."""
    count, row_bytes, ranks = rows.values.shape[0], rows.row_bytes(), rows.ranks()
    if count is None or dense_bytes is None or ranks is None or not isinstance(row_bytes, int):
        return ROWS
    as_rows = ranks * count * (row_bytes + rows.indices.dtype.size)
    return ROWS if as_rows <= 2 * (ranks - 1) * dense_bytes // ranks else DENSE


def _rule(rows: _Rows, wanted: str) -> str:
    """Describe the choice of `_static_way`, or how the ranks will choose, in words and numbers."""
    if rows.dense_shape is None:
        return "rows, because the dense shape is unknown"
    if wanted != AUTO:
        return f"{wanted}, as requested"
    ranks, dense = rows.ranks(), rows.dense_bytes()
    if ranks == 1:
        return "rows, because there is only one rank"
    if dense is None or ranks is None:
        return "rows or dense, whichever moves fewer bytes; the sizes are known when the call runs"
    if rows.way == DENSE:
        small = dense <= SMALL_BYTES
        return f"dense, because its {dense} bytes are " + (
            f"at most {SMALL_BYTES}" if small else "fewer than those of all ranks' rows"
        )
    if rows.way == ROWS:
        return "rows, because all ranks' rows have fewer bytes than the dense tensor"
    row, index = rows.row_bytes(), rows.indices.dtype.size
    limit = 2 * (ranks - 1) * dense // ranks
    return (
        f"rows if all {ranks} ranks together have at most {limit // (row + index)} rows, "
        f"otherwise dense; a row moves {row} + {index} bytes, dense moves 2 * {ranks - 1} / "
        f"{ranks} * {dense} = {limit} bytes"
    )


def _base_name(slices: tf.IndexedSlices, name: str | None) -> str:
    if _calls.checked_name(name) is not None:
        return str(name)
    if tf.executing_eagerly():
        return "HorovodAllreduce_slices"
    return _calls._node_name("HorovodAllreduce", [slices.values])


def allreduce_slices(
    tensors: Sequence[tf.IndexedSlices],
    names: Sequence[str | None],
    options: ReductionOptions,
    *,
    step: Any = None,
    opening: str = "",
) -> list[tf.IndexedSlices]:
    """Sum or average IndexedSlices across all ranks.

    Args:
      tensors: list of IndexedSlices. They may have any number of rows, including 0, and repeated
        indices. The number of rows may differ between ranks; the other dimensions must be the
        same.
      names: for each tensor, the beginning of its requests' names; None for the default.
      options: the op is Sum or Average. Each rank applies `prescale_factor` to its rows before
        it compresses them. `device_sparse` is the device that sums the rows; "" is the CPU.
      step: see `tf_hvd.collectives.collectives.reduce_group`.
      opening: name of the first request; "" for none. A dense tensor in place of these tensors
        would have the same name. Ranks therefore get an error if some have a dense tensor and
        others have IndexedSlices.

    Returns:
      A list of IndexedSlices with the dense shapes of `tensors`. Each index that any rank has
      appears once, in ascending order.

    Raises:
      NotImplementedError: `op` is neither Sum nor Average.
    """
    options.check_slices(*tensors)
    wanted = resolve_sparse(options.sparse)
    compression = options.compressor
    parts, types = [], []
    device = _device_of(options)
    with tf.device(device):
        for slices, name in zip(tensors, names, strict=True):
            base = _base_name(slices, name)
            request = _Request(base, options, step)
            values = tf.convert_to_tensor(slices.values)
            wide = _widened(values, options)
            sums, indices = sum_by_index(wide, slices.indices, ascending=False, device=device)
            if options.prescale_factor != 1.0:
                sums = _scaled(sums, options.prescale_factor)
            compressed, context = compression.compress(tf.cast(sums, wide.dtype))
            sent = _widened(compressed, options)
            part = _Rows(request, sent, indices, context, slices.dense_shape, None)
            types.append((compressed.dtype, values.dtype))
            part = dataclasses.replace(part, way=_static_way(part, wanted))
            what, rule = f"{sent.dtype.name}{sent.shape[1:]}", _rule(part, wanted)
            log.info_once("%s: IndexedSlices of %s are sent as %s.", base, what, rule)
            parts.append(part)
        parts = _opened(parts, opening)
        choices = _choices(parts, parts[0].request.name if parts else "")
        gate = [choice for choice in choices if choice is not None]
        results = []
        for part, is_dense, (compressed_type, own_type) in zip(parts, choices, types, strict=True):
            with tf.control_dependencies(gate if opening else []):
                values, indices = _exchange(part, is_dense)
            gate = gate or [values]
            values = _narrowed(values, compressed_type)
            values = _narrowed(compression.decompress(values, part.context), own_type)
            results.append(tf.IndexedSlices(values, indices, part.dense_shape))
    return results
