"""The environment of the ranks: what is added to the caller's, what is taken away from it."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tf_hvd.core import contract
from tf_hvd.launch.job.allocation import HOST_FILES
from tf_hvd.launch.job.launchers import LIBRARY_VARIABLE, Launcher
from tf_hvd.launch.machine.task import RANK_VARIABLES

# What does not go to other machines: Horovod's rule (its util/env.py) ...
_STAYS = r"BASH_FUNC_.*|OLDPWD|.*CUDA_VISIBLE_DEVICES|HOROVOD_SECRET_KEY"
# ... what a login there sets for itself ...
_OF_A_LOGIN = (
    r"_|HOME|HOSTNAME|LOGNAME|MAIL|PWD|SHELL|SHLVL|SSH_.*|USER"
    r"|DBUS_SESSION_BUS_ADDRESS|DISPLAY|XAUTHORITY|XDG_RUNTIME_DIR|XDG_SESSION_.*"
)
# ... and what launchers and schedulers hand on, or tell each machine and task.
_OF_LAUNCHERS = (
    r"(HYDRA|OMPI|PMI|PMIX|PRTE)_.*|SLURMD_NODENAME"
    r"|SLURM_(CPUS_ON_NODE|GTIDS|LOCALID|NODEID|PROCID|STEP_.*|TASK_PID|TOPOLOGY_ADDR)"
)
_AT_HOME = re.compile(f"{_STAYS}|{_OF_A_LOGIN}|{_OF_LAUNCHERS}")
NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")

# By these a rank of MPI is known. Not by SLURM_PROCID, which all processes of a step have.
MPI_RANK_VARIABLES = (*RANK_VARIABLES["openmpi"], *RANK_VARIABLES["mpich"])
TIMELINE = "HOROVOD_TIMELINE"
# What tf_hvd tells its own processes.
INTERNAL_VARIABLES = frozenset(
    {
        *(contract.JOB, contract.START, contract.RANK, contract.RECORDING),
        *(contract.STARTED_BY, contract.SETTINGS, contract.LAST),
    }
)
_OF_A_RANK = INTERNAL_VARIABLES - {contract.JOB}  # an inner job tells the outer one of itself
# What launchers tell their ranks. Their users' settings (OMPI_MCA_*, PMIX_MCA_*, HYDRA_*) stay.
_TOLD_PREFIXES = ("OMPI_COMM_WORLD_", "OMPI_WORLD_", "PMI_", "PMIX_")
_TOLD = frozenset(
    {
        *("HYDI_CONTROL_FD", "MPI_LOCALNRANKS", "MPI_LOCALRANKID"),
        *("OMPI_APP_CTX_NUM_PROCS", "OMPI_ARGV", "OMPI_COMMAND", "OMPI_FILE_LOCATION"),
        *("OMPI_FIRST_RANKS", "OMPI_LIBDIR_LOC", "OMPI_MCA_PREFIXES", "OMPI_MCA_cpu_type"),
        *("OMPI_MCA_ess_base_jobid", "OMPI_MCA_ess_base_vpid", "OMPI_MCA_initial_wdir"),
        *("OMPI_MCA_num_procs", "OMPI_MCA_orte_ess_num_procs", "OMPI_NUM_APP_CTX"),
        *("OMPI_TOOL_NAME", "OMPI_UNIVERSE_SIZE", "OMPI_VERSION", "OPAL_USER_PARAMS_GIVEN"),
        *("PRTE_LAUNCHED", "PRTE_SHARED_FS"),
        "MPIR_CVAR_NEMESIS_TCP_NETWORK_IFACE",  # Hydra's, of its -iface
        *_OF_A_RANK,
    }
)
_SETTINGS_PREFIX = "PMIX_MCA_"


@dataclass(frozen=True)
class Facts:
    """What decides about the ranks' environment besides the caller's, found out before.

    But for `words` these are texts, which stand in the variables' values; an empty one sets none.
    """

    words: Sequence[str] = ()  # the user's arguments for the launcher
    job: str = ""  # the job's name
    start: str = ""  # the number of an elastic job's start
    timeline: str = ""  # the file of this start, if it is not the caller's
    horovod: str = ""  # the folder with a `horovod` that is tf_hvd (--as-horovod)
    terminal: str = "0"  # whether the standard output ends at a terminal: 0 or 1
    ssh: str = ""  # arguments for ssh (-p, -i)
    interfaces: str = ""  # what MPI is to keep to (--network-interfaces)
    home: str = ""  # of this user
    folder: str = ""  # the session's
    little: str = ""  # what size of a segment will do, if /dev/shm has little room
    alone: str = ""  # not empty if all is on this machine, whatever hosts a scheduler has
    loopback: str = ""  # the interface that such a job is kept to
    network: str = ""  # the one that all machines of the job have in common, if it is one
    private: str = ""  # those by which they do not reach each other, comma-separated


@dataclass(frozen=True)
class _Row:
    """Variables of the ranks' environment: who gets them, when, and what."""

    names: tuple[str, ...]
    fact: str = ""  # of `Facts` or the launcher; unset where that is empty. Unnamed: always set
    to: str = "mpi"  # whose ranks: a family's, any MPI's ("mpi"), also one's that needs none ("")
    value: str = "{}"  # the fact is put in place of the braces
    unless: str = ""  # an expression for variables and arguments by which the user has chosen
    how: str = "is"  # or "before" or "after" the caller's, which may be a list; "not": removed
    ours: bool = False  # whether it is for this job alone: a job that a rank starts is without it


