"""`tf_hvd run`: turns what the user asked for into one launcher command, and starts it."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tf_hvd.cli.errors import UsageError
from tf_hvd.cli.hosts import (
    Host,
    all_local,
    check_slots,
    most_ranks_on_a_host,
    parse_hostfile,
    parse_hosts,
)
from tf_hvd.cli.launchers import FAMILY_NAMES, LIBRARY_VARIABLE, Launcher, find_launcher
from tf_hvd.cli.supervise import supervise

# Open MPI hands to other machines only the variables that it is told to.
_EXPORTED = frozenset({"LD_LIBRARY_PATH", "PATH", "TTY_COMPATIBLE", "VIRTUAL_ENV"})
_EXPORTED_PREFIXES = (
    *(
        "CUDA_",
        "HOROVOD_",
        "KERAS_",
        "KMP_",
        "MKL_",
        "NCCL_",
        "OMP_",
        "PYTHON",
        "TF_",
        "UCX_",
        "XLA_",
    ),
)
_BINDING_OPTIONS = ("bind-to", "map-by", "rank-by", "cpu-bind", "cpu-set", "rankfile")


@dataclass(frozen=True)
class Job:
    """One start of a program: how many ranks, where, and what is known of this machine."""

    ranks: int
    command: tuple[str, ...]
    hosts: tuple[Host, ...] = ()
    launcher_args: tuple[str, ...] = ()
    cores: int = 1
    as_root: bool = False
    environ: Mapping[str, str] = field(default_factory=dict)


def command_line(launcher: Launcher, job: Job) -> list[str]:
    """The whole command that starts a job: the launcher's options, then the program.

    Hosts are taken to have as many cores as this one.

    Args:
        launcher: the program to start the ranks with.
        job: what to start.

    Returns:
        The arguments, the launcher's own path first.
    """
    words = {"openmpi": _openmpi, "mpich": _mpich, "slurm": _slurm}[launcher.family]
    cores_each = job.cores // most_ranks_on_a_host(job.hosts, job.ranks)
    return [launcher.program, *words(job, cores_each), *job.launcher_args, *job.command]


def exported_names(environ: Mapping[str, str]) -> list[str]:
    """The variables of `environ` that the ranks on other machines need, sorted."""
    return sorted(
        name for name in environ if name in _EXPORTED or name.startswith(_EXPORTED_PREFIXES)
    )


def rank_environment(
    launcher: Launcher, environ: Mapping[str, str], terminal: bool
) -> dict[str, str]:
    """The environment of the ranks: the caller's, the MPI library, and whether a terminal looks on.

    Args:
        launcher: its library is the one that the ranks shall open.
        environ: the caller's environment.
        terminal: whether the standard output ends at a terminal. Open MPI gives its ranks a
            pseudo-terminal and MPICH a pipe whatever the output is, so programs cannot find out;
            `TTY_COMPATIBLE` tells those that ask (rich does).
    """
    ranks = {"TTY_COMPATIBLE": str(int(terminal)), **environ, **launcher.environment}
    if launcher.library:
        ranks[LIBRARY_VARIABLE] = launcher.library
    return ranks


def horovod_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` with a `horovod` first on Python's path that is tf_hvd."""
    ours = str(Path(__file__).resolve().parent.parent / "_as_horovod")
    path = environ.get("PYTHONPATH", "")
    return {**environ, "PYTHONPATH": f"{ours}{os.pathsep}{path}" if path else ours}


def count_cores() -> int:
    """The physical cores that this process may use: launchers do not bind to hyper-threads."""
    cores = set()
    for cpu in os.sched_getaffinity(0):
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.add(siblings.read_text() if siblings.is_file() else str(cpu))
    return len(cores)


def run(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Starts the program that `options` names and waits for its end.

    Args:
        options: the parsed arguments of `tf_hvd run`.
        environ: the environment to start it in.

    Returns:
        The exit code of the job; 128 plus the signal's number if a signal ended it.

    Raises:
        UsageError: the job cannot be started as asked.
    """
    if options.as_horovod:
        environ = horovod_environment(environ)
    hosts = _read_hosts(options)
    if hosts:
        check_slots(hosts, options.np)
    local = all_local(hosts, socket.gethostname())
    command = tuple(options.command)
    if local and shutil.which(command[0], path=environ.get("PATH")) is None:
        raise UsageError(
            f"no program {command[0]!r} on the PATH; activate its environment or give its path"
        )
    if options.np == 1 and local:
        _announce(options.verbose, command, "1 rank needs no MPI")
        return supervise(command, environ)
    launcher = find_launcher(options.mpi, environ)
    ranks_environ = rank_environment(launcher, environ, sys.stdout.isatty())
    job = Job(
        ranks=options.np,
        command=command,
        hosts=hosts,
        launcher_args=_split(options.mpi_args),
        cores=count_cores(),
        as_root=os.geteuid() == 0,
        environ=ranks_environ,
    )
    line = command_line(launcher, job)
    _announce(
        options.verbose,
        line,
        f"{FAMILY_NAMES[launcher.family]}, {LIBRARY_VARIABLE}={launcher.library}",
    )
    return supervise(line, ranks_environ)


def _read_hosts(options: argparse.Namespace) -> tuple[Host, ...]:
    if options.hosts is not None:
        return parse_hosts(options.hosts)
    if options.hostfile is None:
        return ()
    try:
        text = Path(options.hostfile).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise UsageError(f"cannot read the host file {options.hostfile}: {reason}") from error
    return parse_hostfile(text, options.hostfile)


def _split(mpi_args: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(mpi_args))
    except ValueError as error:
        raise UsageError(f'--mpi-args: {error} in "{mpi_args}"') from error


def _announce(verbose: bool, line: Sequence[str], why: str) -> None:
    if verbose:
        print(f"tf_hvd run: {shlex.join(line)}  ({why})", file=sys.stderr, flush=True)


def _binds_itself(job: Job) -> bool:
    """True if the user's own launcher arguments say where ranks go: ours would contradict them."""
    return any(argument.lstrip("-").startswith(_BINDING_OPTIONS) for argument in job.launcher_args)


def _openmpi(job: Job, cores_each: int) -> list[str]:
    words = ["-np", str(job.ranks)]
    if job.as_root:
        words.append("--allow-run-as-root")
    if job.hosts:
        words += ["--host", ",".join(map(str, job.hosts))]
    if cores_each == 0:
        words.append("--oversubscribe")
    if not _binds_itself(job):
        if cores_each > 1:
            words += ["--map-by", f"slot:PE={cores_each}"]
        words += ["--bind-to", "core" if cores_each else "none"]
    for name in exported_names(job.environ):
        words += ["-x", name]
    return words


def _mpich(job: Job, cores_each: int) -> list[str]:
    words = ["-np", str(job.ranks), "-genvall"]
    if job.hosts:
        words += ["-hosts", ",".join(map(str, job.hosts))]
    if not _binds_itself(job):
        words += ["-bind-to", f"core:{cores_each}" if cores_each else "none"]
    return words


def _slurm(job: Job, cores_each: int) -> list[str]:
    words = [f"--ntasks={job.ranks}", "--export=ALL"]
    if job.hosts:
        placed = [host.name for host in job.hosts for _ in range(host.slots)][: job.ranks]
        words += ["--distribution=arbitrary", f"--nodelist={','.join(placed)}"]
    if cores_each == 0:
        words.append("--overcommit")
    if not _binds_itself(job):
        words.append(f"--cpu-bind={'cores' if cores_each else 'none'}")
    return words
