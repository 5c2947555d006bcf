"""All ranks start from the same values: variables take those of one rank."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_hvd import collectives
from tf_hvd._autograph import verbatim
from tf_hvd.process_sets import ProcessSet, global_process_set
from tf_hvd.reduction import tf_variable


def _assign_all(root_rank: int, process_set: ProcessSet, variables: Sequence[Any]) -> list[Any]:
    """One broadcast and one assignment for each variable.

    The requests are numbered, not named after the variables: a variable's name
    may hold a number that this process counted for itself (Keras' do).
    """
    with tf.name_scope("broadcast_variables"):
        return [
            variable.assign(
                collectives.broadcast(
                    variable, root_rank, name=f"variable_{index}", process_set=process_set
                )
            )
            for index, variable in enumerate(variables)
        ]


@functools.lru_cache(maxsize=16)
def _compiled(root_rank: int, process_set: ProcessSet) -> Callable[[list[Any]], None]:
    """`_assign_all` as one tf.function: in it the broadcasts travel side by side."""

    def assign_all(variables: list[Any]) -> None:
        _assign_all(root_rank, process_set, variables)

    function: Callable[[list[Any]], None] = tf.function(assign_all, autograph=False)
    return function


@verbatim
def broadcast_variables(
    variables: Sequence[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> Any:
    """Sets variables to the values that they have on one rank (MPI_Bcast each).

    Args:
      variables: tf.Variables or Keras variables; number, order, dtypes and shapes
        the same on all ranks.
      root_rank: the rank whose values count.
      process_set: `global_process_set`.
      inplace: accepted for Horovod's scripts; the result is the same, and this
        version always receives into a new buffer.

    Returns:
      None in eager mode; in a graph the op that does it.

    Raises:
      tf.errors.InvalidArgumentError: there is no such root rank.
      tf.errors.FailedPreconditionError: `init` was not called, or the ranks'
        variables do not fit together.
    """
    del inplace
    plain = [tf_variable(variable) for variable in variables]
    if tf.executing_eagerly():
        if plain:
            _compiled(root_rank, process_set)(plain)
        return None
    return tf.group(*_assign_all(root_rank, process_set, plain))


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
