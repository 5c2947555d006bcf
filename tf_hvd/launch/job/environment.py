"""The ranks' environment: the caller's environment with variables added and removed."""

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

# Variables that are not sent to other machines: those that Horovod excludes (its util/env.py) ...
_STAYS = r"BASH_FUNC_.*|OLDPWD|.*CUDA_VISIBLE_DEVICES|HOROVOD_SECRET_KEY"
# ... those that a login sets ...
_OF_A_LOGIN = (
    r"_|HOME|HOSTNAME|LOGNAME|MAIL|PWD|SHELL|SHLVL|SSH_.*|USER"
    r"|DBUS_SESSION_BUS_ADDRESS|DISPLAY|XAUTHORITY|XDG_RUNTIME_DIR|XDG_SESSION_.*"
)
# ... and those that launchers and schedulers pass on, or set for each machine and task.
_OF_LAUNCHERS = (
    r"(HYDRA|OMPI|PMI|PMIX|PRTE)_.*|SLURMD_NODENAME"
    r"|SLURM_(CPUS_ON_NODE|GTIDS|LOCALID|NODEID|PROCID|STEP_.*|TASK_PID|TOPOLOGY_ADDR)"
)
_AT_HOME = re.compile(f"{_STAYS}|{_OF_A_LOGIN}|{_OF_LAUNCHERS}")
NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")

# These identify a rank of MPI. SLURM_PROCID does not: all processes of a step have it.
MPI_RANK_VARIABLES = (*RANK_VARIABLES["openmpi"], *RANK_VARIABLES["mpich"])
TIMELINE = "HOROVOD_TIMELINE"
# Variables that tf_hvd sets for its own processes.
INTERNAL_VARIABLES = frozenset(
    {
        *(contract.JOB, contract.START, contract.RANK, contract.RECORDING),
        *(contract.STARTED_BY, contract.SETTINGS, contract.LAST),
    }
)
_OF_A_RANK = INTERNAL_VARIABLES - {contract.JOB}  # an inner job reports itself to the outer one
# Variables that launchers set for ranks; not users' settings (OMPI_MCA_*, PMIX_MCA_*, HYDRA_*).
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
        "MPIR_CVAR_NEMESIS_TCP_NETWORK_IFACE",  # Hydra's, from its -iface
        *_OF_A_RANK,
    }
)
_SETTINGS_PREFIX = "PMIX_MCA_"


@dataclass(frozen=True)
class Facts:
    """The inputs for the ranks' environment, in addition to the caller's environment.

    All fields except `words` are inserted into the values of variables. Empty fields
    set no variables.
    """

    words: Sequence[str] = ()  # the user's arguments for the launcher
    job: str = ""  # the job's name
    start: str = ""  # the number of an elastic job's start
    timeline: str = ""  # the timeline of this start, if it differs from the caller's
    modules: str = ""  # folders with modules before the installed ones (--as-horovod, --keras)
    terminal: str = "0"  # whether the standard output is a terminal: 0 or 1
    ssh: str = ""  # arguments for ssh (-p, -i)
    interfaces: str = ""  # the interfaces that MPI may use (--network-interfaces)
    home: str = ""  # this user's home folder
    folder: str = ""  # the session's folder
    little: str = ""  # a smaller size for segments, if /dev/shm has little room
    local: str = ""  # not empty if the job stays on this machine although a scheduler lists more
    loopback: str = ""  # the interface that a job on one machine is restricted to
    network: str = ""  # the network that all machines of the job share, if exactly one exists
    private: str = ""  # comma-separated networks through which machines do not reach each other


@dataclass(frozen=True)
class _Row:
    """A rule for variables in the ranks' environment: for which ranks, when, and what value."""

    names: tuple[str, ...]
    fact: str = ""  # the field of `Facts`, or "library"; if empty there, unset; "" for always set
    to: str = "mpi"  # which ranks: of one family, of any MPI ("mpi"), or of all jobs ("")
    value: str = "{}"  # the fact replaces the braces
    unless: str = ""  # a pattern of variables and arguments by which the user has decided
    how: str = "is"  # or "before" or "after" the caller's list; "not" removes the variable
    ours: bool = False  # whether it is only for this job, and not for a job that a rank starts


