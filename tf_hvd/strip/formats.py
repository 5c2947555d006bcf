"""Detection of the kind of a serialized graph, and conversion to and from its text format."""

from __future__ import annotations

import io
import re
import zipfile
import zlib
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
# The kinds by the first word in text format; binary files do not begin with these words.
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
# The first file in a Keras zip archive, and the offset of its name.
_METADATA, _NAME = b"metadata.json", 30
# The file with the configuration in a Keras zip archive, and its maximum size for reading.
_CONFIG, _LARGEST_CONFIG = "config.json", 1 << 28
# Matches the registered names that Keras uses to find tf_hvd classes.
_CLASS = re.compile(rb'"(tf_hvd>\w+)"')
_TEXT = re.compile(rb"\s*(?:#[^\n]*\n\s*)*([a-z_]+)\s*[:{]")


def is_of_keras(data: bytes | bytearray) -> bool:
    """Return whether the data is a .keras or .h5 file, which contains no graph."""
    return data.startswith(_HDF5) or (data.startswith(_ZIP) and data.startswith(_METADATA, _NAME))


def classes_in_keras_file(data: bytes | bytearray) -> list[str]:
    """Return the sorted names of tf_hvd classes in the configuration in a .keras or .h5 file."""
    # An .h5 file contains its configuration uncompressed.
    texts = [data] if data.startswith(_HDF5) else _config_of(data)
    return sorted({name.decode() for text in texts for name in _CLASS.findall(text)})


def _config_of(data: bytes | bytearray) -> list[bytes]:
    """Return the configuration in a .keras file; empty if the archive is damaged."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive, archive.open(_CONFIG) as file:
            return [file.read(_LARGEST_CONFIG)]
    except (zipfile.BadZipFile, zlib.error, KeyError, OSError, EOFError, RuntimeError, ValueError):
        return []


def text_kind(data: bytes | bytearray) -> str | None:
    """Return the kind of a graph in text format; None for other data."""
    match = _TEXT.match(data[:4096])
    return _FIRST_WORDS.get(match[1].decode()) if match else None


def from_text(data: bytes | bytearray, kind: str) -> Any:
    """Parse a graph in text format.

    Raises:
      StripError: the text is not a graph of this kind.
    """
    try:
        message = text_format.Parse(bytes(data), KINDS[kind]())
    except (text_format.ParseError, UnicodeDecodeError) as error:
        # If the bytes are not text, the error has no message.
        detail = (str(error) or str(error.__cause__)).splitlines()[0]
        raise StripError(f"this is not a {kind} in text format: {detail}") from None
    except RecursionError:
        raise StripError(TOO_DEEP) from None
    # Check the nesting: protobuf can write deeper nesting than it can read.
    return parsed(serialized(message), KINDS[kind])


def from_binary(data: bytes | bytearray, kind: str | None) -> tuple[Any, str]:
    """Parse a serialized message; return the message and its kind.

    Args:
      data: the serialized message.
      kind: the message's kind, a key of KINDS; None if unknown.

    Raises:
      StripError: the data is of a different kind, or is damaged.
    """
    if not data:
        raise StripError("the file is empty; save the graph again")
    if data.startswith((_ZIP, _HDF5)):
        raise StripError(
            "this is not a graph; if Keras has saved it (.keras, .h5), it contains no ops of "
            "tf_hvd, and there is nothing to strip"
        )
    if len(data) > _LARGEST:
        raise StripError(
            "the graph is larger than 2 GiB, which neither protobuf nor TensorFlow can read; save "
            "large constants as variables"
        )
    # The first field of a SavedModel is a number.
    first = kind or ("SavedModel" if data[0] == _SCHEMA_TAG else "GraphDef")
    others = ("MetaGraphDef",) if kind is None and first == "GraphDef" else ()
    for name in (first, *others):
        try:
            message = KINDS[name].FromString(data)
        except DecodeError:
            continue
        # A valid part of one kind may also be a valid part of another kind.
        if name == kind or name != "GraphDef" or all(n.name and n.op for n in message.node[:1]):
            return message, name
    raise StripError(_damaged(first, "part of it cannot be read"))


def parsed(data: bytes, kind: Any) -> Any:
    """Parse a serialized message of type `kind`.

    Raises:
      StripError: its messages are nested more deeply than protobuf can read.
    """
    try:
        return kind.FromString(data)
    except DecodeError:
        raise StripError(TOO_DEEP) from None


def to_text(data: bytes, kind: str) -> bytes:
    """Convert a serialized graph to text format.

    Raises:
      StripError: see `parsed`.
    """
    text: str = text_format.MessageToString(parsed(data, KINDS[kind]))
    return text.encode()


def strip_message(message: Any, kind: str, request: Request, report: Report) -> list[bytes]:
    """Return a message without tf_hvd's ops, serialized in parts.

    This function adds to the report. It empties the message, because a second copy would double the
    memory use.

    Args:
      message: the message.
      kind: the message's kind, a key of KINDS.
      request: the nodes to keep and the user's consent.
      report: the report to extend.

    Raises:
      StripError: the message is damaged, or the request cannot be fulfilled.
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
            f"the SavedModel has version {version}, but this tf_hvd supports only version "
            f"{_SCHEMA_VERSION}; use a newer tf_hvd"
        )
    if not model.meta_graphs:
        raise DamagedError("it contains no graph")
    parts = [
        part
        for meta_graph in model.meta_graphs
        for part in nested(_META_GRAPHS, MetaGraph(meta_graph).strip(request, report))
    ]
    model.ClearField("meta_graphs")
    return [serialized(model), *parts]
