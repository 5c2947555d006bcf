"""The hosts that a scheduler has given this job, read from what it tells the job.

Slurm: SLURM_JOB_NODELIST and SLURM_TASKS_PER_NODE (salloc(1), sbatch(1)). PBS and its relatives:
PBS_NODEFILE, a line for each rank. LSF: LSB_DJOB_HOSTFILE, likewise, or LSB_MCPU_HOSTS, names and
numbers in turns. Grid Engine: PE_HOSTFILE, a name and a number on each line. Kubeflow (MPIJob,
TrainJob): what names the default host file of an MPI, be it another one than is there; Open MPI 5
does not read the name that Open MPI 4 had, and would start all ranks where it is.

Of other schedulers only their names are known. And MPI, where it is given no hosts, takes those of
the schedulers that it knows itself: a job that stays on this machine keeps it from that.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from tf_hvd.launch.errors import UsageError, read_text
from tf_hvd.launch.job.hosts import Host, parse_hostfile

# Of Open MPI 5, Open MPI 4, MPICH, Intel MPI.
HOST_FILES = (
    "PRTE_MCA_prte_default_hostfile",
    "OMPI_MCA_orte_default_hostfile",
    "HYDRA_HOST_FILE",
    "I_MPI_HYDRA_HOST_FILE",
)
# By these a job of a scheduler is known that has no list of slots. Flux tells the script of a job
# no more than this (flux-environment(7)).
_OTHERS = {"FLUX_URI": "Flux", "COBALT_JOBID": "Cobalt", "LOADL_STEP_ID": "LoadLeveler"}
# What has Open MPI ask no scheduler for hosts, nor Slurm's srun for its version. Versions that have
# no such component take no notice.
_NO_SCHEDULER = {
    "ras": "^alps,flux,gridengine,loadleveler,lsf,pbs,slurm,tm",
    "plm": "^slurm",
}


@dataclass(frozen=True)
class Allocation:
    """What a scheduler has given."""

    scheduler: str
    hosts: tuple[Host, ...]
    cure: str
    """How one asks for more."""


def allocation(environ: Mapping[str, str]) -> Allocation | None:
    """The allocation that this process runs in; None if there is none, or its hosts are not known.

    Raises:
        UsageError: what the scheduler says cannot be read.
    """
    for read in (_slurm, _pbs, _lsf, _grid_engine, _default_host_file):
        found = read(environ)
        if found is not None and found.hosts:
            return found
    return None


def other_scheduler(environ: Mapping[str, str]) -> str:
    """The scheduler whose job this is, if it is one that `allocation` cannot read; else empty."""
    return next((name for variable, name in _OTHERS.items() if variable in environ), "")


def unscheduled(family: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Settings by which Open MPI takes no scheduler's hosts; those that the user has made stay.

    MPICH has options for that (command_line.py).
    """
    settings: dict[str, str] = {}
    for name, text in _NO_SCHEDULER.items() if family == "openmpi" else ():
        names = (f"PRTE_MCA_{name}", f"OMPI_MCA_{name}")  # of Open MPI 5 and 4
        if not any(one in environ for one in names):
            settings |= dict.fromkeys(names, text)
    return settings


def _slurm(environ: Mapping[str, str]) -> Allocation | None:
    nodes = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST")
    if not nodes or "SLURM_JOB_ID" not in environ:
        return None
    names = [*expand(nodes)]
    tasks = environ.get("SLURM_TASKS_PER_NODE") or environ.get("SLURM_JOB_CPUS_PER_NODE")
    slots = [*_repeated(tasks)] if tasks else [1] * len(names)
    if len(slots) != len(names):
        raise _unreadable("Slurm", f"SLURM_JOB_NODELIST={nodes} and SLURM_TASKS_PER_NODE={tasks}")
    hosts = tuple(map(Host, names, slots))
    return Allocation("Slurm", hosts, "ask Slurm for more (--ntasks, --ntasks-per-node)")


