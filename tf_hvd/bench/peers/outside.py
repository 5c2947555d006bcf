"""Peers that run in processes of their own: torch's Gloo, TensorFlow's collectives, Horovod.

A rank starts worker.py and tells it through a socket when to run, while it waits. The worker takes
the time, behind a barrier of its own, so that the way to it does not count. It makes its tensors
itself and gives back hashes of the results.
"""

import contextlib
import hashlib
import importlib.util
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tf_hvd.bench.errors import BenchError
from tf_hvd.bench.peers.base import Job, Peer, Surroundings
from tf_hvd.bench.peers.failure import failure_in
from tf_hvd.bench.workloads import Workload

WORKER = str(pathlib.Path(__file__).resolve().parent / "worker.py")
"""The file that the other processes run."""
_PATIENCE = 120.0  # seconds, for a worker to start and to answer
_GRACE = 10.0  # seconds, to end
_LOOK = 0.2


class Worker:
    """A process, or a job of them, and the socket to it."""

    def __init__(
        self, command: Sequence[str], started: Mapping[str, Any], environ: Mapping[str, str]
    ) -> None:
        """Starts it and waits until it is ready.

        Args:
          command: how worker.py is started, without its last two arguments.
          started: its last argument.
          environ: its environment.

        Raises:
          BenchError: it ended, said why it cannot, or is not ready after two minutes.
        """
        self._folder = tempfile.mkdtemp(prefix="tf_hvd_bench.")
        path = os.path.join(self._folder, "socket")
        self._errors = open(os.path.join(self._folder, "errors"), "w+", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            [*command, path, json.dumps(started)],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            start_new_session=True,
        )
        self._lines: Any = None
        try:
            with socket.socket(socket.AF_UNIX) as server:
                where = os.open(self._folder, os.O_PATH | os.O_DIRECTORY)
                try:
                    # By a short name: a socket's path may have 107 bytes.
                    server.bind(f"/proc/self/fd/{where}/{os.path.basename(path)}")
                finally:
                    os.close(where)
                server.listen(1)
                self._lines = self._accepted(server)
            self._answer()
        except BaseException:  # Ctrl-C among them, which the worker's session does not get
            self.end()
            raise

    def _accepted(self, server: socket.socket) -> Any:
        server.settimeout(_LOOK)
        limit = time.monotonic() + _PATIENCE
        while time.monotonic() < limit:
            with contextlib.suppress(TimeoutError):
                connection, _ = server.accept()
                connection.settimeout(_PATIENCE)
                return connection.makefile("rw")
            if self._process.poll() is not None:
                raise BenchError(self._last_words())
        raise BenchError(f"it was not ready after {_PATIENCE:.0f} s")

    def _last_words(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE)
        self._errors.seek(0)
        reason = failure_in(self._errors.read())
        return reason or f"it ended with exit code {self._process.returncode}"

    def ask(self, request: Mapping[str, Any]) -> list[dict[str, Any]]:
        """What each of its ranks answers.

        Raises:
          BenchError: it failed, or has not answered within two minutes.
        """
        with self._faults():
            self._lines.write(json.dumps(request) + "\n")
            self._lines.flush()
        return self._answer()

    @contextlib.contextmanager
    def _faults(self) -> Iterator[None]:
        """Makes a BenchError, which all ranks are told, of what the socket raises."""
        try:
            yield
        except TimeoutError:
            raise BenchError(f"no answer within {_PATIENCE:.0f} s") from None
        except OSError:
            raise BenchError(self._last_words()) from None

    def _answer(self) -> list[dict[str, Any]]:
        with self._faults():
            line = self._lines.readline()
        if not line.endswith("\n"):  # it has ended, maybe within an answer
            raise BenchError(self._last_words())
        answer = json.loads(line)
        for each in (answer, *answer.get("ranks", ())):
            if "error" in each:
                raise BenchError(each["error"])
        return list(answer["ranks"])

    def end(self) -> None:
        """Lets it end; kills what is left of it."""
        if self._lines:
            with contextlib.suppress(OSError):
                self._lines.close()
        try:
            self._process.wait(_GRACE if self._lines else 0)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._errors.close()
        shutil.rmtree(self._folder, ignore_errors=True)


