"""Determine from TensorFlow's graphs whether gradients were reduced.

A reduction counts if it is downstream of the backward pass, that is, between the results of a tape
and the update. A reduction in the forward pass, such as SyncBatchNormalization or a mean loss, does
not count. Its derivative is part of the backward pass, and does not count either. Called functions,
branches and loops are searched too. Gradients that pass through tf.py_function and similar ops are
assumed to be reduced.

The search cannot follow data through variables, such as sums of several passes. Therefore a
reduction counts if its values are read only from variables. Some gradients come from a variable or
from outside the function. These gradients are considered unreduced only if the graph has no
reduction at all.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_hvd.collectives.gradients import DERIVATIVE
from tf_hvd.core import kinds
from tf_hvd.core.tensorflow_hooks import BACKPROP
from tf_hvd.training.reduction import ALONE

# All collectives except those that replace a rank's gradients with another rank's.
_REDUCES = tuple(
    op_type
    for kind in kinds.OF_TENSORS.values()
    if kind.reduces or not kind.has_root
    for op_type in kind.functions
)
# Python programs, which cannot be analysed.
_OPAQUE = ("EagerPyFunc", "PyFunc", "PyFuncStateless")
# Ops with results that do not depend on the data of a step.
_NEUTRAL = (
    "HorovodSize", "HorovodRank",
    "HorovodBroadcastNumber", "HorovodIdentify", "HorovodCountReduction",
)  # fmt: skip
_DERIVATIVE = re.compile(rf"(^|/){DERIVATIVE}(_\d+)?/")
_ALONE = re.compile(rf"(^|/){ALONE}(_\d+)?/")


class _Node:
    def __init__(
        self,
        type_name: str,
        name: str,
        inputs: list[Any],
        calls: list[str],
        reducing: Collection[str] = (),
    ) -> None:
        self.type = type_name
        self.name = name
        self.inputs = inputs  # keys of nodes
        self.calls = calls  # names of the called functions
        self.backward = BACKPROP in name
        reduces = type_name in reducing or _ALONE.search(name) is not None
        self.reduces = reduces and not (self.backward or _DERIVATIVE.search(name))
        self.meets = type_name.startswith("Horovod") and type_name not in _NEUTRAL


def functions_of(attributes: Iterable[Any]) -> list[str]:
    names = []
    for value in attributes:
        listed = value.list.func if value.WhichOneof("value") == "list" else [value.func]
        names += [function.name for function in listed if function.name]
    return names


def _is_small(constant: Any) -> bool:
    """Return whether a constant is a scalar, or an integer tensor such as a shape or axes."""
    value = constant.attr["value"].tensor
    return not value.tensor_shape.dim or tf.as_dtype(value.dtype).is_integer


def _gives_numbers(op: Any) -> bool:
    return bool(op.outputs) and all(each.shape.num_elements() == 1 for each in op.outputs)


class _Flow:
    """A graph of nodes with their inputs; subclasses define how to find a node by its key."""

    def __init__(self, library: "Library") -> None:
        self.library = library
        self._not_downstream: set[Any] = set()

    def node(self, key: Any) -> _Node:
        raise NotImplementedError

    def holds_reduction(self, node: _Node) -> bool:
        return node.reduces or any(self.library.body(name).reduces for name in node.calls)

    def upstream(self, starts: Iterable[Any], seen: set[Any]) -> Iterator[tuple[Any, _Node]]:
        """Yield the nodes with these keys and all nodes upstream, up to the backward pass."""
        waiting = list(starts)
        while waiting:
            key = waiting.pop()
            if key in seen:
                continue
            seen.add(key)
            node = self.node(key)
            yield key, node
            if not node.backward and node.type != "ReadVariableOp":
                waiting += node.inputs

    def _is_backward(self, node: _Node) -> bool:
        return node.backward or any(self.library.body(name).backward for name in node.calls)

    def _downstream(self, node: _Node) -> bool:
        """Return whether the node is downstream of the backward pass."""
        seen = set(self._not_downstream)
        if any(self._is_backward(each) for _, each in self.upstream(node.inputs, seen)):
            return True
        self._not_downstream = seen
        return False

    def _of_variables(self, node: _Node) -> bool:
        """Return whether the node's inputs are computed from variables and constants only."""
        reads = False
        for key, each in self.upstream(node.inputs, set()):
            if each.type == "ReadVariableOp":
                reads = True
            elif not each.inputs and each.type not in _NEUTRAL and not self.is_constant(key):
                return False
        return reads

    def is_constant(self, key: Any) -> bool:
        """Return whether the node is a constant such as a number or a shape, and not data."""
        raise NotImplementedError

    def reduces_at(self, node: _Node) -> bool:
        """Return whether the node reduces results of the backward pass."""
        if node.backward:
            return False
        bodies = [self.library.body(name) for name in node.calls]
        if any(body.reduces_gradients for body in bodies):
            return True
        if not node.reduces and not any(body.reduces for body in bodies):
            return False
        if self._downstream(node):
            return True
        return node.type in _REDUCES and self._of_variables(node)


