"""How commands are started on other machines: by ssh, as MPI's launcher does, or by Slurm's srun.

By ssh hosts are checked before a job starts (host_check.py); their agents are started by either
(far_agent.py).
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence

from tf_hvd.launch.job.launchers import Launcher

_CONNECT_SECONDS = 10

# With these a launcher does not go by ssh, or by a command that is not ours to guess.
_OTHER_WAYS = (
    *("PRTE_MCA_plm", "PRTE_MCA_plm_ssh_agent", "OMPI_MCA_plm", "OMPI_MCA_plm_rsh_agent"),
    *("HYDRA_LAUNCHER", "HYDRA_LAUNCHER_EXEC", "HYDRA_BOOTSTRAP", "HYDRA_BOOTSTRAP_EXEC"),
    *("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID", "PE_HOSTFILE"),
)
_OTHER_WAY_WORDS = ("plm", "launcher", "bootstrap")
_SSH_ARGUMENTS = {"openmpi": "PRTE_MCA_plm_ssh_args", "mpich": "HYDRA_LAUNCHER_EXTRA_ARGS"}

# Makes of a host's name and a command the command that runs it there.
Reach = Callable[[str, Sequence[str]], list[str]]


def by_ssh(ssh: Sequence[str]) -> Reach:
    """Reaches hosts by ssh: the command before a host's name."""
    return lambda host, words: [*ssh, host, f"exec {shlex.join(words)}"]


_SRUN = ("srun", "--overlap", "--quiet", "--mpi=none", "--nodes=1", "--ntasks=1")


def by_srun(host: str, words: Sequence[str]) -> list[str]:
    """Reaches the hosts of a Slurm job from within it, beside what runs there."""
    return [*_SRUN, "--cpus-per-task=1", f"--nodelist={host}", *words]


def goes_by_ssh(launcher: Launcher, words: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Whether a launcher reaches other hosts by ssh, with arguments that we know."""
    if launcher.family not in _SSH_ARGUMENTS or any(name in environ for name in _OTHER_WAYS):
        return False
    return not any(part in word for word in words for part in _OTHER_WAY_WORDS)


def ssh_command(family: str, environ: Mapping[str, str], arguments: str) -> list[str]:
    """The command that reaches a host as that launcher does, but for the host's name.

    Arguments for ssh may stand in the user's environment; more may follow.
    """
    options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={_CONNECT_SECONDS}"]
    given = f"{environ.get(_SSH_ARGUMENTS[family], '')} {arguments}"
    return ["ssh", "-x", *options, *given.split()]
