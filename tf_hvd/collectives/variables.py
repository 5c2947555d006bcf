"""Broadcasts of variables, so that all ranks start from the same values."""

import contextlib
import dataclasses
import functools
import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_hvd.collectives import _calls, collectives, objects, reduce_ops, sources
from tf_hvd.core import _native, basics, error_text
from tf_hvd.core.process_sets import ProcessSet, global_process_set, registration_of
from tf_hvd.core.tensorflow_hooks import (
    in_xla,
    on_host,
    retraced,
    tf_variable,
    verbatim,
    waits_for,
)

# Keras 3's name for the state of a keras.random.SeedGenerator, with or without a path before it.
_SEED = re.compile(r"(.*/)?seed_generator_state(_\d+)?(:\d+)?")
# Suffix that Keras appends to a repeated name.
_COUNT = re.compile(r"_\d+(?=[/_:]|$)")
# Finds a variable's number in errors about variables that differ.
_VARIABLE = re.compile(r"mismatch in .*?\bvariable[_ ](\d+)'")
_MEMBER = re.compile(r"mismatch in .*? as tensor (\d+)")
_END = "end of the variables"
# Checks of other state that must be the same on all ranks. Called after a broadcast in eager mode,
# with the process set and the variables.
after_broadcast: list[Callable[[ProcessSet, Sequence[Any]], None]] = []
_ORDER_DIFFERS = (
    "broadcast_variables: the ranks list the same variables in different orders, so variables "
    "would get the values of other variables. List them in the same order on all ranks, for "
    "example in a list instead of a set."
)


def is_seed(variable: Any) -> bool:
    """Return whether the variable is the state of a Keras 3 random-number generator.

    Such states must differ between ranks. Otherwise all ranks would drop the same units and
    augment their images in the same way.
    """
    plain = tf_variable(variable)
    return (
        isinstance(plain, tf.Variable)
        and plain.dtype.is_integer
        and _SEED.fullmatch(plain.name) is not None
    )


def _is_vocabulary(variable: Any) -> bool:
    """Return whether an entry of a tf_keras model's variables is a vocabulary, not a variable."""
    return hasattr(variable, "get_tensors") and hasattr(variable, "num_tensors")


def _agree_on_variables(process_set: ProcessSet, variables: Sequence[Any]) -> Any:
    """Fail on all ranks unless they have the same number of variables.

    The broadcasts are separate requests. A rank with fewer variables would therefore finish while
    the other ranks wait for its next broadcast. This function sends a single request, which the
    ranks compare as a whole. It has a tiny member for each variable, and another member that marks
    the end.
    """
    members = [f"variable {index}" for index in range(len(variables))]
    members.append(_END)
    with on_host():
        return collectives.grouped_allreduce(
            [tf.zeros([1], tf.uint8)] * len(members),
            op=reduce_ops.Min,  # one process needs no reduction, so strip-ops can remove it
            name="variables",
            member_names=members,
            process_set=process_set,
        )


def _order_of(variables: Sequence[Any]) -> np.ndarray:
    """Return digests that show whether ranks list the same variables in different orders.

    Returns:
      Four 62-bit digests, int64, of the variables' names: exact names sorted, exact names as
      listed, names without counts sorted, names without counts as listed. If the sorted digests
      of two ranks are equal and the other digests differ, the orders differ.
    """
    exact = [getattr(variable, "path", None) or variable.name for variable in variables]
    plain = [_COUNT.sub("", name) for name in exact]
    texts = ["\n".join(names) for names in (sorted(exact), exact, sorted(plain), plain)]
    digests = [hashlib.sha256(text.encode()).digest() for text in texts]
    return np.array([int.from_bytes(digest[:8], "big") >> 2 for digest in digests], np.int64)


@dataclasses.dataclass(frozen=True)
class _Listing:
    """The data that ranks use to compare and identify a list of variables."""

    order: Any  # the result of _order_of
    number: Any  # the result of sources.SourceList.tensor, a scalar


