"""Failing jobs, as subprocesses with a time limit."""

import os
import pathlib
import sys
import tempfile

import pytest

ENVIRONMENT = pathlib.Path(sys.prefix)
# Without this option the launcher ends the whole job when a rank fails, and the
# errors of the other ranks cannot be seen.
KEEP_THE_OTHERS = {"openmpi": ["--mpi-args=--enable-recovery"], "mpich": []}
LIMIT = 600

PREAMBLE = """
import os, signal, sys, time
import tensorflow as tf
import tf_hvd as hvd
from tf_hvd.core import _native as native

def say(*what):
    # A mark unlike those of tf_hvd run. In one write, because launchers mix writes.
    sys.stdout.write(" ".join([f"<{rank}>", *map(str, what)]) + "\\n")
    sys.stdout.flush()

def reduce(name="g"):
    return float(hvd.allreduce(tf.constant([1.0]), op=hvd.Sum, name=name)[0])

def error_of(function, kind=tf.errors.UnknownError):
    try:
        function()
    except kind as error:
        # TensorFlow puts a traceback of the graph before the text, in separate lines.
        say("error:", error.message.replace(chr(10), " "))
    else:
        say("no error")

def flag(name):
    return os.path.join(os.environ["MEETING"], name)

def wait_for(name):
    while not os.path.exists(flag(name)):
        time.sleep(0.01)

def meet(where):
    os.makedirs(os.path.join(flag(where), str(os.getpid())))
    while len(os.listdir(flag(where))) < int(os.environ["RANKS"]):
        time.sleep(0.01)

# Short limits apply to init as well; imports and the first op take long.
tf.constant([1.0]) + 1.0
meet("before init")
native.hurry = int(os.environ.get("HURRY", "1"))
hvd.init()
rank = hvd.rank()
meet("after init")
assert reduce("first") == hvd.size()
"""


@pytest.fixture
def run_job(run_to_end):
    """Runs a job with these variables; returns its exit code and output."""

    def run(command, environment):
        # Buffered, a print is one write, and lines of several ranks do not mix.
        defaults = {"TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONUNBUFFERED": ""}
        return run_to_end(command, {**os.environ, **defaults, **environment}, LIMIT)

    return run


@pytest.fixture
def plain_job(tmp_path, run_job, mpi_library):
    """Runs a program on some ranks; returns exit code and output.

    within: a command that gets the job's command as arguments.
    """

    def run(program, ranks=2, family="openmpi", keep_others=True, within=(), **environment):
        script = tmp_path / "program.py"
        script.write_text(program)
        command = [*within, sys.executable, "-P"]
        command += ["-m", "tf_hvd_command", "run", "-np", str(ranks)]
        command += KEEP_THE_OTHERS[family] if keep_others else []
        command += [sys.executable, str(script)]
        library = str(mpi_library(family))
        # mpi4py must use the same library.
        libraries = {"TF_HVD_MPI_LIBRARY": library, "MPI4PY_LIBMPI": library}
        return run_job(command, {**libraries, **environment})

    return run


@pytest.fixture
def job(plain_job, tmp_path):
    """Runs a program, after PREAMBLE, on some ranks; returns exit code and output."""

    def run(program, ranks=2, family="openmpi", keep_others=True, **environment):
        environment["MEETING"] = tempfile.mkdtemp(dir=tmp_path)
        environment["RANKS"] = str(ranks)
        program = PREAMBLE + program
        return plain_job(program, ranks, family, keep_others, **environment)

    return run


@pytest.fixture
def bare_mpirun(tmp_path, run_job):
    """Runs a program under Open MPI's own launcher, with the given library."""

    def run(program, library, ranks=2):
        script = tmp_path / "program.py"
        script.write_text(program)
        command = [str(ENVIRONMENT / "bin" / "mpirun"), "-np", str(ranks)]
        command += ["-H", f"localhost:{ranks}", sys.executable, str(script)]
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        root["PRTE_MCA_rmaps_default_mapping_policy"] = ":oversubscribe"
        root["PRTE_MCA_prte_local_tmpdir_base"] = str(tmp_path)  # docs/launcher.md says why
        return run_job(command, {"TF_HVD_MPI_LIBRARY": str(library), **root})

    return run
