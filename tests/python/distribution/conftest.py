"""Programs of this folder, in one process and in jobs."""

import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
LIMIT = 240


@pytest.fixture(scope="session")
def usual_environ():
    """A function that returns the environment in which a program imports its neighbours."""
    return lambda: {name: text for name, text in os.environ.items() if name != "PYTHONSAFEPATH"}


@pytest.fixture(scope="session")
def run_plain(usual_environ):
    """Runs a program of this folder in one process."""

    def run(program, *arguments, limit=LIMIT):
        command = [sys.executable, HERE / program, *arguments]
        subprocess.run(
            command, env=usual_environ(), cwd="/", check=True, timeout=limit, capture_output=True
        )

    return run


@pytest.fixture(scope="session")
def run_job(usual_environ, run_to_end, mpi_library):
    """Runs a program with `tf_hvd run`; returns exit code and output."""

    def run(options, program, *arguments, family="openmpi", limit=LIMIT, **settings):
        environ = usual_environ() | {"TF_HVD_MPI_LIBRARY": str(mpi_library(family)), **settings}
        command = [sys.executable, "-m", "tf_hvd_command", "run", *options, sys.executable]
        command += [str(HERE / program), *map(str, arguments)]
        return run_to_end(command, environ, limit, cwd="/")

    return run
