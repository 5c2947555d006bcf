"""Thin wrappers around the collective ops. No other module calls these ops.

Internal: the rest of the package calls these functions. Users call the functions in collectives.py.
"""

import functools
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_hvd.collectives.options import ReductionOptions
from tf_hvd.core import _native, call_sites
from tf_hvd.core._strategy import refuse_replicas
from tf_hvd.core.process_sets import WORLD, ProcessSet, global_process_set, id_of
from tf_hvd.core.tensorflow_hooks import (
    execute,
    executes_eagerly,
    has_no_strategy,
    parallel_dataset,
)

# Runs the collective on some members. Arguments: the members' numbers, the request's name, and
# the members' names. Returns one result for each member.
GroupCall = Callable[[list[int], str | None, list[str]], list[Any]]


def _node_name(op_type: str, tensors: Sequence[Any]) -> str:
    """Return the default name of the op's graph node; collectives.py has the rules."""
    names = [str(t.name) for t in (tensors[0], tensors[-1])]
    # In a function, the name of an eager tensor is a number such as "2852:0". This number depends
    # on the process and means nothing to the other ranks.
    known = [name for name in names if not re.fullmatch(r"\d+(_\d+)*:\d+", name)]
    known = [re.sub(r"[^A-Za-z0-9_]", "_", name) for name in known]
    return "_".join([op_type, *dict.fromkeys(known)])


def _refuse_parallel_dataset(op_type: str) -> None:
    """Raise if a dataset that runs its function in parallel is being traced now.

    All elements would use one name and run in any order. Element 3 on one rank could then be
    reduced with element 0 on another. The runtime refuses such calls only if they overlap.
    """
    dataset = parallel_dataset()
    if dataset is not None:
        raise tf.errors.InvalidArgumentError(
            None,
            None,
            f"{op_type} in a parallel tf.data function ({dataset}): the order of its "
            "elements differs between ranks. Use num_parallel_calls=None for this dataset, or "
            "call the collective outside of it.",
        )


def run(
    function: Callable[..., Any],
    op_type: str,
    inputs: Any,
    name: str | None,
    process_set: ProcessSet | int,
    **attributes: Any,
) -> Any:
    """Run the op in eager mode, or add it to the graph.

    An eager call passes its name through a thread-local variable, not as an attribute. TensorFlow
    would build and keep another kernel for each new value of an attribute. The name therefore has
    no effect under TensorFlow's asynchronous eager executor.

    Args:
      function: TensorFlow's wrapper for the op.
      op_type: the op's name.
      inputs: the op's first input: a tensor, a list of tensors, or None if the op has no inputs.
        The input's name is part of the default name.
      name: name of the request; None for the default name.
      process_set: the participating ranks, as a ProcessSet or as the set's number (an op's
        gradient knows only the number).
      attributes: the op's attributes, and its inputs after the first.

    Returns:
      The results of `function`.

    Raises:
      RuntimeError: the call is within a tf.distribute strategy with several replicas.
      TypeError: `name` is not a string.
    """
    name = checked_name(name)
    attributes["process_set_id"] = _check(op_type, process_set)
    arguments = () if inputs is None else (inputs,)
    if not executes_eagerly():
        _refuse_parallel_dataset(op_type)
        results = function(*arguments, name=name or _default_name(op_type, inputs), **attributes)
        call_sites.note_op(results)
        return results
    call_sites.note_eager_call(2)
    if name is None:
        return function(*arguments, **attributes)
    return _named(name, function, *arguments, **attributes)


def run_eagerly(
    kind: str,
    tensor: Any,
    attributes: tuple[Any, ...],
    name: str | None,
    process_set: ProcessSet | int,
) -> Any:
    """Run an op on one tensor in eager mode, without TensorFlow's wrapper for the op.

    The wrapper would double the time. `attributes` are `ReductionOptions.flat_attributes`.
    """
    function, op_type = _op_of(kind, False)
    name = checked_name(name)
    number = _check(op_type, process_set)
    call_sites.note_eager_call(3)  # frames above: this function's caller, and the public function
    if number != WORLD:
        attributes = (*attributes, "process_set_id", number)
    if name is None:
        return execute(function, op_type, tensor, attributes)
    return _named(name, execute, function, op_type, tensor, attributes)


def _check(op_type: str, process_set: ProcessSet | int) -> int:
    """Check the preconditions of all collectives and return the process set's number."""
    if not has_no_strategy():
        refuse_replicas(f"{op_type} was called")
    if process_set is global_process_set:
        return WORLD
    return process_set if isinstance(process_set, int) else id_of(process_set)


def _named(name: str, call: Callable[..., Any], *arguments: Any, **attributes: Any) -> Any:
    try:
        _native.set_eager_name(name)
        return call(*arguments, **attributes)
    finally:
        _native.set_eager_name(None)


def _default_name(op_type: str, inputs: Any) -> str:
    if inputs is None:
        return op_type
    return _node_name(op_type, inputs if isinstance(inputs, list) else [inputs])


