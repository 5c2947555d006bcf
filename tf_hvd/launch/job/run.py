"""`tf_hvd run`: turns what the user asked for into one launcher command, and starts it."""

from __future__ import annotations

import argparse
import dataclasses
import os
import shlex
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tf_hvd.core import contract
from tf_hvd.launch.errors import UsageError, read_text
from tf_hvd.launch.job import explain, far_agent, interpreter, shared_memory
from tf_hvd.launch.job import job_watch as watching
from tf_hvd.launch.job.allocation import (
    HOST_FILES,
    Allocation,
    allocation,
    other_scheduler,
    unscheduled,
)
from tf_hvd.launch.job.command_line import Job, Output, by_way_of_rank, command_line
from tf_hvd.launch.job.environment import (
    TIMELINE,
    asked_variables,
    avoiding_environment,
    horovod_environment,
    interface_environment,
    is_rank,
    names_interfaces,
    own_settings,
    rank_environment,
    session_environment,
    ssh_environment,
    with_own_timeline,
    without_launcher,
)
from tf_hvd.launch.job.far_agent import FarAgent
from tf_hvd.launch.job.grace import Reach, by_srun, by_ssh
from tf_hvd.launch.job.host_check import Needs, check_hosts, goes_by_ssh, ssh_command
from tf_hvd.launch.job.hosts import (
    FEWER_RANKS,
    Host,
    all_local,
    check_slots,
    hosts_of,
    parse_hostfile,
    parse_hosts,
    ranks_here,
)
from tf_hvd.launch.job.launchers import FAMILY_NAMES, LIBRARY_VARIABLE, Launcher, find_launcher
from tf_hvd.launch.job.network import (
    closed_transports,
    jobs_network,
    listening_on_loopback,
    loopback,
    says_where_to_listen,
    stays_here,
)
from tf_hvd.launch.job.session import Home, Session
from tf_hvd.launch.job.supervise import Ending, supervise
from tf_hvd.launch.job.terminal import Terminal
from tf_hvd.launch.machine import proc, rank

_FAILED = 1
_PROCESSES = 2  # of a rank: the program, and who waits for its end


def count_cores() -> int:
    """The physical cores that this process may use: launchers do not bind to hyper-threads."""
    cores = set()
    for cpu in os.sched_getaffinity(0):
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.add(siblings.read_text() if siblings.is_file() else str(cpu))
    return len(cores)


@dataclasses.dataclass(frozen=True)
class End:
    """How one start of a job ended."""

    code: int
    """The exit code of the job; 128 plus the signal's number if a signal ended it."""
    asked: bool = False
    """Whether a signal to this process ended it."""
    host: str = ""
    """Where the rank ran that was the first to fail; empty: not known."""


