"""Session hooks for TensorFlow 1 programs, and a session that includes the broadcast hook."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_hvd.collectives.variables import broadcast_variables
from tf_hvd.core import basics
from tf_hvd.core.metrics import StepSummaries
from tf_hvd.training import v1_guard

# Arguments about files that only the root reads or writes, and their values on other ranks.
_OF_ROOT_ONLY = {"checkpoint_dir": None, "summary_dir": None, "chief_only_hooks": None}


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Session hook that sets all global variables to one rank's values.

    The hook runs when the session is created. All ranks then start from the same values, whether
    these come from an initializer or from a checkpoint that only the root rank can read. Pass this
    hook after hooks that create variables in their `begin`.

    Args:
      root_rank: the rank that sends its values.
      device: device for the broadcasts. "" (default) for TensorFlow's choice.

    Raises:
      RuntimeError: variables were created after this hook's `begin`, so it would not broadcast
        them; raised when the session is created.

    Example:
      with tf.Graph().as_default():
          variable = tf.compat.v1.get_variable("w", initializer=float(hvd.rank()))
          hooks = [hvd.BroadcastGlobalVariablesHook(0)]
          with tf.compat.v1.train.MonitoredSession(hooks=hooks) as session:
              assert session.run(variable) == 0.0
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.bcast_op: Any = None
        self._variables: list[Any] = []

    def begin(self) -> None:
        """Add the broadcasts to the graph, unless this graph already has them.

        Raises:
          GuardError: an optimizer in the graph applies gradients that were not reduced.
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
                f"{len(late)} variables ({names}) would differ between ranks, because they were "
                "created after BroadcastGlobalVariablesHook.begin. Pass this hook last, or use "
                "tf_hvd.MonitoredTrainingSession."
            )
        session.run(self.bcast_op)


class MetricsHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Session hook that writes the time and bytes of collectives per step, for TensorBoard.

    The values are those of `tf_hvd.metrics().per_step`, averaged over the steps since the previous
    write.

    Args:
      log_dir: folder for the summaries; rank N writes into the subfolder `rank-N`.
      every_n_steps: number of session runs between writes (default: 100).

    Example:
      with tf.Graph().as_default():
          reduced = hvd.allreduce(tf.ones([2]))
          hooks = [hvd.MetricsHook("logs", every_n_steps=10)]
          with tf.compat.v1.train.MonitoredSession(hooks=hooks) as session:
              session.run(reduced)
    """

    def __init__(self, log_dir: str, *, every_n_steps: int = 100) -> None:
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
    """Create a tf.compat.v1.train.MonitoredTrainingSession for a job of several ranks.

    The root rank restores variables from `checkpoint_dir`, or initialises them. Then all ranks get
    the root rank's values, including those of slots and of variables that other hooks have created.

    Only the root rank writes checkpoints and summaries and runs `chief_only_hooks`. The program
    therefore does not need `if rank() == 0`.

    Args:
      hooks: list of the program's hooks, which run before the broadcast. None by default.
      root_rank: the rank that reads and writes files (default: 0).
      **arguments: arguments of TensorFlow's function, by keyword, except `is_chief` and `master`.

    Returns:
      A tf.compat.v1.train.MonitoredSession.

    Raises:
      ValueError: `is_chief` or `master` was passed, or `init` was not called.
      GuardError: an optimizer in the graph applies gradients that were not reduced.

    Example:
      with tf.Graph().as_default():
          tf.compat.v1.train.create_global_step()
          reduced = hvd.allreduce(tf.ones([2]))
          with hvd.MonitoredTrainingSession() as session:
              session.run(reduced)
    """
    for name in ("is_chief", "master"):
        if name in arguments:
            raise ValueError(
                f"{name}= is for TensorFlow's own clusters, but here each rank has a separate "
                f"session. Remove {name}=."
            )
    given = [*(hooks or ()), BroadcastGlobalVariablesHook(root_rank)]
    if basics.rank() != root_rank:
        arguments.update(_OF_ROOT_ONLY)
    return tf.compat.v1.train.MonitoredTrainingSession(hooks=given, **arguments)
