"""Convert options, environment and hosts into one `Job`, and reject impossible requests."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import socket
import stat
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tf_hvd.core import contract, files
from tf_hvd.launch.errors import UsageError, read_text
from tf_hvd.launch.job import interpreter
from tf_hvd.launch.job.allocation import allocation
from tf_hvd.launch.job.environment import NAME, TIMELINE, is_rank, without_launcher
from tf_hvd.launch.job.hosts import (
    FEWER_RANKS,
    Host,
    all_local,
    check_slots,
    parse_hostfile,
    parse_hosts,
    placed,
)
from tf_hvd.launch.job.job_watch import say
from tf_hvd.launch.job.network import PLACES, names
from tf_hvd.launch.machine import proc, rank

# Files that Open MPI's launcher opens, in total and per rank. MPICH's launcher needs fewer.
_FILES, _FILES_OF_A_RANK = 24, 4
_PROCESSES = 2  # per rank: the program and its keeper


@dataclass(frozen=True)
class Job:
    """One start of a program: number of ranks, hosts, options and facts about this machine."""

    ranks: int
    command: tuple[str, ...]
    program: str = ""
    """Path of the program's file, or the name that the user gave if the path is unknown."""
    hosts: tuple[Host, ...] = ()
    """The job's hosts; empty if the job runs on this machine only."""
    local: bool = True
    """Whether all hosts are this machine."""
    others: tuple[str, ...] = ()
    """The other machines that get ranks."""
    ranks_here: int = 0
    """The number of ranks on this machine."""
    launcher_args: tuple[str, ...] = ()
    """The user's arguments for the MPI launcher."""
    here: bool = False
    """Whether ranks and launcher run only on this machine, even if a scheduler lists more hosts."""
    own_input: bool = False
    """Whether the user's launcher arguments select the rank that reads the standard input."""
    cores: int = 1
    """The number of physical cores that ranks may use."""
    as_root: bool = False
    ssh: str = ""
    """Arguments for ssh."""
    start: str = ""
    """The number of an elastic job's start, as a string; empty if the job is not elastic."""
    output: str = ""
    """The folder for `rank.N/stdout` and `rank.N/stderr` of each rank; empty for no files."""
    timestamps: bool = False
    """Whether each line of output begins with the time, also in the files."""
    tags: bool = False
    """Whether each line of output begins with the rank, except in the files."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """The caller's environment with the user's variables and without an outer launcher's."""
    asked: Collection[str] = ()
    """Names of the variables in `environ` that the user passes to all machines."""


def job_of(options: argparse.Namespace, environ: Mapping[str, str], start: str = "") -> Job:
    """Return the requested job, and set the number of ranks in `options` if it is missing.

    Raises:
        UsageError: the job cannot be started as requested.
    """
    if options.np != 1:
        _check_folder()
    asked = _files(options)
    asked |= asked_variables(options.variables, options.env_file, environ)
    hosts = _hosts(options, {**environ, contract.START: start} if start else environ)
    # A rank that starts a job with --mpi may not want the library that its own launcher chose.
    own = without_launcher({**environ, **asked}, library=options.mpi == "auto")
    this_host, command = socket.gethostname(), tuple(options.command)
    local, on = all_local(hosts, this_host), placed(hosts, options.np)
    others = tuple(host.name for host in on if not all_local([host], this_host))
    here = sum(host.slots for host in on if host.name not in others) if hosts else options.np
    program = shutil.which(command[0], path=own.get("PATH"))
    _check(options, own, program, local, here)
    try:
        words = tuple(shlex.split(options.mpi_args))
    except ValueError as error:
        raise UsageError(f'--mpi-args: {error} in "{options.mpi_args}"') from error
    folder = options.output_filename
    if folder:
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--output-filename {folder}: {error.strerror}") from error
    return Job(
        ranks=options.np,
        command=command,
        program=program or command[0],
        hosts=hosts,
        local=local,
        others=others,
        ranks_here=here,
        launcher_args=words,
        here=local and not names(words, PLACES),
        own_input=any(word.lstrip("-").startswith("stdin") for word in words),
        cores=count_cores(),
        as_root=os.geteuid() == 0,
        ssh=ssh_arguments(options),
        start=start,
        output=os.path.abspath(folder) if folder else "",
        timestamps=options.prefix_output_with_timestamp,
        tags=options.tag_output,
        environ=own,
        asked=frozenset(asked),
    )


