"""A hook for tf.compat.v1.train.MonitoredTrainingSession."""

from typing import Any

import tensorflow as tf

from tf_hvd.variables import broadcast_global_variables


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Sets all global variables to one rank's values, once the session is there.

    Whether they come from an initializer or from a checkpoint that only the root
    rank could read, all ranks begin with the same ones.

    Args:
      root_rank: the rank whose values count.
      device: device for the broadcasts, "" for TensorFlow's choice.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.bcast_op: Any = None

    def begin(self) -> None:
        """Adds the broadcasts to the graph, unless they are in this graph already."""
        if self.bcast_op is None or self.bcast_op.graph is not tf.compat.v1.get_default_graph():
            with tf.device(self.device or None):
                self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Runs them."""
        del coord
        session.run(self.bcast_op)
