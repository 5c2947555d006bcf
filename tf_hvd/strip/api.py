"""strip_ops: graphs and SavedModels that load where tf_hvd is not installed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_hvd.strip import files, formats
from tf_hvd.strip.errors import StripError
from tf_hvd.strip.meta_graph import Report, Request
from tf_hvd.strip.progress import steps

_SAVED_MODEL = "saved_model"
_CHUNKED = "saved_model.cpb"
# Hashes of the graph that was.
_FINGERPRINT = "fingerprint.pb"
_TEXT_SUFFIXES = (".pbtxt", ".prototxt", ".txt")


def strip_ops(
    source: Any,
    output: str | os.PathLike[str] | None = None,
    *,
    outputs: Sequence[str] = (),
    assume_single_process: bool = False,
) -> Any:
    """Replaces the ops of tf_hvd in a graph by what they compute in one process.

    docs/strip_ops.md has what becomes of each op. Horovod's ops have the same names and are
    replaced too.

    Args:
      source: a GraphDef, MetaGraphDef or SavedModel message, which is not changed; or the path of
        a GraphDef (.pb, .pbtxt), of a checkpoint's .meta, of a SavedModel folder, or of a file of
        Keras' (.keras, .h5), which has none of these ops and is copied; anything that tf.io.gfile
        opens.
      output: where to write, if `source` is a path; must not exist. Text if it ends in .pbtxt.
      outputs: names of nodes or tensors; what they do not need is left out.
      assume_single_process: take the values of one process where an output depends on what the
        other processes compute.

    Returns:
      A message of the type of `source`, or the path that was written.

    Raises:
      ValueError: the source is not a graph or cannot be read, the output cannot be written, a
        name of `outputs` does not exist, or an output would change its meaning and
        `assume_single_process` was not set. Nothing is written then.
    """
    if isinstance(outputs, str):
        raise StripError(f"outputs is {outputs!r}, one string; pass a list: outputs=[{outputs!r}]")
    request = Request(tuple(outputs), assume_single_process)
    if not isinstance(source, str | os.PathLike):
        if output is not None:
            raise StripError("output is for a source that is a path; for a message leave it out")
        return _strip_message(source, request)
    if output is None:
        raise StripError(f"output is missing: pass the path to write to, for {os.fspath(source)}")
    strip_path(os.fspath(source), os.fspath(output), request)
    return os.fspath(output)


def _strip_message(message: Any, request: Request) -> Any:
    kind = next((name for name, one in formats.KINDS.items() if isinstance(message, one)), None)
    if kind is None:
        raise StripError(
            f"{type(message).__name__} is neither a path nor a {', '.join(formats.KINDS)}"
        )
    copy = type(message)()
    copy.CopyFrom(message)
    parts = formats.strip_message(copy, kind, request, Report())
    del copy
    return formats.parsed(b"".join(parts), type(message))


def find_ops(path: str, progress: bool = False) -> Report:
    """What is in a graph or SavedModel at a path.

    Raises:
      StripError: it cannot be read.
    """
    report = Report()
    _stripped(_graph_file(path), Request(write=False), report, progress)
    return report


def beside(path: str) -> str:
    """Where to write what has no output: `graph.pb` becomes `graph-stripped.pb`.

    Raises:
      StripError: the path cannot be looked at.
    """
    with files.doing(f"read {path}"):
        folder, slash, name = path.rstrip("/").rpartition("/")
        stem, dot, ending = name.rpartition(".")
        if not stem or tf.io.gfile.isdir(path):
            stem, dot, ending = name, "", ""
    return f"{folder}{slash}{stem}-stripped{dot}{ending}"


def strip_path(
    path: str, output: str, request: Request, progress: bool = False, copies: bool = True
) -> Report:
    """As `strip_ops`, from path to path. Without `copies`, what needs no change is not written.

    Raises:
      StripError: see `strip_ops`.
    """
    files.check_new(output)
    source = _graph_file(path)
    report = Report()
    parts, kind, was_text = _stripped(source, request, report, progress)
    if not copies and not report.found and not request.outputs:
        return report
    to_text = output.endswith(_TEXT_SUFFIXES) and source == path and not report.of_keras
    if not report.found and not request.outputs and was_text == to_text:
        # As it is: protobuf may write equal messages in other bytes.
        parts = [files.read(source)]
    elif to_text:
        parts = [formats.to_text(b"".join(parts), kind)]
    if source == path:
        files.write(output, parts, progress)
    else:
        _write_saved_model(path, output, parts, progress)
    return report


def _write_saved_model(
    path: str, output: str, parts: Sequence[bytes | bytearray], progress: bool
) -> None:
    others = [
        (name, length)
        for name, length in files.tree(path)
        if name not in (_FINGERPRINT, f"{_SAVED_MODEL}.pb", f"{_SAVED_MODEL}.pbtxt")
    ]
    size = sum(length for _, length in others)
    with files.new_folder(output) as folder:
        for name, _ in steps(others, "copying", size, progress):
            files.copy(tf.io.gfile.join(path, name), tf.io.gfile.join(folder, name))
        # Last: without it, this is no SavedModel.
        files.fill(tf.io.gfile.join(folder, f"{_SAVED_MODEL}.pb"), parts, progress)


def _graph_file(path: str) -> str:
    """The file with the graph: `path`, or one in a SavedModel folder."""
    with files.doing(f"read {path}"):
        if not tf.io.gfile.exists(path):
            raise StripError(f"there is no {path}; check the path")
        if not tf.io.gfile.isdir(path):
            name = path.rpartition("/")[2]
            if name in (f"{_SAVED_MODEL}.pb", f"{_SAVED_MODEL}.pbtxt"):
                raise StripError(f"{path} is a part of a SavedModel; name the folder that it is in")
            return path
        for suffix in (".pb", ".pbtxt"):
            file: str = tf.io.gfile.join(path, _SAVED_MODEL + suffix)
            if tf.io.gfile.exists(file):
                files.check_own(file)
                return file
        if tf.io.gfile.exists(tf.io.gfile.join(path, _CHUNKED)):
            raise StripError(
                f"{path} holds its graph in parts ({_CHUNKED}); save the model again without "
                "experimental_image_format"
            )
    raise StripError(
        f"{path} holds no {_SAVED_MODEL}.pb; name a SavedModel folder, a .meta or a graph"
    )


def _stripped(
    source: str, request: Request, report: Report, progress: bool
) -> tuple[Sequence[bytes | bytearray], str, bool]:
    """What is to be written, in parts; its kind, and whether the source is a text.

    Nothing, of no kind, for a file of Keras' own.
    """
    data = files.read(source, progress)
    report.of_keras = not request.outputs and formats.is_of_keras(data)
    if report.of_keras:
        return [], "", False
    try:
        kind = formats.text_kind(data)
        is_text = kind is not None
        if kind is not None:
            message = formats.from_text(data, kind)
        else:
            if source.rpartition("/")[2].startswith(_SAVED_MODEL + ".pb"):
                kind = "SavedModel"
            elif source.endswith(".meta"):
                kind = "MetaGraphDef"
            message, kind = formats.from_binary(data, kind)
        del data
        return formats.strip_message(message, kind, request, report), kind, is_text
    except StripError as error:
        raise StripError(f"{source}: {error}") from None
