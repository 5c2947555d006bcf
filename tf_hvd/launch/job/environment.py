"""The environment of the ranks: what is added to the caller's, what is taken away from it."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from tf_hvd.core import contract
from tf_hvd.launch.errors import UsageError, read_text
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
_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")

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


def with_own_timeline(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ`, in which a start of an elastic job does not overwrite the starts' before it.

    The second start's timeline is "trace.restart-1.json" where the first one's is "trace.json". Of
    metrics there is one file: whoever reads counters knows that they begin anew.
    """
    number = environ.get(contract.START, "")
    path = environ.get(TIMELINE, "")
    if number in ("", "0") or path in ("", "DYNAMIC"):
        return dict(environ)
    stem, suffix = os.path.splitext(path)
    return {**environ, TIMELINE: f"{stem}.restart-{number}{suffix}"}


def is_rank(environ: Mapping[str, str]) -> bool:
    """Whether a launcher of MPI started the process that has this environment."""
    return any(name in environ for name in MPI_RANK_VARIABLES)


def without_launcher(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` without what a launcher tells a rank: who starts with it starts a job of its own.

    A program that starts MPI with these variables joins the job of the rank that started it, under
    that rank's number.
    """
    if not is_rank(environ):  # but perhaps the one rank of a job without MPI
        return {name: text for name, text in environ.items() if name not in _OF_A_RANK}
    told = _TOLD.union(environ.get(contract.SETTINGS, "").split(","))
    return {
        name: text
        for name, text in environ.items()
        if name not in told
        and (not name.startswith(_TOLD_PREFIXES) or name.startswith(_SETTINGS_PREFIX))
    }


def own_settings(ours: Mapping[str, str]) -> dict[str, str]:
    """Variables that set up MPI for one job, and their names: a rank's own job is without them."""
    return {**ours, contract.SETTINGS: ",".join(ours)} if ours else {}


def exported_names(environ: Mapping[str, str], asked: Collection[str] = ()) -> list[str]:
    """The variables of `environ` that go to other machines, sorted.

    Args:
        environ: the caller's.
        asked: names that go whatever they are.
    """
    return sorted(
        name
        for name in environ
        if name in asked or (_NAME.fullmatch(name) and not _AT_HOME.fullmatch(name))
    )


def asked_variables(
    settings: Sequence[str], file: str | None, environ: Mapping[str, str]
) -> dict[str, str]:
    """The variables that `-x` and `--env-file` name, with their values; `-x` counts more.

    Args:
        settings: each is `NAME=VALUE`, or `NAME` for the caller's value.
        file: a path; a line of it is such a setting, or empty, or a comment (`#`). Nothing in it
            is quoted or expanded, as in Docker's.
        environ: the caller's.

    Raises:
        UsageError: a setting is none, a variable is not set, or the file cannot be read.
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
    if not _NAME.fullmatch(name):  # a value may be a secret
        raise UsageError(
            f"{where}: {name!r} is not the name of a variable; give NAME or NAME=VALUE"
        )
    if not equals and name not in environ:
        raise UsageError(f"{where}: the variable {name} is not set; give its value, {name}=VALUE")
    return {name: value if equals else environ[name]}


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
    if launcher.family == "mpich":
        ranks[contract.LAST] = ""
    return ranks


def horovod_path() -> str:
    """The folder that PYTHONPATH must name for `import horovod` to give tf_hvd."""
    return str(Path(__file__).resolve().parents[2] / "_as_horovod")


def horovod_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` with a `horovod` first on Python's path that is tf_hvd."""
    ours, path = horovod_path(), environ.get("PYTHONPATH", "")
    return {**environ, "PYTHONPATH": f"{ours}{os.pathsep}{path}" if path else ours}


def ssh_environment(
    family: str, arguments: Sequence[str], environ: Mapping[str, str]
) -> dict[str, str]:
    """What makes a launcher pass these arguments to ssh, after those that it passes already."""
    # Open MPI 5's name, and that of the versions before.
    names = {
        "openmpi": ("PRTE_MCA_plm_ssh_args", "OMPI_MCA_plm_rsh_args"),
        "mpich": ("HYDRA_LAUNCHER_EXTRA_ARGS",),
    }
    if not arguments:
        return {}
    return {
        name: " ".join([*environ.get(name, "").split(), *arguments])
        for name in names.get(family, ())
    }


def interface_environment(family: str, interfaces: str) -> dict[str, str]:
    """What keeps Open MPI to these network interfaces; MPICH is told on its command line."""
    if family != "openmpi" or not interfaces:
        return {}
    names = ("OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_oob_tcp_if_include", "PRTE_MCA_if_include")
    return dict.fromkeys(names, interfaces)


def avoiding_environment(
    family: str, networks: Sequence[str], arguments: Sequence[str], environ: Mapping[str, str]
) -> dict[str, str]:
    """What keeps Open MPI off these networks, if the user says nothing of interfaces.

    It takes an address that two machines have for one machine, and waits for ever. MPICH does not.
    """
    if family != "openmpi" or not networks or names_interfaces(arguments, environ):
        return {}
    return {"OMPI_MCA_btl_tcp_if_exclude": ",".join(["127.0.0.0/8", *networks])}


def names_interfaces(arguments: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Whether the user has told Open MPI which interfaces to use, by arguments or variables."""
    names = ("OMPI_MCA_btl_tcp_if_exclude", "OMPI_MCA_btl_tcp_if_include")
    return any(name in environ for name in names) or any("tcp_if" in a for a in arguments)


def session_environment(family: str, folder: str, environ: Mapping[str, str]) -> dict[str, str]:
    """What makes Open MPI 5 keep its session's files in `folder`, if the user names no other place.

    Elsewhere they are at `ompi.<process id>` in the temporary folder. A launcher that is killed
    leaves them there, and the launcher that gets the same process id later does not start ("The
    PMIx server's listener thread failed to start").
    """
    if family != "openmpi" or "PRTE_MCA_prte_tmpdir_base" in environ:
        return {}
    name = "PRTE_MCA_prte_local_tmpdir_base"
    return {name: environ.get(name, folder)}
