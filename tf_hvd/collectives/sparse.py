"""Everything about IndexedSlices, the gradients of embeddings and of tf.gather.

Rows with the same index are added up on each rank first. What is then sent is
either the rows or the whole tensor with zeros between them, whichever moves
fewer bytes; docs/sparse.md has the rule. All ranks take the same way, and the
result has the same bits on both: each index once, in ascending order, and its
row is that of the dense allreduce. (Not with compression and a prescale_factor
together: rows are scaled and then compressed, dense tensors compressed and then
scaled.) Three things make it so: rows are summed in the order of the ranks from the
same kind of accumulator, the factor behind the sum is formed and applied as the
kernel does it, and no negative zero enters a sum (every row has been added to a
zero before).
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
# What each way sends first; of an undecided one it is the count alone.
_FIRST = ("count", "dense", "values")
# A tensor of at most so many bytes is sent dense at once: asking the other ranks
# how many rows they have would cost more than the answer could save.
SMALL_BYTES = 4096


@dataclasses.dataclass(frozen=True)
class _Request:
    name: str
    options: ReductionOptions
    step: Any = None  # where the caller is, an int64 scalar
    # The name of the first request of all, by which a rank that has a dense tensor
    # under it gets a decision; "" if another one has it.
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
        """Nothing is sent beside the first request of all: it may get a decision not to run."""
        waits: contextlib.AbstractContextManager[Any]
        waits = tf.control_dependencies([result] if self.opening else [])
        return waits

    def _name_of(self, suffix: str) -> str:
        if self.opening and suffix in _FIRST:
            return self.opening
        return f"{self.name}_{suffix}"

    def reduce(self, tensor: Any, suffix: str) -> Any:
        """As asked for, but for the factor before it, which the rows have already."""
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
        """Scales and averages, to the bit as the kernel does."""
        count = None
        if self.options.op == reduce_ops.Average:
            count = basics.size_op(self.options.set_id)
        return _scaled(sums, self.options.postscale_factor, count)


@dataclasses.dataclass(frozen=True)
class _Rows:
    """One rank's part of a request: rows as they are sent, each index once."""

    request: _Request
    values: Any
    indices: Any
    context: Any  # what decompress needs
    dense_shape: Any
    way: str | None  # None: the ranks choose when it runs

    def row_bytes(self) -> Any:
        """Bytes of one row of values: an int, or a tensor where the shape is not known."""
        count = self.values.shape[1:].num_elements()
        if count is None:
            count = tf.reduce_prod(tf.shape(self.values, out_type=tf.int64)[1:])
        return count * self.values.dtype.size

    def dense_bytes(self) -> int | None:
        """Bytes of the dense tensor and of a mark for each of its rows, where known."""
        shape = None if self.dense_shape is None else tf.get_static_value(self.dense_shape)
        row = self.row_bytes()
        return int(shape[0]) * (row + 1) if shape is not None and isinstance(row, int) else None

    def ranks(self) -> int | None:
        return self.request.options.set_size


def _scaled(values: Any, factor: float, divisor: Any = None) -> Any:
    """The kernel's scaling (compute/scaling.h): integers in float64, then toward zero."""
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
    """Rows in the type that they travel in: their sums, on this rank too, must not wrap around."""
    return tf.cast(values, tf.int64) if options.averages_in_int64(values.dtype) else values


def _narrowed(values: Any, dtype: tf.DType) -> Any:
    if values.dtype == dtype or dtype not in scales.NARROW:
        return values
    return scales.narrowed(values, dtype, clamp=True)


def _device_of(options: ReductionOptions) -> str:
    return options.device_sparse or "CPU:0"