def _agree(
    root_rank: int, process_set: ProcessSet, variables: Sequence[Any], listing: _Listing
) -> list[Any]:
    """Check that the ranks list the variables in the same order, then identify the variables.

    All ranks fail if they list the same variables in different orders. Different names are not an
    error: a rank may have loaded its model or have built another model before. The same request
    sends the root's random number, which identifies the variables on all ranks from then on
    (runtime/request/sources.h).

    Returns:
      A list of the ops that the broadcasts must wait for in a graph; empty in eager mode.
    """
    identifies = not in_xla()  # XLA has no such ops: variables keep their identity there
    order = listing.order
    with on_host():
        mine = [order, -order]
        if identifies:
            number = _native.ops.horovod_broadcast_number(listing.number, root_rank=root_rank)
            mine.append(tf.reshape(number, [1]))
        both = collectives.allreduce(
            tf.concat(mine, 0),
            op=reduce_ops.Min,
            name="order_of_variables",
            process_set=process_set,
        )
        equal = tf.equal(both[:4], -both[4:8])
        differs = tf.reduce_any(equal[::2] & ~equal[1::2])
        checked = tf.debugging.Assert(~differs, [_ORDER_DIFFERS])
    agreed = waits_for(checked)
    if not identifies:
        return agreed
    # Runs after the program's earlier uses of the variables, and before the later uses. Otherwise
    # one rank could reduce gradients under the old identity, and another under the new identity.
    # This order matters only in a tf.function, where there are no reference variables.
    resources = [variable for variable in variables if hasattr(variable, "handle")]
    before = waits_for([variable.is_initialized() for variable in resources])
    with tf.control_dependencies(agreed + before), on_host():
        return waits_for(_native.ops.horovod_identify(listing.number, both[8]))


def _beside(variable: Any) -> contextlib.AbstractContextManager[Any]:
    """Return a device scope that keeps the broadcast of a CPU variable on the CPU.

    TensorFlow would otherwise choose the GPU.
    """
    is_on_cpu = tf.DeviceSpec.from_string(variable.device).device_type == "CPU"
    return on_host() if is_on_cpu else contextlib.nullcontext()


def _assign_all(
    root_rank: int, process_set: ProcessSet, variables: Sequence[Any], listing: _Listing
) -> list[Any]:
    """Broadcast and assign each variable, and return the ops that must run.

    The requests' names contain the variables' positions instead of their names. A variable's name
    may contain a number that depends on this process, as the names of Keras variables do.
    """
    with tf.name_scope("broadcast_variables"):
        # The checks run one after the other, so if the first fails, no rank begins the second.
        with tf.control_dependencies(_agree_on_variables(process_set, variables)):
            agreed = _agree(root_rank, process_set, variables, listing)
        assigned = []
        for index, variable in enumerate(variables):
            with tf.control_dependencies(agreed), _beside(variable):
                value = collectives.broadcast(
                    variable, root_rank, name=f"variable_{index}", process_set=process_set
                )
                assigned.append(variable.assign(value))
        # Includes the agreement, which a rank without variables must run too.
        return assigned + agreed


@functools.lru_cache(maxsize=16)
def _compiled(
    root_rank: int, process_set: ProcessSet, _registration: tuple[int, int | None]
) -> Callable[[list[Any], Any, Any], None]:
    """Return `_assign_all` as a tf.function, in which the broadcasts run concurrently."""

    def assign_all(variables: list[Any], order: Any, number: Any) -> None:
        _assign_all(root_rank, process_set, variables, _Listing(order, number))

    function: Callable[[list[Any], Any, Any], None] = retraced(
        tf.function(assign_all, autograph=False)
    )
    return function


def _first_unlike(variables: Sequence[Any], process_set: ProcessSet) -> str | None:
    """Return an error text for the first variable that differs in dtype or shape between ranks.

    Returns None if no variable differs. All ranks of the set must call this function, with
    the same number of variables.
    """
    mine = [(v.dtype.base_dtype.name, str(v.shape.as_list()).replace(" ", "")) for v in variables]
    everyone = objects.allgather_object(
        (basics.rank(), mine), name="broadcast_variables/kinds", process_set=process_set
    )
    rank, first = everyone[0]
    for index, kind in enumerate(first):
        for other, theirs in everyone[1:]:
            if theirs[index] != kind:
                what = "dtypes" if theirs[index][0] != kind[0] else "shapes"
                return (
                    f"mismatch in broadcast 'broadcast_variables/variable_{index}': rank {rank} "
                    f"has {''.join(kind)}, rank {other} has {''.join(theirs[index])}; the {what} "
                    "must be the same on all ranks"
                )
    return None


