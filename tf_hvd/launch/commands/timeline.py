"""`tf_hvd timeline`: where the time of each step went, from the timelines of a job's ranks."""

from __future__ import annotations

import argparse
import dataclasses
import glob
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tf_hvd.core import files
from tf_hvd.launch.errors import UsageError, reading
from tf_hvd.observe import report_page, step_report, step_times, trace_reader

_OF_A_RANK = re.compile(r"(\.rank-\d+)?(\.before)?$")


def add_command(commands: Any) -> None:
    parser = commands.add_parser(
        "timeline",
        help="say where the time of each step went",
        description="Reads what `tf_hvd run --timeline FILE` has written, and says how much of a "
        "step is computation, how much transfer that nothing hides, and who was waited for.",
        epilog="example: tf_hvd timeline trace.json",
    )
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="the timelines; with one alone, those of the other ranks beside it are read as well",
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
    """The files of a job's ranks: of `trace.json`, `trace.rank-1.json` and so on, and before them.

    Args:
      path: of any of them.
    """
    stem = _OF_A_RANK.sub("", path.stem)
    first = path.with_name(stem + path.suffix)
    ranks = first.parent.glob(f"{glob.escape(stem)}.rank-*{glob.escape(path.suffix)}")
    rest = [each for each in ranks if _OF_A_RANK.sub("", each.stem) == stem]
    # Of a `.before`, the file that comes after it.
    whole = {
        each.with_name(each.stem.removesuffix(".before") + each.suffix)
        for each in [path, first, *rest]
    }
    files = [each for one in sorted(whole) for each in (_before(one), one)]
    return [each for each in files if each.exists() or each == path]


def _before(path: Path) -> Path:
    return path.with_name(f"{path.stem}.before{path.suffix}")


def read_all(names: Sequence[str]) -> list[trace_reader.Trace]:
    """The timelines in files, by rank.

    Raises:
      UsageError: one is none; two are of one rank, or of different jobs.
      OSError: one cannot be read.
    """
    paths = [Path(name) for name in names]
    named = str(paths[0])
    alone = len(paths) == 1
    if alone:
        paths = beside(paths[0])
    try:
        read = [trace for path in paths for trace in trace_reader.read(path)]
    except trace_reader.TraceError as error:
        raise UsageError(str(error)) from error
    # Of many files beside each other some may be left from another job.
    befores = {str(_before(path)) for path in paths}
    read.sort(key=lambda trace: (trace.file != named, trace.file in befores))
    its = step_times.calls_of(read[0])
    found: dict[int, trace_reader.Trace] = {}
    for trace in read:
        same_process = found.get(trace.rank, trace).is_of_process(trace)
        if not (same_process and step_times.of_one_job(read[0], its, trace)):
            if not alone:
                raise UsageError(f"{read[0].file} and {trace.file} are not of the same job")
            print(f"left out: {trace.file} is of another job than {named}", file=sys.stderr)
        elif trace.rank not in found:
            found[trace.rank] = trace
        else:
            _continue(found, trace)
    for trace in found.values():
        if step_times.is_mixed(trace):
            raise UsageError(
                f"{trace.file} has calls that are not of one job, such as two with the same "
                "number: if two jobs wrote it, give each a file of its own"
            )
    return [found[rank] for rank in sorted(found)]


def _continue(found: dict[int, trace_reader.Trace], trace: trace_reader.Trace) -> None:
    """With a rank's second file, which may be the one before the first."""
    other = found[trace.rank]
    if Path(trace.file) == _before(Path(other.file)):
        found[trace.rank], other, trace = trace, trace, other
    elif Path(other.file) != _before(Path(trace.file)):
        raise UsageError(f"{other.file} and {trace.file} are both of rank {trace.rank}")
    other.continue_with(trace)


def _start(options: argparse.Namespace) -> int:
    print(reading("the timelines", lambda: _report(options)))
    return 0


def _report(options: argparse.Namespace) -> str:
    traces = read_all(options.files)
    report = step_report.report(traces)
    if options.html:
        _write_page(options, traces, report)
    if options.json:
        return json.dumps(_as_json(report), indent=1)
    return "\n".join(step_report.lines(report))


def _write_page(
    options: argparse.Namespace, traces: Sequence[trace_reader.Trace], report: step_report.Report
) -> None:
    if options.html.resolve() in {Path(trace.file).resolve() for trace in traces}:
        raise UsageError(f"--html {options.html} would replace one of the timelines")
    page = report_page.page(report, Path(options.files[0]).name)
    with files.writing(options.html) as file:
        file.write(page.encode(errors="replace"))
    print(f"wrote {options.html}", file=sys.stderr)


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
        "first_step_counted": report.first,
        "missing": list(report.missing),
        "apart": list(report.apart),
        "lacking": list(report.lacking),
        "dropped": report.dropped,
        "clock_error_ms": report.clock_error,
        "faults": list(report.faults),
        "advice": report.advice,
    }
