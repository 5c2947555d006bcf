"""Stop training by tf.compat.v1 optimizers with gradients that were not reduced.

This guard corresponds to the guard for Keras (tf_hvd.keras.guard), and uses the same switch. In the
graph of a v1 session or of a tf.function, the guard finds the origin of gradients. In eager mode it
only checks whether this process has called a collective since a variable's previous update.
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
# Op types that train begin with one of these.
_TRAINING = ("Apply", "ResourceApply", "ResourceSparseApply", "SparseApply")
# Op types that begin with one of these train if an optimizer created the op, under _UPDATE.
_WRITES = ("AssignSub", "ResourceScatter", "Scatter")
_UPDATE = "/update_"


class _Flow(dataflow.Tracing):
    """A search for the origin of gradients, including gradients that tf.gradients created."""

    def node(self, key: Any) -> Any:
        node = super().node(key)
        # tf.gradients marks its ops; names would prove nothing, because it accepts any.
        if is_of_gradients(key):
            node.backward, node.reduces = True, False
        return node

    def may_be_sums(self, values: Sequence[Any]) -> bool:
        nodes = self.upstream([value.op for value in values], set())
        return any(node.type in _VARIABLES for _, node in nodes)


def _sent() -> int:
    """Return the number of this process's collective requests so far; negative before `init`."""
    return int(_native.library.tf_hvd_submitted_count())


class GradientCheck:
    def __init__(self) -> None:
        self._first = _sent()
        self._last: dict[int, int] = {}  # requests at the last update, by the variable's id
        restart_in_each_job(self)

    def restart(self) -> None:
        """Restart in a new job, in which requests are counted from 0 again."""
        self._first = _sent()
        self._last.clear()

    @verbatim
    def before_update(self, kind: str, pairs: Sequence[tuple[Any, Any]], only_added: bool) -> None:
        """Check that gradients were reduced before an optimizer applies them.

        Args:
          kind: name of the optimizer, for the error.
          pairs: gradients and variables.
          only_added: whether these gradients are only added up, without a collective. Used only in
            eager mode.

        Raises:
          GuardError: the gradients were not reduced.
        """
        if not pairs or not guard.watches():
            return
        if tf.executing_eagerly():
            # With asynchronous execution a request may be made later.
            known = tf.config.experimental.get_synchronous_execution() and not only_added
            wrong = known and not self._sent_for([variable for _, variable in pairs])
        else:
            wrong = _Flow(enclosing_graphs()).unreduced([gradient for gradient, _ in pairs])
        if wrong:
            raise guard.NotDistributedError(
                guard.not_reduced(
                    "Call compute_gradients() or minimize() on the distributed optimizer; both "
                    "reduce the gradients.\nOr reduce the gradients yourself, with "
                    "tf_hvd.DistributedGradientTape or tf_hvd.allreduce. Reducing the loss is not "
                    "enough.",
                    f"apply_gradients() of {kind} was given gradients that were",
                )
            )

    def _sent_for(self, variables: Sequence[Any]) -> bool:
        """Return whether a collective was called since the last update of one of the variables."""
        sent = _sent()
        before = [self._last.get(id(variable), self._first) for variable in variables]
        self._last.update((id(variable), sent) for variable in variables)
        return min(before) < sent


# Names of ops in graphs that distributed optimizers created and check themselves.
_answered: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()


class AnsweredFor:
    """Exclude the ops created within the block from `check_graph`.

    A distributed optimizer creates these ops, and makes its own checks.
    """

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
    """Check a v1 graph before a session trains with it.

    Raises:
      GuardError: an optimizer in the graph applies gradients that were not reduced.
    """
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
            raise guard.NotDistributedError(
                guard.not_reduced(
                    "Wrap the optimizer before its updates are created: "
                    "tf_hvd.DistributedOptimizer(optimizer).\nIt is not enough to broadcast the "
                    "variables or to reduce the loss.",
                    f"the graph of this session has updates ({name}) with gradients that were",
                )
            )


def _updates(graph: Any, library: dataflow.Library) -> dict[str, list[Any]]:
    """Return the training ops that no distributed optimizer created, by the optimizer's name."""
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
    """Return whether an optimizer created the op to change a variable or a slot."""
    return _UPDATE in f"/{name}" and type_name.startswith(_TRAINING + _WRITES)


def _called(node: Any) -> set[str]:
    return set(dataflow.functions_of(node.attr.values()))


def _training_functions(library: dataflow.Library) -> set[str]:
    """Return the functions in which an optimizer updates variables, such as tf.cond branches."""
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
    """Raise ValueError inside the v1 optimizer that scales losses by changing factors.

    That optimizer inspects the gradients of each call, and applies them only if they are finite.
    Ranks would decide differently, and a sum over several calls would mix several scales.

    `what` is the argument of the distributed optimizer that causes the conflict, for the error.
    """
    frame: Any = sys._getframe(1)
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, MixedPrecisionLossScaleOptimizer):
            if isinstance(loss_scale_of(caller), DynamicLossScale):
                raise ValueError(
                    f"a distributed optimizer with {what} cannot be inside a "
                    "MixedPrecisionLossScaleOptimizer, because scale and updates would differ "
                    "between ranks. Wrap in the opposite order: tf_hvd.DistributedOptimizer("
                    f"MixedPrecisionLossScaleOptimizer(optimizer, loss_scale), {what})."
                )
            return
        frame = frame.f_back