class _Body(_Flow):
    def __init__(self, library: "Library", definition: Any) -> None:
        super().__init__(library)
        self._nodes = {
            node.name: _Node(
                node.op,
                node.name,
                [name.partition(":")[0] for name in node.input if not name.startswith("^")],
                functions_of(node.attr.values()),
                library.reducing,
            )
            for node in definition.node_def
        }
        arguments = [argument.name for argument in definition.signature.input_arg]
        self._arguments = {name: _Node("_Arg", name, [], []) for name in arguments}
        self._constants = {
            node.name for node in definition.node_def if node.op == "Const" and _is_small(node)
        }
        # In this order: a recursive function sees the properties known so far.
        self.backward = any(node.backward for node in self._nodes.values())
        self.reduces = any(node.reduces for node in self._nodes.values())
        self.meets = any(node.meets for node in self._nodes.values())
        self.reduces_gradients = False

    def node(self, key: Any) -> _Node:
        return self._nodes.get(key) or self._arguments[key]

    def is_constant(self, key: Any) -> bool:
        return key in self._constants

    def look(self) -> None:
        """Find the properties that depend on called functions.

        The constructor cannot do this, because functions may call each other.
        """
        bodies = [self.library.body(name) for node in self._nodes.values() for name in node.calls]
        self.backward |= any(body.backward for body in bodies)
        self.reduces |= any(body.reduces for body in bodies)
        self.meets |= any(body.meets for body in bodies)
        self.reduces_gradients = any(map(self.reduces_at, self._nodes.values()))


class Library:
    """The functions that graphs call, directly or through other functions.

    Args:
      graphs: the graphs, which are read when the first function is needed.
      reducing: types of ops that count as reductions.
    """

    def __init__(self, graphs: Sequence[Any], reducing: Collection[str]) -> None:
        self._graphs = graphs
        self.reducing = reducing
        self._definitions: dict[str, Any] | None = None
        self._bodies: dict[str, Any] = {}

    def definitions(self) -> dict[str, Any]:
        if self._definitions is None:
            self._definitions = {
                function.signature.name: function
                for graph in self._graphs
                for function in graph.as_graph_def().library.function
            }
        return self._definitions

    def body(self, name: str) -> Any:
        if name not in self._bodies:
            if name not in self.definitions():
                return _UNKNOWN
            self._bodies[name] = _Body(self, self.definitions()[name])
            self._bodies[name].look()
        return self._bodies[name]


class _Unknown:
    """A function that is not in any graph's library, so its ops are unknown."""

    backward = reduces = meets = reduces_gradients = False


_UNKNOWN = _Unknown()


