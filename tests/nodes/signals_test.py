"""Ctrl-C for ranks on another machine, and their end when their launchers are gone.

The machines are namespaces of this one (cluster.py), which share their files.
"""

import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
import time

import cluster as machines
import psutil
import pytest

LIMIT = 600
PROGRAM = """
import mmap, os, signal, sys, time

rank = next(int(os.environ[n]) for n in ("OMPI_COMM_WORLD_RANK", "PMI_RANK") if n in os.environ)

def note(what):
    with open(f"{what}{rank}", "w") as file:
        file.write(f"{os.getpid()}\\n")

hangs = sys.argv[1] == "hangs" and rank == 1
if hangs:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with open("/dev/shm/mpich_shm_of_test", "w+b") as file:  # as MPICH does
        file.truncate(4096)
        memory = mmap.mmap(file.fileno(), 4096)
try:
    note("ready")
    time.sleep(300)
except KeyboardInterrupt:
    # Longer than launchers give ranks to end, and longer than the other rank.
    time.sleep(100 if hangs else 1 + rank)
    note("saved")
    raise
"""


@pytest.fixture(scope="module")
def two_nodes():
    reason = machines.why_not()
    if reason:
        pytest.skip(f"no nodes on this machine: {reason}")
    with machines.cluster(["alpha", "beta"]) as nodes:
        yield nodes


def wait_until(holds):
    deadline = time.monotonic() + LIMIT
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def wait_for_the_end(two_nodes, *names):
    deadline = time.monotonic() + LIMIT
    while left := named(running(two_nodes), *names):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


@pytest.fixture
def start(two_nodes, tmp_path, mpi_library):
    """Starts a job with a rank on each of two machines: (family, what, ...) -> its process."""
    started = []

    def popen(family, what, options=(), first=(), **arguments):
        (tmp_path / "program.py").write_text(PROGRAM)
        command = [sys.executable, "-P", "-m", "tf_hvd_command", "run", "-np", "2"]
        command += ["-H", "alpha:1,beta:1", *options, sys.executable, "program.py", what]
        process = subprocess.Popen(
            two_nodes["alpha"].command([*first, "env", "-C", str(tmp_path), *command]),
            env={**os.environ, "TF_HVD_MPI_LIBRARY": str(mpi_library(family))},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            **{"stdin": subprocess.DEVNULL, **arguments},
        )
        started.append(process)
        wait_until(lambda: all((tmp_path / f"ready{rank}").exists() for rank in (0, 1)))
        return process

    yield popen
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def below(process):
    return psutil.Process(process).children(recursive=True)


def sigint(process):
    """Sends SIGINT only to `tf_hvd run`."""
    command = next(p for p in below(process.pid) if "tf_hvd_command" in p.cmdline())
    command.send_signal(signal.SIGINT)


@pytest.fixture(params=["pipe", "pty"])
def interruptible(request, start):
    """Starts a job as `start` does; also returns a function that sends it Ctrl-C."""

    def begin(family, what, options=()):
        if request.param == "pipe":
            process = start(family, what, options)
            return process, lambda: sigint(process)
        ours, theirs = pty.openpty()
        terminal = ["setsid", "--ctty", "--wait"]
        process = start(family, what, options, stdin=theirs, first=terminal)
        return process, lambda: os.write(ours, b"\x03")

    return begin


def named(processes, *names):
    return [each for each in processes if not names or each.info["name"] in names]


def running(two_nodes):
    """The processes on the machines, except the machines' own."""
    spaces = {os.readlink(f"/proc/{node.init}/ns/pid") for node in two_nodes.values()}
    firsts = {node.init for node in two_nodes.values()}
    found = []
    for each in psutil.process_iter(["name"]):
        with contextlib.suppress(OSError):  # it has ended
            within = os.readlink(f"/proc/{each.pid}/ns/pid") in spaces
            if within and each.pid not in firsts and each.info["name"] not in ("sshd", "sleep"):
                found.append(each)
    return found


