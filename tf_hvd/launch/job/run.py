"""`tf_hvd run`: turn the user's options into one launcher command and run it."""

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

from tf_hvd.core import config, contract
from tf_hvd.launch.errors import UsageError
from tf_hvd.launch.job import explain, far_agent, interpreter, network, shared_memory
from tf_hvd.launch.job import job_watch as watching
from tf_hvd.launch.job.asked import Job, job_of
from tf_hvd.launch.job.command_line import command_line, rank_command
from tf_hvd.launch.job.environment import (
    TIMELINE,
    Facts,
    horovod_path,
    keras_path,
    own_timeline,
    rank_environment,
)
from tf_hvd.launch.job.far_agent import FarAgent
from tf_hvd.launch.job.host_check import Needs, check_hosts
from tf_hvd.launch.job.hosts import all_local, placed
from tf_hvd.launch.job.job_state import JobState
from tf_hvd.launch.job.launchers import (
    FAMILY_NAMES,
    LIBRARY_VARIABLE,
    MPIS,
    NO_MPI,
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
    """The job's exit code; 128 plus the signal's number if a signal ended it."""
    asked: bool = False
    """Whether a signal to this process or a closed output ended the job."""
    host: str = ""
    """The machine of the first rank that failed; empty if unknown."""


def start_once(
    options: argparse.Namespace,
    environ: Mapping[str, str],
    home: Home,
    observer: watching.Observer | None = None,
) -> End:
    """Start the program named in the `tf_hvd run` options, and wait until the job ends.

    Args:
        options: the parsed options.
        environ: the caller's environment.
        home: the resources that all starts of the job share.
        observer: the elastic driver's hooks; None (default) if the job is not elastic.

    Raises:
        UsageError: the job cannot be started as requested.
    """
    job = job_of(options, environ, str(observer.number) if observer else "")
    launcher = NO_MPI
    if job.ranks > 1 or not job.local:
        launcher = find_launcher(options.mpi, job.environ)
    family = launcher.family
    # Whether the launcher forwards standard input; if not, rank 0 gets it from this process.
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
            session, job.ranks, here, options.start_timeout, family, terminal, observer
        )
        watch.calls = options.end_with_parent
        if not (own_input or gives_input):
            _warn_of_lost_input(job.hosts[0].name)
        ending = _start(options, job, launcher, watch, session, own_input)
        return _closing(options, ending, watch, session, job.program)


