"""The launcher's command line: a job in the words of Open MPI, MPICH and Slurm."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from tf_hvd.core import contract
from tf_hvd.launch.job.environment import exported_names
from tf_hvd.launch.job.hosts import Host, most_ranks_on_a_host
from tf_hvd.launch.job.launchers import Launcher
from tf_hvd.launch.job.session import Session
from tf_hvd.launch.machine import rank
from tf_hvd.launch.machine.task import RANK_VARIABLES

_BINDING_OPTIONS = ("bind-to", "map-by", "rank-by", "cpu-bind", "cpu-set", "rankfile")
# Of Open MPI 5 and 4.
_OPENMPI_BINDING = (
    *("PRTE_MCA_hwloc_default_binding_policy", "PRTE_MCA_rmaps_default_mapping_policy"),
    *("OMPI_MCA_hwloc_base_binding_policy", "OMPI_MCA_rmaps_base_mapping_policy"),
)
_MPICH_BINDING = ("HYDRA_BINDING", "HYDRA_MAPPING")
# What a machine does that lacks this Python at this place: no file of ours is needed to begin.
_ELSEWHERE = """\
if [ -x "$1" ] && [ -r "$4" ]; then exec "$@"; fi
case "$5" in
*'"output": ""'*) ;;
*) echo "tf_hvd run: no $4 on this machine, so no --output-filename here" >&2 ;;
esac
shift 5
exec "$@" </dev/null"""


@dataclass(frozen=True)
class Output:
    """Where the ranks' output goes besides the terminal."""

    folder: str = ""
    """Holds `rank.N/stdout` and `rank.N/stderr` for each rank; empty for no files."""
    timestamps: bool = False
    """Whether each line begins with the time, also in the files."""
    tags: bool = False
    """Whether each line but those in the files begins with the rank."""

    def __bool__(self) -> bool:
        """Whether it goes anywhere but to the terminal as it is."""
        return bool(self.folder or self.timestamps or self.tags)

    @property
    def marks(self) -> bool:
        """Whether `tf_hvd run` may mark lines of standard error with their rank itself."""
        return not (self.timestamps or self.tags)

    def pattern(self, ranks: int) -> str:
        """The folder of each rank, to be formatted with `rank`: ranks sort as text."""
        if not self.folder:
            return ""
        width = len(str(ranks - 1))
        escaped = self.folder.replace("{", "{{").replace("}", "}}")
        return f"{escaped}/rank.{{rank:0{width}d}}"


@dataclass(frozen=True)
class Job:
    """One start of a program: how many ranks, where, and what is known of this machine."""

    ranks: int
    command: tuple[str, ...]
    hosts: tuple[Host, ...] = ()
    launcher_args: tuple[str, ...] = ()
    cores: int = 1
    as_root: bool = False
    interfaces: str = ""
    output: Output = Output()
    environ: Mapping[str, str] = field(default_factory=dict)
    here: bool = False
    """Whether all of it is on this machine, whatever hosts a scheduler has given."""
    asked: Collection[str] = ()
    """The variables of `environ` that the user wants on all machines, whatever they are."""

    @property
    def own_input(self) -> bool:
        """Whether the user's launcher arguments say who reads the standard input."""
        return any(text.lstrip("-").startswith("stdin") for text in self.launcher_args)


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


def by_way_of_rank(family: str, job: Job, session: Session, local: bool) -> tuple[str, ...]:
    """The job's command, started by tf_hvd/launch/machine/rank.py; Slurm needs no help.

    Args:
        family: the launcher's, or empty for a job of one rank that has none.
        job: what to start.
        session: what the ranks report to.
        local: whether all ranks run on this machine.
    """
    if family == "slurm":
        return job.command
    options = {
        "job": session.home.job,  # its agents are reached by it
        "label": session.state.job,  # its recordings are called so
        "variables": RANK_VARIABLES.get(family, ()),  # one of them holds the rank
        "stdin": bool(family and not job.own_input),  # whether its input comes from the agent
        "errors": bool(family) and job.output.marks,  # whether its errors are to be marked
        "watch": bool(family),  # whether a keeper waits for its end
        "output": job.output.pattern(job.ranks),
        "tags": job.output.tags,
        "timestamps": job.output.timestamps,
    }
    python = (sys.executable, "-I", "-S", rank.__file__)
    starter = [*python, json.dumps(options), *job.command]
    return tuple(starter if local else ["/bin/sh", "-c", _ELSEWHERE, "tf_hvd run", *starter])


def _binds_itself(job: Job, variables: tuple[str, ...] = ()) -> bool:
    """True if the user says where ranks go, by arguments or the launcher's own `variables`.

    An option of ours would override either.
    """
    arguments = (argument.lstrip("-") for argument in job.launcher_args)
    said = any(argument.startswith(_BINDING_OPTIONS) for argument in arguments)
    return said or any(name in job.environ for name in variables)


def _openmpi(job: Job, cores_each: int) -> list[str]:
    words = ["-np", str(job.ranks)]
    if job.as_root:
        words.append("--allow-run-as-root")
    if job.hosts:
        words += ["--host", ",".join(map(str, job.hosts))]
    if cores_each == 0:
        words.append("--oversubscribe")
    if not _binds_itself(job, _OPENMPI_BINDING):
        if cores_each > 1:
            words += ["--map-by", f"slot:PE={cores_each}"]
        words += ["--bind-to", "core" if cores_each else "none"]
    for name in exported_names(job.environ, job.asked):
        words += ["-x", name]
    return words


def _mpich(job: Job, cores_each: int) -> list[str]:
    words = ["-np", str(job.ranks)]
    if job.hosts:
        words += ["-genvlist", ",".join(exported_names(job.environ, job.asked))]
        words += ["-hosts", ",".join(map(str, job.hosts))]
    else:
        words.append("-genvall")
    if job.here:
        words += ["-rmk", "user", "-launcher", "fork"]
    if job.interfaces:
        words += ["-iface", job.interfaces.partition(",")[0]]
    if not _binds_itself(job, _MPICH_BINDING):
        words += ["-bind-to", f"core:{cores_each}" if cores_each else "none"]
    return words


def _slurm_nodes(job: Job, cores_each: int) -> list[str]:
    node = job.environ.get("SLURMD_NODENAME")
    if job.here and node and all(host.name == "localhost" for host in job.hosts):
        # The step of the rank that starts it has the cores.
        return ["--nodes=1", f"--nodelist={node}", "--overlap", "--overcommit"]
    words = []
    if job.hosts:
        placed = [host.name for host in job.hosts for _ in range(host.slots)][: job.ranks]
        words += ["--distribution=arbitrary", f"--nodelist={','.join(placed)}"]
    return words if cores_each else [*words, "--overcommit"]


def _slurm(job: Job, cores_each: int) -> list[str]:
    # Rank 0 gets the input, the others an empty one.
    words = [f"--ntasks={job.ranks}", "--export=ALL", "--input=0", *_slurm_nodes(job, cores_each)]
    if not _binds_itself(job):
        words.append(f"--cpu-bind={'cores' if cores_each else 'none'}")
    if contract.START in job.environ:
        # However Slurm is set: the others find out by themselves, and tell who was the first.
        words.append("--kill-on-bad-exit=0")
    if job.output.tags:
        words.append("--label")
    if job.output.folder:
        folder = job.output.folder.replace("%", "%%")
        number = f"%{len(str(job.ranks - 1))}t"
        words += [f"--output={folder}/rank.{number}/stdout"]
        words += [f"--error={folder}/rank.{number}/stderr"]
        if rank.is_restart(job.environ):
            words.append("--open-mode=append")
    return words
