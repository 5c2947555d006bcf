"""The messages of `tf_hvd run` about a job with ranks that never joined each other."""

import argparse
import mmap
import os
import subprocess
import sys
import types

import pytest

from tf_hvd.core import contract, error_text
from tf_hvd.launch.job import interpreter, job_watch
from tf_hvd.launch.job.job_state import JobState
from tf_hvd.launch.job.run import _closing
from tf_hvd.launch.job.session import Home, Session
from tf_hvd.launch.job.signals import Ending
from tf_hvd.launch.machine import proc

# The beginning of Horovod programs that also run without it.
SERIAL = """
try:
    import horovod.tensorflow as hvd
    hvd.init()
except ImportError:
    hvd = None
import tensorflow as tf
say("trained", float(tf.reduce_sum(tf.ones([3]))), hvd is None)
"""


@pytest.mark.one_mpi
def test_independent_trainings_are_reported(environ, call, program):
    code, output, errors = call("run", "-np", "2", *program(SERIAL), environ=environ)
    assert code == 0, errors
    assert output == "trained 3.0 True\n" * 2
    assert "= NO RANK JOINED THE JOB: 2 copies of the program ran independently" in errors
    assert f"=     tf_hvd run -np 2 --as-horovod {sys.executable} " in errors


def test_independent_trainings_are_reported_while_running(monkeypatch, capsys):
    """The message only came at the job's end, hours later."""
    state = types.SimpleNamespace(
        ranks={0: 11, 1: 12},
        joined=bool,
        called=set(),
        inner=set(),
        failed=list,
        awaited=list,
    )
    home = types.SimpleNamespace(settle=lambda seconds: None)
    session = types.SimpleNamespace(state=state, home=home)
    monkeypatch.setattr(job_watch, "_APART", 0.0)
    monkeypatch.setattr(job_watch.proc, "descendants", lambda: [11])
    monkeypatch.setattr(job_watch.proc, "has_tensorflow", lambda process: True)
    watch = job_watch.JobWatch(session, ranks=2, here=2, start_timeout=None)
    for _ in range(3):
        assert watch.look()
    told = "no rank has called tf_hvd.init() although TensorFlow has run for 0 s"
    assert capsys.readouterr().err.count(told) == 1
    for known, facts in (("called", {11}), ("inner", {contract.NESTED})):
        setattr(state, known, facts)
        watch = job_watch.JobWatch(session, ranks=2, here=2, start_timeout=None)
        for _ in range(3):
            watch.look()
        assert capsys.readouterr().err == ""
        setattr(state, known, set())


def test_rank_that_exits_inside_the_job_is_named(environ, family, call, program, closing):
    """The other ranks' exit codes, or a launcher that killed them, do not identify it."""
    leaving = program(
        "import tf_hvd as hvd\nhvd.init()\nos._exit(0) if rank == 1 else hvd.barrier()\n"
    )
    code, _, errors = call("run", "-np", "2", *leaving, environ=environ)
    assert code != 0
    named = "rank 1 ended with exit code 0 without leaving the job"
    # MPICH's launcher kills all ranks, and often the keeper that would report the rank's end.
    assert family == "mpich" or closing(errors)["what"] == named


def test_exception_that_ended_the_job_is_named(environ, call, program, closing):
    """Not the error of the collective that the other rank gets."""
    raising = program(
        "import tensorflow as tf\nimport tf_hvd as hvd\nhvd.init()\n"
        "if rank == 1: raise ValueError('no images in /data')\n"
        "hvd.allreduce(tf.ones(3))\n"
    )
    code, _, errors = call("run", "-np", "2", *raising, environ=environ)
    assert code == 1
    first = "rank 1 was the first to end with an error (exit code 1): "
    told = closing(errors)
    assert told["what"] == f"{first}ValueError: no images in /data"
    assert told["where"].startswith("program.py, line 8, in <module>; process ")


