"""`tf_hvd run`: turns what the user asked for into one launcher command, and starts it."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import shlex
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

from tf_hvd.core import contract
from tf_hvd.launch.errors import UsageError
from tf_hvd.launch.job import explain, far_agent, interpreter, network, shared_memory
from tf_hvd.launch.job import job_watch as watching
from tf_hvd.launch.job.asked import Job, job_of
from tf_hvd.launch.job.command_line import by_way_of_rank, command_line
from tf_hvd.launch.job.environment import (
    TIMELINE,
    Facts,
    horovod_path,
    own_timeline,
    rank_environment,
)
from tf_hvd.launch.job.far_agent import FarAgent
from tf_hvd.launch.job.host_check import Needs, check_hosts
from tf_hvd.launch.job.hosts import all_local, placed
from tf_hvd.launch.job.launchers import (
    ALONE,
    FAMILY_NAMES,
    LIBRARY_VARIABLE,
    MPIS,
    Launcher,
    find_launcher,
    user_home,
)
from tf_hvd.launch.job.remote_commands import by_srun, by_ssh, goes_by_ssh, ssh_command
from tf_hvd.launch.job.session import Home, Session
from tf_hvd.launch.job.signals import Ending, supervise
from tf_hvd.launch.job.terminal import Terminal
from tf_hvd.launch.machine.commits import Parts
from tf_hvd.launch.machine.lines import STANDARD, is_closed, lost_text

_FAILED = 1
_CLOSED = 128 + signal.SIGPIPE


@dataclasses.dataclass(frozen=True)
class End:
    """How one start of a job ended."""

    code: int
    """The exit code of the job; 128 plus the signal's number if a signal ended it."""
    asked: bool = False
    """Whether a signal to this process ended it, or the end of who reads its output."""
    host: str = ""
    """Where the rank ran that was the first to fail; empty: not known."""


def start_once(
    options: argparse.Namespace,
    environ: Mapping[str, str],
    home: Home,
    beside: watching.Beside | None = None,
) -> End:
    """Starts the program that the options of `tf_hvd run` name, and waits for its end.

    Raises:
        UsageError: the job cannot be started as asked.
    """
    job = job_of(options, environ, str(beside.number) if beside else "")
    launcher = ALONE
    if job.ranks > 1 or not job.local:
        launcher = find_launcher(options.mpi, job.environ)
    family = launcher.family
    # Whether the launcher hands the standard input on; else rank 0 gets it from this process.
    own_input = family not in MPIS or job.own_input
    gives_input = not own_input and all_local(job.hosts[:1], socket.gethostname())
    terminal = for_ranks = None
    if family in MPIS:
        marks = not (job.timestamps or job.tags)
        terminal = Terminal(marks=marks, banners=options.verbose, ranks=job.ranks)
        for_ranks = terminal if marks else None
    outer = environ.get(contract.JOB, "")
    with (
        terminal or contextlib.nullcontext(),
        Session(home, gives_input, outer, for_ranks) as session,
    ):
        here = None if family == "slurm" else job.ranks_here
        watch = watching.JobWatch(
            session, job.ranks, here, options.start_timeout, family, terminal, beside
        )
        if not (own_input or gives_input):
            _warn_of_lost_input(job.hosts[0].name)
        ending = _start(options, job, launcher, watch, session, own_input)
        return _closing(options, ending, watch, session, job.program)


def with_lost_output(code: int, home: Home) -> int:
    """Says at a job's end which of its output could not be written; returns its exit code."""
    lost = home.lost
    if is_closed(lost):
        if code == _CLOSED:
            watching.say(
                "tf_hvd run: the reader of its output closed it, as head does: the rest is lost, "
                "and the job has ended"
            )
        lost = {name: why for name, why in lost.items() if name not in STANDARD.values()}
    if lost:
        watching.say(lost_text(lost))
        return code or _FAILED
    return code


def _start(
    options: argparse.Namespace,
    job: Job,
    launcher: Launcher,
    watch: watching.JobWatch,
    session: Session,
    own_input: bool,
) -> Ending:
    """From what is found out to the launcher's command; waits for its end."""
    family, ssh = launcher.family, list[str]()
    if not job.local and goes_by_ssh(launcher, job.launcher_args, job.environ):
        ssh = ssh_command(family, job.environ, job.ssh)
    facts = _facts(options, job, launcher, session, ssh)
    environ = rank_environment(job.environ, launcher, facts)
    watch.hosts = job.others
    if job.others:
        watch.agent = _agents(family, ssh, watch, session, environ)
    line: Sequence[str] = by_way_of_rank(family, job, session.home.job, session.state.job)
    why = "1 rank needs no MPI"
    if launcher is not ALONE:
        interface = facts.loopback or facts.interfaces.partition(",")[0]
        line = command_line(launcher, job, line, environ, interface)
        why = f"{FAMILY_NAMES[family]}, {LIBRARY_VARIABLE}={launcher.library}"
    if options.verbose:
        watching.say(f"tf_hvd run: {shlex.join(line)}  ({why})")
    if family == "slurm" and job.output:
        for number in range(job.ranks):
            width = len(str(job.ranks - 1))
            os.makedirs(f"{job.output}/rank.{number:0{width}d}", exist_ok=True)
    if facts.loopback:
        environ |= network.listening_on_loopback(session.folder, environ)
    return _supervised(line, environ, launcher, watch, options.grace, own_input)


