"""Programs for keras.distribution: the results of several ranks are those of one process."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE))
from comparison import TOLERANCE, difference, program_of, wrong_results  # noqa: E402

LIMIT = 900
STALL = "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"

pytestmark = pytest.mark.usefixtures("usual_garbage")


@pytest.fixture
def job(run_job):
    """Runs a program of this folder in a job and returns its output."""

    def run(family, ranks, program, *arguments):
        options, stall = ["--keras", "-np", str(ranks)], {STALL: "120"}
        code, output = run_job(options, program, *arguments, family=family, limit=LIMIT, **stall)
        assert code == 0, output
        return output

    return run


@pytest.fixture(scope="module")
def one_process(run_plain, tmp_path_factory):
    """The results of one process with plain Keras."""
    path = tmp_path_factory.mktemp("one_process") / "results"
    run_plain("programs.py", path, "--one-process", limit=LIMIT)
    return dict(np.load(f"{path}.0.npz"))


@pytest.mark.tier2
@pytest.mark.early(4)
@pytest.mark.parametrize(("family", "ranks"), [("openmpi", 2), ("openmpi", 3), ("mpich", 2)])
def test_results_of_one_process(family, ranks, job, one_process, tmp_path):
    job(family, ranks, "programs.py", tmp_path / "results")
    assert not [name for name in one_process if name.endswith(":error")]
    assert len({program_of(name) for name in one_process}) > 85
    for rank in range(ranks):
        assert wrong_results(dict(np.load(tmp_path / f"results.{rank}.npz")), one_process) == {}


@pytest.fixture(scope="module")
def oldest_keras(tmp_path_factory):
    """A folder with the oldest Keras that the distribution API supports."""
    folder = tmp_path_factory.mktemp("keras")
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder)]
    done = subprocess.run([*install, "keras==3.12.0"], check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"pip does not find Keras 3.12: {done.stderr.splitlines()[-1]}")
    return folder


@pytest.mark.tier2
def test_oldest_keras(oldest_keras, job, run_plain, usual_environ, tmp_path, monkeypatch):
    names = ["uneven_masks", "uneven_batch_normalization", "uneven_dropout", "class_weights"]
    path = [str(oldest_keras), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
    version = "import keras; print(keras.__version__)"
    command = [sys.executable, "-c", version]
    assert subprocess.check_output(command, env=usual_environ(), cwd="/").strip() == b"3.12.0"
    run_plain("programs.py", tmp_path / "one", "--one-process", *names, limit=LIMIT)
    job("openmpi", 2, "programs.py", tmp_path / "two", *names)
    expected = dict(np.load(tmp_path / "one.0.npz"))
    assert len(expected) >= 2 * len(names)
    for rank in range(2):
        found = dict(np.load(tmp_path / f"two.{rank}.npz"))
        assert found.keys() == expected.keys(), found
        for name, value in expected.items():
            # This Keras adds an epsilon to the number of elements that a mask leaves.
            limit = 1e-7 if name.startswith("uneven_masks") else TOLERANCE
            assert difference(found[name], value) <= limit, name


def test_with_tf_hvds_own_api(job):
    assert job("openmpi", 2, "both_apis.py").count("0 wrong") == 2


def test_refused_programs(job):
    assert job("openmpi", 2, "refusals.py").count("all refused") == 2