class Outside(Peer):
    """A library in other processes. Subclasses say how they are started."""

    def __init__(self, around: Surroundings) -> None:
        self._around, self._job = around, around.job
        self._worker: Worker | None = None
        self._reason: str | None = None
        self._is_started = False

    def start(self) -> Worker | None:
        """Starts this rank's worker; None if another rank's is for all.

        Raises:
          BenchError: it does not start.
        """
        raise NotImplementedError

    def prepare(self, workload: Workload, inputs: list[np.ndarray]) -> str | None:
        """Starts the workers at the first call; lets them make their tensors."""
        if not self._is_started:
            self._is_started = True
            try:
                self._worker = self.start()
            except BenchError as error:
                self._reason = str(error)
            reasons = self._job.gather(self._reason)
            self._reason = next((reason for reason in reasons if reason), None)
        if self._reason:
            return self._reason
        request = {
            "do": "prepare",
            "operation": workload.operation,
            "dtype": workload.dtype,
            "mode": workload.mode,
            "inputs": [value.shape for value in inputs],
        }
        reason: str | None = self._ask(request)["reason"]
        return reason

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """What the worker's rank of this rank's number answers.

        Raises:
          BenchError: a worker failed; on all ranks.
        """
        answers: list[dict[str, Any]] = []
        fault = None
        if self._worker:
            try:
                answers = self._worker.ask(request)
            except BenchError as error:
                fault = f"{self.name}: {error}"
        everyone = self._job.gather((answers, fault))
        fault = next((each for _, each in everyone if each), None)
        if fault:
            raise BenchError(fault)
        of_ranks = [answer for each, _ in everyone for answer in each]
        return dict(of_ranks[self._job.rank])

    def run(self) -> Any:
        """Once."""
        self._ask({"do": "run", "calls": 1})

    def check(self, inputs: list[np.ndarray], outputs: list[np.ndarray]) -> int | None:
        """Compares hashes."""
        wanted = [hashlib.sha256(value.tobytes()).hexdigest() for value in outputs]
        found = self._ask({"do": "results"})["hashes"]
        return next((n for n, pair in enumerate(zip(wanted, found, strict=True))
                     if pair[0] != pair[1]), None)  # fmt: skip

    def seconds(self, calls: int, barrier: Callable[[], None]) -> float:
        """As the worker took it, behind its own barrier."""
        return float(self._ask({"do": "run", "calls": calls})["seconds"])

    def close(self) -> None:
        """Ends the workers."""
        if self._worker:
            self._worker.end()
            self._worker = None


def _free_address(job: Job) -> str:
    """A host and port of this rank that nothing listens at just now."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    name = os.uname().nodename
    alone = set(job.gather(name)) == {name}
    return f"{'localhost' if alone else name}:{port}"


class Gloo(Outside):
    """torch.distributed, where torch is installed."""

    name = "gloo"

    def missing(self) -> str | None:
        """If torch is not installed."""
        return None if importlib.util.find_spec("torch") else "torch is not installed"

    def start(self) -> Worker | None:
        """A worker beside each rank."""
        job = self._job
        address = job.gather(_free_address(job))[0]
        started = {"rank": job.rank, "size": job.size, "address": address}
        return Worker([sys.executable, WORKER, self.name], started, self._around.environ)


class Distribute(Outside):
    """tf.distribute's MultiWorkerMirroredStrategy: TensorFlow's own collectives."""

    name = "tf.distribute"

    def missing(self) -> str | None:
        """If there is but one rank, which it would not give a ring."""
        return "one rank is no cluster" if self._job.size == 1 else None

    def start(self) -> Worker | None:
        """A worker beside each rank."""
        job = self._job
        cluster = {"worker": job.gather(_free_address(job))}
        config = {"cluster": cluster, "task": {"type": "worker", "index": job.rank}}
        environ = {**self._around.environ, "TF_CONFIG": json.dumps(config)}
        started = {"rank": job.rank, "size": job.size}
        return Worker([sys.executable, WORKER, self.name], started, environ)
