"""The hosts that a scheduler allocated to this job, from the scheduler's variables and files.

- Slurm: SLURM_JOB_NODELIST and SLURM_TASKS_PER_NODE (salloc(1), sbatch(1)).
- PBS and its derivatives: PBS_NODEFILE, a file with one line for each rank.
- LSF: LSB_DJOB_HOSTFILE, a file with one line for each rank, or LSB_MCPU_HOSTS, a list of host
  names, each followed by its number of ranks.
- Grid Engine: PE_HOSTFILE, a file with a host name and a number of ranks on each line.
- Kubeflow (MPIJob, TrainJob): the default host file for any MPI implementation, even one that
  is not installed. For example, Open MPI 5 ignores Open MPI 4's variable and would start all
  ranks on this machine.

For other schedulers, only the name is detected.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tf_hvd.launch.errors import UsageError, read_text
from tf_hvd.launch.job.hosts import Host, parse_hostfile

# The variables of Open MPI 5, Open MPI 4, MPICH and Intel MPI.
HOST_FILES = (
    "PRTE_MCA_prte_default_hostfile",
    "OMPI_MCA_orte_default_hostfile",
    "HYDRA_HOST_FILE",
    "I_MPI_HYDRA_HOST_FILE",
)
# Flux gives a job's script no other information (flux-environment(7)).
_NAMES_ONLY = {"FLUX_URI": "Flux", "COBALT_JOBID": "Cobalt", "LOADL_STEP_ID": "LoadLeveler"}


@dataclass(frozen=True)
class Allocation:
    scheduler: str
    hosts: tuple[Host, ...] = ()
    """Empty if only the scheduler is known."""
    cure: str = ""
    """How to request more slots."""


def allocation(environ: Mapping[str, str]) -> Allocation | None:
    """Return the allocation for this process, or None if there is none.

    Raises:
        UsageError: the scheduler's variable or file cannot be parsed.
    """
    nodes = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST")
    if nodes and "SLURM_JOB_ID" in environ:
        return _slurm(nodes, environ)
    for variable, (scheduler, cure, read) in _READ.items():
        if text := environ.get(variable):
            hosts = read(text if read is _pairs else read_text(text, variable), text)
            if hosts:
                return Allocation(scheduler, hosts, cure)
    return next((Allocation(name) for one, name in _NAMES_ONLY.items() if one in environ), None)


def _slurm(nodes: str, environ: Mapping[str, str]) -> Allocation:
    names = [*expand(nodes)]
    tasks = environ.get("SLURM_TASKS_PER_NODE") or environ.get("SLURM_JOB_CPUS_PER_NODE")
    slots = [*_repeated(tasks)] if tasks else [1] * len(names)
    if len(slots) != len(names):
        raise _unreadable("Slurm", f"SLURM_JOB_NODELIST={nodes} and SLURM_TASKS_PER_NODE={tasks}")
    hosts = tuple(map(Host, names, slots))
    return Allocation("Slurm", hosts, "ask Slurm for more (--ntasks, --ntasks-per-node)")


def expand(nodes: str) -> Iterator[str]:
    """Yield the host names from a list in Slurm's short form, such as `gpu[01-03,7]-a,login1`.

    `scontrol show hostnames` expands the same form (scontrol(1)).

    Raises:
        UsageError: `nodes` does not have this form.
    """
    part = r"[^\[\],]*(?:\[[\d,-]+\][^\[\],]*)*"
    if not re.fullmatch(f"{part}(?:,{part})*", nodes):
        raise _unreadable("Slurm", f"the list of nodes {nodes}")
    for entry in re.findall(rf"(?:^|,)({part})", nodes):
        pieces = re.split(r"\[([\d,-]+)\]", entry)
        choices = [_numbers(text) if i % 2 else [text] for i, text in enumerate(pieces)]
        yield from map("".join, itertools.product(*choices))


def _numbers(ranges: str) -> list[str]:
    """Return the numbers in a list of ranges: 01, 02, 03, 7 for `01-03,7`."""
    numbers = []
    for text in ranges.split(","):
        first, _, last = text.partition("-")
        for number in range(int(first), int(last or first) + 1):
            numbers.append(f"{number:0{len(first)}d}")
    return numbers


def _repeated(tasks: str) -> Iterator[int]:
    """Expand Slurm's notation for repeated numbers: yield 2, 2, 2, 1 for `2(x3),1`."""
    for text in tasks.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", text)
        if found is None:
            raise _unreadable("Slurm", f"SLURM_TASKS_PER_NODE={tasks}")
        yield from [int(found[1])] * int(found[2] or 1)


def _lines(text: str, _: str) -> tuple[Host, ...]:
    """Return the hosts in order of first appearance; each of a host's lines adds one slot."""
    return tuple(Host(name, number) for name, number in Counter(text.split()).items())


def _pairs(text: str, _: str) -> tuple[Host, ...]:
    words = text.split()
    if len(words) % 2 or not all(number.isdigit() for number in words[1::2]):
        raise _unreadable("LSF", f"LSB_MCPU_HOSTS={text}")
    return tuple(map(Host, words[::2], map(int, words[1::2])))


def _grid_engine(text: str, file: str) -> tuple[Host, ...]:
    slots: Counter[str] = Counter()
    for line in text.splitlines():
        words = line.split()
        if len(words) < 2 or not words[1].isdigit():
            raise _unreadable("Grid Engine", f"the line {line!r} of {file}")
        slots[words[0]] += int(words[1])
    return tuple(Host(name, number) for name, number in slots.items() if number > 0)


def _unreadable(scheduler: str, what: str) -> UsageError:
    return UsageError(f"cannot parse {scheduler}'s hosts: {what}; list the hosts with -H")


# By variable: the scheduler, how to request more slots, and the parser of its file or text.
_Read = Callable[[str, str], tuple[Host, ...]]
_READ: dict[str, tuple[str, str, _Read]] = {
    "PBS_NODEFILE": (
        "PBS",
        "ask PBS for more (select=...:mpiprocs=..., nodes=...:ppn=...)",
        _lines,
    ),
    "LSB_DJOB_HOSTFILE": ("LSF", "ask LSF for more (bsub -n)", _lines),
    "LSB_MCPU_HOSTS": ("LSF", "ask LSF for more (bsub -n)", _pairs),
    "PE_HOSTFILE": ("Grid Engine", "ask Grid Engine for more (-pe)", _grid_engine),
    **{
        name: ("MPI", f"give the job more slots in the host file of {name}", parse_hostfile)
        for name in HOST_FILES
    },
}