class Tracing(_Flow):
    """The nested functions that are being traced, or a v1 graph and the functions in it.

    Args:
      graphs: the graphs of the functions, innermost first.
      reducing: types of ops that count as reductions.
    """

    def __init__(
        self, graphs: Sequence[Any], reducing: Collection[str] = (*_REDUCES, *_OPAQUE)
    ) -> None:
        super().__init__(Library(graphs, reducing))
        self._graphs = graphs
        self._outer = {
            inner.op: getattr(outer, "op", None)
            for graph in graphs
            for outer, inner in getattr(graph, "captures", ())
        }
        self._nodes: dict[Any, _Node] = {}

    def node(self, key: Any) -> _Node:
        if key not in self._nodes:
            outer = self._outer.get(key)
            inputs = [tensor.op for tensor in key.inputs] + ([] if outer is None else [outer])
            # A constant's definition contains its whole value.
            calls = [] if key.type == "Const" else functions_of(key.node_def.attr.values())
            self._nodes[key] = _Node(key.type, key.name, inputs, calls, self.library.reducing)
        return self._nodes[key]

    def is_constant(self, key: Any) -> bool:
        if key.type == "Const":
            return _is_small(key.node_def)
        # A number that was created in eager mode.
        return key in self._outer and self._outer[key] is None and key.outputs[0].shape.rank == 0

    def meets(self, op: Any) -> bool:
        """Return whether an op is a collective, which waits for other ranks, or calls one."""
        node = self.node(op)
        return node.meets or any(self.library.body(name).meets for name in node.calls)

    def of(self, gradients: Sequence[Any]) -> set[str]:
        """Return the origins of gradients: a set of "reduced", "backward" and "elsewhere".

        Programs may reduce a single number, such as a norm for clipping. This does not count as a
        reduction of the gradients, unless all gradients are single numbers.
        """
        small = all(each.shape.num_elements() == 1 for each in gradients)
        return {self._of(each, small) for each in gradients}

    def unreduced(self, gradients: Sequence[Any]) -> bool:
        """Return whether these gradients are known to be unreduced.

        Args:
          gradients: tensors and IndexedSlices of the innermost graph, and None.

        Returns:
          True if at least one gradient comes from a backward pass and no gradient was reduced.
          Called functions are searched too. False if one gradient was reduced, because the other
          gradients may be meant to stay local to the rank.
        """
        values = traced(gradients, self._graphs)
        sources = self.of(values)
        if not values or "reduced" in sources:
            return False
        if "backward" in sources:
            return True
        nodes = [self.node(op) for graph in self._graphs for op in graph.get_operations()]
        beside = any(self.holds_reduction(node) for node in nodes)
        return self.may_be_sums(values) and not beside and any(node.backward for node in nodes)

    def may_be_sums(self, values: Sequence[Any]) -> bool:
        """Return whether tensors of unknown origin may be gradient sums that the program keeps."""
        return True

    def _of(self, gradient: Any, small: bool) -> str:
        found = "elsewhere"
        for key, node in self.upstream([gradient.op], set()):
            if self.reduces_at(node) and (small or not _gives_numbers(key)):
                return "reduced"
            if self._is_backward(node):
                found = "backward"
        return found


def reduced(gradients: Sequence[Any], graphs: Sequence[Any]) -> bool:
    """Return whether one of these gradients is known to have been reduced by a collective.

    The result is False for gradients from tf.py_function, which cannot be analysed.
    """
    return "reduced" in Tracing(graphs, _REDUCES).of(traced(gradients, graphs))


def collectives(graphs: Sequence[Any]) -> list[Any]:
    """Return the ops of the innermost function that are or call collectives."""
    flow = Tracing(graphs)
    return [op for op in graphs[0].get_operations() if flow.meets(op)]


def traced(gradients: Sequence[Any], graphs: Sequence[Any]) -> list[Any]:
    """Return the gradients, or values of IndexedSlices, that were computed in one of the graphs."""
    values = [g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients]
    return [value for value in values if getattr(value, "graph", None) in graphs]