def test_rank_that_raised_and_was_killed_is_named(environ, call, program, closing):
    """Ranks that get the error end sooner, and the launcher ends all ranks at the first end."""
    raising = program(
        "import atexit\nimport tensorflow as tf\nimport tf_hvd as hvd\nhvd.init()\n"
        "if rank == 1:\n"
        "    atexit.register(time.sleep, 30)\n"
        "    atexit.register(hvd.shutdown)\n"
        "    raise ValueError('no images in /data')\n"
        "hvd.allreduce(tf.ones(3))\n"
    )
    code, _, errors = call("run", "-np", "2", *raising, environ=environ)
    assert code != 0
    first = "rank 1 was the first to end with an error (exit code 1): "
    told = closing(errors)
    assert told["what"] == f"{first}ValueError: no images in /data"
    assert told["where"].startswith("program.py, line 12, in <module>; process ")


def test_failing_rank_precedes_ranks_it_leaves(environ, call, program):
    """They get the error when it begins to exit, and end before it."""
    exits = program(
        "import tensorflow as tf\nimport tf_hvd as hvd\nhvd.init()\n"
        "sys.exit(3) if rank == 1 else hvd.allreduce(tf.ones(3))\n"
    )
    code, _, errors = call("run", "-np", "2", *exits, environ=environ)
    assert code != 0
    assert "rank 1 was the first to end with an error (exit code 3)" in errors


@pytest.mark.parametrize(
    ("raised", "line"),
    [
        ("ValueError: no images", "ValueError: no images"),
        ("KeyError: 'a'\nb", "KeyError: 'a'"),
        ("SystemError", "SystemError"),
        (
            "InvalidArgumentError: Graph execution error:\n\nDetected at node g defined at (most "
            'recent call last):\n  File "t.py", line 5, in <module>\n\n  File "t.py", line 9, in f'
            "\n\nthis job has 2 ranks\n\t [[{{node g}}]] [Op:f]",
            "InvalidArgumentError: this job has 2 ranks",
        ),
        (
            "UnknownError: Graph execution error:\n\nDetected at node 'g' defined at (most recent "
            "call last):\n    File \"t.py\", line 5, in <module>\nNode: 'g'\n"
            "rank 1 (a) left: its program has ended\n\t "
            "[[{{node g}}]]\n\nOriginal stack trace for 'g':\n  File \"t.py\", line 5, in f\n",
            "UnknownError: rank 1 (a) left: its program has ended",
        ),
        (
            "UnknownError: 2 root error(s) found.\n  (0) UNKNOWN: {{function_node f}} "
            "rank 1 (a) left: its program "
            "has ended\n\t [[{{node g}}]]\n  (1) CANCELLED: the step was cancelled\n",
            "UnknownError: rank 1 (a) left: its program has ended",
        ),
        (
            'ValueError: in user code:\n\n    File "t.py", line 3, in f  *\n        g(x)\n'
            '    File "t.py", line 7, in g\n        raise ValueError("a")\n\n    ValueError: a\n',
            "ValueError: a",
        ),
        (
            "GuardError: Exception encountered when calling BatchNormalization.call().\n\n"
            "layer 'b' has synchronized=True\n\nArguments received by BatchNormalization.call()",
            "GuardError: layer 'b' has synchronized=True",
        ),
        (
            "ValueError: Exception encountered when calling Dense.call().\n\n\x1b[1mInput 0 is "
            "incompatible\x1b[0m\n\nArguments received by Dense.call():\n  \u2022 x=tf.Tensor()",
            "ValueError: Input 0 is incompatible",
        ),
        (
            "ValueError: A KerasTensor is not an input of a function. You are likely doing "
            "something like:\n\n```\nx = Input(...)\ntf_fn(x)\n```\n\n"
            "Wrap `tf_fn`:\n\n```\nclass A",
            "ValueError: A KerasTensor is not an input of a function.",
        ),
        ("ValueError: \n```\nx = 1\n```\nIt is 1.\n", "ValueError: It is 1."),
        ("ValueError: Shapes differ:\n  (3,)\n  (4,)", "ValueError: Shapes differ: (3,)"),
        (
            "ValueError: The folder of the training data, /data, has no images at\n   all, in any "
            "of its folders. Give another.\nor none",
            "ValueError: The folder of the training data, /data, has no images at all, in any of "
            "its folders. Give another.",
        ),
        (
            "UnknownError: {{function_node __wrapped__HorovodAllreduce_device_/job:localhost}} "
            "rank 1 left [Op:HorovodAllreduce] name: ",
            "UnknownError: rank 1 left",
        ),
        ("BdbQuit: ", "BdbQuit"),
        (error_text.of(KeyboardInterrupt()), "KeyboardInterrupt"),
    ],
)
def test_relevant_line_of_an_exception(said, raised, line):
    state = JobState()
    said(state, contract.RAISED, 1, raised, where="t.py, line 5, in f")
    assert state.exception(1)[0] == "t.py, line 5, in f"
    assert error_text.short(state.exception(1)[1]) == line.strip()


