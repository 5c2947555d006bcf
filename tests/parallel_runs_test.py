"""Runs tests/python/parallel as 1 to 4 ranks, under either family of MPI.

The same wheel serves all of them. A single rank uses no MPI, whichever family
started it, so that job runs once. MPICH waits by spinning: with more ranks than the
two cores of a small machine it takes ten times as long as Open MPI, so it runs with
2 and 3 ranks, and without what is marked as being about TensorFlow alone. 4 ranks
take themselves for two machines.

The launcher is started as a user starts it, in a process group of its own, so that a
hang leaves nothing behind.
"""

import os
import pathlib
import re
import shutil
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
ENVIRONMENT = pathlib.Path(sys.prefix)
LIMIT = 1500


@pytest.mark.timeout(LIMIT + 60)
@pytest.mark.parametrize(
    ("family", "ranks"),
    [("openmpi", ranks) for ranks in (1, 2, 3, 4)] + [("mpich", ranks) for ranks in (2, 3)],
)
def test_parallel(family, ranks, run_to_end, mpi_library):
    launcher = shutil.which("tf_hvd", path=str(ENVIRONMENT / "bin"))
    assert launcher, "the wheel is not installed: run ./dev test"
    environment = dict(os.environ, TF_HVD_MPI_LIBRARY=str(mpi_library(family)), PYTHONSAFEPATH="1")
    pytest_run = [sys.executable, "-m", "pytest", "python/parallel", "-q", "-p", "no:cacheprovider"]
    if ranks == 4:
        environment["TF_HVD_RANKS_PER_NODE"] = "2"
    if family == "mpich":
        pytest_run += ["-m", "not framework"]
    command = [launcher, "run", "-np", str(ranks), *pytest_run]
    code, output = run_to_end(command, environment, LIMIT, cwd=HERE)
    assert code == 0, f"{ranks} ranks under {family} ended with {code}"
    # Every rank's pytest closes with a line of its own: none is missing.
    assert len(re.findall(r" passed(?:, \d+ (?:skipped|deselected))* in ", output)) == ranks
