"""`tf_hvd strip-ops`: graphs and SavedModels that load where tf_hvd is not installed."""

from __future__ import annotations

import argparse
import collections
import os
import traceback
from typing import TYPE_CHECKING, Any

from tf_hvd.core.printable import printable
from tf_hvd.launch.errors import UsageError

if TYPE_CHECKING:
    from tf_hvd.strip.meta_graph import Report

_FOUND, _FAILED = 1, 2


def add_command(commands: Any) -> None:
    parser = commands.add_parser(
        "strip-ops",
        help="make a saved graph or model load where tf_hvd is not installed",
        description="Replaces the ops of tf_hvd (and of Horovod) in a saved graph by what they "
        "compute in one process. Paths are whatever tf.io.gfile opens.",
        epilog="example: tf_hvd strip-ops model.ckpt-1000.meta --output inference.meta",
    )
    parser.add_argument(
        "path",
        nargs="?",
        metavar="PATH",
        help="a GraphDef (.pb, .pbtxt), a checkpoint's .meta, a SavedModel folder, or a file of "
        "Keras (.keras, .h5), which has nothing to strip",
    )
    parser.add_argument("--input", metavar="PATH", help="the same")
    parser.add_argument(
        "--output",
        metavar="PATH",
        help="where to write; must not exist (default: beside the input, as NAME-stripped, if "
        "there is something to strip)",
    )
    parser.add_argument(
        "--outputs",
        default="",
        metavar="NAME,...",
        help="nodes to keep, with what they need; by default all",
    )
    parser.add_argument(
        "--assume-single-process",
        action="store_true",
        help="take the values of one process where outputs depend on other processes",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="list the ops and where they are; exit code 1 if there are any, 0 if not",
    )
    parser.set_defaults(start=_start, parser=parser)


def _start(options: argparse.Namespace) -> int:
    if options.check and options.output is not None:
        raise UsageError("pass --output PATH to write, or --check to look, one of them")
    if (options.path is None) == (options.input is None):
        raise UsageError("name one graph or model: tf_hvd strip-ops PATH")
    # Nothing is computed: TensorFlow need not say how it would.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    # Only now: TensorFlow takes seconds to load, and the other commands do without.
    from tf_hvd.strip.errors import StripError

    try:
        path = options.input if options.path is None else options.path
        return _check(path) if options.check else _strip(path, options)
    except StripError as error:
        raise UsageError(str(error)) from None
    except Exception:
        # A fault of ours. Python's own exit code for it is 1, which says that ops were found.
        traceback.print_exc()
        return _FAILED


def _check(path: str) -> int:
    from tf_hvd.strip.api import find_ops

    report = find_ops(path, progress=True)
    for found in report.found:
        print(found)
    if report.found:
        print(f"{_counted(report)} in {printable(path)}; {_looked_at(report)}")
        return _FOUND
    return _has_none(path, report)


def _strip(path: str, options: argparse.Namespace) -> int:
    from tf_hvd.strip.api import beside, strip_path
    from tf_hvd.strip.meta_graph import Request

    outputs = tuple(name for name in options.outputs.split(",") if name)
    request = Request(outputs, options.assume_single_process)
    output, copies = options.output, options.output is not None
    output = output if copies else beside(path)
    report = strip_path(path, output, request, progress=True, copies=copies)
    if not (report.found or outputs or copies):
        return _has_none(path, report)
    what = f"stripped {_counted(report)}" if report.found else "no ops of tf_hvd found, copied"
    print(f"{what}: {printable(f'{path} -> {output}')}; {_looked_at(report)}")
    return 0


def _has_none(path: str, report: Report) -> int:
    print(f"no ops of tf_hvd in {printable(path)}: it loads without tf_hvd; {_looked_at(report)}")
    return 0


def _counted(report: Report) -> str:
    counts = collections.Counter(found.op for found in report.found)
    return ", ".join(f"{count} {op}" for op, count in sorted(counts.items()))


def _looked_at(report: Report) -> str:
    if report.of_keras:
        return "Keras' own formats hold no graph"
    return f"{report.nodes} nodes and {report.functions} functions looked at"
