"""`tf_hvd strip-ops`: make graphs and SavedModels loadable where tf_hvd is not installed."""

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
        help="make a saved graph or model loadable without tf_hvd",
        description="Replace tf_hvd's and Horovod's ops in a saved graph with TensorFlow ops that "
        "compute the same values in one process. PATH can be any path that tf.io.gfile opens.",
        epilog="example: tf_hvd strip-ops model.ckpt-1000.meta --output inference.meta",
    )
    parser.add_argument(
        "path",
        nargs="?",
        metavar="PATH",
        help="GraphDef (.pb, .pbtxt), checkpoint .meta file, SavedModel folder, or Keras file "
        "(.keras, .h5; contains no ops to strip)",
    )
    parser.add_argument("--input", metavar="PATH", help="alternative to PATH")
    parser.add_argument(
        "--output",
        metavar="PATH",
        help="output path, which must not exist (default: NAME-stripped in the input's folder; "
        "written only if the input contains ops to strip)",
    )
    parser.add_argument(
        "--outputs",
        default="",
        metavar="NAME,...",
        help="keep only these nodes and the nodes that they depend on (default: keep all)",
    )
    parser.add_argument(
        "--assume-single-process",
        action="store_true",
        help="strip a graph even if its outputs depend on other ranks (default: refuse). The "
        "outputs may then differ from those in training.",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="only list the ops, or the tf_hvd classes in a Keras file; the exit code is 1 if any "
        "are found, else 0",
    )
    parser.set_defaults(start=_start, parser=parser)


def _start(options: argparse.Namespace) -> int:
    if options.check and options.output is not None:
        raise UsageError("--check writes nothing: pass either --check or --output PATH")
    if (options.path is None) == (options.input is None):
        raise UsageError("expected exactly one graph or model; run: tf_hvd strip-ops PATH")
    # Nothing is computed, so TensorFlow's messages about the CPU do not matter.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    # Imported here because TensorFlow takes seconds to load and other commands do not need it.
    from tf_hvd.strip.errors import StripError

    try:
        path = options.input if options.path is None else options.path
        return _check(path) if options.check else _strip(path, options)
    except StripError as error:
        raise UsageError(str(error)) from None
    except Exception:
        # A bug in tf_hvd. Python would exit with code 1, which means that ops were found.
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
    _tell_none(path, report)
    return _FOUND if report.classes else 0


def _strip(path: str, options: argparse.Namespace) -> int:
    from tf_hvd.strip.api import beside, strip_path
    from tf_hvd.strip.meta_graph import Request

    outputs = tuple(name for name in options.outputs.split(",") if name)
    request = Request(outputs, options.assume_single_process)
    output, copies = options.output, options.output is not None
    output = output if copies else beside(path)
    report = strip_path(path, output, request, progress=True, copies=copies)
    if not (report.found or outputs or copies):
        _tell_none(path, report)
        return 0
    what = f"stripped {_counted(report)}" if report.found else "no ops of tf_hvd found, copied"
    print(f"{what}: {printable(f'{path} -> {output}')}; {_looked_at(report)}")
    return 0


def _tell_none(path: str, report: Report) -> None:
    loads = "it loads without tf_hvd"
    if report.classes:
        loads = (
            f"but it uses {', '.join(report.classes)}, so it loads only where tf_hvd is imported; "
            "elsewhere, load it with compile=False"
        )
    print(f"no ops of tf_hvd in {printable(path)}: {loads}; {_looked_at(report)}")


def _counted(report: Report) -> str:
    counts = collections.Counter(found.op for found in report.found)
    return ", ".join(f"{count} {op}" for op, count in sorted(counts.items()))


def _looked_at(report: Report) -> str:
    if report.of_keras:
        return "Keras' own formats contain no graph"
    return f"checked {report.nodes} nodes and {report.functions} functions"
