"""TensorFlow 1 style: a hook for sessions, and the session with the hook in its place."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_hvd.collectives.variables import broadcast_variables
from tf_hvd.core import basics
from tf_hvd.core.metrics import StepSummaries
from tf_hvd.training import v1_guard

# What writes to, or reads from, the disk: an argument, and its value on ranks that do not.
_OF_ROOT_ONLY = {"checkpoint_dir": None, "summary_dir": None, "chief_only_hooks": None}


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Sets all global variables to one rank's values, once the session is there.

    Whether they come from an initializer or from a checkpoint that only the root
    rank could read, all ranks begin with the same ones. It comes after hooks that
    make variables in their `begin`.

    Args:
      root_rank: the rank whose values count.
      device: device for the broadcasts, "" for TensorFlow's choice.

    Raises:
      RuntimeError: (when the session is made) there are variables that were made
        after this hook's `begin`, so that it would leave them out.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.bcast_op: Any = None
        self._variables: list[Any] = []

    def begin(self) -> None:
        """Adds the broadcasts to the graph, unless they are in this graph already.

        Raises:
          GuardError: an optimizer in it updates by gradients that nothing has reduced.
        """
        v1_guard.check_graph(tf.compat.v1.get_default_graph())
        variables = tf.compat.v1.global_variables()
        same_graph = self.bcast_op is not None and (
            self.bcast_op.graph is tf.compat.v1.get_default_graph()
        )
        if same_graph and not _missing(variables, self._variables):
            return
        self._variables = variables
        with tf.device(self.device or None):
            self.bcast_op = broadcast_variables(variables, self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        with session.graph.as_default():
            late = _missing(tf.compat.v1.global_variables(), self._variables)
        if late:
            names = ", ".join(variable.name for variable in late[:3])
            raise RuntimeError(
                f"{len(late)} variables ({names}) were made after "
                "BroadcastGlobalVariablesHook.begin and would differ between ranks: pass this "
                "hook last, or use tf_hvd.MonitoredTrainingSession."
            )
        session.run(self.bcast_op)


class MetricsHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Writes what collectives take of a step for TensorBoard, each rank into a folder of its own.

    The values are those of `tf_hvd.metrics().per_step`, averaged since they were last written.

    Args:
      log_dir: a folder; rank 1 writes into `rank-1` in it.
      every_n_steps: after so many session runs.
    """

    def __init__(self, log_dir: str, every_n_steps: int = 100) -> None:
        super().__init__()
        self._summaries = StepSummaries(log_dir, every_n_steps)

    def begin(self) -> None:
        self._summaries.begin()

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self._summaries.step()

    def end(self, session: Any) -> None:
        self._summaries.end()


def _missing(variables: Sequence[Any], known: Sequence[Any]) -> list[Any]:
    there = {id(variable) for variable in known}
    return [variable for variable in variables if id(variable) not in there]


def MonitoredTrainingSession(  # noqa: N802 - TensorFlow's name
    *,
    hooks: Sequence[Any] | None = None,
    root_rank: int = 0,
    **arguments: Any,
) -> Any:
    """tf.compat.v1.train.MonitoredTrainingSession for a job of several ranks.

    The root rank restores from `checkpoint_dir`, or initialises; then all ranks take
    its values, including those of slots and of variables that other hooks have made. It
    alone writes checkpoints and summaries and runs `chief_only_hooks`: the program
    needs no `if rank() == 0`.

    Args:
      hooks: the program's; the broadcast comes after them.
      root_rank: the rank that reads and writes.
      **arguments: those of TensorFlow's function, by name; `is_chief` and `master`
        make no sense here.

    Returns:
      A MonitoredSession.

    Raises:
      ValueError: `is_chief` or `master` is given; or `init` was not called.
      GuardError: an optimizer in the graph updates by gradients that nothing has reduced.
    """
    for name in ("is_chief", "master"):
        if name in arguments:
            raise ValueError(
                f"{name}= is for TensorFlow's own clusters; here each rank has a session of its "
                "own. Leave it out."
            )
    given = [*(hooks or ()), BroadcastGlobalVariablesHook(root_rank)]
    if basics.rank() != root_rank:
        arguments.update(_OF_ROOT_ONLY)
    return tf.compat.v1.train.MonitoredTrainingSession(hooks=given, **arguments)