def each_row_once(gradient: Any) -> Any:
    """IndexedSlices that stay on this rank, as if they had been reduced; others as they are.

    A function of the rows, such as a norm that clips, or Keras 3's square of each of them,
    is then the same on one rank and on several.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    values = tf.convert_to_tensor(gradient.values)
    sums, indices = sum_by_index(values, gradient.indices, ascending=True, device="")
    return tf.IndexedSlices(tf.cast(sums, values.dtype), indices, gradient.dense_shape)


def _send_rows(rows: _Rows) -> tuple[Any, Any]:
    """Two allgathers, after which every rank adds up all rows in the order of the ranks."""
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
    """An allreduce of the whole tensor, and one of a mark for each row that is touched."""
    request = rows.request
    count = tf.cast(rows.dense_shape[0], tf.int64)
    places = tf.cast(rows.indices, tf.int64)
    # Fails where an index is not one; the next line would leave out negative ones.
    ones = tf.ones_like(places, tf.uint8)
    marks = tf.scatter_nd(places[:, tf.newaxis], ones, count[tf.newaxis])
    dense = tf.math.unsorted_segment_sum(rows.values, places, count)
    dense = request.reduce(dense, "dense")
    if in_xla():  # how many rows are touched depends on values
        return dense, tf.range(count, dtype=rows.indices.dtype)
    with request.after_opening(dense):
        touched = tf.where(request.allreduce(marks, "touched", reduce_ops.Max))[:, 0]
    return tf.gather(dense, touched), tf.cast(touched, rows.indices.dtype)


def _exchange(rows: _Rows, is_dense: Any) -> tf.IndexedSlices:
    """Reduces one IndexedSlices; `is_dense`, equal on all ranks, decides where `rows.way` is None.

    Its derivative does not depend on the way: the ranks' incoming gradients,
    reduced as the rows were, of which this rank takes the rows that it sent.
    """
    # As arguments: what comes from a variable otherwise is taken for one of the derivative's.
    others = {"step": rows.request.step, "is_dense": is_dense}
    others = {name: value for name, value in others.items() if value is not None}

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def exchange(values: Any, indices: Any, *given: Any) -> Any:
        known = dict(zip(others, given, strict=True))
        request = dataclasses.replace(rows.request, step=known.get("step"))
        part = dataclasses.replace(rows, values=values, indices=indices, request=request)
        if rows.way is None:
            request = dataclasses.replace(request, opening="")  # the count had it
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
    """How many more bytes rows move than dense: this rank's share of it.

    Only the sum of the ranks' shares is looked at, so that all of them decide
    alike, whatever each believes. An index that the dense tensor does not have
    decides for rows: in the dense way it could only fail on one rank, while the
    others wait.
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
    """For each part: None, or where the ranks must choose, whether dense is shorter.

    One small allreduce for all of them.
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
    """The way, where what all ranks know when the program is traced decides it.

    The number of this rank's rows, which may be known too, must not: another
    rank's may be another.
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
    """The shorter way for XLA, where all ranks must have as many rows as this one."""
    count, row_bytes, ranks = rows.values.shape[0], rows.row_bytes(), rows.ranks()
    if count is None or dense_bytes is None or ranks is None or not isinstance(row_bytes, int):
        return ROWS
    as_rows = ranks * count * (row_bytes + rows.indices.dtype.size)
    return ROWS if as_rows <= 2 * (ranks - 1) * dense_bytes // ranks else DENSE


def _rule(rows: _Rows, wanted: str) -> str:
    """What `_static_way` decided, or how the ranks will, in words and numbers."""
    if rows.dense_shape is None:
        return "rows, for the dense shape is not known"
    if wanted != AUTO:
        return f"{wanted}, as asked for"
    ranks, dense = rows.ranks(), rows.dense_bytes()
    if ranks == 1:
        return "rows, because there is only one rank"
    if dense is None or ranks is None:
        return "rows or dense, as is shorter; the numbers are known when it runs"
    if rows.way == DENSE:
        small = dense <= SMALL_BYTES
        return f"dense, for these {dense} bytes are " + (
            f"at most {SMALL_BYTES}" if small else "fewer than all ranks' rows have"
        )
    if rows.way == ROWS:
        return "rows, for all ranks together have fewer bytes of them than the dense tensor"
    row, index = rows.row_bytes(), rows.indices.dtype.size
    limit = 2 * (ranks - 1) * dense // ranks
    return (
        f"rows while all {ranks} ranks together have at most {limit // (row + index)} of them, "
        f"else dense: a row moves {row} + {index} bytes, dense 2 * {ranks - 1} / {ranks} * "
        f"{dense} = {limit}"
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
    """Sums or averages of IndexedSlices over all ranks.

    Args:
      tensors: may have any number of rows on each rank, also none, and any
        index several times; the rest of their shapes is the same on all ranks.
      names: one for each, or None; the requests' names begin with it.
      options: the op is Sum or Average. `prescale_factor` is applied on this rank;
        then the rows are compressed. `device_sparse` "" is the CPU; on a GPU the
        rows are summed there.
      step: see `tf_hvd.collectives.collectives.reduce_group`.
      opening: what a dense tensor in their place would be called: the name of the
        first request, so that ranks of which some have the one and some the other
        get a decision. "" if there is no such name.

    Returns:
      IndexedSlices with each index that a rank has once, in ascending order,
      and the dense shapes of `tensors`.

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
