"""`tf_hvd timeline`: where the time of each step went, from the timelines of a job's ranks."""

from __future__ import annotations

import argparse
import dataclasses
import glob
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tf_hvd.launch.errors import UsageError
from tf_hvd.observe import report_page, step_report, trace_reader


def add_command(commands: Any) -> None:
    """Adds `timeline` to the commands of the parser."""
    parser = commands.add_parser(
        "timeline",
        help="say where the time of each step went",
        description="Reads what `tf_hvd run --timeline FILE` has written, and says how much of a "
        "step is computation, how much transfer that nothing hides, and who was waited for.",
        epilog="example: tf_hvd timeline trace.pftrace",
    )
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="the timelines; of one alone, those of the other ranks beside it are read as well",
    )
    parser.add_argument(
        "--json", action="store_true", help="print all of it as JSON, with each step"
    )
    parser.add_argument(
        "--html",
        type=Path,
        metavar="OUT",
        help="write a page with pictures to OUT as well: one file, which needs no network",
    )
    parser.set_defaults(start=_start, parser=parser)


def beside(path: Path) -> list[Path]:
    """The files of a job's ranks: `trace.json`, `trace.rank-1.json` and so on."""
    rest = sorted(path.parent.glob(f"{glob.escape(path.stem)}.rank-*{path.suffix}"))
    return [path, *rest]


def read_all(names: Sequence[str]) -> list[trace_reader.Trace]:
    """The timelines in files.

    Raises:
      UsageError: one cannot be read, or is none.
    """
    files = [Path(name) for name in names]
    if len(files) == 1:
        files = beside(files[0])
    try:
        return sorted(
            (trace for file in files for trace in trace_reader.read(file)),
            key=lambda trace: trace.rank,
        )
    except trace_reader.TraceError as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise UsageError(f"{error.filename}: {error.strerror}") from error


def _start(options: argparse.Namespace) -> int:
    try:
        report = step_report.report(read_all(options.files))
    except ValueError as error:
        raise UsageError(str(error)) from error
    if options.html:
        try:
            title = Path(options.files[0]).name
            options.html.write_text(report_page.page(report, title), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{options.html}: {error.strerror}") from error
    if options.json:
        json.dump(_as_json(report), sys.stdout, indent=1)
        print()
    else:
        print("\n".join(step_report.lines(report)))
    return 0


def _as_json(report: step_report.Report) -> dict[str, Any]:
    return {
        "steps": [
            {
                "number": step.number,
                "late": step.late and {"rank": step.late[0], "ns": step.late[1]},
                "ranks": {
                    rank: {
                        "begin_ns": one.begin,
                        "length_ns": one.length,
                        "compute_ns": one.compute,
                        "transfer_ns": one.transfer,
                        "waiting_ns": dict(one.waiting),
                    }
                    for rank, one in step.ranks.items()
                },
            }
            for step in report.steps.steps
        ],
        "ranks": [dataclasses.asdict(row) for row in report.rows],
        "missing": list(report.missing),
        "dropped": report.dropped,
        "clock_error_ms": report.clock_error,
        "advice": report.advice,
    }
