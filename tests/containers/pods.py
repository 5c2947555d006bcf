"""Simulates a Kubernetes operator: starts a job's containers as pods on nodes of cluster.py.

A pod is a node with the image as its root. As with Kubeflow's operators, it has keys in the folder
of `sshAuthMountPath`, the host file in /etc/mpi and a variable that names it. As in Kubernetes, a
pod knows other pods only by the names of its service.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence

from cluster import Node, cluster, wait_until

HERE = pathlib.Path(__file__).resolve().parent
LIMIT = 600


@dataclasses.dataclass(frozen=True)
class Container:
    """The container of a pod."""

    command: tuple[str, ...]
    user: int


@dataclasses.dataclass(frozen=True)
class Job:
    """A launcher and its workers, from any kind of resource."""

    workers: tuple[str, ...]
    """The names of their pods."""
    worker: Container
    launcher: Container
    service: str
    """The suffix of a pod's name in the name by which other pods know it."""
    slots: int
    keys: str
    """The folder for the SSH keys."""
    launcher_works: bool
    """Whether the host file includes the launcher's pod."""
    launcher_name: str


def of_mpijob(resource: Mapping) -> Job:
    """The job that MPI operator creates from an MPIJob."""
    spec, name = resource["spec"], resource["metadata"]["name"]
    replicas = spec["mpiReplicaSpecs"]
    return Job(
        workers=tuple(f"{name}-worker-{i}" for i in range(replicas["Worker"]["replicas"])),
        worker=_container(replicas["Worker"]["template"]),
        launcher=_container(replicas["Launcher"]["template"]),
        service=f".{name}.default.svc",
        slots=spec["slotsPerWorker"],
        keys=spec["sshAuthMountPath"],
        launcher_works=False,
        launcher_name=f"{name}-launcher",
    )


def of_trainjob(runtime: Mapping, resource: Mapping) -> Job:
    """The job that Trainer creates from a TrainJob and its runtime."""
    name, trainer = resource["metadata"]["name"], resource["spec"]["trainer"]
    policy = runtime["spec"]["mlPolicy"]["mpi"]
    jobs = {job["name"]: job for job in runtime["spec"]["template"]["spec"]["replicatedJobs"]}
    templates = {each: jobs[each]["template"]["spec"]["template"] for each in ("node", "launcher")}
    works = policy["runLauncherAsNode"]
    others = trainer["numNodes"] - works
    launcher = _container(templates["launcher"], [*trainer["command"], *trainer["args"]])
    return Job(
        workers=tuple(f"{name}-node-0-{i}" for i in range(others)),
        worker=_container(templates["node"]),
        launcher=launcher,
        service=f".{name}",
        slots=trainer["numProcPerNode"],
        keys=policy["sshAuthMountPath"],
        launcher_works=works,
        launcher_name=f"{name}-launcher-0-0",
    )


def _container(template: Mapping, command: Sequence[str] = ()) -> Container:
    (only,) = template["spec"]["containers"]
    own = [*only.get("command", ()), *only.get("args", ())]
    return Container(tuple(command or own), only["securityContext"]["runAsUser"])


class Pod:
    """A node with an image as its root.

    Args:
        node: the machine.
        image: the image's root, which is not changed.
        job: the pod's job.
        folder: the folder with the keys and the host file.
        program: the folder to mount as /train.
    """

    def __init__(
        self, node: Node, image: pathlib.Path, job: Job, folder: pathlib.Path, program: pathlib.Path
    ) -> None:
        self._node = node
        script = str(HERE / "pod.sh")
        arguments = [str(image), str(folder), str(program), job.keys, job.service]
        subprocess.run(node.command(["bash", script, *arguments]), check=True)

    def start(
        self, container: Container, environ: Mapping[str, str], output: int | None
    ) -> subprocess.Popen[str]:
        """Start the pod's container."""
        pairs = [f"{name}={text}" for name, text in environ.items()]
        user = f"{container.user}:{container.user}"
        inside = ["chroot", f"--userspec={user}", "/mnt/root", "env", "-i", *pairs]
        return subprocess.Popen(
            self._node.command([*inside, *container.command]),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT if output else None,
            text=True,
        )

    def listens(self, port: int) -> bool:
        """Whether its SSH server is running: the readiness probe."""
        probe = ["bash", "-c", f"</dev/tcp/127.0.0.1/{port}"]
        return subprocess.run(self._node.command(probe), capture_output=True).returncode == 0


@contextlib.contextmanager
def _pods(
    job: Job, image: pathlib.Path, folder: pathlib.Path, program: pathlib.Path
) -> Iterator[dict[str, Pod]]:
    names = [*job.workers, job.launcher_name]
    with cluster(names) as nodes:
        key = folder / "id_rsa"
        command = ["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", str(key)]
        subprocess.run(command, check=True)
        hosts = [*([job.launcher_name] if job.launcher_works else []), *job.workers]
        lines = [f"{name}{job.service} slots={job.slots}\n" for name in hosts]
        (folder / "hostfile").write_text("".join(lines))
        others = [f"{node.address} {name}{job.service}\n" for name, node in nodes.items()]
        (folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(others))
        yield {name: Pod(node, image, job, folder, program) for name, node in nodes.items()}


def play(
    job: Job,
    image: pathlib.Path,
    environ: Mapping[str, str],
    folder: pathlib.Path,
    program: pathlib.Path,
) -> tuple[int, str]:
    """Run a job to its end; returns the launcher's exit code and output.

    Args:
        job: the job to run.
        image: the root of all pods.
        environ: the variables of the image.
        folder: an empty folder.
        program: the folder to mount as /train.
    """
    home = {**environ, "HOME": "/home/mpiuser"}
    told = {
        "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
        "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
        "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
    }
    with _pods(job, image, folder, program) as pods, contextlib.ExitStack() as ends:
        for name in job.workers:
            server = pods[name].start(job.worker, home, None)
            ends.callback(server.wait)
            ends.callback(server.kill)
        for name in job.workers:
            wait_until(lambda pod=pods[name]: pod.listens(2222), name)
        began = time.monotonic()
        launcher = pods[job.launcher_name].start(job.launcher, {**home, **told}, subprocess.PIPE)
        ends.callback(launcher.kill)
        output, _ = launcher.communicate(timeout=LIMIT - (time.monotonic() - began))
        return launcher.returncode, output
