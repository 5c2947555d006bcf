"""Ranks that wait for each other: no tensor travels here.

The rules of `tf_hvd.collectives` hold, with one difference: what is called here
is called for its effect, so it runs in a tf.function whether or not its result is
used, and in the order of the program among ops that are called for their effect.
"""

from typing import Any

from tf_hvd import _calls, _native
from tf_hvd._autograph import verbatim
from tf_hvd.process_sets import ProcessSet, global_process_set


@verbatim
def barrier(process_set: ProcessSet = global_process_set, name: str | None = None) -> Any:
    """Waits until all ranks of the set have come here (MPI_Barrier).

    In eager mode it returns when they have. In a tf.function it runs by itself, in
    order with assignments, prints and other ops with an effect, but not with
    collectives that return tensors: for those use tf.control_dependencies. In a v1
    graph it runs when its result is run, or is a control dependency of what is run.

    Args:
      process_set: who waits for each other.
      name: name of the request; "HorovodBarrier" by default.

    Returns:
      None in eager mode; in a graph the op.

    Raises:
      ValueError: no such set.
      tf.errors.InvalidArgumentError: this rank is not in the set.
      tf.errors.FailedPreconditionError: `init` was not called.
    """
    return _calls.run(
        _native.ops.horovod_barrier, "HorovodBarrier", None, name, process_set,
        ignore_name_scope=False,
    )  # fmt: skip


@verbatim
def join(process_set: ProcessSet = global_process_set) -> Any:
    """Says that this rank has no more data, and waits until all ranks have said so.

    A rank with fewer batches calls it after its last one. Until all have, it takes
    part in the others' allreduces with zeros (an Average still divides by the number
    of all ranks) and in their allgathers with no rows. Of broadcast, alltoall and
    reducescatter the others get an error, for these need every rank.

    Args:
      process_set: whose collectives it is about.

    Returns:
      An int32 scalar, the same on all ranks: which rank, of the whole job, joined
      last. In eager mode int() makes it a number; in a graph it is the op's
      result, and the op runs in a tf.function also where the result is not used.

    Raises:
      ValueError: no such set.
      tf.errors.InvalidArgumentError: this rank is not in the set.
      tf.errors.FailedPreconditionError: `init` was not called.
    """
    return _calls.run(_native.ops.horovod_join, "HorovodJoin", None, None, process_set)
