"""`tf_hvd doctor`: check this machine's installation, or explain why a job failed.

The explanation of a job is based on the ranks' flight recordings (tf_hvd/observe/failure.py). The
check of the machine starts no job: MPI is loaded but not initialised. A separate process with a
time limit checks TensorFlow, MPI and CUDA (tf_hvd/launch/commands/doctor_facts.py).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import importlib.metadata
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from rich.console import Console

from tf_hvd.launch.commands import dump_report
from tf_hvd.launch.commands.argument_types import whole
from tf_hvd.launch.commands.doctor_findings import (
    NOTE,
    OK,
    PROBLEM,
    Finding,
    Surroundings,
    findings,
    stops_a_job,
)
from tf_hvd.launch.errors import UsageError
from tf_hvd.launch.job import shared_memory
from tf_hvd.launch.job.asked import count_cores
from tf_hvd.launch.job.environment import Facts, rank_environment, without_launcher
from tf_hvd.launch.job.launchers import NO_MPI, Launcher, find_launcher, user_home, version_of
from tf_hvd.launch.job.session import new_folder

_STOPS_A_JOB = 1
_LIMIT = 120
_KILLED = 5
_TENSORFLOWS = ("tensorflow", "tensorflow-cpu", "tf-nightly", "tf-nightly-cpu", "tensorflow-rocm")
_NCCLS = ("nvidia-nccl-cu11", "nvidia-nccl-cu12", "nvidia-nccl-cu13")
_STYLES = {OK: "", NOTE: "yellow", PROBLEM: "bold red"}


def add_command(commands: Any) -> None:
    parser = commands.add_parser(
        "doctor",
        help="check this machine's installation, or explain why a job failed",
        description="Show which TensorFlow, MPI, GPUs, NCCL and settings a job on this machine "
        "would use, and how to fix problems. The exit code is 1 if a job could not start. With "
        "DUMP, explain why a job failed, based on its ranks' last collectives.",
        epilog="examples: `tf_hvd doctor` checks this machine, `tf_hvd doctor --json` prints the "
        "report as JSON, and `tf_hvd doctor dumps` explains the recordings in the folder dumps",
    )
    parser.add_argument(
        "dump",
        nargs="?",
        type=Path,
        metavar="DUMP",
        help="folder of recordings, as printed by `tf_hvd dump` or set in TF_HVD_DUMP_DIR",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, for a bug report")
    parser.add_argument(
        "--limit",
        type=whole("a positive number of seconds", 1),
        default=_LIMIT,
        metavar="SECONDS",
        help=f"time limit for the checks of TensorFlow, MPI and CUDA (default: {_LIMIT} seconds)",
    )
    parser.set_defaults(start=_start, parser=parser)


def _start(options: argparse.Namespace) -> int:
    if options.dump is not None:
        return dump_report.show(options.dump, options.json)
    lines = findings(_look(without_launcher(os.environ), options.limit))
    stops = stops_a_job(lines)
    if options.json:
        report = {"stops_a_job": stops, "findings": [dataclasses.asdict(line) for line in lines]}
        print(json.dumps(report, indent=2))
    else:
        _print(lines, stops)
    return _STOPS_A_JOB if stops else 0


class _Console(Console):
    """A console that lets main() handle a closed output pipe, for example after `head`."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def _print(lines: Sequence[Finding], stops: bool) -> None:
    console = _Console(highlight=False)
    width = max(len(line.name) for line in lines)

    def say(text: str, state: str = OK) -> None:
        console.print(text, style=_STYLES[state], soft_wrap=True, markup=False)

    for line in lines:
        mark = "" if line.state == OK else f"{line.state}: "
        say(f"{line.name:{width}}  {mark}{line.value}", line.state)
        if line.cure:
            say(f"{'':{width}}  -> {line.cure}")
    say("a job would not start here" if stops else "nothing found that would stop a job")


def _look(environ: Mapping[str, str], limit: float) -> Surroundings:
    info = importlib.import_module("tf_hvd._build_info")
    cores = count_cores()
    launcher, why = _launcher(environ)
    facts, ended = _ask(launcher, environ, cores, limit)
    return Surroundings(
        version=info.VERSION,
        minors=tuple(info.BUILDS),
        python=f"{platform.python_version()}, {sys.executable}",
        tensorflow=_installed(_TENSORFLOWS),
        launcher=launcher,
        no_launcher=why,
        no_folder=_no_folder(),
        launcher_version=version_of(launcher) if launcher else "",
        cores=cores,
        shared_free=shared_memory.free(),
        environ=environ,
        nccl_wheels=_installed(_NCCLS),
        facts=facts,
        ended=ended,
    )


def _installed(names: Sequence[str]) -> dict[str, str]:
    found = {}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _no_folder() -> str:
    """Return the reason why no temporary folder can be created, or "" if one can."""
    try:
        new_folder().rmdir()
    except UsageError as error:
        return str(error)
    return ""


def _launcher(environ: Mapping[str, str]) -> tuple[Launcher | None, str]:
    try:
        return find_launcher("auto", environ), ""
    except UsageError as error:
        return None, str(error)


def _ask(
    launcher: Launcher | None, environ: Mapping[str, str], cores: int, limit: float
) -> tuple[dict[str, Any], str]:
    """Collect the facts in a separate process; return the facts and its error ("" for none)."""
    ranks = rank_environment(environ, launcher or NO_MPI, Facts(home=user_home()))
    # Use files: a pipe would stay open if the process cannot be killed.
    with tempfile.TemporaryFile() as answers, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("doctor_facts.py")), str(cores)],
            env=ranks,
            stdin=subprocess.DEVNULL,
            stdout=answers,
            stderr=errors,
            start_new_session=True,
        )
        try:
            ended = _end_of(process.wait(limit))
        except subprocess.TimeoutExpired:
            ended = f"no answer within {limit} s"
            _kill(process)
        except BaseException:
            _kill(process)
            raise
        facts: dict[str, Any] = {}
        for line in _lines(answers):
            with contextlib.suppress(ValueError):  # an incomplete line
                fact = json.loads(line)
                facts[fact["name"]] = fact["value"]
        if ended:
            said = _lines(errors)
            ended += f" ({said[-1].strip()})" if said else ""
        return facts, ended


def _end_of(code: int) -> str:
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}" if code else ""


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):  # the process hangs in a driver
        process.wait(_KILLED)


def _lines(file: BinaryIO) -> list[str]:
    file.seek(0)
    return file.read().decode(errors="replace").splitlines()
