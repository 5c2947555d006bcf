"""Real Slurm on the nodes of cluster.py: a controller on the first node, a daemon on each.

    with cluster(["alpha", "beta"]) as nodes, slurm(nodes, folder) as environ:
        subprocess.run(nodes["alpha"].command(["sbatch", ...]), env=environ)

It needs Debian's packages slurmctld, slurmd, slurm-client and munge. --mpi=pmix also needs
libpmix-dev, which has the file name by which Slurm loads the library.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cluster import wait_until

TOOLS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "scancel")

# Nodes share their file system, so each daemon has its own folders (%n). No cgroups, because the
# nodes are namespaces. More processors than exist, because no process is bound to them here.
_SETTINGS = """\
ClusterName=nodes
SlurmctldHost={first}({address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdSpoolDir={folder}/spool.%n
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdLogFile={folder}/slurmd.%n.log
TmpFS={folder}/tmp.%n
SlurmdParameters=config_overrides
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,bf_interval=1
ReturnToService=2
KillWait=10
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
_NODE = "NodeName={name} NodeAddr={address} CPUs=4 State=UNKNOWN\n"


def why_not() -> str:
    """The reason why Slurm cannot run on this machine; empty if it can."""
    missing = [tool for tool in TOOLS if not shutil.which(tool)]
    return f"missing: {', '.join(missing)}" if missing else ""


def _write(nodes: Mapping[str, Any], folder: pathlib.Path) -> None:
    first = next(iter(nodes))
    text = _SETTINGS.format(first=first, address=nodes[first].address, folder=folder)
    for name, node in nodes.items():
        text += _NODE.format(name=name, address=node.address)
        for kind in ("spool", "tmp"):
            (folder / f"{kind}.{name}").mkdir()
    (folder / "state").mkdir()
    (folder / "slurm.conf").write_text(text)
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o400)


@contextlib.contextmanager
def slurm(nodes: Mapping[str, Any], folder: pathlib.Path) -> Iterator[dict[str, str]]:
    """A context with Slurm on nodes; yields the environment for its commands on the first node.

    Args:
        nodes: the nodes of a cluster, by name.
        folder: an empty folder for Slurm's files.
    """
    _write(nodes, folder)
    environ = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    first = next(iter(nodes))
    munge = [f"--socket={folder}/munge.socket", f"--pid-file={folder}/munge.pid"]
    munge += [f"--{name}-file={folder}/munge.{name}" for name in ("key", "log", "seed")]
    with contextlib.ExitStack() as ends:

        def start(node: str, *command: str) -> None:
            with open(folder / f"{node}.{command[0]}.out", "w") as output:
                process = subprocess.Popen(
                    nodes[node].command(command), env=environ, stdout=output, stderr=output
                )
            ends.callback(process.wait)
            ends.callback(process.kill)

        asked = nodes[first].command(["sinfo", "-h", "-N", "-o", "%t"])
        try:
            start(first, "munged", "--foreground", "--force", *munge)
            wait_until((folder / "munge.socket").exists, "munge")
            start(first, "slurmctld", "-D")
            for name in nodes:
                start(name, "slurmd", "-D", "-N", name)
            wait_until(lambda: _answer(asked, environ) == ["idle"] * len(nodes), "Slurm")
        except TimeoutError as error:
            error.add_note("".join(file.read_text() for file in folder.glob("*.log")))
            raise
        yield environ


def _answer(command: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    asked = subprocess.run(command, env=environ, capture_output=True, text=True)
    return asked.stdout.split()
