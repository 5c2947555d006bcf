"""MetaGraphDefs: graphs with data for Python, such as savers, collections and signatures."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tensorflow.core.framework import variable_pb2
from tensorflow.core.protobuf import queue_runner_pb2, saver_pb2

from tf_hvd.strip.errors import DamagedError, StripError
from tf_hvd.strip.functions import Library
from tf_hvd.strip.graph import Found, Graph, node_name
from tf_hvd.strip.outputs import check_consent, find_outputs
from tf_hvd.strip.parts import nested, repeated, serialized
from tf_hvd.strip.rules import PREFIX

# Numbers of fields of a GraphDef and of a MetaGraphDef.
_NODE, _GRAPH = 1, 2

# Collections of operations that a loader runs.
_INIT_COLLECTIONS = ("saved_model_main_op", "legacy_init_op")
_INIT_SIGNATURE = "__saved_model_init_op"
_TRAIN_SIGNATURE = "__saved_model_train_op"
# Contexts are useless without the nodes that training adds to loops. A graph can be imported
# without contexts.
_CONTEXTS = ("cond_context", "while_context")
_VARIABLES = frozenset(
    {
        "variables", "trainable_variables", "local_variables", "model_variables",
        "moving_average_variables", "metric_variables", "global_step",
    }
)  # fmt: skip


@dataclass
class Request:
    outputs: tuple[str, ...] = ()
    """Nodes or tensors to keep, with all nodes that they need; empty to keep everything."""
    assume_single_process: bool = False
    write: bool = True
    """Whether to produce output. If False, ops are only found and reported."""


@dataclass
class Report:
    found: list[Found] = field(default_factory=list)
    nodes: int = 0
    functions: int = 0
    of_keras: bool = False  # whether the source is a Keras file, which contains no graph
    classes: list[str] = field(default_factory=list)
    """The tf_hvd classes that Keras needs to load a Keras file."""


def strip_graph(message: Any, request: Request, report: Report) -> list[bytes]:
    """Return a GraphDef without tf_hvd's ops, serialized in parts.

    This function adds to the report and empties the message.

    Raises:
      StripError: the message is not a graph, or the request cannot be fulfilled.
    """
    graph, library = _read(message, report)
    places = find_outputs(graph, request.outputs)
    if not request.write:
        return []
    check_consent(graph, library, places, (), request.assume_single_process)
    kept = graph.reached(places, control=True) if request.outputs else None
    return _graph_parts(graph, library, kept)


def _read(message: Any, report: Report) -> tuple[Graph, Library]:
    graph, library = Graph(message), Library(message.library)
    report.nodes += len(graph)
    report.functions += len(library)
    report.found += [*graph.ours.values(), *library.ours]
    return graph, library


def _graph_parts(graph: Graph, library: Library, kept: bytearray | None) -> list[bytes]:
    library.rewrite()
    nodes = repeated(_NODE, graph.rewritten(kept))
    graph.message.ClearField("node")
    return [*nodes, serialized(graph.message)]


class MetaGraph:
    """A MetaGraphDef, which `strip` empties."""

    def __init__(self, message: Any) -> None:
        """Check the message.

        Raises:
          StripError: the message contains no graph.
        """
        if not message.HasField("graph_def"):
            raise DamagedError("it contains no graph")
        self._message = message
        self._signatures = message.signature_def
        self._collections = message.collection_def

    def strip(self, request: Request, report: Report) -> list[bytes]:
        """Return the message without tf_hvd's ops, serialized in parts, and add to the report.

        Raises:
          StripError: the message is damaged, or the request cannot be fulfilled.
        """
        graph, library = _read(self._message.graph_def, report)
        if request.outputs and self._message.HasField("object_graph_def"):
            raise StripError(
                "this SavedModel has signatures and functions, which cannot be cut at node names; "
                "omit --outputs"
            )
        outputs = find_outputs(graph, request.outputs)
        if not request.write:
            return []
        # Nothing is replaced, so dependencies do not matter.
        if not request.outputs and not graph.ours and not library.ours:
            return self._written(graph, library, None)
        known = outputs or self._signature_outputs(graph)
        functions = [] if known else list(self._message.object_graph_def.concrete_functions)
        check_consent(graph, library, known, functions, request.assume_single_process)
        return self._written(graph, library, self._kept(graph, outputs) if outputs else None)

    def _signature_outputs(self, graph: Graph) -> list[int]:
        return find_outputs(
            graph,
            [
                tensor
                for key, signature in self._signatures.items()
                if key not in (_INIT_SIGNATURE, _TRAIN_SIGNATURE)
                for info in signature.outputs.values()
                for tensor in _tensors(info)
            ],
        )

    def _kept(self, graph: Graph, outputs: list[int]) -> bytearray:
        roots = [*outputs, *find_outputs(graph, self._loading())]
        variables = [
            variable_pb2.VariableDef.FromString(text)
            for key in _VARIABLES
            if key in self._collections
            for text in self._collections[key].bytes_list.value
        ]
        while True:
            kept = graph.reached(roots, control=True)
            parts = [
                place
                for variable in variables
                if _is_kept(graph, kept, variable.variable_name)
                for place in find_outputs(graph, _parts(variable))
                if not kept[place]
            ]
            if not parts:
                return kept
            roots += parts

    def _loading(self) -> list[str]:
        saver = self._message.saver_def
        names = [saver.filename_tensor_name, saver.save_tensor_name, saver.restore_op_name]
        names += [asset.tensor_info.name for asset in self._message.asset_file_def]
        for key in _INIT_COLLECTIONS:
            if key in self._collections:
                names += self._collections[key].node_list.value
        if _INIT_SIGNATURE in self._signatures:
            infos = self._signatures[_INIT_SIGNATURE].outputs.values()
            names += [tensor for info in infos for tensor in _tensors(info)]
        return [name for name in names if name]

    def _written(self, graph: Graph, library: Library, kept: bytearray | None) -> list[bytes]:
        graph_def = nested(_GRAPH, _graph_parts(graph, library, kept))
        if kept is not None:
            self._cut_signatures(graph, kept)
            self._cut_collections(graph, kept)
        ops = self._message.meta_info_def.stripped_op_list.op
        for op in [op for op in ops if op.name.startswith(PREFIX)]:
            ops.remove(op)
        self._message.ClearField("graph_def")
        return [serialized(self._message), *graph_def]

    def _cut_signatures(self, graph: Graph, kept: bytearray) -> None:
        for key, signature in list(self._signatures.items()):
            infos = [*signature.inputs.values(), *signature.outputs.values()]
            if not all(_is_kept(graph, kept, name) for i in infos for name in _tensors(i)):
                del self._signatures[key]

    def _cut_collections(self, graph: Graph, kept: bytearray) -> None:
        """Remove collection entries that name removed nodes, and collections that become empty."""
        for key, collection in list(self._collections.items()):
            values = getattr(collection, collection.WhichOneof("kind") or "node_list").value
            left = [
                value
                for value in values
                if all(_is_kept(graph, kept, name) for name in _names(key, value))
            ]
            if key in _CONTEXTS or (values and not left):
                del self._collections[key]
            elif len(left) < len(values):
                del values[:]
                values.extend(left)


def _tensors(info: Any) -> list[str]:
    kind = info.WhichOneof("encoding")
    if kind == "name":
        return [info.name]
    if kind == "coo_sparse":
        sparse = info.coo_sparse
        return [
            sparse.values_tensor_name,
            sparse.indices_tensor_name,
            sparse.dense_shape_tensor_name,
        ]
    return [name for part in info.composite_tensor.components for name in _tensors(part)]


def _parts(variable: Any) -> list[str]:
    """Return the nodes needed to import a variable, in addition to the variable itself."""
    names = (variable.initializer_name, variable.initial_value_name, variable.snapshot_name)
    return [name for name in names if name]


def _is_kept(graph: Graph, kept: bytearray, name: str) -> bool:
    place = graph.place(node_name(name))
    return place is not None and bool(kept[place])


def _names(key: str, value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if not isinstance(value, bytes):
        return []
    if key in _VARIABLES:
        return [variable_pb2.VariableDef.FromString(value).variable_name]
    if key == "queue_runners":
        runner = queue_runner_pb2.QueueRunnerDef.FromString(value)
        return [
            runner.queue_name,
            runner.close_op_name,
            runner.cancel_op_name,
            *runner.enqueue_op_name,
        ]
    if key == "savers":
        saver = saver_pb2.SaverDef.FromString(value)
        return [saver.filename_tensor_name, saver.save_tensor_name, saver.restore_op_name]
    return []
