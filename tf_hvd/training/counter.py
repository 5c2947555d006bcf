"""Counter, which counts events of this process in the running job."""

import contextlib
from typing import Any

import tensorflow as tf

from tf_hvd.core.process_sets import ProcessSet, restart_after_join, restart_in_each_job
from tf_hvd.core.tensorflow_hooks import in_xla, on_host, state_variable


class Counter:
    """A count in eager mode, in tf.functions or in a v1 graph, which restarts at 0 in each job.

    In a v1 graph the count is a local variable, which not every program initialises. A session that
    is used in several jobs keeps its count.

    Args:
      name: name of the variable with the count.
      process_set: ranks that must have equal counts. The count restarts at 0 after each join of
        these ranks, because some of them made more steps before the join. With None (default),
        a join does not change the count.
    """

    def __init__(self, name: str, process_set: ProcessSet | None = None) -> None:
        # XLA can only access variables on the device that it compiles for.
        place = contextlib.nullcontext() if in_xla() else on_host()
        with tf.init_scope(), place:
            self.variable = state_variable(tf.zeros([], tf.int64), name)
            """The variable with the count; functions that call `add` capture it."""
            self._is_in_graph = not tf.executing_eagerly()
        restart_in_each_job(self)
        if process_set is not None:
            restart_after_join(self, process_set)

    def restart(self) -> None:
        if not self._is_in_graph:
            self.variable.assign(0)

    def after_join(self) -> Any:
        with tf.init_scope():
            in_graph = not tf.executing_eagerly()
        if in_graph != self._is_in_graph:
            return None  # the count belongs to another program
        if in_graph and self.variable.graph is not tf.compat.v1.get_default_graph():
            return None
        return self.variable.assign(0, read_value=False)

    def value(self) -> Any:
        """Return the count as an int64 scalar, read when its graph runs."""
        if not self._is_in_graph:
            return self.variable.read_value()
        with tf.name_scope("distributed_count"):
            return tf.cond(
                self.variable.is_initialized(),
                self.variable.read_value,
                lambda: tf.zeros([], tf.int64),
            )

    def add(self) -> Any:
        """Add 1 to the count, and return the new count as an int64 scalar."""
        if not self._is_in_graph:
            return self.variable.assign_add(1)

        def first() -> Any:
            with tf.control_dependencies([self.variable.assign(1)]):
                return tf.ones([], tf.int64)

        with tf.name_scope("distributed_count"):
            return tf.cond(
                self.variable.is_initialized(),
                lambda: self.variable.assign_add(1, read_value=True),
                first,
            )
