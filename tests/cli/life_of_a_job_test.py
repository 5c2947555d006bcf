"""The processes and channels of a running job match docs/life_of_a_job.md."""

import collections
import os
import pathlib
import re
import subprocess
import sys
import time

import psutil
import pytest

from tf_hvd.core import contract

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "life_of_a_job.md"
WAIT = 120  # seconds
RUN = "`tf_hvd run`, with the agent on its machine"
WATCHER = "its watcher, which cleans up if `tf_hvd run` is killed"
MPIS, KEEPER, PROGRAM = "MPI's launcher and its daemons", "a rank's keeper", "the program"
LAUNCHERS = ("prterun", "mpirun", "mpiexec.hydra", "hydra_pmi_proxy")

TRAINS = """
import numpy as np, pathlib, time
import tensorflow as tf
import tf_hvd as hvd
hvd.init()

def wait():
    pathlib.Path(f"ready.{hvd.rank()}").touch()
    while not pathlib.Path("go").exists():
        time.sleep(0.05)
    hvd.barrier()

if ELASTIC:
    state = hvd.elastic.TensorFlowState(variables=[tf.Variable([1.0])])

    @hvd.elastic.run
    def train(state):
        state.commit()
        wait()

    train(state)
else:
    wait()
"""


def kinds_of_the_page():
    """The first column of the page's first table."""
    table = PAGE.read_text().split("\n\n")[2]
    return [line.split(" | ")[0].removeprefix("| ") for line in table.splitlines()[2:]]


def kind(process, job):
    """The page's name for a process."""
    if process.pid == job.pid:
        return RUN
    if process.name() == contract.KEEPER:
        return KEEPER
    if process.name()[:15] in {name[:15] for name in LAUNCHERS}:
        return MPIS
    parent = process.parent()
    if parent is not None and parent.name() == contract.KEEPER:
        return PROGRAM
    return WATCHER if process.cmdline() == job.cmdline() else f"unknown: {process.cmdline()}"


def processes_of(job):
    """The job's descendants, and the process that waits for its end."""
    below = job.children(recursive=True)
    alike = (
        each for each in psutil.process_iter(["cmdline"]) if each.info["cmdline"] == job.cmdline()
    )
    return [job, *below, *(each for each in alike if each not in (job, *below))]


def opened(process):
    """The names of a process's open files."""
    names = []
    for number in os.listdir(f"/proc/{process.pid}/fd"):
        try:
            names.append(os.readlink(f"/proc/{process.pid}/fd/{number}"))
        except OSError:
            continue
    return names


@pytest.fixture
def running(environ, tmp_path):
    """A job of two ranks that have joined, or an elastic job that has made a commit."""
    jobs = []

    def start(*options):
        (tmp_path / "tmp").mkdir()
        (tmp_path / "program.py").write_text(f"ELASTIC = {'--min-np' in options}\n{TRAINS}")
        command = [sys.executable, "-m", "tf_hvd_command", "run", "-np", "2", *options]
        jobs.append(
            subprocess.Popen(
                [*command, sys.executable, "program.py"],
                cwd=tmp_path,
                env={**environ, "TMPDIR": str(tmp_path / "tmp")},
            )
        )
        limit = time.monotonic() + WAIT
        while len([*tmp_path.glob("ready.*")]) < 2:
            assert jobs[0].poll() is None
            assert time.monotonic() < limit
            time.sleep(0.05)
        return psutil.Process(jobs[0].pid)

    yield start
    for job in jobs:
        (tmp_path / "go").touch()
        assert job.wait(WAIT) == 0
    assert [*(tmp_path / "tmp").iterdir()] == []


@pytest.mark.parametrize(
    "options", [(), ("--tag-output",), ("--min-np", "2")], ids=["plain", "tagged", "elastic"]
)
def test_processes_of_a_job_match_the_page(running, options, tmp_path):
    job = running(*options)
    processes = processes_of(job)
    found = collections.Counter(kind(each, job) for each in processes)
    assert set(found) <= set(kinds_of_the_page())
    assert len(kinds_of_the_page()) == 6
    assert found == {RUN: 1, WATCHER: 1, MPIS: found[MPIS], KEEPER: 2, PROGRAM: 2}
    # One socket, memory without names, and no file.
    sockets = set(re.findall(r"@(tf_hvd\S*)", pathlib.Path("/proc/net/unix").read_text()))
    (name,) = {each.environ()[contract.JOB] for each in processes if kind(each, job) == KEEPER}
    assert [each for each in sockets if name in each] == [f"tf_hvd/{name}"]
    names = {each for one in processes for each in opened(one)}
    memory = {
        each.removeprefix("/memfd:").split(" ")[0].split(".")[0]
        for each in names
        if "memfd:" in each
    }
    commits = {contract.COMMIT_MEMORY.rstrip(".")} if "--min-np" in options else set()
    ours = {each for each in memory if each.startswith("tf_hvd")}
    assert ours == {contract.RECORDER, contract.FRAMES} | commits
    (folder,) = (tmp_path / "tmp").glob("tf_hvd*")  # AutoGraph also creates files in the folder
    theirs = [each.name for each in folder.iterdir()]
    assert all(each.startswith(("prte", "ompi", "pmix")) for each in theirs), theirs
