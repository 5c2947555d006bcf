"""`tf_hvd dump`: save the flight recordings of a running job."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import textwrap
import time
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from tf_hvd.core import files
from tf_hvd.core.printable import printable
from tf_hvd.launch.commands.argument_types import whole
from tf_hvd.launch.errors import UsageError
from tf_hvd.launch.machine import proc, rank
from tf_hvd.observe import recording

_LONGEST = 100  # maximum characters of a command line in the list of jobs


def add_command(commands: Any) -> None:
    parser = commands.add_parser(
        "dump",
        help="save a record of a running job's most recent collectives",
        description="Save a recording of the most recent collectives of each rank on this machine "
        "without disturbing the job. `tf_hvd doctor FOLDER` explains the recordings. For a job "
        "on several machines, run the command on each machine with the same folder.",
        epilog="example: tf_hvd dump --to dumps && tf_hvd doctor dumps",
    )
    parser.add_argument(
        "job",
        nargs="?",
        type=whole("a process id"),
        metavar="JOB",
        help="process id of `tf_hvd run`, mpirun, srun or one of the ranks (default: the only "
        "running job)",
    )
    parser.add_argument(
        "--to",
        default=".",
        metavar="FOLDER",
        help="folder in which the job's folder is created (default: the current folder)",
    )
    parser.set_defaults(start=_start, parser=parser)


@dataclass
class _Job:
    name: str
    size: int
    files: dict[int, Path] = field(default_factory=dict)
    """For each rank, a path in /proc that leads to the rank's recording in memory."""
    processes: set[int] = field(default_factory=set)
    """The processes that have a recording open: the ranks and their parents."""
    ranks: set[int] = field(default_factory=set)
    """The ids of the ranks among `processes`."""

    def __str__(self) -> str:
        return f"{len(self.files)} of {self.size} ranks of job {self.name}"


def _start(options: argparse.Namespace) -> int:
    jobs = [job for job in _running() if options.job is None or _is_of(options.job, job)]
    if not jobs:
        raise UsageError(
            f"process {options.job} is neither a rank nor the launcher of a job"
            if options.job
            else "no job of this user is running on this machine"
        )
    if len(jobs) > 1:
        lines = [f"  {min(job.processes)}: {job}{_origin(job)}" for job in jobs]
        text = "several jobs are running; pass one of these process ids:"
        raise UsageError("\n".join([text, *lines]))
    (job,) = jobs
    folder = ""
    try:
        for number, path in job.files.items():
            with files.opened(path) as file:
                name = job.name.replace("/", "_")
                folder = rank.save_recording(file.fileno(), options.to, name, number)
        if folder:
            rank.write_own(folder, recording.ENDS, json.dumps(recording.STILL_RUNS).encode())
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
        except (recording.RecordingError, OSError):  # the rank is just starting or has just ended
            continue
        job = jobs.setdefault((one.job, one.part), _Job(one.job, one.size))
        job.files[one.launched] = file
        job.processes.add(process)
        if process == one.process:
            job.ranks.add(process)
    return list(jobs.values())


def _origin(job: _Job) -> str:
    """Return a text with a rank's start time and command line, or "" if /proc lacks them."""
    first = min(job.ranks or job.processes)
    ticks, command = proc.stat(first).began, proc.arguments(first)
    if not ticks or not command:
        return ""
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    began = datetime.fromtimestamp(time.time() - age)
    line = textwrap.shorten(printable(shlex.join(command)), _LONGEST, placeholder=" ...")
    return f", started {began:%Y-%m-%d %H:%M:%S}: {line}"


def _is_of(process: int, job: _Job) -> bool:
    return any(process in {each, *proc.ancestors(each)} for each in job.processes)
