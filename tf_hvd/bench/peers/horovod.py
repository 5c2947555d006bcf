"""The Horovod of another Python environment, in a job of its own."""

import os
import pathlib
import subprocess

from tf_hvd.bench.errors import BenchError
from tf_hvd.bench.peers.failure import failure_in
from tf_hvd.bench.peers.outside import WORKER, Outside, Worker

_ASK = "import horovod.tensorflow as hvd; print(bool(hvd.mpi_built()))"
_PATIENCE = 120.0  # seconds, for TensorFlow to load


class Horovod(Outside):
    """A job that the launcher of Horovod's MPI starts, or horovodrun where it was built without.

    Its horovodrun adds options to MPI's launcher that Open MPI 5 does not know.
    """

    name = "horovod"

    def _program(self, name: str) -> str:
        return str(pathlib.Path(self._around.horovod).absolute() / "bin" / name)

    def missing(self) -> str | None:
        """If no environment was named, or it has no Python."""
        if not self._around.horovod:
            return "name its environment: --horovod FOLDER"
        python = self._program("python")
        return None if os.access(python, os.X_OK) else f"there is no {python}"

    def start(self) -> Worker | None:
        """A job with a rank for each of ours, on the same cores."""
        job = self._job
        hosts = job.gather(os.uname().nodename)
        cores = job.gather(sorted(os.sched_getaffinity(0)))
        if job.rank:
            return None
        command = self._command(hosts)
        several = len(set(hosts)) > 1
        mine = os.sched_getaffinity(0)
        # Its launcher gets the cores of all ranks; each worker takes those of its rank.
        os.sched_setaffinity(0, {core for each in cores for core in each})
        try:
            started = {"cores": [] if several else cores}
            return Worker(command, started, self._around.environ)
        finally:
            os.sched_setaffinity(0, mine)

    def _command(self, hosts: list[str]) -> list[str]:
        worker = [self._program("python"), WORKER, self.name]
        if self._has_mpi():
            command = self._around.mpi_command(self._around.horovod, hosts, worker)
            if not command:
                raise BenchError(
                    f"it was built with MPI, but {self._around.horovod}/bin and the PATH have no "
                    "launcher of that MPI: put its mpirun there"
                )
            return command
        runner = self._program("horovodrun")
        if not os.access(runner, os.X_OK):
            raise BenchError(f"it was built without MPI, and there is no {runner}")
        slots = ",".join(f"{host}:{hosts.count(host)}" for host in dict.fromkeys(hosts))
        where = ["-H", slots] if len(set(hosts)) > 1 else []
        return [runner, "--gloo", "-np", str(len(hosts)), *where, *worker]

    def _has_mpi(self) -> bool:
        try:
            answer = subprocess.run(
                [self._program("python"), "-c", _ASK],
                env=dict(self._around.environ),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_PATIENCE,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise BenchError(f"its import took more than {_PATIENCE:.0f} s") from None
        if answer.returncode:
            reason = failure_in(answer.stderr) or f"its import ended with {answer.returncode}"
            raise BenchError(reason)
        return answer.stdout.split()[-1:] == ["True"]
