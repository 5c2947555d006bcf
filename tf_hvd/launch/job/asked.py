"""What was asked: options, environment and hosts become one `Job`. What cannot be is refused."""

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

# That MPI's launcher has open: Open MPI's, which has more than MPICH's.
_FILES, _FILES_OF_A_RANK = 24, 4
_PROCESSES = 2  # of a rank: the program, and who waits for its end


@dataclass(frozen=True)
class Job:
    """One start of a program: how many ranks, where, and what is known of this machine."""

    ranks: int
    command: tuple[str, ...]
    program: str = ""
    """The program's file, or as the user names it where it is not known."""
    hosts: tuple[Host, ...] = ()
    """Empty for this machine."""
    local: bool = True
    """Whether all of them are this machine."""
    others: tuple[str, ...] = ()
    """Those of other machines that get ranks."""
    ranks_here: int = 0
    launcher_args: tuple[str, ...] = ()
    here: bool = False
    """Whether all of it is on this machine, the launcher's too, whatever hosts a scheduler has
    given."""
    own_input: bool = False
    """Whether the user's launcher arguments say who reads the standard input."""
    cores: int = 1
    as_root: bool = False
    ssh: str = ""
    start: str = ""
    """The number of an elastic job's start; empty for another job."""
    output: str = ""
    """Holds `rank.N/stdout` and `rank.N/stderr` for each rank; empty for no files."""
    timestamps: bool = False
    """Whether each line begins with the time, also in the files."""
    tags: bool = False
    """Whether each line but those in the files begins with the rank."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """The caller's, without what an outer launcher has told, with what was asked for."""
    asked: Collection[str] = ()
    """The variables of `environ` that the user wants on all machines, whatever they are."""


def job_of(options: argparse.Namespace, environ: Mapping[str, str], start: str = "") -> Job:
    """The job that was asked for; fills in the number of ranks in `options`.

    Raises:
        UsageError: it cannot be started as asked.
    """
    if options.np != 1:
        _check_folder()
    asked = _files(options)
    asked |= asked_variables(options.variables, options.env_file, environ)
    hosts = _hosts(options, {**environ, contract.START: start} if start else environ)
    # A rank that names an MPI need not want the library that the outer launcher chose.
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
    """Refuses what cannot be: a launcher that is given it works at it for minutes."""
    script = options.command[0]
    if local and program is None:
        if script.endswith(".py") and Path(script).is_file():
            raise UsageError(
                f"{script!r} is not a program by itself; start it with Python: python {script}"
            )
        raise UsageError(
            f"no program {script!r} on the PATH; activate its environment or give its path"
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
            "--require-init needs a rank on this machine, which is not among the hosts"
        )
    _check_limits(options.np, here)


def _check_limits(ranks: int, here: int) -> None:
    """Refuses more ranks on this machine, `here` of all, than it allows processes or files for."""
    most, told_by = proc.most()
    if here * _PROCESSES > most:
        raise UsageError(
            f"{here} ranks on this machine need at least {here * _PROCESSES} processes, but it "
            f"allows {most} ({told_by})"
        )
    needed, limit = _FILES + here * _FILES_OF_A_RANK, proc.most_files()
    if ranks > 1 and needed > limit:
        raise UsageError(
            f"the limit of {limit} open files is too low for {here} ranks on this machine: the MPI "
            f"launcher needs {needed}; raise it: ulimit -n {needed}"
        )


def _check_input(options: argparse.Namespace, program: str) -> None:
    """Refuses a program from a pipe or a file: the other ranks would run an empty one."""
    if options.np == 1 or "stdin" in options.mpi_args or not interpreter.is_interpreter(program):
        return
    given = not stat.S_ISCHR(os.fstat(0).st_mode)  # neither a terminal nor /dev/null
    if given and interpreter.reads_program(options.command):
        raise UsageError(
            f"{options.command[0]!r} would read its program from the standard input, which only "
            "rank 0 has; save the program to a file and name that file"
        )


def _check_folder() -> None:
    """Refuses a folder that was removed: no launcher starts there, as a single rank does."""
    try:
        os.getcwd()
    except FileNotFoundError as error:
        name = os.readlink("/proc/self/cwd").removesuffix(" (deleted)")
        raise UsageError(
            f"the current folder, {name}, was removed; change to one that exists (cd)"
        ) from error


def _import_folder(program: str, command: Sequence[str]) -> Path | None:
    """Where Python looks for modules before all else; None if that is not known, or nowhere."""
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
    """What tells ranks to write files of what they do; a program may change its folder."""
    told = {}
    for option, file in (("--timeline", options.timeline), ("--metrics", options.metrics)):
        try:
            if file:
                files.check_target(file)
        except files.FileError as error:
            raise UsageError(f"{option} {error}; name another") from error
        except OSError:
            pass  # no reason not to train: the ranks warn
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
    """The variables that `-x` and `--env-file` name, with their values; `-x` counts more.

    A setting is `NAME=VALUE`, or `NAME` for the caller's value. A line of the file is such a
    setting, or empty, or a comment (`#`). Nothing in it is quoted or expanded, as in Docker's.
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
        raise UsageError(
            f"{where}: {name!r} is not the name of a variable; give NAME or NAME=VALUE"
        )
    if not equals and name not in environ:
        raise UsageError(f"{where}: the variable {name} is not set; give its value, {name}=VALUE")
    return {name: value if equals else environ[name]}


def _hosts(options: argparse.Namespace, environ: Mapping[str, str]) -> tuple[Host, ...]:
    """The hosts of the job; empty for this machine. Without -np all of their slots get a rank."""
    given, cure = given_hosts(options), FEWER_RANKS
    taken = given
    # A rank that starts a job starts it beside itself; so does who wants a single rank.
    stays = options.np == 1 or is_rank(environ) or "host" in options.mpi_args
    found = None if given or stays else allocation(environ)
    if found and found.hosts:
        taken, cure = found.hosts, f"{found.cure}, or list hosts with -H"
    elif found and options.np and not rank.is_restart(environ):
        say(
            f"tf_hvd run: inside a job of {found.scheduler}, whose hosts are not known: all ranks "
            "run on this machine; list hosts with -H"
        )
    if options.np is None:
        if not taken:
            raise UsageError("the number of ranks is missing; for example -np 2")
        options.np = sum(host.slots for host in taken)
    if taken:
        check_slots(taken, options.np, cure)
    return given or taken[: len(placed(taken, options.np))]


def ssh_arguments(options: argparse.Namespace) -> str:
    """What the options say of ssh, in its words."""
    words = ["-p", str(options.ssh_port)] if options.ssh_port else []
    if options.ssh_identity_file:
        words += ["-i", os.path.abspath(options.ssh_identity_file)]
    return " ".join(words)


def given_hosts(options: argparse.Namespace) -> tuple[Host, ...]:
    """The hosts that the options name; empty if they name none."""
    if options.hosts is not None:
        return parse_hosts(options.hosts)
    if options.hostfile is None:
        return ()
    return parse_hostfile(read_text(options.hostfile, "the host file"), options.hostfile)


def count_cores() -> int:
    """The physical cores that this process may use: launchers do not bind to hyper-threads."""
    return len({proc.siblings(cpu) for cpu in os.sched_getaffinity(0)})
