# tf_hvd run -np 2 python benchmarks/peers.py --sizes 4,1M [--horovod FOLDER]
"""`tf_hvd bench` interleaved with TensorFlow's collectives, torch's Gloo and Horovod.

Takes the options of `tf_hvd bench` for measurements and reports. Each rank starts
peers_worker.py, signals it through a socket when to run, and waits meanwhile. The worker runs on
the rank's cores and sleeps while other libraries are timed. It starts its clock after its own
barrier, so that the signal's latency does not count. It makes its tensors itself and returns
hashes of the results.
"""

import argparse
import contextlib
import hashlib
import importlib.util
import json
import os
import pathlib
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time

from tf_hvd.bench import program
from tf_hvd.bench.errors import BenchError
from tf_hvd.bench.job import RunningJob
from tf_hvd.bench.peers.base import Peer
from tf_hvd.launch.commands import bench
from tf_hvd.launch.job.asked import Job
from tf_hvd.launch.job.command_line import command_line
from tf_hvd.launch.job.environment import without_launcher
from tf_hvd.launch.job.hosts import Host
from tf_hvd.launch.job.launchers import launchers_in

WORKER = str(pathlib.Path(__file__).resolve().parent / "peers_worker.py")
FOLDER = "/dev/shm"  # of the socket: its path may have at most 107 bytes
PATIENCE = 120.0  # seconds for a worker to start and to answer
GRACE = 10.0  # seconds for a worker to end
LOOK = 0.2


class Worker:
    """A process or a job, and the socket to it. Its output goes to standard error."""

    def __init__(self, command, started, environ):
        """Start the worker and wait until it is ready.

        Args:
          command: the command of peers_worker.py, without the last two arguments.
          started: the last argument.
          environ: the environment.

        Raises:
          BenchError: the worker ended, reported an error, or was not ready after two minutes.
        """
        self._lines = None
        with (
            tempfile.TemporaryDirectory(prefix="tf_hvd_bench.", dir=FOLDER) as folder,
            socket.socket(socket.AF_UNIX) as server,
        ):
            path = os.path.join(folder, "socket")
            server.bind(path)
            server.listen(1)
            self._process = subprocess.Popen(
                [*command, path, json.dumps(started)],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                self._lines = self._accepted(server)
                self._answer()
            except BaseException:  # including Ctrl-C, which the worker's session does not receive
                self.end()
                raise

    def _accepted(self, server):
        server.settimeout(LOOK)
        limit = time.monotonic() + PATIENCE
        while time.monotonic() < limit:
            with contextlib.suppress(TimeoutError):
                connection, _ = server.accept()
                connection.settimeout(PATIENCE)
                return connection.makefile("rw")
            if self._process.poll() is not None:
                raise BenchError(self._how_it_ended())
        raise BenchError(f"it was not ready after {PATIENCE:.0f} s")

    def _how_it_ended(self):
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE)
        return f"it ended with exit code {self._process.returncode}"

    def ask(self, request):
        """Return the answers of all the worker's ranks.

        Raises:
          BenchError: the worker failed, or did not answer within two minutes.
        """
        with self._faults():
            self._lines.write(json.dumps(request) + "\n")
            self._lines.flush()
        return self._answer()

    @contextlib.contextmanager
    def _faults(self):
        """Turn the socket's errors into a BenchError, which all ranks get."""
        try:
            yield
        except TimeoutError:
            raise BenchError(f"no answer within {PATIENCE:.0f} s") from None
        except OSError:
            raise BenchError(self._how_it_ended()) from None

    def _answer(self):
        with self._faults():
            line = self._lines.readline()
        if not line.endswith("\n"):  # the worker has ended, perhaps while writing an answer
            raise BenchError(self._how_it_ended())
        answer = json.loads(line)
        for each in (answer, *answer.get("ranks", ())):
            if "error" in each:
                raise BenchError(each["error"])
        return answer["ranks"]

    def end(self):
        """Let the worker end; kill any process that is left."""
        if self._lines:
            with contextlib.suppress(OSError):
                self._lines.close()
        try:
            self._process.wait(GRACE if self._lines else 0)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


class Outside(Peer):
    """A library in other processes. Subclasses define the command that starts them."""

    def __init__(self, job):
        self._job = job
        self._environ = without_launcher(os.environ)
        self._worker = None
        self._reason = None
        self._is_started = False

    def start(self):
        """Start this rank's worker; return None if another rank's worker serves all ranks."""
        raise NotImplementedError

    def prepare(self, workload, inputs):
        """Start the workers before the first workload."""
        if not self._is_started:
            self._is_started, reason = True, None
            try:
                self._worker = self.start()
            except (BenchError, OSError, subprocess.SubprocessError) as error:
                reason = str(error)
            self._reason = next((each for each in self._job.gather(reason) if each), None)
        if self._reason:
            return self._reason
        request = {
            "do": "prepare",
            "operation": workload.operation,
            "dtype": workload.dtype,
            "mode": workload.mode,
            "inputs": [value.shape for value in inputs],
        }
        return self._ask(request)["reason"]

    def _ask(self, request):
        """Return the answer of the worker's rank that has this rank's number.

        Raises:
          BenchError: a worker failed; raised on all ranks.
        """
        answers, fault = [], None
        if self._worker:
            try:
                answers = self._worker.ask(request)
            except BenchError as error:
                fault = f"{self.name}: {error}"
        everyone = self._job.gather((answers, fault))
        fault = next((each for _, each in everyone if each), None)
        if fault:
            raise BenchError(fault)
        return [answer for each, _ in everyone for answer in each][self._job.rank]

    def run(self):
        self._ask({"do": "run", "calls": 1})

    def check(self, inputs, outputs):
        """Compare hashes."""
        wanted = [hashlib.sha256(value.tobytes()).hexdigest() for value in outputs]
        found = self._ask({"do": "results"})["hashes"]
        pairs = enumerate(zip(wanted, found, strict=True))
        return next((number for number, pair in pairs if pair[0] != pair[1]), None)

    def seconds(self, calls, barrier):
        """Return the worker's time, measured from its own barrier."""
        return self._ask({"do": "run", "calls": calls})["seconds"]

    def close(self):
        """End the workers."""
        if self._worker:
            self._worker.end()
            self._worker = None


