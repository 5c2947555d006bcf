"""strip_ops: make graphs and SavedModels loadable where tf_hvd is not installed."""

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
# Hashes of the original graph.
_FINGERPRINT = "fingerprint.pb"
_TEXT_SUFFIXES = (".pbtxt", ".prototxt", ".txt")


def strip_ops(
    source: Any,
    output: str | os.PathLike[str] | None = None,
    *,
    outputs: Sequence[str] = (),
    assume_single_process: bool = False,
) -> Any:
    """Replace tf_hvd's ops in a graph with the values that they compute in a single process.

    Each collective becomes the identity or a constant: an average becomes its input, and `size`
    becomes 1. Horovod's ops have the same names and are replaced too.

    Args:
      source: a GraphDef, MetaGraphDef or SavedModel message, which is not changed, or a path that
        tf.io.gfile can open. The path names a GraphDef (.pb, .pbtxt), a checkpoint's .meta file or
        a SavedModel folder. A Keras file (.keras, .h5) has no such ops and is copied.
      output: the path to write if `source` is a path; it must not exist. If it ends in .pbtxt, the
        text format is written.
      outputs: names of nodes or tensors to keep, with all nodes that they need; other nodes are
        removed (default: keep all nodes).
      assume_single_process: bool, whether to accept the values of a single process if an output
        depends on results of other processes (default: False).

    Returns:
      A message of the same type as `source`, or the output path.

    Raises:
      ValueError: the source is not a graph or cannot be read; the output cannot be written; or a
        name in `outputs` does not exist. Also raised if the meaning of an output would change
        and `assume_single_process` is False. Nothing is written in these cases.

    Example:
      with tf.Graph().as_default() as graph:
          tf.identity(hvd.allreduce(tf.ones([2])), name="result")
      without = hvd.strip_ops(graph.as_graph_def(), outputs=["result"], assume_single_process=True)
    """
    if isinstance(outputs, str):
        raise StripError(f"outputs must be a list, not a string; pass outputs=[{outputs!r}]")
    request = Request(tuple(outputs), assume_single_process)
    if not isinstance(source, str | os.PathLike):
        if output is not None:
            raise StripError("output is only for a source that is a path; omit it for a message")
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
    """Find tf_hvd's ops in a graph or SavedModel.

    Args:
      path: path of the graph or SavedModel.
      progress: whether to show a progress bar (default: False).

    Raises:
      StripError: the path cannot be read.
    """
    report = Report()
    _stripped(_graph_file(path), Request(write=False), report, progress)
    return report


def beside(path: str) -> str:
    """Return the default output path: `graph-stripped.pb` for `graph.pb`.

    Raises:
      StripError: the path cannot be examined.
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
    """Strip a graph or model at a path as `strip_ops` does, and return a report.

    Args:
      path: the path to read.
      output: the path to write.
      request: the nodes to keep and the user's consent.
      progress: whether to show a progress bar (default: False).
      copies: whether to write the output even if the source contains nothing to strip.

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
        # Copy the original bytes, because protobuf may serialize an equal message differently.
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
        # Written last, because without this file the folder is not a SavedModel.
        files.fill(tf.io.gfile.join(folder, f"{_SAVED_MODEL}.pb"), parts, progress)


def _graph_file(path: str) -> str:
    """Return the path of the graph's file: `path` itself or a file in a SavedModel folder."""
    with files.doing(f"read {path}"):
        if not tf.io.gfile.exists(path):
            raise StripError(f"{path} does not exist; check the path")
        if not tf.io.gfile.isdir(path):
            name = path.rpartition("/")[2]
            if name in (f"{_SAVED_MODEL}.pb", f"{_SAVED_MODEL}.pbtxt"):
                raise StripError(
                    f"{path} is part of a SavedModel; name the folder that contains it"
                )
            return path
        for suffix in (".pb", ".pbtxt"):
            file: str = tf.io.gfile.join(path, _SAVED_MODEL + suffix)
            if tf.io.gfile.exists(file):
                files.check_own(file)
                return file
        if tf.io.gfile.exists(tf.io.gfile.join(path, _CHUNKED)):
            raise StripError(
                f"{path} stores its graph in parts ({_CHUNKED}); save the model again without "
                "experimental_image_format"
            )
    raise StripError(
        f"{path} contains no {_SAVED_MODEL}.pb; name a SavedModel folder, a .meta or a graph"
    )


def _stripped(
    source: str, request: Request, report: Report, progress: bool
) -> tuple[Sequence[bytes | bytearray], str, bool]:
    """Return the data to write (in parts), its kind, and whether the source is in text format.

    For a Keras file, the data and the kind are empty.
    """
    data = files.read(source, progress)
    report.of_keras = not request.outputs and formats.is_of_keras(data)
    if report.of_keras:
        report.classes = formats.classes_in_keras_file(data)
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
