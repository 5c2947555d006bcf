"""MetaGraphDef: a graph with what Python needs to use it: savers, collections, signatures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tensorflow.core.framework import variable_pb2
from tensorflow.core.protobuf import (
    meta_graph_pb2,
    queue_runner_pb2,
    saved_object_graph_pb2,
    saver_pb2,
)

from tf_hvd.strip.errors import DamagedError, StripError
from tf_hvd.strip.functions import Library
from tf_hvd.strip.graph import LIBRARY, Found, Graph, parse
from tf_hvd.strip.outputs import check_consent, find_outputs, node_name
from tf_hvd.strip.rules import PREFIX
from tf_hvd.strip.wire import BYTES, Field, Pieces, fields

INFO, GRAPH, SAVER, COLLECTION, SIGNATURE, ASSET, OBJECTS = range(1, 8)

# Collections of operations that a loader runs.
_INIT_COLLECTIONS = ("saved_model_main_op", "legacy_init_op")
_INIT_SIGNATURE = "__saved_model_init_op"
_TRAIN_SIGNATURE = "__saved_model_train_op"
# Of no use without the nodes that training adds to loops; import does without.
_CONTEXTS = ("cond_context", "while_context")
_VARIABLES = frozenset(
    {
        "variables", "trainable_variables", "local_variables", "model_variables",
        "moving_average_variables", "metric_variables", "global_step",
    }
)  # fmt: skip


@dataclass
class Request:
    """What is asked for.

    Attributes:
      outputs: nodes or tensors to keep, with what they need; all if empty.
      assume_single_process: outputs may change to what one process computes.
      write: whether a result is wanted; if not, ops are only looked for.
      tick: called with the place in the data that was reached.
    """

    outputs: tuple[str, ...] = ()
    assume_single_process: bool = False
    write: bool = True
    tick: Callable[[int], None] = lambda _: None


@dataclass
class Report:
    """What was in a graph: our ops, and how much was looked at."""

    found: list[Found] = field(default_factory=list)
    nodes: int = 0
    functions: int = 0


def strip_graph(
    data: bytes | bytearray, begin: int, end: int, request: Request, report: Report
) -> Pieces:
    """The GraphDef between `begin` and `end` without our ops; fills in the report.

    Raises:
      StripError: it is not a graph, or the request does not fit it.
    """
    graph, library = _read(data, begin, end, request, report)
    places = find_outputs(graph, request.outputs)
    if not request.write:
        return Pieces(data)
    check_consent(graph, library, places, (), request.assume_single_process)
    kept = graph.reached(places, control=True) if request.outputs else None
    return graph.rewritten(library.rewrite, kept, request.tick)


def _read(
    data: bytes | bytearray, begin: int, end: int, request: Request, report: Report
) -> tuple[Graph, Library]:
    graph = Graph(data, begin, end, request.tick)
    library = Library(data, [f for f in graph.others if f.number == LIBRARY])
    report.nodes += len(graph)
    report.functions += library.count
    report.found += [*graph.ours.values(), *library.ours]
    return graph, library


class MetaGraph:
    """A MetaGraphDef in some bytes."""

    def __init__(self, data: bytes | bytearray, begin: int, end: int) -> None:
        """Raises: StripError, if it is none."""
        self._data = data
        self._fields = list(fields(data, begin, end))
        if any(f.kind != BYTES or not INFO <= f.number <= OBJECTS for f in self._fields):
            raise DamagedError("it has fields that are not a MetaGraphDef's")
        graphs = [f for f in self._fields if f.number == GRAPH]
        if len(graphs) != 1:
            raise DamagedError(f"it holds {len(graphs)} graphs where there must be one")
        self._graph = graphs[0]
        entry = meta_graph_pb2.MetaGraphDef
        self._signatures = self._map(entry.SignatureDefEntry, SIGNATURE)
        self._collections = self._map(entry.CollectionDefEntry, COLLECTION)

    def _map(self, kind: Any, number: int) -> dict[str, Any]:
        entries = (parse(kind, self._data, f) for f in self._fields if f.number == number)
        return {entry.key: entry.value for entry in entries}

    def _all(self, kind: Any, number: int) -> list[Any]:
        return [parse(kind, self._data, f) for f in self._fields if f.number == number]

    def strip(self, request: Request, report: Report) -> Pieces:
        """The same without our ops; fills in the report.

        Raises:
          StripError: it is damaged, or the request does not fit it.
        """
        at = self._graph
        graph, library = _read(self._data, at.value, at.end, request, report)
        objects = self._all(saved_object_graph_pb2.SavedObjectGraph, OBJECTS)
        if request.outputs and objects:
            raise StripError(
                "this SavedModel has signatures and functions, which node names cannot cut; "
                "leave --outputs out"
            )
        outputs = find_outputs(graph, request.outputs)
        if not request.write:
            return Pieces(self._data)
        # Nothing changes: what depends on what need not be known.
        if not request.outputs and not graph.ours and not library.ours:
            return self._written(graph, None, graph.rewritten(library.rewrite))
        known = outputs or self._signature_outputs(graph)
        functions = [] if known else [name for o in objects for name in o.concrete_functions]
        check_consent(graph, library, known, functions, request.assume_single_process)
        kept = self._kept(graph, outputs) if request.outputs else None
        rewritten = graph.rewritten(library.rewrite, kept, request.tick)
        return self._written(graph, kept, rewritten)

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
        """What the outputs need, what loading and saving need, and what variables need."""
        roots = [*outputs, *find_outputs(graph, self._loading())]
        variables = [
            variable_pb2.VariableDef.FromString(text)
            for key in _VARIABLES & self._collections.keys()
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
        """What loading and saving run or feed."""
        names = [
            name
            for saver in self._all(saver_pb2.SaverDef, SAVER)
            for name in (
                saver.filename_tensor_name,
                saver.save_tensor_name,
                saver.restore_op_name,
            )
        ]
        names += [a.tensor_info.name for a in self._all(meta_graph_pb2.AssetFileDef, ASSET)]
        for key in _INIT_COLLECTIONS:
            if key in self._collections:
                names += self._collections[key].node_list.value
        if _INIT_SIGNATURE in self._signatures:
            infos = self._signatures[_INIT_SIGNATURE].outputs.values()
            names += [tensor for info in infos for tensor in _tensors(info)]
        return [name for name in names if name]

    def _written(self, graph: Graph, kept: bytearray | None, rewritten: Pieces) -> Pieces:
        out = Pieces(self._data)
        for field_ in self._fields:
            if field_.number == GRAPH:
                out.add_pieces(GRAPH, rewritten)
            elif field_.number == INFO:
                out.add(INFO, self._info(field_))
            elif kept is not None and field_.number in (COLLECTION, SIGNATURE):
                text = self._cut(field_, graph, kept)
                if text is not None:
                    out.add(field_.number, text)
            else:
                out.keep(field_.begin, field_.end)
        return out

    def _info(self, field_: Field) -> bytes:
        info = parse(meta_graph_pb2.MetaGraphDef.MetaInfoDef, self._data, field_)
        kept = [op for op in info.stripped_op_list.op if not op.name.startswith(PREFIX)]
        if len(kept) < len(info.stripped_op_list.op):
            copies = [type(op).FromString(op.SerializeToString()) for op in kept]
            del info.stripped_op_list.op[:]
            info.stripped_op_list.op.extend(copies)
        text: bytes = info.SerializeToString()
        return text

    def _cut(self, field_: Field, graph: Graph, kept: bytearray) -> bytes | None:
        """A collection or signature without what is gone; None if nothing is left of it."""
        entries = meta_graph_pb2.MetaGraphDef
        if field_.number == SIGNATURE:
            entry = parse(entries.SignatureDefEntry, self._data, field_)
            infos = [*entry.value.inputs.values(), *entry.value.outputs.values()]
            whole = all(_is_kept(graph, kept, name) for i in infos for name in _tensors(i))
            return entry.SerializeToString() if whole else None
        entry = parse(entries.CollectionDefEntry, self._data, field_)
        values = getattr(entry.value, entry.value.WhichOneof("kind") or "node_list").value
        left = [
            value
            for value in values
            if all(_is_kept(graph, kept, name) for name in _names(entry.key, value))
        ]
        if entry.key in _CONTEXTS or (values and not left):
            return None
        if len(left) < len(values):
            del values[:]
            values.extend(left)
        text: bytes = entry.SerializeToString()
        return text


def _tensors(info: Any) -> list[str]:
    """The names in a TensorInfo."""
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
    """What importing a variable looks for besides the variable itself."""
    return [
        name
        for name in (
            variable.initializer_name,
            variable.initial_value_name,
            variable.snapshot_name,
        )
        if name
    ]


def _is_kept(graph: Graph, kept: bytearray, name: str) -> bool:
    place = graph.place(node_name(name))
    return place is not None and bool(kept[place])


def _names(key: str, value: Any) -> list[str]:
    """The nodes that an entry of a collection names."""
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
