"""Which kind of graph some bytes are, and its text form."""

from __future__ import annotations

import re
from typing import Any

from google.protobuf import text_format  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from tf_hvd.strip.errors import DamagedError, StripError
from tf_hvd.strip.meta_graph import MetaGraph, Report, Request, strip_graph
from tf_hvd.strip.parts import TOO_DEEP, nested, serialized

_SCHEMA_VERSION = 1
_META_GRAPHS = 2
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
_SCHEMA_TAG = 0x08
_LARGEST = (1 << 31) - 1
_ZIP, _HDF5 = b"PK\x03\x04", b"\x89HDF\r\n\x1a\n"
# The first file in a zip archive of Keras', and where its name stands.
_METADATA, _NAME = b"metadata.json", 30
_TEXT = re.compile(rb"\s*(?:#[^\n]*\n\s*)*([a-z_]+)\s*[:{]")


def is_of_keras(data: bytes | bytearray) -> bool:
    """Whether these are the bytes of a .keras or .h5 file, which hold no graph."""
    return data.startswith(_HDF5) or (data.startswith(_ZIP) and data.startswith(_METADATA, _NAME))


def text_kind(data: bytes | bytearray) -> str | None:
    """The kind of a graph in text form, None if it is none."""
    match = _TEXT.match(data[:4096])
    return _FIRST_WORDS.get(match[1].decode()) if match else None


def from_text(data: bytes | bytearray, kind: str) -> Any:
    """The message of a graph in text form.

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
        raise StripError(TOO_DEEP) from None
    # What protobuf writes may be nested deeper than what it reads.
    return parsed(serialized(message), KINDS[kind])


def from_binary(data: bytes | bytearray, kind: str | None) -> tuple[Any, str]:
    """The message that was serialized, and its kind; `kind` is None where it is not known.

    Raises:
      StripError: it is none of these kinds, or damaged.
    """
    if not data:
        raise StripError("it is empty; save the graph again")
    if data.startswith((_ZIP, _HDF5)):
        raise StripError(
            "this is not a graph; if Keras has saved it (.keras, .h5), it holds no ops of tf_hvd, "
            "and there is nothing to strip"
        )
    if len(data) > _LARGEST:
        raise StripError(
            "it is larger than 2 GiB, which neither protobuf nor TensorFlow reads; save large "
            "constants as variables"
        )
    # The first field of a SavedModel is a number.
    first = kind or ("SavedModel" if data[0] == _SCHEMA_TAG else "GraphDef")
    others = ("MetaGraphDef",) if kind is None and first == "GraphDef" else ()
    for name in (first, *others):
        try:
            message = KINDS[name].FromString(data)
        except DecodeError:
            continue
        # Parts of one kind may look like names of another.
        if name == kind or name != "GraphDef" or all(n.name and n.op for n in message.node[:1]):
            return message, name
    raise StripError(_damaged(first, "a part of it cannot be read"))


def parsed(data: bytes, kind: Any) -> Any:
    """The message of type `kind` that was serialized.

    Raises:
      StripError: it holds messages in messages beyond what protobuf reads.
    """
    try:
        return kind.FromString(data)
    except DecodeError:
        raise StripError(TOO_DEEP) from None


def to_text(data: bytes, kind: str) -> bytes:
    """A serialized graph in text form.

    Raises:
      StripError: see `parsed`.
    """
    text: str = text_format.MessageToString(parsed(data, KINDS[kind]))
    return text.encode()


def strip_message(message: Any, kind: str, request: Request, report: Report) -> list[bytes]:
    """A message of one of the kinds without our ops, serialized, in parts.

    Fills in the report, and empties the message: a second one would take as much memory.

    Raises:
      StripError: the message is damaged, or the request does not fit it.
    """
    try:
        if kind == "GraphDef":
            return strip_graph(message, request, report)
        if kind == "MetaGraphDef":
            return MetaGraph(message).strip(request, report)
        return _strip_saved_model(message, request, report)
    except DecodeError:
        raise StripError(_damaged(kind, "a part of it cannot be read")) from None
    except DamagedError as error:
        raise StripError(_damaged(kind, str(error))) from None


def _damaged(kind: str, detail: str) -> str:
    return f"this is not a {kind}, or it is truncated or damaged ({detail}); save the graph again"


def _strip_saved_model(model: Any, request: Request, report: Report) -> list[bytes]:
    version = model.saved_model_schema_version
    if version != _SCHEMA_VERSION:
        raise StripError(
            f"it is a SavedModel of version {version}, of which this version of tf_hvd "
            f"knows {_SCHEMA_VERSION}; use a newer tf_hvd"
        )
    if not model.meta_graphs:
        raise DamagedError("it holds no graph")
    parts = [
        part
        for meta_graph in model.meta_graphs
        for part in nested(_META_GRAPHS, MetaGraph(meta_graph).strip(request, report))
    ]
    model.ClearField("meta_graphs")
    return [serialized(model), *parts]