def test_rank_that_exits_before_init_is_named(environ, call, program):
    """The others' `init` names it, unless Open MPI's launcher ends them before."""
    leaving = program("import tf_hvd as hvd\nif rank == 1: sys.exit(0)\nhvd.init()\n")
    code, _, errors = call("run", "-np", "2", *leaving, environ=environ)
    assert code != 0
    by_init = "rank 1 has ended without calling it" in errors
    by_launcher = (
        "rank 1 ended with exit code 0 without calling hvd.init(), in which other" in errors
    )
    assert by_init or by_launcher, errors


def test_transport_is_logged_once(environ, call, program):
    environ = environ | {
        "HOROVOD_LOG_LEVEL": "info",
        "TF_HVD_RANKS_PER_NODE": "2",
    }
    joining = program("import tf_hvd as hvd\nhvd.init()\n")
    code, _, errors = call("run", "-np", "3", *joining, environ=environ)
    assert code == 0
    said = [line for line in errors.splitlines() if "tensors move" in line]
    assert len(said) == 1
    assert said[0].endswith(
        "3 ranks, machines: 2; tensors move through shared memory within a machine, "
        "by messages between machines"
    )


@pytest.mark.one_mpi
def test_require_init_is_an_error(environ, call, program):
    quiet = program("import time")
    code, _, errors = call("run", "-np", "2", "--require-init", *quiet, environ=environ)
    assert code == 1
    assert "NO RANK JOINED THE JOB" in errors
    assert "This is an error because of --require-init." in errors
    code, _, errors = call("run", "-np", "1", "--require-init", *quiet)
    assert code == 1
    assert "= THE PROGRAM DID NOT JOIN A JOB" in errors
    failing = program("sys.exit(7)")
    assert call("run", "-np", "2", "--require-init", *failing, environ=environ)[0] == 7


@pytest.mark.one_mpi
def test_program_without_tensorflow_gets_no_warning(environ, call, program):
    for command in (["hostname"], program("say('a tool')")):
        code, _, errors = call("run", "-np", "2", *command, environ=environ)
        assert (code, errors) == (0, "")


@pytest.mark.one_mpi
def test_failed_horovod_import_gets_the_cure(environ, call, program):
    code, _, errors = call(
        "run", "-np", "2", *program("import horovod.tensorflow"), environ=environ
    )
    assert code != 0
    assert "No module named 'horovod'" in errors
    assert "if the program is written for Horovod, add --as-horovod" in errors


@pytest.mark.one_mpi
def test_failing_tf_hvd_program_gets_no_horovod_hint(environ, call, program):
    of_ours = program("hvd = 'tf_hvd'; sys.exit(1)")
    missing = [sys.executable, "no_such_script.py"]
    for command in (of_ours, missing, program("raise ValueError('of neither')")):
        code, _, errors = call("run", "-np", "2", *command, environ=environ)
        assert code != 0
        assert "--as-horovod" not in errors


