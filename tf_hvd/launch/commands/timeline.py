"""`tf_hvd timeline`: show how each step's time was spent, from the timelines of all ranks."""

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
        help="show how each training step's time was spent",
        description="Read the files written by `tf_hvd run --timeline FILE` and show how much of "
        "each step is computation, non-overlapped transfer, and waiting for other ranks.",
        epilog="example: tf_hvd timeline trace.json",
    )
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="timelines; if you give only one, the other ranks' files in its folder are read too",
    )
    parser.add_argument(
        "--json", action="store_true", help="print the report as JSON, including each step"
    )
    parser.add_argument(
        "--html",
        type=Path,
        metavar="OUT",
        help="also write an HTML page with plots to OUT; the single file works offline",
    )
    parser.set_defaults(start=_start, parser=parser)


def rank_files(path: Path) -> list[Path]:
    """Return the paths of all ranks' timelines, such as `trace.json` and `trace.rank-1.json`.

    A timeline that was continued in a new file has two paths, the `.before` file first.

    Args:
      path: the path of any of these files.
    """
    stem = _OF_A_RANK.sub("", path.stem)
    first = path.with_name(stem + path.suffix)
    ranks = first.parent.glob(f"{glob.escape(stem)}.rank-*{glob.escape(path.suffix)}")
    rest = [each for each in ranks if _OF_A_RANK.sub("", each.stem) == stem]
    # Map each `.before` file to its successor.
    whole = {
        each.with_name(each.stem.removesuffix(".before") + each.suffix)
        for each in [path, first, *rest]
    }
    files = [each for one in sorted(whole) for each in (_before(one), one)]
    return [each for each in files if each.exists() or each == path]


def _before(path: Path) -> Path:
    return path.with_name(f"{path.stem}.before{path.suffix}")


def read_all(names: Sequence[str]) -> list[trace_reader.Trace]:
    """Read the timelines of a job and return them sorted by rank.

    Args:
      names: paths of the files; for a single path, all ranks' files in its folder are read.

    Raises:
      UsageError: a file is not a timeline, or two files are from one rank or from different jobs.
      OSError: a file cannot be read.
    """
    paths = [Path(name) for name in names]
    named = str(paths[0])
    single = len(paths) == 1
    if single:
        paths = rank_files(paths[0])
    try:
        read = [trace for path in paths for trace in trace_reader.read(path)]
    except trace_reader.TraceError as error:
        raise UsageError(str(error)) from error
    # Other files in the folder may be left from another job.
    befores = {str(_before(path)) for path in paths}
    read.sort(key=lambda trace: (trace.file != named, trace.file in befores))
    its = step_times.calls_of(read[0])
    found: dict[int, trace_reader.Trace] = {}
    for trace in read:
        same_process = found.get(trace.rank, trace).is_of_process(trace)
        if not (same_process and step_times.of_one_job(read[0], its, trace)):
            if not single:
                both = f"{read[0].file} and {trace.file}"
                raise UsageError(f"{both} are not from the same job; pass the files of one job")
            text = f"skipped {trace.file}: it and {named} are from different jobs"
            print(text, file=sys.stderr)
        elif trace.rank not in found:
            found[trace.rank] = trace
        else:
            _continue(found, trace)
    for trace in found.values():
        if step_times.is_mixed(trace):
            raise UsageError(
                f"{trace.file} has calls of more than one job; give each job its own timeline file"
            )
    return [found[rank] for rank in sorted(found)]


def _continue(found: dict[int, trace_reader.Trace], trace: trace_reader.Trace) -> None:
    """Join a rank's two files in time order; the `.before` file comes first."""
    other = found[trace.rank]
    if Path(trace.file) == _before(Path(other.file)):
        found[trace.rank], other, trace = trace, trace, other
    elif Path(other.file) != _before(Path(trace.file)):
        raise UsageError(
            f"{other.file} and {trace.file} are both from rank {trace.rank}; pass only one of them"
        )
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
        raise UsageError(f"--html {options.html} would replace a timeline; pass another path")
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
