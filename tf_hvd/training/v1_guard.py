"""Stops training by optimizers of tf.compat.v1 whose gradients nothing has reduced.

What the guard of Keras is for Keras (tf_hvd.keras.guard), and turned off as it is. In
a graph, that of a v1 session or of a tf.function, it is known where gradients come
from. In eager mode only whether anything was sent since a variable's last update.
"""

import sys
import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.compat.v1.train.experimental import (
    DynamicLossScale,
    MixedPrecisionLossScaleOptimizer,
)

from tf_hvd.core import _native
from tf_hvd.core.process_sets import restart_in_each_job
from tf_hvd.core.tensorflow_hooks import (
    enclosing_graphs,
    is_of_gradients,
    is_reference,
    loss_scale_of,
    op_of_variable,
    verbatim,
)
from tf_hvd.training import dataflow, guard

_VARIABLES = ("ReadVariableOp", "VarHandleOp", "Variable", "VariableV2")
# Ops of training, by the beginning of their type.
_TRAINING = ("Apply", "ResourceApply", "ResourceSparseApply", "SparseApply")
# The same if an optimizer has made them, which puts them under this name.
_WRITES = ("AssignSub", "ResourceScatter", "Scatter")
_UPDATE = "/update_"


class _Flow(dataflow.Tracing):
    """Where gradients come from, those that tf.gradients has made too."""

    def node(self, key: Any) -> Any:
        node = super().node(key)
        # tf.gradients says so of what it makes; names would not do, for it takes any.
        if is_of_gradients(key):
            node.backward, node.reduces = True, False
        return node

    def may_be_sums(self, values: Sequence[Any]) -> bool:
        nodes = self.upstream([value.op for value in values], set())
        return any(node.type in _VARIABLES for _, node in nodes)


def _sent() -> int:
    """How many requests this process has made; negative before `init`."""
    return int(_native.library.tf_hvd_submitted_count())


class GradientCheck:
    def __init__(self) -> None:
        self._first = _sent()
        self._last: dict[int, int] = {}  # at the last update, by the variable's id
        restart_in_each_job(self)

    def restart(self) -> None:
        """Another job begins, in which requests are counted from 0 again."""
        self._first = _sent()
        self._last.clear()

    @verbatim
    def before_update(self, kind: str, pairs: Sequence[tuple[Any, Any]], only_added: bool) -> None:
        """An optimizer of some kind is about to update variables by gradients that must be reduced.

        `only_added`: whether nothing need have been sent. Looked at in eager mode only.

        Raises:
          GuardError: nothing has reduced the gradients.
        """
        if not pairs or not guard.watches():
            return
        if tf.executing_eagerly():
            # In asynchronous execution a request may be made after this.
            known = tf.config.experimental.get_synchronous_execution() and not only_added
            wrong = known and not self._sent_for([variable for _, variable in pairs])
        else:
            wrong = _Flow(enclosing_graphs()).unreduced([gradient for gradient, _ in pairs])
        if wrong:
            raise guard.GuardError(
                guard.not_reduced(
                    "Use compute_gradients() or minimize() of the distributed optimizer, "
                    "which reduce.\nOr reduce yourself: tf_hvd.DistributedGradientTape, "
                    "tf_hvd.allreduce. Reducing the loss is not enough.",
                    f"apply_gradients() of {kind} was given gradients that were",
                )
            )

    def _sent_for(self, variables: Sequence[Any]) -> bool:
        """Whether anything was sent since the last update of one of them."""
        sent = _sent()
        before = [self._last.get(id(variable), self._first) for variable in variables]
        self._last.update((id(variable), sent) for variable in variables)
        return min(before) < sent


# Names of ops in graphs that distributed optimizers answer for.
_answered: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()


class AnsweredFor:
    """Within it, ops are made by a distributed optimizer, which has checks of its own."""

    def __enter__(self) -> None:
        self._graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        self._before = len(self._operations())

    def __exit__(self, *error: Any) -> None:
        if self._graph is not None:
            names = {op.name for op in self._operations()[self._before :]}
            _answered.setdefault(self._graph, set()).update(names)

    def _operations(self) -> list[Any]:
        return [] if self._graph is None else list(self._graph.get_operations())


def check_graph(graph: Any) -> None:
    """A session is about to train what is in a v1 graph."""
    if not guard.watches():
        return
    flow = _Flow([graph])
    for name, updates in _updates(graph, flow.library).items():
        inputs = [
            tensor
            for op in updates
            for tensor in op.inputs
            if tensor.dtype not in (tf.resource, tf.variant) and not is_reference(tensor)
        ]
        if flow.unreduced(inputs):
            raise guard.GuardError(
                guard.not_reduced(
                    "Wrap the optimizer before its updates are made: "
                    "tf_hvd.DistributedOptimizer(optimizer).\nTo broadcast the variables, or to "
                    "reduce the loss, is not enough.",
                    f"the graph of this session has updates ({name}) by gradients that were",
                )
            )


def _updates(graph: Any, library: dataflow.Library) -> dict[str, list[Any]]:
    """Ops that train and that nobody answers for, for each optimizer, by its name."""
    trained = {
        op_of_variable(variable)
        for variable in graph.get_collection(tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES)
    }
    answered = _answered.get(graph, set())
    functions = _training_functions(library)
    found: dict[str, list[Any]] = {}
    for op in graph.get_operations():
        if op.name in answered or is_of_gradients(op):
            continue
        of_weight = op.type.startswith(_TRAINING) and op.inputs[0].op in trained
        calls = functions and op.type != "Const" and functions & _called(op.node_def)
        if _trains(op.type, op.name) or of_weight or calls:
            found.setdefault(op.name.partition(_UPDATE)[0], []).append(op)
    return found


def _trains(type_name: str, name: str) -> bool:
    """Whether an optimizer has made it, to change a variable or a slot."""
    return _UPDATE in f"/{name}" and type_name.startswith(_TRAINING + _WRITES)


def _called(node: Any) -> set[str]:
    return set(dataflow.functions_of(node.attr.values()))


def _training_functions(library: dataflow.Library) -> set[str]:
    """The functions in which an optimizer updates, those that tf.cond has made among them."""
    try:
        definitions = library.definitions()
    except ValueError:  # constants of more than two gigabytes
        return set()
    calls = {name: [_called(node) for node in each.node_def] for name, each in definitions.items()}
    training = {
        name
        for name, each in definitions.items()
        for node in each.node_def
        if node.op.startswith(_TRAINING) or _trains(node.op, node.name)
    }
    while True:
        outer = {name for name, called in calls.items() if any(training & one for one in called)}
        if outer <= training:
            return training
        training |= outer


def refuse_in_loss_scaler(what: str) -> None:
    """Refuses to be within the v1 optimizer that scales losses by numbers that change.

    It looks at the gradients of each call and then applies them or not: ranks would
    decide differently, and the sum of several calls would have parts of several scales.
    """
    frame: Any = sys._getframe(1)
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, MixedPrecisionLossScaleOptimizer):
            if isinstance(loss_scale_of(caller), DynamicLossScale):
                raise ValueError(
                    f"a distributed optimizer with {what} cannot be inside of "
                    "MixedPrecisionLossScaleOptimizer, whose scale and updates would differ "
                    "between ranks. Wrap the other way round: tf_hvd.DistributedOptimizer("
                    f"MixedPrecisionLossScaleOptimizer(optimizer, loss_scale), {what})."
                )
            return
        frame = frame.f_back