def with_lost_output(code: int, home: Home) -> int:
    """At a job's end, report output that could not be written; return the job's exit code."""
    lost = home.lost
    if is_closed(lost):
        if code == _CLOSED:
            watching.say(
                "tf_hvd run: the job has ended because the reader of its output, such as head, "
                "closed it; further output is lost"
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
    """Collect the facts, build the launcher's command, run it, and wait for its end."""
    family, ssh = launcher.family, list[str]()
    if not job.local and goes_by_ssh(launcher, job.launcher_args, job.environ):
        ssh = ssh_command(family, job.environ, job.ssh)
    facts = _facts(options, job, launcher, session, ssh)
    environ = rank_environment(job.environ, launcher, facts)
    watch.hosts = job.others
    if job.others:
        watch.agent = _agents(family, ssh, watch, session, environ)
    line: Sequence[str] = rank_command(family, job, session.home.job, session.state.job)
    why = "1 rank needs no MPI"
    if launcher is not NO_MPI:
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
    """Return the inputs for the ranks' environment.

    Args:
        options: the parsed options.
        job: the job.
        launcher: the job's launcher.
        session: this start of the job.
        ssh: the ssh command for other machines; empty if unknown.
    """
    loopback = common = private = ""
    local = job.here and launcher.family in MPIS
    if local and not network.names(job.launcher_args, network.LISTENING):
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
        modules=os.pathsep.join(
            [horovod_path()] * options.as_horovod + [keras_path()] * options.keras
        ),
        terminal=str(int(os.isatty(1))),
        ssh=job.ssh,
        interfaces=options.network_interfaces,
        home=user_home(),
        folder=str(session.folder),
        little=shared_memory.small_segment(job.ranks_here),
        local="local" if local else "",
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
    """Return a function that finds or starts the agent on another machine.

    The result is None if no way to reach other machines is known. In elastic jobs, the agents
    already run; in other jobs, the function starts them.
    """
    if ssh:
        reach = by_ssh(ssh)
    elif family in MPIS and "SLURM_JOB_ID" in environ:
        reach = by_srun
    else:
        return None

    def agent(host: str) -> FarAgent:
        runs = watch.observer.agent(host) if watch.observer else None
        words = far_agent.command(sys.executable, "", session.home.job)
        return runs or FarAgent(host, reach(host, words), Parts(), environ, quiet=True)

    return agent


def _warn_of_lost_input(host: str) -> None:
    """Warn that rank 0, on another machine, does not get this process's standard input."""
    status = os.fstat(0) if sys.stdin is not None else None
    if status and stat.S_ISREG(status.st_mode) and status.st_size:
        watching.say(
            f"tf_hvd run: rank 0 runs on {host}, where the standard input is empty; "
            "list this machine first, or open the file in the program"
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
        if launcher is not NO_MPI:
            raise
        cure = f"; start it with Python: python {line[0]}" if line[0].endswith(".py") else ""
        raise UsageError(f"{line[0]!r} cannot be started: {error.strerror}{cure}") from error


def _show_rest(ending: Ending, watch: watching.JobWatch, home: Home) -> None:
    """Show the ranks' remaining output, and record output that could not be written."""
    if watch.terminal:
        # The next start of an elastic job must not wait for a slow reader.
        watch.terminal.finish(in_time=ending.asked or bool(watch.observer and ending.code))
        home.lost |= watch.terminal.lost


def _is_ended_by_reader(ending: Ending, watch: watching.JobWatch, lost: Mapping[str, int]) -> bool:
    """Return whether the reader of a job's output counts as the cause of the job's end.

    The job then either ended because the reader closed the output, or succeeded but lost a part of
    its output. A single rank notices a closed output itself. Several ranks do not notice it, so
    if they failed, the failure has another cause.
    """
    failed = ending.code and watch.terminal and not watch.closed
    return is_closed(lost) and not (failed or ending.asked)


def _is_to_be_restarted(ending: Ending, watch: watching.JobWatch, state: JobState) -> bool:
    """Return whether all ranks in a job that a signal ended exited with code START_AGAIN.

    For an elastic job without commits on disk, return False, because the commits are lost when
    this process ends.
    """
    if (watch.grace and watch.grace.killed()) or (watch.observer and not config.COMMIT_DIR.read()):
        return False
    here = state.start_again()
    return ending.own == contract.START_AGAIN if here is None else here


def _ended_by_signal(ending: Ending, watch: watching.JobWatch, state: JobState, ranks: int) -> End:
    if _is_to_be_restarted(ending, watch, state):
        ending = dataclasses.replace(ending, code=contract.START_AGAIN)
        if state.said(contract.ASKED):
            return End(explain.conclude(ending, state, watch, ranks).code, asked=True)
    explain.interrupted(state, watch)
    return End(ending.code, asked=True)


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
        return _ended_by_signal(ending, watch, state, options.np)
    if watch.observer and ending.code == contract.START_AGAIN and not state.raised():
        return End(ending.code)
    found = explain.conclude(ending, state, watch, options.np)
    end = End(found.code, ending.asked, found.host)
    if watch.outlived or (found.code and not ending.code):
        return end
    joined = watch.joined()
    if joined is False:
        return dataclasses.replace(end, code=explain.apart(end.code, options, watch, program))
    if joined is None and options.require_init:
        watching.say(
            "tf_hvd run: --require-init cannot be checked, because no rank ran on this machine"
        )
    return end
