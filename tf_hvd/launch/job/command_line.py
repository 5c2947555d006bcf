"""Convert a job into the command line for Open MPI's, MPICH's or Slurm's launcher."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence

from tf_hvd.core import contract
from tf_hvd.launch.job.asked import Job
from tf_hvd.launch.job.environment import exported_names
from tf_hvd.launch.job.hosts import placed
from tf_hvd.launch.job.launchers import Launcher
from tf_hvd.launch.machine import rank
from tf_hvd.launch.machine.task import RANK_VARIABLES

_BINDING_OPTIONS = ("bind-to", "map-by", "rank-by", "cpu-bind", "cpu-set", "rankfile")
_BINDING_VARIABLES = {
    "openmpi": (  # of Open MPI 5 and 4
        *("PRTE_MCA_hwloc_default_binding_policy", "PRTE_MCA_rmaps_default_mapping_policy"),
        *("OMPI_MCA_hwloc_base_binding_policy", "OMPI_MCA_rmaps_base_mapping_policy"),
    ),
    "mpich": ("HYDRA_BINDING", "HYDRA_MAPPING"),
    "slurm": (),
}
# Starts the program without rank.py on machines that lack this Python at this path.
_ELSEWHERE = """\
if [ -x "$1" ] && [ -r "$4" ]; then exec "$@"; fi
case "$5" in
*'"output": ""'*) ;;
*) echo "tf_hvd run: no $4 on this machine, so no --output-filename here" >&2 ;;
esac
shift 5
exec "$@" </dev/null"""


def command_line(
    launcher: Launcher,
    job: Job,
    command: Sequence[str],
    environ: Mapping[str, str],
    interface: str = "",
) -> list[str]:
    """Return the command that starts a job: the launcher and its options, then the ranks' command.

    The command assumes that all hosts have as many cores as this machine.

    Args:
        launcher: the MPI launcher.
        job: the job to start.
        command: the ranks' command.
        environ: the ranks' environment.
        interface: the network interface that MPICH may use; empty for all. Variables in
            `environ` restrict Open MPI instead.
    """
    most = max((host.slots for host in placed(job.hosts, job.ranks)), default=job.ranks)
    cores = job.cores // most
    # Add no option that would override the user's arguments or launcher variables.
    arguments = (argument.lstrip("-") for argument in job.launcher_args)
    bound = any(argument.startswith(_BINDING_OPTIONS) for argument in arguments)
    bound = bound or any(name in environ for name in _BINDING_VARIABLES[launcher.family])
    if launcher.family == "openmpi":
        words = _openmpi(job, environ, cores, bound)
    elif launcher.family == "mpich":
        words = _mpich(job, environ, cores, bound, interface)
    else:
        words = _slurm(job, environ, cores, bound)
    return [launcher.program, *words, *job.launcher_args, *command]


def rank_command(family: str, job: Job, name: str, label: str) -> tuple[str, ...]:
    """Return the ranks' command, which starts the program through tf_hvd/launch/machine/rank.py.

    Under Slurm, the command starts the program directly.

    Args:
        family: the MPI family; empty for a single-rank job without a launcher.
        job: the job to start.
        name: the job's name, which is also the address of the job's agents.
        label: the name of the job's recordings.
    """
    marked = job.timestamps or job.tags
    if family == "slurm" or not (family or job.output or marked):
        return job.command
    folder, width = job.output.replace("{", "{{").replace("}", "}}"), len(str(job.ranks - 1))
    options = {
        "job": name,  # the address of its agents
        "label": label,  # the name of its recordings
        "variables": RANK_VARIABLES.get(family, ()),  # one of them holds the rank
        "stdin": bool(family and not job.own_input),  # whether its input comes from the agent
        "errors": bool(family) and not marked,  # whether to mark lines of standard error
        "watch": bool(family),  # whether a keeper waits for its end
        # The folder of each rank, to be formatted with `rank`, padded so that ranks sort as text.
        "output": f"{folder}/rank.{{rank:0{width}d}}" if folder else "",
        "tags": job.tags,
        "timestamps": job.timestamps,
    }
    python = (sys.executable, "-I", "-S", rank.__file__)
    starter = [*python, json.dumps(options), *job.command]
    return tuple(starter if job.local else ["/bin/sh", "-c", _ELSEWHERE, "tf_hvd run", *starter])


def _openmpi(job: Job, environ: Mapping[str, str], cores: int, bound: bool) -> list[str]:
    words = ["-np", str(job.ranks)]
    if job.as_root:
        words.append("--allow-run-as-root")
    if job.hosts:
        words += ["--host", ",".join(map(str, job.hosts))]
    if cores == 0:
        words.append("--oversubscribe")
    if not bound:
        if cores > 1:
            words += ["--map-by", f"slot:PE={cores}"]
        words += ["--bind-to", "core" if cores else "none"]
    for name in exported_names(environ, job.asked):
        words += ["-x", name]
    return words


def _mpich(
    job: Job, environ: Mapping[str, str], cores: int, bound: bool, interface: str
) -> list[str]:
    words = ["-np", str(job.ranks)]
    if job.hosts:
        words += ["-genvlist", ",".join(exported_names(environ, job.asked))]
        words += ["-hosts", ",".join(map(str, job.hosts))]
    else:
        words.append("-genvall")
    if job.here:
        words += ["-rmk", "user", "-launcher", "fork"]
    if interface:
        words += ["-iface", interface]
    if not bound:
        words += ["-bind-to", f"core:{cores}" if cores else "none"]
    return words


def _slurm(job: Job, environ: Mapping[str, str], cores: int, bound: bool) -> list[str]:
    # Rank 0 gets the standard input, the other ranks an empty one.
    words = [f"--ntasks={job.ranks}", "--export=ALL", "--input=0"]
    node = environ.get("SLURMD_NODENAME")
    if job.here and node and all(host.name == "localhost" for host in job.hosts):
        # The rank that starts this job holds the cores in its own step.
        words += ["--nodes=1", f"--nodelist={node}", "--overlap", "--overcommit"]
    else:
        if job.hosts:
            on = [host.name for host in placed(job.hosts, job.ranks) for _ in range(host.slots)]
            words += ["--distribution=arbitrary", f"--nodelist={','.join(on)}"]
        if not cores:
            words.append("--overcommit")
    if not bound:
        words.append(f"--cpu-bind={'cores' if cores else 'none'}")
    if contract.START in environ:
        # Overrides Slurm's setting: the other ranks notice a failure and report the first one.
        words.append("--kill-on-bad-exit=0")
    if job.tags:
        words.append("--label")
    if job.output:
        folder = job.output.replace("%", "%%")
        number = f"%{len(str(job.ranks - 1))}t"
        words += [f"--output={folder}/rank.{number}/stdout"]
        words += [f"--error={folder}/rank.{number}/stderr"]
        if rank.is_restart(environ):
            words.append("--open-mode=append")
    return words
