"""The one place where the collective ops are called; knows nothing but names.

What the rest of the package calls; users call what collectives.py has.
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

# Runs the collective on the members with these numbers, under this name and with
# these names of the members; returns one result for each.
GroupCall = Callable[[list[int], str | None, list[str]], list[Any]]


def _node_name(op_type: str, tensors: Sequence[Any]) -> str:
    """The graph node's name where the caller gave none; the rules are in collectives.py."""
    names = [str(t.name) for t in (tensors[0], tensors[-1])]
    # A tensor made eagerly enters a function under a number that this process
    # counted ("2852:0"): it says nothing to the other ranks.
    known = [name for name in names if not re.fullmatch(r"\d+(_\d+)*:\d+", name)]
    known = [re.sub(r"[^A-Za-z0-9_]", "_", name) for name in known]
    return "_".join([op_type, *dict.fromkeys(known)])


def _refuse_parallel_dataset(op_type: str) -> None:
    """Raises if a dataset that runs its function in parallel is tracing it now.

    Its elements have one name and come in any order, so that element 3 of one
    rank would be reduced with element 0 of another. Two at once are an error of
    the runtime too, but calls that happen not to overlap would not be noticed.
    """
    dataset = parallel_dataset()
    if dataset is not None:
        raise tf.errors.InvalidArgumentError(
            None,
            None,
            f"{op_type} in a parallel tf.data function ({dataset}): the order of its "
            "elements differs between ranks. Use num_parallel_calls=None there, or call "
            "the collective outside of the dataset.",
        )


def run(
    function: Callable[..., Any],
    op_type: str,
    inputs: Any,
    name: str | None,
    process_set: ProcessSet | int,
    **attributes: Any,
) -> Any:
    """Adds the op to the graph, or runs it.

    An eager call's name travels by a thread-local, not by an attribute: each new
    value of an attribute would make TensorFlow build and keep another kernel. It
    therefore has no effect under TensorFlow's asynchronous eager executor.

    Args:
      function: TensorFlow's wrapper of the op.
      op_type: the op's name.
      inputs: what a default name is made of: a tensor, a list of tensors for an
        op that takes a list, or None for an op without inputs.
      name: name of the request, None for the default.
      process_set: who takes part; an op's gradient knows the set's number only.
      attributes: the op's attributes, and its inputs after the first.

    Raises:
      RuntimeError: within a tf.distribute strategy of several replicas.
      TypeError: `name` is no string.
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
    """`run` for one tensor, eagerly, with `ReductionOptions.attributes_in_turn` of its options.

    TensorFlow's wrapper of an op would cost as much again as the op's attributes.
    """
    function, op_type = _op_of(kind, False)
    name = checked_name(name)
    number = _check(op_type, process_set)
    call_sites.note_eager_call(3)  # what calls this, and what the program calls
    if number != WORLD:
        attributes = (*attributes, "process_set_id", number)
    if name is None:
        return execute(function, op_type, tensor, attributes)
    return _named(name, execute, function, op_type, tensor, attributes)


def _check(op_type: str, process_set: ProcessSet | int) -> int:
    """What is asked at each call, and the set's number."""
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
    """The op of what reduces, or its grouped op, with nothing around it.

    Args:
      kind: "Allreduce" and so on, as the op is called.
      tensors: of one dtype, no variables; a single one if not `grouped`.
      options: the caller's.
      name: name of the request, None for the default.
      grouped: the op for groups, which alone takes names of members and a step.
      compression: what the tensors went through, for the ranks to compare; see
        `compression.describe`.
      wire_dtype: what the op casts float32 to, and back from; see `compression.send`.
      member_names: one for each tensor, or none.
      step: of a grouped allreduce, an int64 scalar: ranks that are at different steps get
        an error.
      named_after: the tensors that a default name is made of; `tensors` if there are none. Those
        that a program gave: of what is made of them, names hold numbers that a graph counts.
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
    """HorovodAllgather or its grouped op; the arguments are those of `run_reduction`."""
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
    """HorovodAlltoall on one tensor (not a variable): what came, and how much from whom."""
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
    """The name of a request, None for the default."""
    if name is None or isinstance(name, str):
        return name
    raise TypeError(f"name={name!r} is not a string; pass one, such as name='step_{name}'.")


def checked_root(root_rank: Any) -> int:
    """The root rank as an int."""
    try:
        return operator.index(root_rank)
    except TypeError:
        raise TypeError(
            f"root_rank={root_rank!r} is not an integer; pass the number of a rank, from 0 to "
            "size() - 1."
        ) from None


def suffixed(name: str | None, suffix: str) -> str | None:
    """`name` with a suffix; None for the default name stays None."""
    return None if checked_name(name) is None else f"{name}_{suffix}"


def check_member_names(member_names: Sequence[str] | None, count: int) -> list[str] | None:
    """The names as a list, one for each of the members."""
    if member_names is None:
        return None
    names = [member_names] if isinstance(member_names, str) else list(member_names)
    if len(names) != count:
        raise ValueError(
            f"member_names has {len(names)} names for {count} tensors; give one for each, or none."
        )
    return names


def run_by_dtype(
    tensors: dict[int, Any], name: str | None, member_names: list[str] | None, call: GroupCall
) -> dict[int, Any]:
    """Runs a grouped collective once for each dtype.

    Gradients of a bucket have one, but a compressor may send them in several. The names of several
    requests end in those of the dtypes.

    Returns:
      The results by the tensors' numbers, which are their places in `member_names`.
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