def _check(
    options: argparse.Namespace,
    environ: Mapping[str, str],
    program: str | None,
    local: bool,
    here: int,
) -> None:
    """Reject impossible requests, on which a launcher would waste minutes."""
    script = options.command[0]
    if local and program is None:
        if script.endswith(".py") and Path(script).is_file():
            raise UsageError(f"{script!r} is not executable; start it with Python: python {script}")
        raise UsageError(
            f"program {script!r} is not on the PATH; activate its environment or give its path"
        )
    if program and not environ.get("PYTHONSAFEPATH") and interpreter.is_python(program):
        folder = _import_folder(program, options.command)
        if folder and (folder / "tf_hvd.py").is_file():
            raise UsageError(
                f"the program would import {folder / 'tf_hvd.py'} instead of the package tf_hvd; "
                "rename that file"
            )
    _check_input(options, program or script)
    if not here and options.require_init:
        raise UsageError(
            "--require-init needs a rank on this machine; add this machine to the hosts"
        )
    _check_limits(options.np, here)


def _check_limits(ranks: int, here: int) -> None:
    """Reject the job if this machine's process and file limits are too low for `here` ranks."""
    most, told_by = proc.most()
    if here * _PROCESSES > most:
        raise UsageError(
            f"{here} ranks on this machine need at least {here * _PROCESSES} processes, but only "
            f"{most} are allowed ({told_by}); raise the limit, or start fewer ranks"
        )
    needed, limit = _FILES + here * _FILES_OF_A_RANK, proc.most_files()
    if ranks > 1 and needed > limit:
        raise UsageError(
            f"the limit of {limit} open files is too low for {here} ranks on this machine: the MPI "
            f"launcher needs {needed}; raise it: ulimit -n {needed}"
        )


def _check_input(options: argparse.Namespace, program: str) -> None:
    """Reject a program that Python reads from standard input, because only rank 0 would get it."""
    if options.np == 1 or "stdin" in options.mpi_args or not interpreter.is_interpreter(program):
        return
    given = not stat.S_ISCHR(os.fstat(0).st_mode)  # neither a terminal nor /dev/null
    if given and interpreter.reads_program(options.command):
        raise UsageError(
            f"{options.command[0]!r} would read its program from the standard input, which only "
            "rank 0 has; save the program to a file and pass that file"
        )


def _check_folder() -> None:
    """Reject a removed current folder, because MPI's launchers do not start there."""
    try:
        os.getcwd()
    except FileNotFoundError as error:
        name = os.readlink("/proc/self/cwd").removesuffix(" (deleted)")
        raise UsageError(
            f"the current folder, {name}, was removed; change to an existing folder (cd)"
        ) from error


def _import_folder(program: str, command: Sequence[str]) -> Path | None:
    """Return the first folder that Python searches for modules; None if unknown."""
    if not interpreter.is_interpreter(program):
        return Path(os.path.realpath(program)).parent
    words = iter(command[1:])
    for word in words:
        if word == "-m":
            return Path.cwd()
        if not word.startswith("-"):
            return Path(os.path.realpath(word)).parent
        if word in ("-W", "-X"):
            next(words, None)
        elif not word.startswith("--") and set(word) & set("cPI"):
            return None
    return None