_JOINED = {"is": "{0}", "before": "{0}" + os.pathsep + "{1}", "after": "{1} {0}"}
_SCHEDULERS = "^alps,flux,gridengine,loadleveler,lsf,pbs,slurm,tm"
_TCP = "OMPI_MCA_btl_tcp_if_(in|ex)clude|[a-z-].*tcp_if.*"
_INTERFACES = (
    "OMPI_MCA_btl_tcp_if_include",
    "OMPI_MCA_oob_tcp_if_include",
    "PRTE_MCA_if_include",
)
# In this order: of rows for the same variable the first one that holds counts.
_TABLE = (
    # tf_hvd's own, and the user's options.
    _Row((contract.JOB,), "job", to=""),
    _Row((contract.START,), "start", to=""),
    _Row((TIMELINE,), "timeline", to=""),
    _Row(("PYTHONPATH",), "horovod", to="", how="before"),
    # The library that belongs to the launcher is the one that the ranks shall open.
    _Row((LIBRARY_VARIABLE,), "library"),
    # Open MPI gives its ranks a pseudo-terminal and MPICH a pipe whatever the output is, so
    # programs cannot find out; this tells those that ask (rich does).
    _Row(("TTY_COMPATIBLE",), "terminal", unless="TTY_COMPATIBLE"),
    # Open MPI does not start without one (cron, containers).
    _Row(("HOME",), "home", "openmpi", unless="HOME"),
    # For ssh, after the arguments that it gets already. The names of Open MPI 5 and of 4.
    _Row(("PRTE_MCA_plm_ssh_args", "OMPI_MCA_plm_rsh_args"), "ssh", "openmpi", how="after"),
    _Row(("HYDRA_LAUNCHER_EXTRA_ARGS",), "ssh", "mpich", how="after"),
    # MPICH is told on its command line.
    _Row(_INTERFACES, "interfaces", "openmpi"),
    # Elsewhere the files of Open MPI 5's session are at `ompi.<process id>` in the temporary
    # folder. A launcher that is killed leaves them there, and the launcher that gets the same
    # process id later does not start ("The PMIx server's listener thread failed to start").
    _Row(
        ("PRTE_MCA_prte_local_tmpdir_base",),
        "folder",
        "openmpi",
        unless="PRTE_MCA_prte_(local_)?tmpdir_base",
    ),
    # Else Open MPI says of ranks beside each other that they cannot reach each other.
    _Row(
        ("OMPI_MCA_btl_sm_segment_size",),
        "little",
        "openmpi",
        unless="(OMPI_MCA_)?btl_sm_segment_size",
    ),
    # MPI, where it is given no hosts, takes those of the schedulers that it knows itself. What has
    # Open MPI ask no scheduler for hosts, nor Slurm's srun for its version: by the names of Open
    # MPI 5 and 4. Versions that have no such component take no notice. MPICH has options for that
    # (command_line.py).
    _Row(HOST_FILES, "alone", how="not"),
    _Row(
        ("PRTE_MCA_ras", "OMPI_MCA_ras"),
        "alone",
        "openmpi",
        _SCHEDULERS,
        unless="(PRTE|OMPI)_MCA_ras",
        ours=True,
    ),
    _Row(
        ("PRTE_MCA_plm", "OMPI_MCA_plm"),
        "alone",
        "openmpi",
        "^slurm",
        unless="(PRTE|OMPI)_MCA_plm",
        ours=True,
    ),
    # What opens none of the transports that listen, on one machine: Open MPI's, UCX's, and
    # libfabric's, the two that MPICH may have been built with; of libfabric also not the one that
    # leaves a file in /dev/shm. Open MPI's way through libfabric, for one-sided calls between
    # machines, waits a second in MPI_Init where it finds no network for that.
    _Row(("OMPI_MCA_btl",), "loopback", value="^tcp,ofi", unless="(OMPI_MCA_)?btl", ours=True),
    _Row(("UCX_TLS",), "loopback", value="^tcp", unless="UCX_TLS", ours=True),
    _Row(
        ("FI_PROVIDER",),
        "loopback",
        value="^tcp,sockets,udp,net,sm2",
        unless="FI_PROVIDER",
        ours=True,
    ),
    # On several machines Open MPI keeps to the network that they have in common, or off those by
    # which they do not reach each other: it takes an address that two machines have for one
    # machine, and waits for ever. MPICH does not.
    _Row(_INTERFACES, "network", "openmpi", unless=_TCP),
    _Row(
        ("OMPI_MCA_btl_tcp_if_exclude",),
        "private",
        "openmpi",
        "127.0.0.0/8,{}",
        unless=_TCP,
    ),
    # Comes last: MPICH's launcher loses the last variable on other machines.
    _Row((contract.LAST,), "", "mpich", ""),
)