_JOINED = {"is": "{0}", "before": "{0}" + os.pathsep + "{1}", "after": "{1} {0}"}
_SCHEDULERS = "^alps,flux,gridengine,loadleveler,lsf,pbs,slurm,tm"
_TCP = "OMPI_MCA_btl_tcp_if_(in|ex)clude|[a-z-].*tcp_if.*"
_INTERFACES = (
    "OMPI_MCA_btl_tcp_if_include",
    "OMPI_MCA_oob_tcp_if_include",
    "PRTE_MCA_if_include",
)
# The first applicable row for a variable counts.
_TABLE = (
    # tf_hvd's own variables, and the user's options.
    _Row((contract.JOB,), "job", to=""),
    _Row((contract.START,), "start", to=""),
    _Row((TIMELINE,), "timeline", to=""),
    _Row(("PYTHONPATH",), "modules", to="", how="before"),
    # The ranks must load the library that belongs to the launcher.
    _Row((LIBRARY_VARIABLE,), "library"),
    # Ranks of Open MPI always have a pseudo-terminal and ranks of MPICH a pipe, so programs cannot
    # detect the real output. Some programs, such as rich, read this variable.
    _Row(("TTY_COMPATIBLE",), "terminal", unless="TTY_COMPATIBLE"),
    # Open MPI does not start without HOME (cron, containers).
    _Row(("HOME",), "home", "openmpi", unless="HOME"),
    # Appended to the arguments that ssh already gets. The names of Open MPI 5 and 4.
    _Row(("PRTE_MCA_plm_ssh_args", "OMPI_MCA_plm_rsh_args"), "ssh", "openmpi", how="after"),
    _Row(("HYDRA_LAUNCHER_EXTRA_ARGS",), "ssh", "mpich", how="after"),
    # MPICH gets the interfaces on its command line.
    _Row(_INTERFACES, "interfaces", "openmpi"),
    # By default the files of Open MPI 5's session are at `ompi.<process id>` in the temporary
    # folder. A killed launcher leaves them there. A later launcher with the same process id then
    # does not start ("The PMIx server's listener thread failed to start").
    _Row(
        ("PRTE_MCA_prte_local_tmpdir_base",),
        "folder",
        "openmpi",
        unless="PRTE_MCA_prte_(local_)?tmpdir_base",
    ),
    # Without it Open MPI reports that ranks on one machine cannot reach each other.
    _Row(
        ("OMPI_MCA_btl_sm_segment_size",),
        "little",
        "openmpi",
        unless="(OMPI_MCA_)?btl_sm_segment_size",
    ),
    # If MPI is given no hosts, it takes them from the schedulers that it knows. These variables
    # keep Open MPI from asking schedulers for hosts and Slurm's srun for its version. The names are
    # those of Open MPI 5 and 4; versions without such a component ignore them. MPICH has options
    # for this (command_line.py).
    _Row(HOST_FILES, "local", how="not"),
    _Row(
        ("PRTE_MCA_ras", "OMPI_MCA_ras"),
        "local",
        "openmpi",
        _SCHEDULERS,
        unless="(PRTE|OMPI)_MCA_ras",
        ours=True,
    ),
    _Row(
        ("PRTE_MCA_plm", "OMPI_MCA_plm"),
        "local",
        "openmpi",
        "^slurm",
        unless="(PRTE|OMPI)_MCA_plm",
        ours=True,
    ),
    # On one machine, disable the transports that listen: Open MPI's, UCX's and libfabric's (MPICH
    # may be built with either of the last two). Also disable libfabric's transport that leaves a
    # file in /dev/shm. Open MPI's libfabric transport, for one-sided calls between machines, waits
    # a second in MPI_Init if it finds no suitable network.
    _Row(("OMPI_MCA_btl",), "loopback", value="^tcp,ofi", unless="(OMPI_MCA_)?btl", ours=True),
    _Row(("UCX_TLS",), "loopback", value="^tcp", unless="UCX_TLS", ours=True),
    _Row(
        ("FI_PROVIDER",),
        "loopback",
        value="^tcp,sockets,udp,net,sm2",
        unless="FI_PROVIDER",
        ours=True,
    ),
    # On several machines, restrict Open MPI to their common network, or exclude the networks
    # through which they cannot reach each other. Open MPI mistakes two machines with the same
    # address for one, and waits indefinitely. MPICH does not.
    _Row(_INTERFACES, "network", "openmpi", unless=_TCP),
    _Row(
        ("OMPI_MCA_btl_tcp_if_exclude",),
        "private",
        "openmpi",
        "127.0.0.0/8,{}",
        unless=_TCP,
    ),
    # Must be last: MPICH's launcher loses the last variable on other machines.
    _Row((contract.LAST,), "", "mpich", ""),
)


def rank_environment(
    environ: Mapping[str, str], launcher: Launcher, facts: Facts
) -> dict[str, str]:
    """Return the environment of the ranks and their launcher: `environ`, modified by `_TABLE`.

    This function is pure.
    """
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
    """Return the timeline path for one start of an elastic job; each start has its own path.

    If the first start writes "trace.json", the second start writes "trace.restart-1.json". All
    starts share one file of metrics, because programs that read counters can handle a reset to
    zero.
    """
    if start == "0" or path in ("", "DYNAMIC"):
        return path
    stem, suffix = os.path.splitext(path)
    return f"{stem}.restart-{start}{suffix}"


def is_rank(environ: Mapping[str, str]) -> bool:
    """Return whether an MPI launcher started the process that has this environment."""
    return any(name in environ for name in MPI_RANK_VARIABLES)


def without_launcher(environ: Mapping[str, str], library: bool = True) -> dict[str, str]:
    """Return `environ` without the variables that a launcher sets for a rank.

    A program that initialises MPI with these variables would join the existing job under that
    rank's number instead of starting another job.

    Args:
        environ: an environment, possibly that of a rank.
        library: whether to keep the MPI library that the launcher chose (default: True). Pass False
            if the user selects an MPI for the new job.
    """
    if not is_rank(environ):  # it may still be the only rank of a job without MPI
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
    """Return the sorted names of variables to send to other machines, including all in `asked`."""
    return sorted(
        name
        for name in environ
        if name in asked or (NAME.fullmatch(name) and not _AT_HOME.fullmatch(name))
    )


def horovod_path() -> str:
    """Return the folder to add to PYTHONPATH so that `import horovod` imports tf_hvd."""
    return str(Path(__file__).resolve().parents[2] / "_as_horovod")


def keras_path() -> str:
    """Return the folder to add to PYTHONPATH so that `import keras` also imports tf_hvd.keras."""
    return str(Path(__file__).resolve().parents[2] / "_as_keras")
