"""The single-process replacement for each op: a table of rules, and the rewriting of a node.

Each replacement ends with a node that has the original node's name. In function bodies, this
node's outputs are called `output`, in the order of the original outputs.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from tf_hvd.collectives import reduce_ops, scales
from tf_hvd.strip.builder import Builder
from tf_hvd.strip.errors import DamagedError, StripError
from tf_hvd.strip.scaling import scaled

PREFIX = "Horovod"


class Meaning(enum.IntEnum):
    """How a value depends on other ranks of a job."""

    ROOT = 0  # equal to the input on the op's root rank
    EQUAL = 1  # equal to the input if all ranks have the same input
    JOB = 2  # depends on the number of ranks, even if all inputs are the same


@dataclass(frozen=True)
class Rule:
    """The rule for rewriting an op.

    Attributes:
      rewrite: adds the replacement to the builder.
      meaning: the meaning of the op's outputs.
      inputs: the number of inputs, or the name of an attribute. The attribute contains the number
        or a list of the inputs' types.
      outputs: maps the name of each of the op's outputs to its first output number.
    """

    rewrite: Callable[[Builder], Any]
    meaning: Meaning
    inputs: int | str = 0
    outputs: dict[str, int] = field(default_factory=dict)


def _same(build: Builder) -> None:
    _pass_on(build, build.data)


def _pass_on(build: Builder, edges: list[str]) -> None:
    dtype = build.type()
    if "num_tensors" in build.node.attr:
        build.finish("IdentityN", [*edges, *build.control], T=[dtype] * len(edges))
    else:
        build.finish("Identity", [*edges, *build.control], T=dtype)


def _reduced(build: Builder) -> None:
    attr = build.node.attr
    before, after = (
        attr[name].f if name in attr else 1.0 for name in ("prescale_factor", "postscale_factor")
    )
    exact = attr[scales.ATTRIBUTE].list.i if scales.ATTRIBUTE in attr else ()
    wire = attr["wire_dtype"].s.decode(errors="replace") if "wire_dtype" in attr else ""
    own = build.type()
    travels = build.known_type(wire) if wire else own
    if not scales.REDUCED.issuperset((own, travels)) or len(exact) not in (0, 2):
        raise DamagedError(f"node '{build.node.name}' reduces {own.name} as {travels.name}")
    both = scales.of_attributes(before, after, exact)
    results = []
    for edge in build.data:
        there = build.cast(edge, own, travels)
        results.append(build.cast(scaled(build, there, travels, both), travels, own))
    _pass_on(build, results)


def _exchanged(build: Builder) -> None:
    """Add the rows that a process sends to itself: all rows if no splits are given."""
    tensor, splits = build.data
    dtype, int32 = build.type(), tf.int32
    zero = build.constant(np.int32(0), int32)
    first = build.constant(np.array([0], np.int32), int32)
    one = build.constant(np.array([1], np.int32), int32)
    rest = build.constant(np.array([-1], np.int32), int32)
    shape = build.add("Shape", [tensor], "output", T=dtype, out_type=int32)
    rows = build.add("Slice", [shape, first, one], "output", T=int32, Index=int32)
    # With splits: the elements after the rows. Without splits: the rows themselves.
    both = build.add("ConcatV2", [rows, splits, zero], "output", N=2, T=int32, Tidx=int32)
    given = build.add("Shape", [splits], "output", T=int32, out_type=int32)
    begin = build.add("Minimum", [given, one], "z", T=int32)
    received = build.add("Slice", [both, begin, rest], "output", T=int32, Index=int32)
    total = build.add("Sum", [received, first], "output", T=int32, Tidx=int32)
    total = build.add("Reshape", [total, one], "output", T=int32, Tshape=int32)
    sizes = build.add("ConcatV2", [total, rest, zero], "output", N=2, T=int32, Tidx=int32)
    # Like the original op but unlike a slice, this op fails if the tensor has too few rows.
    sent = build.add(
        "SplitV", [tensor, sizes, zero], "output", T=dtype, Tlen=int32, num_split=2
    )  # fmt: skip
    build.finish("IdentityN", [sent, received, *build.control], T=[dtype, int32])


def _references(build: Builder) -> None:
    """Pass on each reference variable with its own op; TensorFlow has no op for several."""
    dtype = build.type()
    if len(build.data) == 1:
        build.finish("RefIdentity", [*build.data, *build.control], T=dtype)
        return
    for edge in build.data:
        build.add("RefIdentity", [edge], "output", T=dtype)
    build.finish("NoOp", build.after_inputs())


def _nothing(build: Builder) -> None:
    build.finish("NoOp", build.after_inputs())


def _constant(build: Builder, value: Any, dtype: tf.DType) -> None:
    last = build.finish("Const", build.after_inputs(), dtype=dtype)
    last.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, dtype))


def _always(value: int, dtype: tf.DType = tf.int32) -> Callable[[Builder], None]:
    return lambda build: _constant(build, value, dtype)


def _no_bits(build: Builder) -> None:
    """Add zeros as fingerprints, because a single process has no other ranks to compare with."""
    _constant(build, np.zeros(len(build.data), np.int64), tf.int64)


# Ops that need no type for their inputs: handles, and values that are only inspected.
_UNTYPED = (
    "HorovodBroadcastInplaceResource", "HorovodFingerprints", "HorovodVerdict",
    "HorovodBroadcastNumber", "HorovodIdentify", "HorovodCountReduction",
)  # fmt: skip
_JOB, _ROOT = Meaning.JOB, Meaning.ROOT
_MANY, _VARIABLES, _LISTED = "num_tensors", "num_variables", "T"

RULES: dict[str, Rule] = {
    "HorovodAllreduce": Rule(_reduced, _JOB, 1, {"sum": 0}),
    "HorovodGroupedAllreduce": Rule(_reduced, _JOB, _MANY, {"sum": 0}),
    "HorovodAllgather": Rule(_same, _JOB, 1, {"output": 0}),
    "HorovodGroupedAllgather": Rule(_same, _JOB, _MANY, {"outputs": 0}),
    "HorovodReducescatter": Rule(_reduced, _JOB, 1, {"output": 0}),
    "HorovodGroupedReducescatter": Rule(_reduced, _JOB, _MANY, {"outputs": 0}),
    "HorovodAlltoall": Rule(_exchanged, _JOB, 2, {"output": 0, "received_splits": 1}),
    "HorovodBroadcast": Rule(_same, _ROOT, 1, {"output": 0}),
    "HorovodBroadcastInplace": Rule(_references, _ROOT, _VARIABLES, {"output_refs": 0}),
    "HorovodBroadcastInplaceResource": Rule(_nothing, _ROOT, _VARIABLES),
    "HorovodBarrier": Rule(_nothing, _ROOT),
    "HorovodJoin": Rule(_always(0), _JOB, 0, {"last_rank": 0, "output": 0}),
    "HorovodSize": Rule(_always(1), _JOB, 0, {"size": 0}),
    "HorovodRank": Rule(_always(0), _JOB, 0, {"rank": 0}),
    "HorovodLocalSize": Rule(_always(1), _JOB, 0, {"local_size": 0}),
    "HorovodLocalRank": Rule(_always(0), _JOB, 0, {"local_rank": 0}),
    "HorovodCrossSize": Rule(_always(1), _JOB, 0, {"cross_size": 0}),
    "HorovodCrossRank": Rule(_always(0), _JOB, 0, {"cross_rank": 0}),
    "HorovodProcessSetIncluded": Rule(_always(1), _JOB, 0, {"included": 0}),
    # Their values are the same in every job.
    "HorovodFingerprints": Rule(_no_bits, _ROOT, _LISTED, {"fingerprints": 0}),
    "HorovodVerdict": Rule(_always(True, tf.bool), _ROOT, 1, {"passed": 0}),
    # A single process has no other ranks that could use different variables.
    "HorovodBroadcastNumber": Rule(_always(0, tf.int64), _ROOT, 1, {"number": 0}),
    "HorovodIdentify": Rule(_nothing, _ROOT, 2),
    "HorovodCountReduction": Rule(_always(0, tf.int64), _ROOT, _VARIABLES, {"count": 0}),
}


def rule_of(node: Any) -> Rule | None:
    """Return the rule for a node, or None if its op is not from tf_hvd.

    Raises:
      StripError: the op has tf_hvd's prefix but is missing from the table.
    """
    op = node.op
    if not op.startswith(PREFIX):
        return None
    if op not in RULES:
        raise StripError(
            f"node '{node.name}' has the op {op}, which this version of tf_hvd does not know; "
            "strip it with the version that wrote it"
        )
    return RULES[op]


def meaning_of(node: Any) -> Meaning:
    """Return how the value of a tf_hvd op depends on the job."""
    if node.op in ("HorovodAllreduce", "HorovodGroupedAllreduce"):
        # Graphs from old Horovod versions lack this attribute and compute sums.
        kind = node.attr["reduce_op"].i if "reduce_op" in node.attr else reduce_ops.Sum
        equal = kind in (reduce_ops.Average, reduce_ops.Min, reduce_ops.Max)
        return Meaning.EQUAL if equal else Meaning.JOB
    return RULES[node.op].meaning


def rewrite(build: Builder) -> list[Any]:
    """Return the nodes that replace a tf_hvd node.

    Raises:
      StripError: the node is incomplete.
    """
    node = build.node
    wanted = RULES[node.op].inputs
    if wanted == _LISTED:
        count = 1 + len(node.attr[wanted].list.type)  # the first input is `wanted`
    else:
        count = node.attr[wanted].i if isinstance(wanted, str) else wanted
    typed = bool(count) and node.op not in _UNTYPED
    fault = ""
    if len(build.data) != count:
        fault = f"{len(build.data)} inputs instead of {count}"
    elif typed and not node.attr["T"].type:
        fault = "no type"
    if fault:
        raise StripError(
            f"node '{node.name}' ({node.op}) has {fault}: the file is damaged; save the graph again"
        )
    RULES[node.op].rewrite(build)
    return build.nodes