def free_address(job):
    """Return a host and port of this rank on which no process listens."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    name = os.uname().nodename
    one_host = set(job.gather(name)) == {name}
    return f"{'localhost' if one_host else name}:{port}"


class Distribute(Outside):
    """tf.distribute's MultiWorkerMirroredStrategy: TensorFlow's own collectives."""

    name = "tf.distribute"

    def missing(self):
        return "a cluster needs at least two ranks" if self._job.size == 1 else None

    def start(self):
        cluster = {"worker": self._job.gather(free_address(self._job))}
        config = {"cluster": cluster, "task": {"type": "worker", "index": self._job.rank}}
        environ = {**self._environ, "TF_CONFIG": json.dumps(config)}
        started = {"rank": self._job.rank, "size": self._job.size}
        return Worker([sys.executable, WORKER, self.name], started, environ)


class Gloo(Outside):
    """torch.distributed, if torch is installed."""

    name = "gloo"

    def missing(self):
        return None if importlib.util.find_spec("torch") else "torch is not installed"

    def start(self):
        address = self._job.gather(free_address(self._job))[0]
        started = {"rank": self._job.rank, "size": self._job.size, "address": address}
        return Worker([sys.executable, WORKER, self.name], started, self._environ)


class Horovod(Outside):
    """A job started by the launcher of Horovod's MPI, or by horovodrun if built without MPI.

    Its horovodrun adds options to MPI's launcher that Open MPI 5 does not know.
    """

    name = "horovod"

    def __init__(self, job, folder):
        super().__init__(job)
        self._folder = pathlib.Path(folder).absolute() / "bin" if folder else None

    def missing(self):
        if not self._folder:
            return "pass its environment: --horovod FOLDER"
        python = self._folder / "python"
        return None if os.access(python, os.X_OK) else f"{python} does not exist"

    def start(self):
        """Start a job with one rank for each of ours, on the same cores."""
        hosts = self._job.gather(os.uname().nodename)
        cores = self._job.gather(sorted(os.sched_getaffinity(0)))
        if self._job.rank:
            return None
        command = self._command(hosts)
        several = len(set(hosts)) > 1
        mine = os.sched_getaffinity(0)
        # Its launcher gets the cores of all ranks; each worker takes its rank's cores.
        os.sched_setaffinity(0, {core for each in cores for core in each})
        try:
            return Worker(command, {"cores": [] if several else cores}, self._environ)
        finally:
            os.sched_setaffinity(0, mine)

    def _command(self, hosts):
        worker = [str(self._folder / "python"), WORKER, self.name]
        slots = [Host(name, hosts.count(name)) for name in dict.fromkeys(hosts)]
        slots = slots if len(slots) > 1 else []
        if not self._has_mpi():
            where = ["-H", ",".join(map(str, slots))] if slots else []
            runner = str(self._folder / "horovodrun")
            return [runner, "--gloo", "-np", str(len(hosts)), *where, *worker]
        path = os.environ.get("PATH", os.defpath)
        folders = map(pathlib.Path, [self._folder, *path.split(os.pathsep)])
        launcher = next((one for each in folders for one in launchers_in(each)), None)
        if launcher is None:
            raise BenchError(
                f"it was built with MPI, but that MPI's launcher is neither in {self._folder} "
                "nor in the PATH: put its mpirun there"
            )
        job = Job(
            ranks=len(hosts),
            command=tuple(worker),
            hosts=tuple(slots),
            cores=0,
            as_root=os.geteuid() == 0,
        )
        needs = [f"{name}={value}" for name, value in launcher.environment.items()]
        return ["env", *needs, *command_line(launcher, job, worker, self._environ)]

    def _has_mpi(self):
        ask = "import horovod.tensorflow as hvd; print(bool(hvd.mpi_built()))"
        answer = subprocess.run(
            [self._folder / "python", "-c", ask],
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        if answer.returncode:
            raise BenchError(f"its import ended with exit code {answer.returncode}")
        return answer.stdout.split()[-1:] == ["True"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    bench.add_options(parser)
    parser.add_argument(
        "--horovod", metavar="FOLDER", help="Python environment in which Horovod is installed"
    )
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # for the workers
    job = RunningJob()
    words = ["tf_hvd", "run", "-np", str(job.size), "python", *sys.argv]
    others = [Distribute(job), Gloo(job), Horovod(job, options.horovod)]
    try:
        program.run(bench.settings_of(options, shlex.join(words)), job, others)
    except (BenchError, ValueError) as error:
        sys.exit(f"{parser.prog}: {error}" if job.rank == 0 else 1)
    finally:
        for each in others:
            each.close()


if __name__ == "__main__":
    main()
