"""Elastic jobs on several machines: a machine is lost or unreachable, and another one joins."""

import os
import re
import subprocess
import sys
import threading
import time

import cluster as machines
import pytest

LIMIT = 600

PROGRAM = """
import os, socket, time
import tensorflow as tf
import tf_hvd as hvd

hvd.init()

def say(*words):
    os.write(1, (" ".join(map(str, words)) + chr(10)).encode())

weight = tf.Variable(0.0)
sampler = hvd.elastic.ElasticSampler(101, 4)
state = hvd.elastic.TensorFlowState([weight], sampler=sampler, seen=[])
folder = os.environ["MEETING"]

@hvd.elastic.run
def train(state):
    say("from", hvd.rank(), hvd.size(), socket.gethostname(), sampler.epoch, sampler.position)
    while sampler.epoch < 3:
        for indices in sampler.dataset():
            everyone = hvd.allgather(indices, name="indices").numpy().tolist()
            state.seen.append((sampler.epoch, everyone))
            sampler.record_batch()
            weight.assign_add(float(sum(everyone)))
            state.commit()
            place = f"{sampler.epoch}.{sampler.position // 40}"
            if hvd.rank() == 0:
                open(os.path.join(folder, place), "w").close()
            # One machine is lost in the first epoch, and one joins in the second.
            waits = {"0.1": "lost", "1.1": "come"}.get(place)
            while waits and not os.path.exists(os.path.join(folder, waits)):
                time.sleep(0.02)
            time.sleep(0.05)
        sampler.set_epoch(sampler.epoch + 1)

train(state)
if hvd.rank() == 0:
    for epoch in range(3):
        done = sorted(i for e, batch in state.seen for i in batch if e == epoch)
        say("epoch", epoch, done == list(range(101)))
    say("weight", float(weight) == 3 * sum(range(101)))
"""


def job(tmp_path, library, program, *options, **environment):
    """The command of an elastic job, and its environment."""
    reason = machines.why_not()
    if reason:
        pytest.skip(f"no nodes on this machine: {reason}")
    (tmp_path / "meeting").mkdir()
    (tmp_path / "program.py").write_text(program)
    command = [sys.executable, "-P", "-m", "tf_hvd_command", "run", "-np", "2"]
    command += ["--min-np", "1", *options, sys.executable, str(tmp_path / "program.py")]
    settings = {"TF_HVD_MPI_LIBRARY": str(library), "TF_CPP_MIN_LOG_LEVEL": "2"}
    return command, {**os.environ, **settings, "MEETING": str(tmp_path / "meeting"), **environment}


def has_agent(node):
    """Whether `tf_hvd run` has reached a machine."""
    looks = node.command(["pgrep", "-f", "launch/machine/agent.py"])
    return subprocess.run(looks, stdout=subprocess.DEVNULL).returncode == 0


@pytest.fixture
def run_beside(run_to_end):
    """Runs a job to its successful end, with a function in parallel; returns the output."""

    def run(beside, command, environment):
        thread = threading.Thread(target=beside)
        thread.start()
        code, output = run_to_end(command, environment, LIMIT)
        thread.join()
        assert code == 0, output
        return output

    return run


@pytest.mark.parametrize("family", ["openmpi", "mpich"])
def test_machine_is_lost_and_another_joins(family, tmp_path, run_beside, mpi_library):
    meeting, hosts = tmp_path / "meeting", tmp_path / "hosts"
    hosts.write_text("alpha:1\nbeta:1\n")
    script = tmp_path / "discover"
    script.write_text(f"#!/bin/sh\ncat {hosts}\n")
    script.chmod(0o755)
    options = ("--host-discovery-script", str(script))
    command, environment = job(tmp_path, mpi_library(family), PROGRAM, *options)
    with machines.cluster(["alpha", "beta", "gamma"]) as nodes:

        def change():
            machines.wait_until((meeting / "0.1").exists, "the first epoch")
            nodes["beta"].lose()
            time.sleep(0.2)
            (meeting / "lost").touch()
            machines.wait_until((meeting / "1.1").exists, "the second epoch")
            hosts.write_text("alpha:1\nbeta:1\ngamma:1\n")
            machines.wait_until(lambda: has_agent(nodes["gamma"]), "the connection to gamma")
            time.sleep(1)  # it answers, and the ranks are notified
            (meeting / "come").touch()

        output = run_beside(change, nodes["alpha"].command(command), environment)
    assert sorted(re.findall(r"^epoch .*", output, re.MULTILINE)) == [
        f"epoch {epoch} True" for epoch in range(3)
    ], output
    assert "weight True" in output, output
    begun = re.findall(r"^from (\d) (\d) (\w+) (\d)", output, re.MULTILINE)
    assert {("0", "2", "alpha", "0"), ("1", "2", "beta", "0"), ("0", "1", "alpha", "0")} <= {*begun}
    assert ("1", "2", "gamma", "1") in begun, output


SILENT = """
import os, socket, time
import tensorflow as tf
import tf_hvd as hvd

hvd.init()
state = hvd.elastic.ObjectState(batch=0)
folder = os.environ["MEETING"]

@hvd.elastic.run
def train(state):
    while state.batch < 40:
        state.batch += 1
        total = hvd.allreduce(tf.ones([2]), op=hvd.Sum, name="s")
        assert total.numpy().tolist() == [hvd.size()] * 2
        state.commit()
        if state.batch == 20 and hvd.size() == 2:
            open(os.path.join(folder, "reached"), "w").close()
            while not os.path.exists(os.path.join(folder, "silent")):
                time.sleep(0.02)

train(state)
says = ["end", hvd.rank(), hvd.size(), socket.gethostname(), state.batch]
os.write(1, (" ".join(map(str, says)) + chr(10)).encode())
"""


# Under one MPI, because tf_hvd detects it, and the limits take long.
def test_machine_becomes_unreachable(tmp_path, run_beside, mpi_library):
    """No connection of MPI or of the store ends, so its loss is not reported."""
    meeting = tmp_path / "meeting"
    limits = {
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "5",
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "20",
    }
    hosts = ("-H", "alpha:1,beta:1")
    command, environment = job(tmp_path, mpi_library("openmpi"), SILENT, *hosts, **limits)
    with machines.cluster(["alpha", "beta"]) as nodes:

        def unplug():
            machines.wait_until((meeting / "reached").exists, "the twentieth step")
            nodes["beta"].unplug()
            (meeting / "silent").touch()

        output = run_beside(unplug, nodes["alpha"].command(command), environment)
    assert re.findall("^end .*", output, re.MULTILINE) == ["end 0 1 alpha 40"], output
    assert "beta cannot be reached and is excluded" in output, output
