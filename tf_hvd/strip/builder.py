"""Makes the nodes that take the place of one node, in a graph or in a function's body."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, node_def_pb2

from tf_hvd.strip.errors import DamagedError

INNER = "one_process"


def attribute(value: Any) -> Any:
    """An AttrValue that holds a type, a list of types, a truth value or a number."""
    if isinstance(value, tf.DType):
        return attr_value_pb2.AttrValue(type=value.as_datatype_enum)
    if isinstance(value, list):
        types = attr_value_pb2.AttrValue.ListValue(type=[one.as_datatype_enum for one in value])
        return attr_value_pb2.AttrValue(list=types)
    if isinstance(value, bool):
        return attr_value_pb2.AttrValue(b=value)
    return attr_value_pb2.AttrValue(i=value)


def unused(wanted: str, taken: set[str]) -> str:
    """`wanted`, or with a number if it is taken; it is taken then."""
    name, number = wanted, 0
    while name in taken:
        number += 1
        name = f"{wanted}_{number}"
    taken.add(name)
    return name


class Builder:
    """The replacement of one node: some new nodes, and last one that has its name.

    New nodes run after what the node had to run after, on its device.
    """

    def __init__(
        self,
        node: Any,
        new_name: Callable[[str], str],
        in_function: bool,
        arguments: Container[str] = (),
    ) -> None:
        """Args: the node; a maker of unused names; how edges are written; the function's inputs."""
        self.node = node
        self.nodes: list[Any] = []
        self._new_name = new_name
        self._in_function = in_function
        self._arguments = arguments
        self.data = [text for text in node.input if not text.startswith("^")]
        # The step that the caller was at says nothing to one process.
        steps = node.attr["stamp_count"].i if "stamp_count" in node.attr else 0
        del self.data[len(self.data) - steps :]
        self.control = [text for text in node.input if text.startswith("^")]

    def type(self, name: str = "T") -> tf.DType:
        return self.known_type(self.node.attr[name].type)

    def known_type(self, value: int | str) -> tf.DType:
        """The type of this number or name.

        Raises:
          DamagedError: TensorFlow has none.
        """
        try:
            return tf.as_dtype(value)
        except TypeError:
            raise DamagedError(f"node '{self.node.name}' has the type '{value}'") from None

    def node_of(self, edge: str) -> str | None:
        """The control edge from where a data edge begins; None for a function's argument."""
        name = edge.partition(":")[0]
        return None if name in self._arguments else "^" + name

    def after_inputs(self) -> list[str]:
        """Control edges for what must wait for the inputs, though it does not read them."""
        edges = [*self.control, *filter(None, map(self.node_of, self.data))]
        return list(dict.fromkeys(edges))

    def add(self, op: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        """Adds a node; returns the edge of its first output, which the op calls `output`."""
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
        """A constant; in the frame of a loop that the node is in."""
        edge = self.add("Const", [], "output", dtype=dtype)
        added = self.nodes[-1]
        added.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, dtype, np.shape(value)))
        del added.input[:]
        added.input.extend(self.after_inputs())
        return edge

    def finish(self, op: str, inputs: Sequence[str], **attributes: Any) -> Any:
        """Gives the node's name, device and attributes of the graph to a node of another op."""
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