@contextlib.contextmanager
def _naming(
    variables: Sequence[Any], number: re.Pattern[str], process_set: ProcessSet
) -> Iterator[None]:
    """Add this rank's name for the variable to an error about ranks that differ.

    `number` is a pattern that finds the variable's position in the error's text.
    """
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        if _ORDER_DIFFERS not in error.message:
            raise
        raise tf.errors.FailedPreconditionError(error.node_def, error.op, _ORDER_DIFFERS) from error
    except tf.errors.FailedPreconditionError as error:
        known = []
        if f"'{_END}'" in error.message:
            known.append("The ranks have different numbers of variables.")
        line = error_text.line_of(error.message)
        found = number.search(error.message)
        if found and number is _VARIABLE and not known:
            # All ranks run this. The broadcasts run concurrently, so any of them may fail first.
            # If a layer's size differs, the first failure may be that of an optimizer's slot.
            first = _first_unlike(variables, process_set)
            line = line if first is None else first
            found = number.search(line)
        if found and int(found[1]) < len(variables):  # otherwise the other rank has more variables
            name = variables[int(found[1])].name.partition(":")[0]
            known.append(f"On rank {basics.rank()} this is the variable {name!r}.")
        if not known:
            raise
        # In one line, because reports elsewhere show one line.
        text = f"{line}. {' '.join(known)}"
        raise tf.errors.FailedPreconditionError(error.node_def, error.op, text) from error


def _kind(variable: Any) -> str:
    """Return the kind of a variable: "resource" (v2) or "reference" (v1)."""
    if not isinstance(variable, tf.Variable):
        raise ValueError(
            f"broadcast_ got a {type(variable).__name__} but takes only variables; use "
            "tf_hvd.broadcast for tensors."
        )
    return "resource" if hasattr(variable, "handle") else "reference"


def _write_resources(variables: Sequence[Any], options: dict[str, Any]) -> list[Any]:
    written = _calls.run(
        _native.ops.horovod_broadcast_inplace_resource,
        "HorovodBroadcastInplaceResource",
        [variable.handle for variable in variables],
        **options,
    )
    if tf.executing_eagerly():
        return [variable.read_value() for variable in variables]
    with tf.control_dependencies([written]):
        return [variable.read_value() for variable in variables]


def _write_references(variables: Sequence[Any], options: dict[str, Any]) -> list[Any]:
    values: dict[int, Any] = {}
    groups: dict[str, list[int]] = {}
    for index, variable in enumerate(variables):
        groups.setdefault(variable.dtype.base_dtype.name, []).append(index)
    for dtype, members in groups.items():
        written = _calls.run(
            _native.ops.horovod_broadcast_inplace,
            "HorovodBroadcastInplace",
            [variables[index].op.outputs[0] for index in members],
            **options | {"name": f"{options['name']}_{dtype}"},
        )
        # Copies instead of the references, which would show later writes.
        values.update(zip(members, map(tf.identity, written), strict=True))
    return [values[index] for index in range(len(variables))]


@verbatim
def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """Set variables to one rank's values, in the variables' own memory (MPI_Bcast).

    All variables form one request, without a second buffer. In a graph, use control dependencies
    to order this op relative to other ops that read or write the variables. A tf.function does
    this automatically for resource variables. The gradient is not defined.

    Args:
      variables: list of initialised tf.Variables or Keras variables. Their number, order, dtypes
        and shapes must be the same on all ranks. The list must not contain both resource
        variables and v1 reference variables.
      root_rank: int, the rank that sends its values. With a process set, this is the rank in
        the job, not the index in the set.
      name: name of the call, the same on all ranks; None (default) for the default name.
      process_set: the participating ranks; all by default.

    Returns:
      A list with the new values, one tensor for each variable.

    Raises:
      TypeError: `root_rank` is not an integer.
      ValueError: `variables` mixes both kinds of variables, or an element is not a variable.
      tf.errors.InvalidArgumentError: `root_rank` is not a rank of the set, or a variable is not
        initialised.
      tf.errors.FailedPreconditionError: `init` was not called, or the ranks'
        variables do not match.

    Example:
      weight = tf.Variable([float(hvd.rank())])
      hvd.broadcast_([weight], root_rank=0)
    """
    root_rank = _calls.checked_root(root_rank)
    plain = [tf_variable(variable) for variable in variables]
    kinds = {_kind(variable): variable for variable in plain}
    if len(kinds) > 1:
        named = " and ".join(f"{kind} variable {v.name}" for kind, v in sorted(kinds.items()))
        raise ValueError(
            f"broadcast_ cannot take {named} in one call; call broadcast_ once for each kind."
        )
    if not plain:
        return []
    if name is None and not tf.executing_eagerly():
        # Not the variables' default name: a Keras variable's name may contain a number that
        # depends on this process.
        name = "HorovodBroadcastInplace"
    options: dict[str, Any] = {
        "name": name,
        "process_set": process_set,
        "root_rank": root_rank,
        "variable_names": [],
    }
    if "resource" in kinds:
        return _write_resources(plain, options)
    return _write_references(plain, options)


