"""`tf_hvd dump`: copies the flight recorders' memory of a job that runs."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tf_hvd.core import files
from tf_hvd.launch.commands.argument_types import whole
from tf_hvd.launch.errors import UsageError
from tf_hvd.launch.machine import proc, rank
from tf_hvd.observe import recording


def add_command(commands: Any) -> None:
    parser = commands.add_parser(
        "dump",
        help="copy the last collectives of a job that runs",
        description="Copies what this machine's ranks have recorded of their last collectives, "
        "without disturbing them, for `tf_hvd doctor FOLDER`. Of a job on several machines: run "
        "it on each, into one folder.",
        epilog="example: tf_hvd dump --to dumps && tf_hvd doctor dumps",
    )
    parser.add_argument(
        "job",
        nargs="?",
        type=whole("the number of a process"),
        metavar="JOB",
        help="the process of `tf_hvd run`, mpirun or srun, or of one of the ranks (may be left "
        "out where one job runs)",
    )
    parser.add_argument(
        "--to",
        default=".",
        metavar="FOLDER",
        help="where a folder for the job is made (default: here)",
    )
    parser.set_defaults(start=_start, parser=parser)


@dataclass
class _Job:
    name: str
    size: int
    files: dict[int, Path] = field(default_factory=dict)
    """Each rank's memory, as one of the processes has it."""
    processes: set[int] = field(default_factory=set)
    """Those: the ranks, and who has started them."""

    def __str__(self) -> str:
        return f"{len(self.files)} of {self.size} ranks of job {self.name}"


def _start(options: argparse.Namespace) -> int:
    jobs = [job for job in _running() if options.job is None or _is_of(options.job, job)]
    if not jobs:
        raise UsageError(
            f"process {options.job} is no rank of a job, and has started none"
            if options.job
            else "no job runs here, of this user"
        )
    if len(jobs) > 1:
        lines = [f"  {min(job.processes)}: {job}" for job in jobs]
        raise UsageError("\n".join(["several jobs run here; give one of these processes:", *lines]))
    (job,) = jobs
    folder = ""
    try:
        for number, path in job.files.items():
            with files.opened(path) as file:
                name = job.name.replace("/", "_")
                folder = rank.save_recording(file.fileno(), options.to, name, number)
    except OSError as error:
        raise UsageError(files.reason(error)) from error
    print(folder)
    print(f"{job}: tf_hvd doctor {folder}", file=sys.stderr)
    return 0


def _running() -> list[_Job]:
    jobs: dict[tuple[str, int], _Job] = {}
    for process, file in recording.running():
        try:
            one = recording.parse(files.read(file, recording.LARGEST))
        except (recording.RecordingError, OSError):  # it has not begun yet, or has just ended
            continue
        job = jobs.setdefault((one.job, one.part), _Job(one.job, one.size))
        job.files[one.launched] = file
        job.processes.add(process)
    return list(jobs.values())


def _is_of(process: int, job: _Job) -> bool:
    return any(process in {each, *proc.ancestors(each)} for each in job.processes)
