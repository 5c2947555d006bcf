"""Creation of the nodes that replace one node in a graph or in a function's body."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, node_def_pb2

from tf_hvd.strip.errors import DamagedError

INNER = "one_process"


def attribute(value: Any) -> Any:
    """Return an AttrValue that contains a type, a list of types, a bool or a number."""
    if isinstance(value, tf.DType):
        return attr_value_pb2.AttrValue(type=value.as_datatype_enum)
    if isinstance(value, list):
        types = attr_value_pb2.AttrValue.ListValue(type=[one.as_datatype_enum for one in value])
        return attr_value_pb2.AttrValue(list=types)
    if isinstance(value, bool):
        return attr_value_pb2.AttrValue(b=value)
    return attr_value_pb2.AttrValue(i=value)


def unused(wanted: str, taken: set[str]) -> str:
    """Return `wanted`, with a number appended if it is taken, and add the result to `taken`."""
    name, number = wanted, 0
    while name in taken:
        number += 1
        name = f"{wanted}_{number}"
    taken.add(name)
    return name


class Builder:
    """Replaces one node with new nodes. The last new node gets the replaced node's name.

    New nodes run on the replaced node's device, after its control inputs.
    """

    def __init__(
        self,
        node: Any,
        new_name: Callable[[str], str],
        in_function: bool,
        arguments: Container[str] = (),
    ) -> None:
        """Prepare the replacement of a node.

        Args:
          node: the node to replace.
          new_name: returns an unused name that is similar to its argument.
          in_function: whether the node is in a function's body.
          arguments: the names of the function's inputs.
        """
        self.node = node
        self.nodes: list[Any] = []
        self._new_name = new_name
        self._in_function = in_function
        self._arguments = arguments
        self.data = [text for text in node.input if not text.startswith("^")]
        # The step passed by the caller has no meaning in a single process.
        steps = node.attr["stamp_count"].i if "stamp_count" in node.attr else 0
        del self.data[len(self.data) - steps :]
        self.control = [text for text in node.input if text.startswith("^")]

    def type(self, name: str = "T") -> tf.DType:
        return self.known_type(self.node.attr[name].type)

    def known_type(self, value: int | str) -> tf.DType:
        """Return the type with this number or name.

        Raises:
          DamagedError: TensorFlow has no such type.
        """
        try:
            return tf.as_dtype(value)
        except TypeError:
            raise DamagedError(f"node '{self.node.name}' has the type '{value}'") from None

    def node_of(self, edge: str) -> str | None:
        """Return a control edge from a data edge's source node; None for a function's input."""
        name = edge.partition(":")[0]
        return None if name in self._arguments else "^" + name

    def after_inputs(self) -> list[str]:
        """Return control edges for nodes that must wait for the inputs without reading them."""
        edges = [*self.control, *filter(None, map(self.node_of, self.data))]
        return list(dict.fromkeys(edges))

    def add(self, op: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        """Add a node and return the edge from its first output. `output` is the output's name."""
        name = self._new_name(f"{self.node.name}/{INNER}/{op}")
        added = node_def_pb2.NodeDef(name=name, op=op, device=self.node.device)
        added.input.extend([*inputs, *self.control])
        for key, value in attributes.items():
            added.attr[key].CopyFrom(attribute(value))
        self.nodes.append(added)
        return self.edge(name, output, 0)

    def edge(self, name: str, output: str, index: int) -> str:
        return f"{name}:{output}:{index}" if self._in_function else f"{name}:{index}"

    def cast(self, tensor: str, source: tf.DType, target: tf.DType) -> str:
        if source == target:
            return tensor
        return self.add("Cast", [tensor], "y", SrcT=source, DstT=target)

    def constant(self, value: Any, dtype: tf.DType) -> str:
        """Return an edge from a new constant in the same loop frame as the node."""
        edge = self.add("Const", [], "output", dtype=dtype)
        added = self.nodes[-1]
        added.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, dtype, np.shape(value)))
        del added.input[:]
        added.input.extend(self.after_inputs())
        return edge

    def finish(self, op: str, inputs: Sequence[str], **attributes: Any) -> Any:
        """Replace the node's op, but keep its name, device and graph attributes."""
        last = node_def_pb2.NodeDef()
        last.CopyFrom(self.node)
        last.op = op
        last.ClearField("experimental_type")
        del last.input[:]
        last.input.extend(inputs)
        for key in [key for key in last.attr if not key.startswith("_")]:
            del last.attr[key]
        for key, value in attributes.items():
            last.attr[key].CopyFrom(attribute(value))
        self.nodes.append(last)
        return last
