"""Counter: how often this process has done something in the running job."""

import contextlib
from typing import Any

import tensorflow as tf

from tf_hvd.core.process_sets import ProcessSet, restart_after_join, restart_in_each_job
from tf_hvd.core.tensorflow_hooks import in_xla, on_host, state_variable


class Counter:
    """Counts in eager mode, in tf.functions and in v1 graphs; from 0 again in each job.

    Of a v1 graph it is a local variable, which not every program initialises; a session that
    outlives its job keeps its count.

    Args:
      name: the variable's.
      process_set: whose ranks count alike; then it counts from 0 again after each join of
        theirs, before which some have made more steps. None: it goes on.
    """

    def __init__(self, name: str, process_set: ProcessSet | None = None) -> None:
        # XLA reaches what is on the device that it compiles for.
        place = contextlib.nullcontext() if in_xla() else on_host()
        with tf.init_scope(), place:
            self.variable = state_variable(tf.zeros([], tf.int64), name)
            """Where it counts; functions that count have captured it."""
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
            return None  # it counts in another program
        if in_graph and self.variable.graph is not tf.compat.v1.get_default_graph():
            return None
        return self.variable.assign(0, read_value=False)

    def value(self) -> Any:
        """How many were counted, now or when the graph runs; an int64 scalar."""
        if not self._is_in_graph:
            return self.variable.read_value()
        with tf.name_scope("distributed_count"):
            return tf.cond(
                self.variable.is_initialized(),
                self.variable.read_value,
                lambda: tf.zeros([], tf.int64),
            )

    def add(self) -> Any:
        """Counts one, now or when the graph runs; how many there are with it."""
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