def expand(nodes: str) -> Iterator[str]:
    """The names in Slurm's short form, as `gpu[01-03,7]-a,login1` (scontrol(1), show hostnames).

    Raises:
        UsageError: it is not of this form.
    """
    part = r"[^\[\],]*(?:\[[\d,-]+\][^\[\],]*)*"
    if not re.fullmatch(f"{part}(?:,{part})*", nodes):
        raise _unreadable("Slurm", f"the list of nodes {nodes}")
    for entry in re.findall(rf"(?:^|,)({part})", nodes):
        pieces = re.split(r"\[([\d,-]+)\]", entry)
        choices = [_numbers(text) if i % 2 else [text] for i, text in enumerate(pieces)]
        yield from map("".join, itertools.product(*choices))


def _numbers(ranges: str) -> list[str]:
    """`01-03,7` as 01, 02, 03, 7."""
    numbers = []
    for text in ranges.split(","):
        first, _, last = text.partition("-")
        for number in range(int(first), int(last or first) + 1):
            numbers.append(f"{number:0{len(first)}d}")
    return numbers


def _repeated(tasks: str) -> Iterator[int]:
    """`2(x3),1` as 2, 2, 2, 1."""
    for text in tasks.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", text)
        if found is None:
            raise _unreadable("Slurm", f"SLURM_TASKS_PER_NODE={tasks}")
        yield from [int(found[1])] * int(found[2] or 1)


def _pbs(environ: Mapping[str, str]) -> Allocation | None:
    file = environ.get("PBS_NODEFILE")
    if not file:
        return None
    hosts = _counted(read_text(file, "PBS_NODEFILE").split())
    return Allocation("PBS", hosts, "ask PBS for more (select=...:mpiprocs=..., nodes=...:ppn=...)")


def _lsf(environ: Mapping[str, str]) -> Allocation | None:
    cure = "ask LSF for more (bsub -n)"
    if file := environ.get("LSB_DJOB_HOSTFILE"):
        return Allocation("LSF", _counted(read_text(file, "LSB_DJOB_HOSTFILE").split()), cure)
    listed = environ.get("LSB_MCPU_HOSTS", "")
    words = listed.split()
    if len(words) % 2 or not all(number.isdigit() for number in words[1::2]):
        raise _unreadable("LSF", f"LSB_MCPU_HOSTS={listed}")
    hosts = tuple(map(Host, words[::2], map(int, words[1::2])))
    return Allocation("LSF", hosts, cure)


def _grid_engine(environ: Mapping[str, str]) -> Allocation | None:
    file = environ.get("PE_HOSTFILE")
    if not file:
        return None
    slots: Counter[str] = Counter()
    for line in read_text(file, "PE_HOSTFILE").splitlines():
        words = line.split()
        if len(words) < 2 or not words[1].isdigit():
            raise _unreadable("Grid Engine", f"the line {line!r} of {file}")
        slots[words[0]] += int(words[1])
    return Allocation("Grid Engine", _hosts(slots), "ask Grid Engine for more (-pe)")


def _default_host_file(environ: Mapping[str, str]) -> Allocation | None:
    for name in HOST_FILES:
        if file := environ.get(name):
            cure = f"give the job more slots, which {name} names"
            return Allocation("MPI", parse_hostfile(read_text(file, name), file), cure)
    return None


def _counted(names: Iterable[str]) -> tuple[Host, ...]:
    """Each host once, in the order of their first lines, with as many slots as it has lines."""
    return _hosts(Counter(names))


def _hosts(slots: Mapping[str, int]) -> tuple[Host, ...]:
    return tuple(Host(name, number) for name, number in slots.items() if number > 0)


def _unreadable(scheduler: str, what: str) -> UsageError:
    return UsageError(f"{scheduler} gives {what}, which cannot be read; list the hosts with -H")
