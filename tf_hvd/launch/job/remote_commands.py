"""Run commands on other machines through ssh, as MPI's launchers do, or Slurm's srun.

The host check (host_check.py) uses ssh. Agents (far_agent.py) use ssh or srun.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence

from tf_hvd.launch.job.launchers import Launcher

_CONNECT_SECONDS = 10

# With these variables, a launcher does not use ssh or uses an unknown command.
_OTHER_WAYS = (
    *("PRTE_MCA_plm", "PRTE_MCA_plm_ssh_agent", "OMPI_MCA_plm", "OMPI_MCA_plm_rsh_agent"),
    *("HYDRA_LAUNCHER", "HYDRA_LAUNCHER_EXEC", "HYDRA_BOOTSTRAP", "HYDRA_BOOTSTRAP_EXEC"),
    *("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID", "PE_HOSTFILE"),
)
_OTHER_WAY_WORDS = ("plm", "launcher", "bootstrap")
_SSH_ARGUMENTS = {"openmpi": "PRTE_MCA_plm_ssh_args", "mpich": "HYDRA_LAUNCHER_EXTRA_ARGS"}

# Takes a host's name and a command; returns the local command that runs the command there.
Reach = Callable[[str, Sequence[str]], list[str]]


def by_ssh(ssh: Sequence[str]) -> Reach:
    """Return a function that builds ssh commands.

    Args:
        ssh: the words of the ssh command, without the host's name.
    """
    return lambda host, words: [*ssh, host, f"exec {shlex.join(words)}"]


_SRUN = ("srun", "--overlap", "--quiet", "--mpi=none", "--nodes=1", "--ntasks=1")


def by_srun(host: str, words: Sequence[str]) -> list[str]:
    """Return the srun command that runs `words` on a host of this Slurm job.

    The command shares the host with steps that are already running.
    """
    return [*_SRUN, "--cpus-per-task=1", f"--nodelist={host}", *words]


def goes_by_ssh(launcher: Launcher, words: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Return whether a launcher reaches other hosts through ssh with known arguments."""
    if launcher.family not in _SSH_ARGUMENTS or any(name in environ for name in _OTHER_WAYS):
        return False
    return not any(part in word for word in words for part in _OTHER_WAY_WORDS)


def ssh_command(family: str, environ: Mapping[str, str], arguments: str) -> list[str]:
    """Return the launcher's ssh command without the host's name.

    Arguments from the user's environment come first, then `arguments`.
    """
    options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={_CONNECT_SECONDS}"]
    given = f"{environ.get(_SSH_ARGUMENTS[family], '')} {arguments}"
    return ["ssh", "-x", *options, *given.split()]
