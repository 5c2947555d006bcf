"""The peers of `tf_hvd bench` in processes of their own, and what is told where one fails."""

import hashlib
import os
import sys

import pytest

from tf_hvd.bench import values, workloads
from tf_hvd.bench.errors import BenchError
from tf_hvd.bench.peers import outside
from tf_hvd.bench.peers.base import Surroundings
from tf_hvd.bench.peers.failure import failure_in
from tf_hvd.bench.peers.horovod import Horovod

STUB = """
import importlib.util, sys
import numpy as np

spec = importlib.util.spec_from_file_location("worker", sys.argv[1])
worker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(worker)


class Stub(worker.System):
    operations = ("allreduce",)

    def make(self, request):
        self._values = self.inputs(request, request["dtype"])

    def run(self):
        if self._values[0].size == 3:
            raise OverflowError("three is too much")
        return self._values

    def barrier(self):
        pass


worker.SYSTEMS["stub"] = Stub
worker.main("stub", *sys.argv[2:])
"""


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """A temporary folder with a name that is longer than a socket's path may be."""
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    monkeypatch.setattr(outside.tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def stub(temporary):
    started = {"rank": 1, "size": 2}
    worker = outside.Worker([sys.executable, "-c", STUB, outside.WORKER], started, os.environ)
    yield worker
    worker.end()
    assert list(temporary.iterdir()) == []


def asked(shape, operation="allreduce"):
    return {"do": "prepare", "operation": operation, "dtype": "float32", "inputs": [shape]}


def test_worker_does_what_it_is_told(stub):
    assert stub.ask(asked((4,), "alltoall")) == [
        {"reason": "it is measured for allreduce only"},
    ]
    assert stub.ask(asked((4,))) == [{"reason": None}]
    (answer,) = stub.ask({"do": "run", "calls": 2})
    assert answer["seconds"] >= 0
    (answer,) = stub.ask({"do": "results"})
    mine = values.inputs(workloads.of_size("16", "allreduce", "float32", "eager", 2), 1)
    assert answer["hashes"] == [hashlib.sha256(value.tobytes()).hexdigest() for value in mine]


def test_worker_that_fails_says_why(stub):
    stub.ask(asked((3,)))
    with pytest.raises(BenchError, match="OverflowError: three is too much"):
        stub.ask({"do": "run", "calls": 1})


def test_worker_that_is_killed_is_told_on_all_ranks(stub):
    """BrokenPipeError was raised on its rank alone, while the others waited."""
    stub._process.kill()
    stub._process.wait()
    with pytest.raises(BenchError, match="it ended with exit code -9"):
        stub.ask(asked((4,)))


def test_worker_is_not_left_behind_by_an_interrupt_while_it_starts(temporary, monkeypatch):
    """Ctrl-C left the process and its folder."""
    started = []

    def interrupted(self, server):
        started.append(self._process)
        raise KeyboardInterrupt

    monkeypatch.setattr(outside.Worker, "_accepted", interrupted)
    stays = [sys.executable, "-c", "import signal; signal.pause()"]
    try:
        with pytest.raises(KeyboardInterrupt):
            outside.Worker(stays, {"rank": 0, "size": 1}, os.environ)
        assert started[0].returncode == -9
        assert list(temporary.iterdir()) == []
    finally:
        started[0].kill()


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["-c", "raise SystemExit('not today')"], "not today"),
        (["-c", "raise SystemExit(3)"], "exit code 3"),
        ([outside.WORKER, "no such system"], "KeyError: 'no such system'"),
    ],
)
def test_worker_that_does_not_start(command, said):
    with pytest.raises(BenchError, match=said):
        outside.Worker([sys.executable, *command], {"rank": 0, "size": 1}, os.environ)


BANNER = "-" * 60


@pytest.mark.parametrize(
    ("printed", "told"),
    [
        (f"{BANNER}\nThere are not enough slots\nin the system.\n\nEither", "There are not enough"
         " slots in the system."),
        (f"{BANNER}\nmpirun: error: option --allow\n{BANNER}\n", "mpirun: error: option --allow"),
        ("2026-11-25 01:02:03.4: I tensorflow: oneDNN\nW0000 port.cc] x\nno host b", "no host b"),
        ("[1,0]<stderr>:Traceback (most recent call last):\n[1,0]<stderr>:  File\n"
         f"[1,0]<stderr>:OSError: gone\n{BANNER}\nprterun detected that", "OSError: gone"),
        ("Traceback (most recent call last):\n  a\nKeyError: 1\n\nDuring handling of the above "
         "exception, another exception occurred:\n\nTraceback (most recent call last):\n  b\n"
         "ImportError: no x\nshutting down", "ImportError: no x"),
        (f"{BANNER}\n{BANNER}\n", ""),
    ],
)  # fmt: skip
def test_the_first_line_that_says_something(printed, told):
    assert failure_in(printed) == told


class Alone:
    """A job of two ranks of which this is the first."""

    rank, size = 0, 2

    def gather(self, value):
        return [value, value]


@pytest.fixture
def horovod(tmp_path):
    """A peer whose environment has these programs, and whose MPI is started by this script."""

    def make(mpi_built, mpirun="", **programs):
        (tmp_path / "bin").mkdir()
        programs["python"] = f"echo a line of its own; echo {mpi_built}"
        for name, script in programs.items():
            path = tmp_path / "bin" / name
            path.write_text(f"#!/bin/sh\n{script}\n")
            path.chmod(0o755)

        def mpi_command(folder, hosts, command):
            assert (folder, len(hosts)) == (str(tmp_path), 2)
            assert command == [f"{tmp_path}/bin/python", outside.WORKER, "horovod"]
            return ["sh", "-c", mpirun] if mpirun else []

        return Horovod(Surroundings(Alone(), os.environ, mpi_command, str(tmp_path)))

    return make


WORK = workloads.of_size("1K", "allreduce", "float32", "eager", 2)


def test_horovod_with_mpi_is_started_by_mpis_launcher(horovod):
    peer = horovod("True", mpirun=f"echo {BANNER} >&2; echo no such option >&2; exit 1")
    assert peer.missing() is None
    assert peer.prepare(WORK, []) == "no such option"


def test_horovod_with_mpi_and_no_launcher(horovod):
    assert "have no launcher of that MPI" in horovod("True").prepare(WORK, [])


def test_horovod_without_mpi_is_started_by_horovodrun(horovod):
    peer = horovod("False", horovodrun='echo "words: $1 $2 $3" >&2; exit 1')
    assert peer.prepare(WORK, []) == "words: --gloo -np 2"


def test_horovod_that_cannot_be_imported(horovod):
    peer = horovod('True; echo "ImportError: no libmpi.so.40" >&2; exit 1')
    assert peer.prepare(WORK, []) == "ImportError: no libmpi.so.40"