def run(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Starts a job, once, and waits for its end; returns its exit code.

    Args:
        options: the parsed arguments of `tf_hvd run`.
        environ: the environment to start it in.

    Raises:
        UsageError: the job cannot be started as asked.
    """
    with Home() as home:
        return start_once(options, environ, home).code


def start_once(
    options: argparse.Namespace,
    environ: Mapping[str, str],
    home: Home,
    beside: watching.Beside | None = None,
) -> End:
    """Starts the program that `options` names and waits for its end.

    Args:
        options: the parsed arguments of `tf_hvd run`.
        environ: the environment to start it in.
        home: of the job.
        beside: looks on as well, at a start of an elastic job.

    Raises:
        UsageError: the job cannot be started as asked.
    """
    outer = environ.get(contract.JOB, "")
    asked = asked_variables(options.variables, options.env_file, environ)
    asked = {**_files(options), **asked}
    own = {contract.START: str(beside.number)} if beside else {}
    hosts = _hosts(options, {**environ, **own})
    environ = with_own_timeline(_environment(options, {**environ, **asked}) | own)
    here = ranks_here(hosts, options.np, socket.gethostname())
    local = all_local(hosts, socket.gethostname())
    command = tuple(options.command)
    program = shutil.which(command[0], path=environ.get("PATH"))
    if local and program is None:
        raise UsageError(_not_found(command))
    if program and interpreter.is_python(program):
        _check_own_name(program, command, environ)
    if not here and options.require_init:
        raise UsageError(
            "--require-init needs a rank on this machine, which is not among the hosts"
        )
    _check_number(here)
    words = _split(options.mpi_args)
    job = Job(
        ranks=options.np,
        command=command,
        hosts=hosts,
        launcher_args=words,
        cores=count_cores(),
        as_root=os.geteuid() == 0,
        interfaces=options.network_interfaces,
        output=_output(options),
        environ=environ,
        here=stays_here(hosts, words, socket.gethostname()),
        asked=frozenset(asked),
    )
    launcher = None
    if options.np > 1 or not local:
        launcher = find_launcher(options.mpi, environ)
    family = launcher.family if launcher else ""
    known_here = None if family == "slurm" else here
    terminal = None
    if family not in ("", "slurm"):
        terminal = Terminal(marks=job.output.marks, banners=options.verbose)
    for_ranks = terminal if job.output.marks else None
    with Session(home, _gives_input(job, launcher), outer, for_ranks) as session:
        watch = watching.JobWatch(
            session, options.np, known_here, options.start_timeout, family, terminal, beside
        )
        ending = _start(job, launcher, session, watch, options, local)
        return _closing(options, ending, watch, session, program or command[0])


def _check_number(here: int) -> None:
    """Refuses what cannot be: a launcher that is given it works at it for minutes."""
    most, told_by = proc.most()
    if here * _PROCESSES > most:
        raise UsageError(
            f"{here} ranks on this machine need at least {here * _PROCESSES} processes, but it "
            f"allows {most} ({told_by})"
        )


def _files(options: argparse.Namespace) -> dict[str, str]:
    """What tells ranks to write files of what they do; a program may change its folder."""
    told = {}
    for option, file in (("--timeline", options.timeline), ("--metrics", options.metrics)):
        if file and os.path.isdir(file):
            raise UsageError(f"{option} {file} is a folder: name a file in it")
    if options.timeline:
        if options.timeline.endswith((".pftrace", ".perfetto-trace")):
            raise UsageError(
                f"--timeline {options.timeline}: a timeline is JSON; name a .json file, which "
                "ui.perfetto.dev opens"
            )
        told[TIMELINE] = os.path.abspath(options.timeline)
    if options.timeline_limit:
        told["TF_HVD_TIMELINE_LIMIT"] = str(options.timeline_limit * 1_000_000)
    if options.metrics:
        told["TF_HVD_METRICS"] = os.path.abspath(options.metrics)
    return told


def _not_found(command: Sequence[str]) -> str:
    if command[0].endswith(".py") and Path(command[0]).is_file():
        return (
            f"{command[0]!r} is not a program by itself; start it with Python: python {command[0]}"
        )
    return f"no program {command[0]!r} on the PATH; activate its environment or give its path"


def _not_started(command: Sequence[str], error: OSError) -> str:
    cure = ""
    if command[0].endswith(".py"):
        cure = f"; start it with Python: python {command[0]}"
    return f"{command[0]!r} cannot be started: {error.strerror}{cure}"


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


def _check_own_name(program: str, command: Sequence[str], environ: Mapping[str, str]) -> None:
    folder = _import_folder(program, command)
    if folder is None or environ.get("PYTHONSAFEPATH"):
        return
    if (folder / "tf_hvd.py").is_file():
        raise UsageError(
            f"the program would import {folder / 'tf_hvd.py'} instead of the package tf_hvd; "
            "rename that file"
        )


def _environment(options: argparse.Namespace, environ: Mapping[str, str]) -> dict[str, str]:
    if is_rank(environ) and options.mpi != "auto":
        # The library that the outer launcher chose, not one that the user named.
        environ = {name: text for name, text in environ.items() if name != LIBRARY_VARIABLE}
    environ = without_launcher(environ)
    return horovod_environment(environ) if options.as_horovod else environ


def _start(
    job: Job,
    launcher: Launcher | None,
    session: Session,
    watch: watching.JobWatch,
    options: argparse.Namespace,
    local: bool,
) -> Ending:
    environ = {**job.environ, contract.JOB: session.home.job}
    if launcher is None:
        command = by_way_of_rank("", job, session, local) if job.output else job.command
        _announce(options.verbose, command, "1 rank needs no MPI")
        return _supervised_alone(command, environ, watch, options.grace)
    environ = rank_environment(launcher, environ, os.isatty(1))
    environ |= ssh_settings(launcher.family, options, environ)
    environ |= interface_environment(launcher.family, job.interfaces)
    environ |= session_environment(launcher.family, str(session.folder), environ)
    here, words = watch.here or 0, job.launcher_args
    environ |= shared_memory.small_segments(launcher.family, here, words, environ)
    on_loopback = False
    if job.here and launcher.family != "slurm":
        job, environ, on_loopback = _kept_here(job, launcher.family, environ)
    ssh = not local and goes_by_ssh(launcher, job.launcher_args, environ)
    if ssh and not options.no_host_check:
        environ |= _between_hosts(job, launcher, environ)
    reach = _reach(launcher, environ, ssh)
    watch.hosts, watch.agent = _others(job), reach and _agents(reach, watch, session, environ)
    command = by_way_of_rank(launcher.family, job, session, local)
    family = launcher.family
    if family == "slurm" and job.output.folder:
        for number in range(job.ranks):
            folder = Path(job.output.pattern(job.ranks).format(rank=number))
            folder.mkdir(parents=True, exist_ok=True)
    line = command_line(launcher, dataclasses.replace(job, command=command, environ=environ))
    _announce(
        options.verbose, line, f"{FAMILY_NAMES[family]}, {LIBRARY_VARIABLE}={launcher.library}"
    )
    if on_loopback:
        environ |= listening_on_loopback(session.folder, environ)
    own_input = _is_launchers(job, launcher)
    if not own_input:
        _warn_of_lost_input(job.hosts)
    return _supervised(line, environ, watch, options.grace, own_input, family == "mpich")


def _reach(launcher: Launcher, environ: Mapping[str, str], ssh: bool) -> Reach | None:
    """How a command gets to the other machines; None if that is not known."""
    if ssh:
        return by_ssh(ssh_command(launcher.family, environ))
    return by_srun if launcher.family != "slurm" and "SLURM_JOB_ID" in environ else None


def _agents(
    reach: Reach, watch: watching.JobWatch, session: Session, environ: Mapping[str, str]
) -> Callable[[str], FarAgent]:
    """Gives the agents of other machines, which but in an elastic job do not run yet."""
    own = dict(environ)

    def agent(host: str) -> FarAgent:
        runs = watch.beside.agent(host) if watch.beside else None
        words = far_agent.command(sys.executable, "", session.home.job)
        return runs or FarAgent(host, reach(host, words), session.home.parts, own, quiet=True)

    return agent


def _others(job: Job) -> list[str]:
    """The names of the hosts that are other machines."""
    hosts, here = hosts_of(job.hosts, job.ranks), socket.gethostname()
    return [host.name for host in hosts if not all_local([host], here)]


def _supervised_alone(
    command: Sequence[str], environ: Mapping[str, str], watch: watching.JobWatch, grace: float
) -> Ending:
    try:
        return supervise(command, environ, watch=watch, grace=grace)
    except OSError as error:
        raise UsageError(_not_started(command, error)) from error


def _supervised(
    line: Sequence[str],
    environ: Mapping[str, str],
    watch: watching.JobWatch,
    grace: float,
    own_input: bool,
    reads_output: bool,
) -> Ending:
    terminal = watch.terminal
    return supervise(
        line,
        environ,
        watch=watch,
        stdin=None if own_input else subprocess.DEVNULL,
        stdout=terminal.output() if terminal and reads_output else None,
        stderr=terminal.errors(None) if terminal else None,
        grace=grace,
        apart=not own_input,
    )


def _kept_here(
    job: Job, family: str, environ: Mapping[str, str]
) -> tuple[Job, dict[str, str], bool]:
    """A job of this machine alone, what keeps it there, and whether it listens on loopback."""
    environ = {name: text for name, text in environ.items() if name not in HOST_FILES}
    ours, words = unscheduled(family, environ), job.launcher_args
    interface = "" if says_where_to_listen(words) else loopback()
    if interface:
        ours |= closed_transports(words, environ)
        job = dataclasses.replace(job, interfaces=interface)
    return job, environ | own_settings(ours), bool(interface)


def _between_hosts(job: Job, launcher: Launcher, environ: Mapping[str, str]) -> dict[str, str]:
    """Checks the hosts; returns the settings that keep MPI to networks in which they meet."""
    program, words, family = job.command[0], job.launcher_args, launcher.family
    python = interpreter.python_of(program, environ)
    found = check_hosts(hosts_of(job.hosts, job.ranks), Needs(launcher, program, python, environ))
    if job.interfaces:
        return {}
    network = "" if names_interfaces(words, environ) else jobs_network(found.common)
    if network:
        return interface_environment(family, network)
    return avoiding_environment(family, found.private, words, environ)


def _is_launchers(job: Job, launcher: Launcher) -> bool:
    """Whether the launcher itself hands the standard input on."""
    return job.own_input or launcher.family == "slurm"


def _gives_input(job: Job, launcher: Launcher | None) -> bool:
    """Whether rank 0 gets the standard input from this process."""
    if launcher is None or _is_launchers(job, launcher):
        return False
    return all_local(job.hosts[:1], socket.gethostname())


def _closing(
    options: argparse.Namespace,
    ending: Ending,
    watch: watching.JobWatch,
    session: Session,
    program: str,
) -> End:
    """Says what is to be said at a start's end."""
    session.home.settle()
    if watch.terminal:
        watch.terminal.finish()
    if watch.killed:
        watching.say(watching.killed_text(watch.killed))
    if watch.ended_for:
        watching.say(watch.ended_for)
        return End(_FAILED, asked=ending.asked)
    state = session.state
    if ending.asked and not watch.outlived:
        explain.interrupted(state, watch)
        return End(ending.code, asked=True)
    if watch.beside and ending.code == contract.START_AGAIN and not state.raised():
        return End(ending.code)
    found = explain.conclude(ending, state, watch, options.np)
    end = End(found.code, ending.asked, found.host)
    if watch.outlived or (found.code and not ending.code):
        return end
    joined = watch.joined()
    if joined is False:
        return dataclasses.replace(end, code=explain.apart(end.code, options, watch, program))
    if joined is None and options.require_init:
        watching.say("tf_hvd run: --require-init: no rank ran here, so nobody knows if any joined")
    return end


def _hosts(options: argparse.Namespace, environ: Mapping[str, str]) -> tuple[Host, ...]:
    """The hosts of the job; empty for this machine. Without -np all of their slots get a rank."""
    given, cure = given_hosts(options), FEWER_RANKS
    taken = given
    found = None if given else _allocation(options, environ)
    if found is not None:
        taken, cure = found.hosts, f"{found.cure}, or list hosts with -H"
    if options.np is None:
        if not taken:
            raise UsageError("the number of ranks is missing; for example -np 2")
        options.np = sum(host.slots for host in taken)
    if taken:
        check_slots(taken, options.np, cure)
    return given or hosts_of(taken, options.np)


def _allocation(options: argparse.Namespace, environ: Mapping[str, str]) -> Allocation | None:
    """What a scheduler gives a job whose options name no hosts; None if that stays here."""
    # A rank that starts a job starts it beside itself; so does who wants a single rank.
    if options.np == 1 or is_rank(environ) or "host" in options.mpi_args:
        return None
    found, other = allocation(environ), other_scheduler(environ)
    if found is None and other and options.np and not rank.is_restart(environ):
        watching.say(
            f"tf_hvd run: inside a job of {other}, whose hosts are not known: all ranks run on "
            "this machine; list hosts with -H"
        )
    return found


def given_hosts(options: argparse.Namespace) -> tuple[Host, ...]:
    """The hosts that the options name; empty if they name none.

    Raises:
        UsageError: they cannot be read.
    """
    if options.hosts is not None:
        return parse_hosts(options.hosts)
    if options.hostfile is None:
        return ()
    return parse_hostfile(read_text(options.hostfile, "the host file"), options.hostfile)


def _output(options: argparse.Namespace) -> Output:
    folder = options.output_filename
    if folder:
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--output-filename {folder}: {error.strerror}") from error
        folder = os.path.abspath(folder)
    return Output(folder, options.prefix_output_with_timestamp, options.tag_output)


def ssh_settings(
    family: str, options: argparse.Namespace, environ: Mapping[str, str]
) -> dict[str, str]:
    """What has a launcher reach other hosts as the options say."""
    return ssh_environment(family, _ssh_arguments(options), environ)


def _ssh_arguments(options: argparse.Namespace) -> list[str]:
    words = ["-p", str(options.ssh_port)] if options.ssh_port else []
    if options.ssh_identity_file:
        words += ["-i", os.path.abspath(options.ssh_identity_file)]
    return words


def _warn_of_lost_input(hosts: Sequence[Host]) -> None:
    if sys.stdin is None or not hosts or all_local(hosts[:1], socket.gethostname()):
        return
    status = os.fstat(0)
    if stat.S_ISREG(status.st_mode) and status.st_size:
        watching.say(
            f"tf_hvd run: rank 0 runs on {hosts[0].name}, where the standard input is empty; "
            "list this machine first, or let the program open the file"
        )


def _split(mpi_args: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(mpi_args))
    except ValueError as error:
        raise UsageError(f'--mpi-args: {error} in "{mpi_args}"') from error


def _announce(verbose: bool, line: Sequence[str], why: str) -> None:
    if verbose:
        watching.say(f"tf_hvd run: {shlex.join(line)}  ({why})")
