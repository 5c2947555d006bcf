"""Which kind of graph some bytes are, and its text form."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from google.protobuf import text_format  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError, EncodeError  # type: ignore[import-untyped]
from tensorflow.core.framework import graph_pb2, node_def_pb2
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from tf_hvd.strip.errors import DamagedError, StripError
from tf_hvd.strip.graph import parse
from tf_hvd.strip.meta_graph import MetaGraph, Report, Request, strip_graph
from tf_hvd.strip.wire import BYTES, VARINT, Pieces, fields

_SCHEMA_VERSION = 1
_TOO_DEEP = "its messages are nested too deeply for protobuf; save the graph again"
KINDS: dict[str, Any] = {
    "GraphDef": graph_pb2.GraphDef,
    "MetaGraphDef": meta_graph_pb2.MetaGraphDef,
    "SavedModel": saved_model_pb2.SavedModel,
}
# By the first word of a text; binary files begin otherwise.
_FIRST_WORDS = {
    "node": "GraphDef",
    "library": "GraphDef",
    "versions": "GraphDef",
    "meta_info_def": "MetaGraphDef",
    "graph_def": "MetaGraphDef",
    "saved_model_schema_version": "SavedModel",
    "meta_graphs": "SavedModel",
}
# A zip archive, and HDF5.
_OF_KERAS = (b"PK\x03\x04", b"\x89HDF\r\n\x1a\n")
_TEXT = re.compile(rb"\s*(?:#[^\n]*\n\s*)*([a-z_]+)\s*[:{]")


def text_kind(data: bytes | bytearray) -> str | None:
    """The kind of a graph in text form, None if it is none."""
    match = _TEXT.match(data[:4096])
    return _FIRST_WORDS.get(match[1].decode()) if match else None


def binary_kind(data: bytes | bytearray) -> str:
    """The kind that the first field fits; GraphDef if it fits none."""
    try:
        first = next(fields(data, 0, len(data)), None)
        if first is None or first.number != 1:
            return "GraphDef"
        if first.kind == VARINT:
            return "SavedModel"
        node = parse(node_def_pb2.NodeDef, data, first)
    except DamagedError:
        return "GraphDef"
    except DecodeError:
        return "MetaGraphDef"
    return "GraphDef" if node.name and node.op else "MetaGraphDef"


def from_text(data: bytes | bytearray, kind: str) -> bytes:
    """A graph in text form, serialized.

    Raises:
      StripError: the text is not one of this kind.
    """
    try:
        message = text_format.Parse(bytes(data), KINDS[kind]())
    except (text_format.ParseError, UnicodeDecodeError) as error:
        # Of bytes that are no text it says nothing itself.
        detail = (str(error) or str(error.__cause__)).splitlines()[0]
        raise StripError(f"this is not a {kind} in text form: {detail}") from None
    except RecursionError:
        raise StripError(_TOO_DEEP) from None
    return serialized(message)


def serialized(message: Any) -> bytes:
    """The bytes of a message.

    Raises:
      StripError: it holds messages in messages beyond what protobuf writes.
    """
    try:
        result: bytes = message.SerializeToString()
    except EncodeError:
        raise StripError(_TOO_DEEP) from None
    return result


def parsed(data: bytes, kind: Any) -> Any:
    """The message of type `kind` that was serialized.

    Raises:
      StripError: it holds messages in messages beyond what protobuf reads: parts of it, which are
        read by themselves, were not too deep.
    """
    try:
        return kind.FromString(data)
    except DecodeError:
        raise StripError(_TOO_DEEP) from None


def to_text(data: bytes, kind: str) -> bytes:
    """A serialized graph in text form.

    Raises:
      StripError: see `parsed`.
    """
    text: str = text_format.MessageToString(parsed(data, KINDS[kind]))
    return text.encode()


def strip_message(data: bytes | bytearray, kind: str, request: Request, report: Report) -> Pieces:
    """A serialized message of one of the kinds without our ops; fills in the report.

    Raises:
      StripError: the data is damaged, or the request does not fit it.
    """
    if not data:
        raise StripError("it is empty; save the graph again")
    if bytes(data[:8]).startswith(_OF_KERAS):
        raise StripError(
            "this is not a graph; if Keras has saved it (.keras, .h5), it holds no ops of tf_hvd, "
            "and there is nothing to strip"
        )
    strip: Callable[..., Pieces] = {
        "GraphDef": strip_graph,
        "MetaGraphDef": _strip_meta_graph,
        "SavedModel": _strip_saved_model,
    }[kind]
    try:
        return strip(data, 0, len(data), request, report)
    except DecodeError:
        raise StripError(_damaged(kind, "a part of it cannot be read")) from None
    except DamagedError as error:
        raise StripError(_damaged(kind, str(error))) from None


def _damaged(kind: str, detail: str) -> str:
    return f"this is not a {kind}, or it is truncated or damaged ({detail}); save the graph again"


def _strip_meta_graph(
    data: bytes | bytearray, begin: int, end: int, request: Request, report: Report
) -> Pieces:
    return MetaGraph(data, begin, end).strip(request, report)


def _strip_saved_model(
    data: bytes | bytearray, begin: int, end: int, request: Request, report: Report
) -> Pieces:
    out = Pieces(data)
    for field in fields(data, begin, end):
        if field.number == 1 and field.kind == VARINT:
            version = data[field.value]
            if version != _SCHEMA_VERSION:
                raise StripError(
                    f"it is a SavedModel of version {version}, of which this version of tf_hvd "
                    f"knows {_SCHEMA_VERSION}; use a newer tf_hvd"
                )
            out.keep(field.begin, field.end)
        elif field.number == 2 and field.kind == BYTES:
            part = _strip_meta_graph(data, field.value, field.end, request, report)
            out.add_pieces(2, part)
        else:
            raise DamagedError(f"there is no field {field.number}")
    return out
