"""Keras' own tests of its distribution API: from its wheel, and from their descriptions."""

import pathlib
import re
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
LIMIT = 900
PYTEST = ["-m", "pytest", "-q", "--color=no", "-p", "no:cacheprovider", "-p", "no:xdist"]
# Needs four devices, so a job of four ranks runs it.
FOUR_DEVICES = "library_test.py::DataShardingIntegrationTest"

pytestmark = pytest.mark.usefixtures("usual_garbage")


@pytest.fixture
def environ(usual_environ, mpi_library):
    return usual_environ() | {
        "TF_HVD_MPI_LIBRARY": str(mpi_library("openmpi")),
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "120",
    }


@pytest.fixture
def kerass_tests(tmp_path, environ):
    """The folder of the tests."""
    command = [sys.executable, HERE / "kerass_files.py", tmp_path]
    subprocess.run(command, env=environ, check=True, timeout=LIMIT)
    return tmp_path


def test_kerass_own_tests(kerass_tests, run_to_end, environ):
    tests = ["library_test.py", "adapters_test.py", "torch_test.py", "--deselect", FOUR_DEVICES]
    code, output = run_to_end([sys.executable, *PYTEST, *tests], environ, LIMIT, cwd=kerass_tests)
    assert code == 0, output
    assert int(re.search(r"(\d+) passed", output)[1]) >= 57
    # The two that need JAX's and PyTorch's arrays.
    assert int(re.search(r"(\d+) skipped", output)[1]) == 2


@pytest.mark.tier2
def test_kerass_own_tests_of_several_processes(kerass_tests, run_to_end, environ):
    command = [sys.executable, "-m", "tf_hvd_command", "run", "--keras", "-np", "4"]
    tests = ["several_test.py", "torch_test.py", FOUR_DEVICES]
    command += [sys.executable, *PYTEST, *tests]
    code, output = run_to_end(command, environ, LIMIT, cwd=kerass_tests)
    assert code == 0, output
    assert output.count("19 passed, 2 deselected, 3 xfailed") == 4