def _files(options: argparse.Namespace) -> dict[str, str]:
    """Return the environment variables for the ranks' timelines and metrics.

    The paths are absolute, because a program may change its current folder.
    """
    told = {}
    for option, file in (("--timeline", options.timeline), ("--metrics", options.metrics)):
        try:
            if file:
                files.check_target(file)
        except files.FileError as error:
            raise UsageError(f"{option} {error}; give another path") from error
        except OSError:
            pass  # the ranks print a warning and train
    if options.timeline:
        told[TIMELINE] = os.path.abspath(options.timeline)
    if options.timeline_limit:
        told["TF_HVD_TIMELINE_LIMIT"] = str(options.timeline_limit * 1_000_000)
    if options.metrics:
        told["TF_HVD_METRICS"] = os.path.abspath(options.metrics)
    return told


def asked_variables(
    settings: Sequence[str], file: str | None, environ: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables from `-x` and `--env-file` with their values; `-x` takes priority.

    Args:
        settings: the `-x` arguments: `NAME=VALUE`, or `NAME` for the value in `environ`.
        file: path of the `--env-file`; None for no file. Each line is such a setting, a comment
            (`#`) or empty. As in Docker's files, quotes are kept and variables are not expanded.
        environ: the caller's environment.
    """
    asked: dict[str, str] = {}
    if file is not None:
        lines = read_text(file, "--env-file").splitlines()
        for number, line in enumerate(lines, 1):
            if line.strip() and not line.lstrip().startswith("#"):
                asked |= _variable(line, environ, f"{file}, line {number}")
    for setting in settings:
        asked |= _variable(setting, environ, "-x")
    return asked


def _variable(setting: str, environ: Mapping[str, str], where: str) -> dict[str, str]:
    name, equals, value = setting.partition("=")
    name = name.strip()
    if not NAME.fullmatch(name):  # a value may be a secret
        raise UsageError(f"{where}: {name!r} is not a variable name; give NAME or NAME=VALUE")
    if not equals and name not in environ:
        raise UsageError(f"{where}: the variable {name} is not set; give its value, {name}=VALUE")
    return {name: value if equals else environ[name]}


def _hosts(options: argparse.Namespace, environ: Mapping[str, str]) -> tuple[Host, ...]:
    """Return the job's hosts, or () for this machine only. Without -np, each slot gets a rank."""
    given, cure = given_hosts(options), FEWER_RANKS
    taken = given
    # A job that a rank starts, and a job of a single rank, run on this machine.
    stays = options.np == 1 or is_rank(environ) or "host" in options.mpi_args
    found = None if given or stays else allocation(environ)
    if found and found.hosts:
        taken, cure = found.hosts, f"{found.cure}, or list hosts with -H"
    elif found and options.np and not rank.is_restart(environ):
        say(
            f"tf_hvd run: all ranks run on this machine, because the hosts of this "
            f"{found.scheduler} job are unknown; list hosts with -H"
        )
    if options.np is None:
        if not taken:
            raise UsageError("the number of ranks is missing; give it, for example -np 2")
        options.np = sum(host.slots for host in taken)
    if taken:
        check_slots(taken, options.np, cure)
    return given or taken[: len(placed(taken, options.np))]


def ssh_arguments(options: argparse.Namespace) -> str:
    """Return the ssh arguments for the options `-p` and `-i`."""
    words = ["-p", str(options.ssh_port)] if options.ssh_port else []
    if options.ssh_identity_file:
        words += ["-i", os.path.abspath(options.ssh_identity_file)]
    return " ".join(words)


def given_hosts(options: argparse.Namespace) -> tuple[Host, ...]:
    """Return the hosts that the options name; empty if there are none."""
    if options.hosts is not None:
        return parse_hosts(options.hosts)
    if options.hostfile is None:
        return ()
    return parse_hostfile(read_text(options.hostfile, "the host file"), options.hostfile)


def count_cores() -> int:
    """Return the number of physical cores that this process may use, without hyper-threads."""
    return len({proc.siblings(cpu) for cpu in os.sched_getaffinity(0)})
