"""All ranks start from the same values: variables take those of one rank."""

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

# How Keras 3 names the state of a keras.random.SeedGenerator; its path may go before.
_SEED = re.compile(r"(.*/)?seed_generator_state(_\d+)?(:\d+)?")
# What tells apart what has been given the same name.
_COUNT = re.compile(r"_\d+(?=[/_:]|$)")
# Where an error about variables that differ has the number of one.
_VARIABLE = re.compile(r"mismatch in .*?\bvariable[_ ](\d+)'")
_MEMBER = re.compile(r"mismatch in .*? as tensor (\d+)")
_END = "end of the variables"
# Called after a broadcast in eager mode, with the process set and the variables: what ranks must
# have alike besides.
after_broadcast: list[Callable[[ProcessSet, Sequence[Any]], None]] = []
_ORDER_DIFFERS = (
    "broadcast_variables: the ranks list the same variables in different orders, so that some "
    "would get the values of others. List them in the same order on all ranks; a set has no fixed "
    "order."
)


def is_seed(variable: Any) -> bool:
    """Whether the variable is the state of a Keras 3 layer's random numbers.

    Ranks that had the same one would drop the same units and turn all their images
    alike, as if a batch were one rank's, repeated.
    """
    plain = tf_variable(variable)
    return (
        isinstance(plain, tf.Variable)
        and plain.dtype.is_integer
        and _SEED.fullmatch(plain.name) is not None
    )


def _is_vocabulary(variable: Any) -> bool:
    """Whether it is what tf_keras has among a model's variables for a vocabulary: no variable."""
    return hasattr(variable, "get_tensors") and hasattr(variable, "num_tensors")


def _agree_on_variables(process_set: ProcessSet, variables: Sequence[Any]) -> Any:
    """Fails on all ranks if they do not have equally many variables.

    The broadcasts are requests of their own: a rank that has fewer variables would
    be through while the others wait for its next. One request with a tiny member for
    each variable, and one that marks the end, is compared as a whole.
    """
    members = [f"variable {index}" for index in range(len(variables))]
    members.append(_END)
    with on_host():
        return collectives.grouped_allreduce(
            [tf.zeros([1], tf.uint8)] * len(members),
            op=reduce_ops.Min,  # one process has the value of all: strip-ops need not ask about it
            name="variables",
            member_names=members,
            process_set=process_set,
        )


def _order_of(variables: Sequence[Any]) -> np.ndarray:
    """62 bits each of the variables' names, sorted and as listed, and of the names without counts.

    Shape [4], int64. Ranks on which the first of a pair is equal and the second is not have
    listed the same variables in different orders.
    """
    exact = [getattr(variable, "path", None) or variable.name for variable in variables]
    plain = [_COUNT.sub("", name) for name in exact]
    texts = ["\n".join(names) for names in (sorted(exact), exact, sorted(plain), plain)]
    digests = [hashlib.sha256(text.encode()).digest() for text in texts]
    return np.array([int.from_bytes(digest[:8], "big") >> 2 for digest in digests], np.int64)


@dataclasses.dataclass(frozen=True)
class _Listing:
    """What the ranks compare of a list of variables, and by which they know it."""

    order: Any  # see _order_of
    number: Any  # see sources.SourceList; a scalar


def _agree(
    root_rank: int, process_set: ProcessSet, variables: Sequence[Any], listing: _Listing
) -> list[Any]:
    """Fails on all ranks if they list the same variables in different orders; else identifies them.

    Names that differ are no mistake: a rank may have loaded its model, where others have built
    it, or may have built another one before. With the order goes the root's random number, by
    which the ranks know their variables from now on (runtime/request/sources.h).

    Returns:
      What the broadcasts wait for in a graph; nothing in eager mode.
    """
    identifies = not in_xla()  # which has no such ops: there they stay what they were
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
    # Between what the program does with them before and after: one rank must not reduce their
    # gradients as those of the variables that they were, and another as what they become.
    # Reference variables are in no tf.function, whose order this is about.
    resources = [variable for variable in variables if hasattr(variable, "handle")]
    before = waits_for([variable.is_initialized() for variable in resources])
    with tf.control_dependencies(agreed + before), on_host():
        return waits_for(_native.ops.horovod_identify(listing.number, both[8]))


def _beside(variable: Any) -> contextlib.AbstractContextManager[Any]:
    """Keeps what is sent of a variable on the CPU off the GPU, where TensorFlow would take it."""
    is_on_cpu = tf.DeviceSpec.from_string(variable.device).device_type == "CPU"
    return on_host() if is_on_cpu else contextlib.nullcontext()


def _assign_all(
    root_rank: int, process_set: ProcessSet, variables: Sequence[Any], listing: _Listing
) -> list[Any]:
    """What is to be run: one broadcast and one assignment for each variable.

    The requests are numbered, not named after the variables: a variable's name
    may hold a number that this process counted for itself (Keras' do).
    """
    with tf.name_scope("broadcast_variables"):
        # One after the other: where the first fails on all ranks, the second has begun on none.
        with tf.control_dependencies(_agree_on_variables(process_set, variables)):
            agreed = _agree(root_rank, process_set, variables, listing)
        assigned = []
        for index, variable in enumerate(variables):
            with tf.control_dependencies(agreed), _beside(variable):
                value = collectives.broadcast(
                    variable, root_rank, name=f"variable_{index}", process_set=process_set
                )
                assigned.append(variable.assign(value))
        # For ranks without variables: they must say so.
        return assigned + agreed