@pytest.mark.parametrize("family", ["openmpi", "mpich"])
def test_ctrl_c_lets_remote_ranks_save(interruptible, two_nodes, tmp_path, family):
    """MPI's launcher ended them as soon as this machine's rank had saved."""
    process, interrupt = interruptible(family, "saves", ["--grace", "60"])
    interrupt()
    _, errors = process.communicate(timeout=LIMIT)
    assert process.returncode == 128 + signal.SIGINT, errors
    assert (tmp_path / "saved0").exists(), errors
    assert (tmp_path / "saved1").exists(), errors
    assert "tf_hvd run: sending SIGINT to rank 0 and those on beta so that they can" in errors
    end = "tf_hvd run: the job was ended by SIGINT; all ranks ended on their own\n"
    assert errors.endswith(end)
    wait_for_the_end(two_nodes)


def test_ctrl_c_reaches_ranks_despite_a_slow_login(start, two_nodes, tmp_path):
    """Ranks of machines that took over 3 s to answer got no signal; MPI's launcher ended them."""
    process = start("openmpi", "saves", ["--grace", "50"])
    beta, rc = two_nodes["beta"], "~/.ssh/rc"  # sshd runs it before the command
    subprocess.run(beta.command(["sh", "-c", f"echo sleep 5 > {rc}"]), check=True)
    try:
        sigint(process)
        _, errors = process.communicate(timeout=LIMIT)
    finally:
        subprocess.run(beta.command(["sh", "-c", f"rm {rc}"]), check=True)
    assert process.returncode == 128 + signal.SIGINT, errors
    assert (tmp_path / "saved1").exists(), errors
    assert errors.endswith("all ranks ended on their own\n")


@pytest.mark.parametrize("family", ["openmpi", "mpich"])
def test_remote_rank_exceeding_the_grace_period_is_named(
    interruptible, two_nodes, tmp_path, family
):
    process, interrupt = interruptible(family, "hangs", ["--grace", "20"])
    interrupt()
    _, errors = process.communicate(timeout=LIMIT)
    assert process.returncode == 128 + signal.SIGINT, errors
    assert (tmp_path / "saved0").exists(), errors
    assert errors.endswith("; rank 1 did not end in time and got SIGKILL\n")
    # On that machine only a rank's keeper knows MPI's segments.
    shared = subprocess.check_output(two_nodes["beta"].command(["ls", "/dev/shm"]), text=True)
    assert "mpich_shm_of_test" not in shared, errors
    wait_for_the_end(two_nodes)


@pytest.mark.parametrize("family", ["openmpi", "mpich"])
def test_second_ctrl_c_ends_remote_ranks_immediately(interruptible, two_nodes, tmp_path, family):
    process, interrupt = interruptible(family, "hangs", ["--grace", "1000"])
    interrupt()
    wait_until((tmp_path / "saved0").exists)
    interrupt()
    _, errors = process.communicate(timeout=LIMIT)
    assert process.returncode == 128 + signal.SIGINT, errors
    # Rank 0 may have saved and still be exiting.
    end = r"; (rank 1|ranks 0, 1) did not end in time and got SIGKILL\n$"
    assert re.search(end, errors), errors
    wait_for_the_end(two_nodes)


@pytest.mark.parametrize("family", ["openmpi", "mpich"])
def test_remote_ranks_end_with_killed_launchers(start, two_nodes, family):
    """They trained indefinitely, and MPI's shared memory was not removed."""
    start(family, "hangs")
    launchers = named(running(two_nodes), "prterun", "prted", "mpiexec.hydra", "hydra_pmi_proxy")
    assert len(launchers) >= 2
    for launcher in launchers:
        with contextlib.suppress(psutil.NoSuchProcess):  # the end of one may end another
            launcher.kill()
    wait_for_the_end(two_nodes, "python", "python3", "tf_hvd_run_rank")