def _facts(
    options: argparse.Namespace,
    job: Job,
    launcher: Launcher,
    session: Session,
    ssh: Sequence[str],
) -> Facts:
    """What is found out for the ranks' environment; `ssh` reaches the other machines, if given."""
    loopback = common = private = ""
    alone = job.here and launcher.family in MPIS
    if alone and not network.names(job.launcher_args, network.LISTENING):
        loopback = network.loopback(launcher.family)
    if ssh and not options.no_host_check:
        program = job.command[0]
        python = interpreter.python_of(program, job.environ)
        needs = Needs(launcher, program, python, job.environ, ssh)
        apart, shared = check_hosts(placed(job.hosts, job.ranks), needs)
        common, private = network.jobs_network(shared), ",".join(apart)
    return Facts(
        words=job.launcher_args,
        job=session.home.job,
        start=job.start,
        timeline=own_timeline(job.environ.get(TIMELINE, ""), job.start) if job.start else "",
        horovod=horovod_path() if options.as_horovod else "",
        terminal=str(int(os.isatty(1))),
        ssh=job.ssh,
        interfaces=options.network_interfaces,
        home=user_home(),
        folder=str(session.folder),
        little=shared_memory.small_segment(job.ranks_here),
        alone="alone" if alone else "",
        loopback=loopback,
        network=common,
        private=private,
    )


def _agents(
    family: str,
    ssh: Sequence[str],
    watch: watching.JobWatch,
    session: Session,
    environ: Mapping[str, str],
) -> Callable[[str], FarAgent] | None:
    """Gives the agents of other machines, which but in an elastic job do not run yet.

    None if nothing is known that reaches them.
    """
    if ssh:
        reach = by_ssh(ssh)
    elif family in MPIS and "SLURM_JOB_ID" in environ:
        reach = by_srun
    else:
        return None

    def agent(host: str) -> FarAgent:
        runs = watch.beside.agent(host) if watch.beside else None
        words = far_agent.command(sys.executable, "", session.home.job)
        return runs or FarAgent(host, reach(host, words), Parts(), environ, quiet=True)

    return agent


def _warn_of_lost_input(host: str) -> None:
    """Rank 0 is on another machine."""
    status = os.fstat(0) if sys.stdin is not None else None
    if status and stat.S_ISREG(status.st_mode) and status.st_size:
        watching.say(
            f"tf_hvd run: rank 0 runs on {host}, where the standard input is empty; "
            "list this machine first, or let the program open the file"
        )


def _supervised(
    line: Sequence[str],
    environ: Mapping[str, str],
    launcher: Launcher,
    watch: watching.JobWatch,
    grace: float,
    own_input: bool,
) -> Ending:
    terminal = watch.terminal
    try:
        return supervise(
            line,
            environ,
            watch=watch,
            stdin=None if own_input else subprocess.DEVNULL,
            stdout=terminal.output(launcher.family) if terminal else None,
            stderr=terminal.errors(None) if terminal else None,
            grace=grace,
            apart=not own_input,
        )
    except OSError as error:
        if launcher is not ALONE:
            raise
        cure = f"; start it with Python: python {line[0]}" if line[0].endswith(".py") else ""
        raise UsageError(f"{line[0]!r} cannot be started: {error.strerror}{cure}") from error


def _show_rest(ending: Ending, watch: watching.JobWatch, home: Home) -> None:
    """Shows what the ranks have printed last, and keeps in mind what could not be."""
    if watch.terminal:
        # The next start of an elastic job does not wait for a slow reader.
        watch.terminal.finish(in_time=ending.asked or bool(watch.beside and ending.code))
        home.lost |= watch.terminal.lost


def _is_ended_by_reader(ending: Ending, watch: watching.JobWatch, lost: Mapping[str, int]) -> bool:
    """Whether a job has ended as its output's reader has: with it, or well but shown in part.

    A single rank hears of the reader by itself. Several do not: those that fail have other reasons.
    """
    failed = ending.code and watch.terminal and not watch.closed
    return is_closed(lost) and not (failed or ending.asked)


def _closing(
    options: argparse.Namespace,
    ending: Ending,
    watch: watching.JobWatch,
    session: Session,
    program: str,
) -> End:
    session.home.settle()
    _show_rest(ending, watch, session.home)
    if _is_ended_by_reader(ending, watch, session.home.lost):
        return End(_CLOSED, asked=True)
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