def rank_environment(
    environ: Mapping[str, str], launcher: Launcher, facts: Facts
) -> dict[str, str]:
    """The environment of the ranks, and of their launcher: the caller's, and `_TABLE`. Pure."""
    ranks = {**environ, **launcher.environment}
    kinds = {"", launcher.family, "mpi" if launcher.family else ""}
    texts = {**vars(facts), "library": launcher.library, "": "always"}
    ours: list[str] = []
    for row in _TABLE:
        fact = texts[row.fact]
        if not fact or row.to not in kinds:
            continue
        if row.unless and any(re.fullmatch(row.unless, each) for each in (*ranks, *facts.words)):
            continue
        for name in row.names:
            text, before = row.value.format(fact), ranks.pop(name, "")
            if row.how != "not":
                ranks[name] = _JOINED[row.how].format(text, before) if before else text
        ours += row.names if row.ours else ()
    return {contract.SETTINGS: ",".join(ours), **ranks} if ours else ranks


def own_timeline(path: str, start: str) -> str:
    """The timeline of a start of an elastic job, which does not overwrite the starts' before it.

    The second start's timeline is "trace.restart-1.json" where the first one's is "trace.json". Of
    metrics there is one file: whoever reads counters knows that they begin anew.
    """
    if start == "0" or path in ("", "DYNAMIC"):
        return path
    stem, suffix = os.path.splitext(path)
    return f"{stem}.restart-{start}{suffix}"


def is_rank(environ: Mapping[str, str]) -> bool:
    """Whether a launcher of MPI started the process that has this environment."""
    return any(name in environ for name in MPI_RANK_VARIABLES)


def without_launcher(environ: Mapping[str, str], library: bool = True) -> dict[str, str]:
    """`environ` without what a launcher tells a rank: who starts with it starts a job of its own.

    The `library` that the launcher chose stays, unless the user names an MPI for the new job.
    A program that starts MPI with these variables joins the job of the rank that started it, under
    that rank's number.
    """
    if not is_rank(environ):  # but perhaps the one rank of a job without MPI
        return {name: text for name, text in environ.items() if name not in _OF_A_RANK}
    told = _TOLD.union(environ.get(contract.SETTINGS, "").split(","))
    told = told if library else told | {LIBRARY_VARIABLE}
    return {
        name: text
        for name, text in environ.items()
        if name not in told
        and (not name.startswith(_TOLD_PREFIXES) or name.startswith(_SETTINGS_PREFIX))
    }


def exported_names(environ: Mapping[str, str], asked: Collection[str] = ()) -> list[str]:
    """The variables of `environ` that go to other machines, sorted; `asked` whatever they are."""
    return sorted(
        name
        for name in environ
        if name in asked or (NAME.fullmatch(name) and not _AT_HOME.fullmatch(name))
    )


def horovod_path() -> str:
    """The folder that PYTHONPATH must name for `import horovod` to give tf_hvd."""
    return str(Path(__file__).resolve().parents[2] / "_as_horovod")