def _broadcast_in_place(
    variables: Sequence[Any], root_rank: int, process_set: ProcessSet, listing: _Listing
) -> list[Any]:
    """Call `broadcast_` once for each kind of variable and device; return the new values."""
    groups: dict[tuple[str, str], list[Any]] = {}
    for variable in variables:
        groups.setdefault((_kind(variable), variable.device), []).append(variable)
    values = []
    with tf.name_scope("broadcast_variables"):
        with _naming([], _MEMBER, process_set):
            checked = _agree(root_rank, process_set, variables, listing)
        for number, members in enumerate(groups.values()):
            with _naming(members, _MEMBER, process_set), tf.control_dependencies(checked):
                values += broadcast_(
                    members, root_rank, f"variables_in_place_{number}", process_set
                )
    return values


@verbatim
def broadcast_variables(
    variables: Sequence[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> tf.Operation | None:
    """Set variables to the values that they have on one rank (one MPI_Bcast for each variable).

    `model.variables` includes the seeds of Keras 3's random layers. These keep their values, so
    each rank continues with different random numbers. The vocabularies in a tf_keras model's
    `model.variables` are not copied either; call `broadcast_adapted` to copy them.

    Args:
      variables: list of tf.Variables or Keras variables. Their number, order, dtypes and shapes
        must be the same on all ranks.
      root_rank: int, the rank that sends its values. With a process set, this is the rank in
        the job, not the index in the set.
      process_set: the participating ranks; all by default.
      inplace: whether to receive into the variables' own memory, as `broadcast_` does; False by
        default. True needs less memory, but nothing else may use the variables meanwhile.

    Returns:
      None in eager mode. In a graph, the op that broadcasts, which raises the tf.errors below
      when it runs.

    Raises:
      TypeError: `root_rank` is not an integer.
      ValueError: `process_set` is not registered.
      tf_hvd.RanksDifferError: in eager mode, the state of an adapted Keras layer, in any model or
        dataset, differs between ranks. Call `broadcast_adapted` to copy it.
      tf.errors.InvalidArgumentError: `root_rank` is not a rank of the set. In a graph, also if
        the ranks list the same variables in different orders.
      tf.errors.FailedPreconditionError: `init` was not called; or the ranks differ in
        `root_rank`, or in the number, the dtypes or the shapes of the variables. In eager mode,
        also if the ranks list the same variables in different orders. In eager mode, the text
        includes this rank's name for the variable.

    Example:
      weight = tf.Variable([float(hvd.rank())])
      hvd.broadcast_variables([weight], root_rank=0)
      assert weight.numpy() == 0.0
    """
    root_rank = _calls.checked_root(root_rank)
    variables = [v for v in variables if not (is_seed(v) or _is_vocabulary(v))]
    plain = [tf_variable(variable) for variable in variables]
    listing = _Listing(tf.constant(_order_of(variables)), sources.list_of(variables).tensor())
    if inplace:
        done = _broadcast_in_place(plain, root_rank, process_set, listing)
    elif tf.executing_eagerly():
        assign_all = _compiled(root_rank, process_set, registration_of(process_set))
        with _naming(plain, _VARIABLE, process_set):
            assign_all(plain, listing.order, listing.number)
        done = []
    else:
        done = _assign_all(root_rank, process_set, plain, listing)
    if not tf.executing_eagerly():
        return tf.group(*done)
    for check in after_broadcast:
        check(process_set, plain)
    return None


def broadcast_global_variables(root_rank: int) -> tf.Operation:
    """Return an op that sets all global variables of the default v1 graph to one rank's values.

    Args:
      root_rank: int, the rank that sends its values.

    Returns:
      The op; run it in a session on all ranks.

    Raises:
      RuntimeError: in eager mode, which has no collection of global variables.

    Example:
      with tf.Graph().as_default(), tf.compat.v1.Session() as session:
          weight = tf.compat.v1.get_variable("w", initializer=float(hvd.rank()))
          synchronize = hvd.broadcast_global_variables(0)
          session.run(tf.compat.v1.global_variables_initializer())
          session.run(synchronize)
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "broadcast_global_variables() does not work in eager mode, which has no list of "
            "global variables; use broadcast_variables(model.variables, root_rank)."
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)
