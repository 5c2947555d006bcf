"""Runs tests/python/parallel with 1 to 4 ranks, under both MPI families.

The same wheel is used for all of them. A single rank uses no MPI, whichever family started it, so
that job runs once. MPICH waits by spinning: with more ranks than the two cores of a small machine
it takes ten times as long as Open MPI. So it runs with 2 ranks, and without tests that are marked
as being only about TensorFlow. These 2 ranks, and the job of 4, act as two machines; otherwise no
data would go through MPICH. Tests that are only about TensorFlow run with 1, 3 and 4 ranks only if
they ask for it. The first tier runs 2 ranks of each family and those 4, without tests that are
only about TensorFlow.

TensorFlow's allocator never returns memory: a rank that has reduced 2 GiB keeps 6 GiB. So tests
of gigabytes have separate, short jobs.

The launcher starts as a user starts it, in a separate process group, so that a hang leaves nothing
behind.
"""

import os
import pathlib
import re
import shutil
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
ENVIRONMENT = pathlib.Path(sys.prefix)
LIMIT = 2400
JOBS = [("openmpi", 2), ("openmpi", 4), ("openmpi", 3), ("openmpi", 1), ("mpich", 2)]
MINUTES = {1: 2, 2: 5, 3: 3, 4: 4}  # under Open MPI
FIRST = [("openmpi", 2), ("openmpi", 4), ("mpich", 2)]


def marks_of(family, ranks):
    yield pytest.mark.wire if (family, ranks) in FIRST else pytest.mark.tier2
    yield pytest.mark.exclusive if family == "mpich" else pytest.mark.early(MINUTES[ranks])


@pytest.fixture
def run_job(run_to_end, mpi_library):
    """Run tests/python/parallel: (family, ranks, pytest's arguments)."""

    def run(family, ranks, *arguments):
        launcher = shutil.which("tf_hvd", path=str(ENVIRONMENT / "bin"))
        assert launcher, "the wheel is not installed: run ./dev test"
        environment = dict(
            os.environ,
            TF_HVD_MPI_LIBRARY=str(mpi_library(family)),
            PYTHONSAFEPATH="1",
            TF_HVD_AGAIN=f"./dev test -np {ranks} --mpi {family}",
        )
        if "PYTEST_XDIST_WORKER" in os.environ:
            environment["TF_HVD_SPIN_MICROSECONDS"] = "5"  # other lanes need the cores
        if family == "mpich" or ranks == 4:
            environment["TF_HVD_RANKS_PER_NODE"] = str(ranks // 2)
        command = [launcher, "run", "-np", str(ranks), sys.executable, "-m", "pytest"]
        command += ["python/parallel", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *arguments]
        code, output = run_to_end(command, environment, LIMIT, cwd=HERE)
        assert code == 0, f"{ranks} ranks under {family} ended with {code}"
        # Every rank's pytest prints a separate closing line: none may be missing.
        assert len(re.findall(r" passed(?:, \d+ (?:skipped|deselected))* in ", output)) == ranks

    return run


@pytest.mark.timeout(LIMIT + 60)
@pytest.mark.parametrize(
    ("family", "ranks"),
    [pytest.param(*job, marks=list(marks_of(*job))) for job in JOBS],
)
def test_parallel(family, ranks, request, run_job):
    tier = request.config.getoption("tier")
    wanted = "not large"
    if family == "mpich" or (tier == 1 and ranks == 4):
        wanted += " and not framework"
    elif ranks != 2:
        wanted += " and (not framework or jobs)"
    run_job(family, ranks, f"--tier={tier}", "-m", wanted)


@pytest.mark.tier2
@pytest.mark.parametrize("family", ["openmpi", pytest.param("mpich", marks=pytest.mark.exclusive)])
def test_gigabytes(family, run_job):
    run_job(family, 2, "-m", "large")