@functools.lru_cache(maxsize=16)
def _compiled(
    root_rank: int, process_set: ProcessSet, _registration: tuple[int, int | None]
) -> Callable[[list[Any], Any, Any], None]:
    """`_assign_all` as one tf.function: in it the broadcasts travel side by side."""

    def assign_all(variables: list[Any], order: Any, number: Any) -> None:
        _assign_all(root_rank, process_set, variables, _Listing(order, number))

    function: Callable[[list[Any], Any, Any], None] = retraced(
        tf.function(assign_all, autograph=False)
    )
    return function


def _first_unlike(variables: Sequence[Any], process_set: ProcessSet) -> str | None:
    """The first of the variables that has another dtype or shape on some rank, as an error says it.

    None if there is none. All ranks of the set must call it, with equally many variables.
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
                    "must be equal on all ranks"
                )
    return None


@contextlib.contextmanager
def _naming(
    variables: Sequence[Any], number: re.Pattern[str], process_set: ProcessSet
) -> Iterator[None]:
    """Adds to an error of ranks that disagree what this rank calls the variable of that number."""
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
            # All ranks come here. The broadcasts travel side by side, so that any one may be the
            # first to fail: of a layer of another size that may be an optimizer's slot.
            first = _first_unlike(variables, process_set)
            line = line if first is None else first
            found = number.search(line)
        if found and int(found[1]) < len(variables):  # else the other rank has more
            name = variables[int(found[1])].name.partition(":")[0]
            known.append(f"On rank {basics.rank()} this is the variable {name!r}.")
        if not known:
            raise
        # In one line, which is what is told of it elsewhere.
        text = f"{line}. {' '.join(known)}"
        raise tf.errors.FailedPreconditionError(error.node_def, error.op, text) from error


def _kind(variable: Any) -> str:
    """How TensorFlow refers to the variable."""
    if not isinstance(variable, tf.Variable):
        raise ValueError(
            f"broadcast_ takes variables, not {type(variable).__name__}; for tensors use "
            "tf_hvd.broadcast."
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
        # Not the references: they would show what is written later.
        values.update(zip(members, map(tf.identity, written), strict=True))
    return [values[index] for index in range(len(variables))]


@verbatim
def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Sets variables to the values of one rank, in the variables' own memory (MPI_Bcast).

    One request for all of them, and no second buffer. In a graph other ops that read
    or write the variables must be ordered before or after it (a tf.function does so by
    itself for resource variables). No gradient passes through it.

    Args:
      variables: tf.Variables or Keras variables, initialised; number, order, dtypes
        and shapes the same on all ranks. All resource variables, or all reference
        variables of v1.
      root_rank: the rank whose values count, as numbered in the job even for a process set.
      name: name of the request.
      process_set: who takes part.

    Returns:
      The new values, one tensor for each variable.

    Raises:
      TypeError: `root_rank` is no integer.
      ValueError: both kinds of variables, or something that is no variable.
      tf.errors.InvalidArgumentError: there is no such root rank; an uninitialised
        variable.
      tf.errors.FailedPreconditionError: `init` was not called, or the ranks'
        variables do not fit together.
    """
    root_rank = _calls.checked_root(root_rank)
    plain = [tf_variable(variable) for variable in variables]
    kinds = {_kind(variable): variable for variable in plain}
    if len(kinds) > 1:
        named = " and ".join(f"{kind} variable {v.name}" for kind, v in sorted(kinds.items()))
        raise ValueError(f"broadcast_ cannot take {named} together; call it once for each kind.")
    if not plain:
        return []
    if name is None and not tf.executing_eagerly():
        # Not after the variables: a Keras variable's name may hold a number that
        # this process counted for itself.
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
    """`broadcast_`, once for each kind of variable and device."""
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
) -> Any:
    """Sets variables to the values that they have on one rank (MPI_Bcast each).

    The seeds of Keras 3's random layers, which `model.variables` holds, are left as
    they are: each rank goes on with random numbers of its own. So are the vocabularies that
    `model.variables` of tf_keras holds: `broadcast_adapted` copies those.

    Args:
      variables: tf.Variables or Keras variables; number, order, dtypes and shapes
        the same on all ranks. Where their names are the same, so must their order be.
      root_rank: the rank whose values count.
      process_set: who takes part.
      inplace: receive into the variables' own memory, as `broadcast_` does: less
        memory, but nothing else may use the variables meanwhile.

    Returns:
      None in eager mode; in a graph the op that does it, which then raises what
      tf.errors has below.

    Raises:
      TypeError: `root_rank` is no integer.
      ValueError: `process_set` is not registered.
      tf_hvd.keras.GuardError: in eager mode: Keras' adapted layers, which any model or dataset may
        contain, have another state on another rank (`broadcast_adapted` copies it).
      tf.errors.InvalidArgumentError: there is no such root rank. In a graph also: the
        ranks list the same variables in different orders.
      tf.errors.FailedPreconditionError: `init` was not called; or the ranks differ in
        `root_rank`, or in the number, the dtypes or the shapes of the variables. In eager
        mode also: the ranks list the same variables in different orders. There the text
        says what this rank calls the variable.
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


def broadcast_global_variables(root_rank: int) -> Any:
    """Op that sets all global variables of the default v1 graph to one rank's values.

    Raises:
      RuntimeError: in eager mode, which has no collection of global variables.
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "broadcast_global_variables() has no meaning in eager mode, where there is no list of "
            "global variables; use broadcast_variables(model.variables, root_rank)."
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)
