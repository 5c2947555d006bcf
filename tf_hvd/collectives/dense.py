"""Reductions of dense tensors: compress them, call the op, and restore the results."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tf_hvd.collectives import _calls, scales
from tf_hvd.collectives.compression import Sent, as_one_op, describe_all, send
from tf_hvd.collectives.options import ReductionOptions
from tf_hvd.core.tensorflow_hooks import executes_eagerly, on_device, to_tensor


def reduce_tensor(kind: str, tensor: Any, options: ReductionOptions, name: str | None) -> Any:
    plain = options.flat_attributes
    if (
        plain is not None
        and executes_eagerly()
        and isinstance(tensor, tf.Tensor)
        and not options.averages_in_int64(tensor.dtype)
    ):
        return _calls.run_eagerly(kind, tensor, plain, name, options.process_set)
    with on_device(options.device_dense):
        given = to_tensor(tensor)
        sent = _send(given, options)
        (reduced,) = _calls.run_reduction(
            kind,
            [sent.tensor],
            options,
            name,
            grouped=False,
            compression=sent.compression,
            wire_dtype=sent.wire_dtype,
            named_after=[given],
        )
        return sent.restore(reduced)


@dataclasses.dataclass(frozen=True)
class _Widened:
    """A compressor that only restores a tensor, which was sent as int64."""

    sent: Sent
    clamp: bool

    def decompress(self, result: Any, ctx: Any) -> Any:
        return self.sent.restore(scales.narrowed(result, self.sent.tensor.dtype, self.clamp))


def _send(tensor: Any, options: ReductionOptions) -> Sent:
    """Compress a tensor for sending, and convert it to int64 if its sum could wrap around."""
    sent = send(options.compressor, tensor)
    if not options.averages_in_int64(sent.dtype):
        return sent
    # The ranks compare this text, because all of these types are sent as int64.
    done = [sent.compression, f"{sent.dtype.name} averaged as int64"]
    return Sent(
        _Widened(sent, clamp=not options.prescale_factor == 1.0 == options.postscale_factor),
        tf.cast(sent.tensor, tf.int64),
        None,
        ", ".join(filter(None, done)),
        "",
    )


def reduce_tensors(
    kind: str,
    tensors: Mapping[int, Any],
    options: ReductionOptions,
    name: str | None,
    member_names: list[str] | None,
    step: Any = None,
) -> dict[int, Any]:
    """Reduce a group's members in one request per sent dtype; the results have the same keys."""

    def call(members: list[int], request: str | None, names: list[str]) -> list[Any]:
        travelling, wire_dtype = as_one_op([sent[i] for i in members])
        return _calls.run_reduction(
            kind,
            travelling,
            options,
            request,
            compression=describe_all([sent[i].compression for i in members]),
            wire_dtype=wire_dtype,
            member_names=names,
            step=step,
            named_after=[given[i] for i in members],
        )

    with on_device(options.device_dense):
        given = {i: to_tensor(tensor) for i, tensor in tensors.items()}
        sent = {i: _send(tensor, options) for i, tensor in given.items()}
        reduced = _calls.run_by_dtype(sent, name, member_names, call)
        return {i: one.restore(reduced[i]) for i, one in sent.items()}