def run_reduction(
    kind: str,
    tensors: Sequence[Any],
    options: ReductionOptions,
    name: str | None = None,
    *,
    grouped: bool = True,
    compression: str = "",
    wire_dtype: str = "",
    member_names: Sequence[str] = (),
    step: Any = None,
    named_after: Sequence[Any] = (),
) -> list[Any]:
    """Call a reducing op or its grouped form, without any other processing of the tensors.

    Args:
      kind: "Allreduce" or "Reducescatter", as in the op's name.
      tensors: tensors of one dtype, not variables; exactly one tensor if not `grouped`.
      options: the caller's options.
      name: name of the request; None for the default name.
      grouped: whether to call the grouped op. Only the grouped op takes member names and a step.
      compression: text that says how the tensors were compressed; the ranks compare it. See
        `compression.describe`.
      wire_dtype: the type to which the op casts float32 for sending; see `compression.send`.
      member_names: one name for each tensor; empty for no names.
      step: the caller's step, an int64 scalar; only for a grouped allreduce. Ranks that are at
        different steps get an error.
      named_after: the program's own tensors, used to form the default name (default:
        `tensors`). Names of derived tensors contain numbers that depend on the graph.

    Returns:
      A list of the reduced tensors.
    """
    if name is None and named_after and not executes_eagerly():
        name = _node_name(_op_of(kind, grouped)[1], named_after)
    attributes = {**options.attributes, "compression": compression, "wire_dtype": wire_dtype}
    if kind == "Allreduce" and grouped:
        attributes["stamp"] = _step_input(step)
    return _run_on(kind, tensors, name, options.process_set, grouped, member_names, attributes)


def run_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    process_set: ProcessSet | int = global_process_set,
    ignore_name_scope: bool = False,
    *,
    grouped: bool = True,
    member_names: Sequence[str] = (),
    step: Any = None,
) -> list[Any]:
    """Call HorovodAllgather or its grouped form; see `run_reduction` for the arguments."""
    attributes: dict[str, Any] = {"ignore_name_scope": ignore_name_scope}
    if grouped:
        attributes["stamp"] = _step_input(step)
    return _run_on("Allgather", tensors, name, process_set, grouped, member_names, attributes)


def _run_on(
    kind: str,
    tensors: Sequence[Any],
    name: str | None,
    process_set: ProcessSet | int,
    grouped: bool,
    member_names: Sequence[str],
    attributes: dict[str, Any],
) -> list[Any]:
    function, op_type = _op_of(kind, grouped)
    if not grouped:
        (tensor,) = tensors
        return [run(function, op_type, tensor, name, process_set, **attributes)]
    if member_names:
        attributes["member_names"] = list(member_names)
    return list(run(function, op_type, list(tensors), name, process_set, **attributes))


@functools.cache
def _op_of(kind: str, grouped: bool) -> tuple[Callable[..., Any], str]:
    if grouped:
        return getattr(_native.ops, f"horovod_grouped_{kind.lower()}"), f"HorovodGrouped{kind}"
    return getattr(_native.ops, f"horovod_{kind.lower()}"), f"Horovod{kind}"


def _step_input(step: Any) -> list[Any]:
    return [] if step is None else [step]


def run_alltoall(
    tensor: Any,
    splits: Any,
    name: str | None = None,
    process_set: ProcessSet | int = global_process_set,
    ignore_name_scope: bool = False,
) -> tuple[Any, Any]:
    """Call HorovodAlltoall and return the received rows and the number of rows from each rank."""
    output, received_splits = run(
        _native.ops.horovod_alltoall,
        "HorovodAlltoall",
        tensor,
        name,
        process_set,
        splits=splits,
        ignore_name_scope=ignore_name_scope,
    )
    return output, received_splits


def checked_name(name: Any) -> str | None:
    """Return `name` if it is a string or None; raise TypeError otherwise."""
    if name is None or isinstance(name, str):
        return name
    raise TypeError(f"name={name!r} is not a string; pass one, such as name='step_{name}'.")


def checked_root(root_rank: Any) -> int:
    """Return `root_rank` as an int; raise TypeError if it is not an integer."""
    try:
        return operator.index(root_rank)
    except TypeError:
        raise TypeError(
            f"root_rank={root_rank!r} is not an integer; pass the number of a rank, from 0 to "
            "size() - 1."
        ) from None


def suffixed(name: str | None, suffix: str) -> str | None:
    """Append a suffix to a request's name; None (the default name) stays None."""
    return None if checked_name(name) is None else f"{name}_{suffix}"


def check_member_names(member_names: Sequence[str] | None, count: int) -> list[str] | None:
    """Return the names as a list; raise ValueError unless there are `count` names."""
    if member_names is None:
        return None
    names = [member_names] if isinstance(member_names, str) else list(member_names)
    if len(names) != count:
        raise ValueError(
            f"member_names has {len(names)} names for {count} tensors; pass one name for each "
            "tensor, or omit member_names."
        )
    return names


def run_by_dtype(
    tensors: dict[int, Any], name: str | None, member_names: list[str] | None, call: GroupCall
) -> dict[int, Any]:
    """Run a grouped collective once for each dtype.

    All gradients in a bucket have the same dtype, but a compressor may send them in several dtypes.
    Each request's name then ends in its dtype.

    Args:
      tensors: dict of the group's members. A key is the member's position in `member_names`.
      name: name of the request; None for the default name.
      member_names: one name for each member, or None.
      call: function that runs the collective on the members of one dtype.

    Returns:
      A dict of the results, with the keys of `tensors`.
    """
    groups: dict[str, list[int]] = {}
    for number, tensor in tensors.items():
        groups.setdefault(tensor.dtype.name, []).append(number)
    results: dict[int, Any] = {}
    for dtype, members in groups.items():
        names = [] if member_names is None else [member_names[i] for i in members]
        request = suffixed(name, dtype) if len(groups) > 1 else name
        results.update(zip(members, call(members, request, names), strict=True))
    return results