def test_require_init_needs_a_local_rank(call):
    code, _, errors = call("run", "-np", "1", "-H", "elsewhere:1", "--require-init", "true")
    assert code == 2
    assert "--require-init needs a rank on this machine" in errors


def test_process_with_tensorflow_is_detected(tmp_path):
    library = tmp_path / "libtensorflow_cc.so.2"
    library.write_bytes(b"x" * mmap.PAGESIZE)
    with open(library, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ):
        assert proc.has_tensorflow(os.getpid())
    with subprocess.Popen(["sleep", "300"]) as other:
        assert not proc.has_tensorflow(other.pid)
        other.kill()
    assert not proc.has_tensorflow(2**22)


@pytest.mark.parametrize(
    ("first", "python"),
    [("#!/usr/bin/env python3\n", True), ("#!/bin/sh\n", False), ("\0\1", False)],
)
def test_python_scripts_are_recognized(tmp_path, first, python):
    script = tmp_path / "dp"
    script.write_text(first)
    assert interpreter.is_python(str(script)) is python
    assert interpreter.is_python(sys.executable)


@pytest.mark.parametrize(
    ("first", "python"),
    [
        ("#!/usr/bin/env python3\n", "python3"),
        ("#!/usr/bin/env -S python3 -u\n", "python3"),
        ("#!/opt/a/bin/python3.11 -I\n", "/opt/a/bin/python3.11"),
        ("#!/bin/sh\n", ""),
    ],
)
def test_python_of_a_script(tmp_path, first, python):
    script = tmp_path / "dp"
    script.write_text(first)
    script.chmod(0o700)
    assert interpreter.python_of("dp", {"PATH": str(tmp_path)}) == python
    assert interpreter.python_of("python", {}) == "python"
    assert interpreter.python_of("missing", {"PATH": str(tmp_path)}) == ""


@pytest.mark.parametrize(
    ("here", "reported", "joined", "known"),
    [
        (2, {}, False, False),
        (2, {}, True, True),
        (0, {}, False, None),
        (None, {}, False, None),
        (None, {1: 9}, False, False),
        (None, {}, True, True),
    ],
)
def test_joined_is_known_or_unknown(session, said, here, reported, joined, known):
    for rank, process in reported.items():
        said(session.state, contract.RUNS, rank, process=process)
    if joined:
        said(session.state, contract.JOINED, 1)
    assert job_watch.JobWatch(session, 2, here, None).joined() is known


@pytest.fixture
def closing_of(capsys, said):
    """The exit code and the messages at the end of a job of two ranks."""

    def close(ending, joined=False, here=2, seen=True, **changed):
        options = {"np": 2, "command": ["./train"], "as_horovod": False, "keras": False}
        options["require_init"] = False
        with Home() as home, Session(home) as session:
            looking = job_watch.JobWatch(session, 2, here, None)
            looking._tensorflow = seen
            if joined:
                said(session.state, contract.JOINED)
            chosen = argparse.Namespace(**options | changed)
            end = _closing(chosen, ending, looking, session, "./train")
        return end.code, capsys.readouterr().err

    return close


def test_messages_at_the_end(closing_of):
    assert closing_of(Ending(0), joined=True) == (0, "")
    assert closing_of(Ending(0), seen=False) == (0, "")
    assert closing_of(Ending(130, asked=True), require_init=True) == (130, "")
    code, said = closing_of(Ending(0), as_horovod=True)
    assert code == 0
    assert "The program did not import tf_hvd as Horovod, in spite of --as-horovod" in said
    code, said = closing_of(Ending(0), here=None, require_init=True)
    assert code == 0
    assert "--require-init cannot be checked, because no rank ran on this machine" in said
    assert closing_of(Ending(3), as_horovod=True) == (3, "")
    assert "add --as-horovod" in closing_of(Ending(3))[1]
