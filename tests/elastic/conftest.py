"""Elastic jobs, as subprocesses with a time limit."""

import os
import re
import shutil
import sys
import time

import pytest

from tf_hvd.elastic.store import Store
from tf_hvd.launch.job.session import Home
from tf_hvd.launch.machine.commits import Commits, Parts

LIMIT = 240

PREAMBLE = """
import os, signal, sys, time
import numpy as np
import tensorflow as tf
import tf_hvd as hvd

def say(*what):
    os.write(1, (" ".join(map(str, what)) + chr(10)).encode())  # in one piece

def once(name):
    # Whether this is the first call with this name, of all ranks and starts.
    try:
        os.close(os.open(os.path.join(os.environ["FLAGS"], name), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True

def wait_for(done):
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline, done
        time.sleep(0.05)

def die():
    os.kill(os.getpid(), signal.SIGKILL)

members = os.environ.get("MEMBERS")
sets = [hvd.ProcessSet(list(map(int, members.split())))] if members else []
hvd.init(process_sets=sets)
rank = hvd.rank()
say("start", rank, hvd.size())
"""


@pytest.fixture
def wait_until():
    """Waits until a condition holds; an error if that takes too long."""

    def wait(done, seconds=20):
        deadline = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    return wait


@pytest.fixture
def store():
    """A rank's link to its agent, in the first start of a job."""
    commits = Commits(Parts())
    with Home(commits) as home:
        home.serve()
        commits.begin(0)
        yield Store(home.job, 0)


@pytest.fixture
def elastic(tmp_path, run_to_end, mpi_library):
    """Runs a program, after PREAMBLE, as an elastic job; returns exit code and output."""
    flags = tmp_path / "flags"

    def run(program, *options, family="openmpi", **environment):
        if not environment.get("KEEP_FLAGS"):
            shutil.rmtree(flags, ignore_errors=True)
        flags.mkdir(exist_ok=True)
        script = tmp_path / "program.py"
        script.write_text(PREAMBLE + program)
        command = [sys.executable, "-P", "-m", "tf_hvd_command", "run", *options]
        settings = {
            "TF_HVD_MPI_LIBRARY": str(mpi_library(family)),
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "FLAGS": str(flags),
        }
        command += [sys.executable, str(script)]
        return run_to_end(command, {**os.environ, **settings, **environment}, LIMIT)

    return run


@pytest.fixture(scope="session")
def lines_of():
    """The sorted lines of an output that begin with a word."""
    return lambda word, output: sorted(re.findall(rf"^{word} .*", output, re.MULTILINE))
