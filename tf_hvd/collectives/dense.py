"""Dense tensors through an op that reduces: compressed, sent, and restored."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tf_hvd.collectives import _calls
from tf_hvd.collectives.compression import as_one_op, describe_all, send
from tf_hvd.collectives.options import ReductionOptions
from tf_hvd.core.tensorflow_hooks import executes_eagerly, on_device, to_tensor


def reduce_tensor(kind: str, tensor: Any, options: ReductionOptions, name: str | None) -> Any:
    """The result for one tensor or variable; `kind` is that of `_calls.run_reduction`."""
    plain = options.attributes_in_turn
    if plain is not None and executes_eagerly() and isinstance(tensor, tf.Tensor):
        return _calls.run_eagerly(kind, tensor, plain, name, options.process_set)
    with on_device(options.device_dense):
        sent = send(options.compressor, to_tensor(tensor))
        (reduced,) = _calls.run_reduction(
            kind,
            [sent.tensor],
            options,
            name,
            grouped=False,
            compression=sent.compression,
            wire_dtype=sent.wire_dtype,
        )
        return sent.restore(reduced)


def reduce_tensors(
    kind: str,
    tensors: Mapping[int, Any],
    options: ReductionOptions,
    name: str | None,
    member_names: list[str] | None,
    step: Any = None,
) -> dict[int, Any]:
    """The results for the members of a group; one request for each dtype that travels.

    Args:
      kind: see `_calls.run_reduction`.
      tensors: tensors and variables, by their number in the user's list.
      options: the caller's.
      name: see `_calls.run_by_dtype`.
      member_names: see there.
      step: see `_calls.run_reduction`.

    Returns:
      The results by the same numbers.
    """

    def call(members: list[int], request: str | None, names: list[str]) -> list[Any]:
        given, wire_dtype = as_one_op([sent[i] for i in members])
        return _calls.run_reduction(
            kind,
            given,
            options,
            request,
            compression=describe_all([sent[i].compression for i in members]),
            wire_dtype=wire_dtype,
            member_names=names,
            step=step,
        )

    with on_device(options.device_dense):
        sent = {i: send(options.compressor, to_tensor(t)) for i, t in tensors.items()}
        reduced = _calls.run_by_dtype(sent, name, member_names, call)
        return {i: one.restore(reduced[i]) for i, one in sent.items()}
