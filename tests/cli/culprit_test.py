"""The rank that the closing paragraph of a failed job names, and the reason."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tf_hvd.core import contract
from tf_hvd.launch.job import explain
from tf_hvd.launch.job.asked import Job
from tf_hvd.launch.job.command_line import rank_command
from tf_hvd.launch.job.environment import MPI_RANK_VARIABLES
from tf_hvd.launch.job.job_state import JobState
from tf_hvd.launch.job.signals import Ending
from tf_hvd.launch.job.terminal import Screen

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "prove"))

import jobs

# The other ranks wait in a collective that rank 1 never calls.
JOB = """
import tensorflow as tf
import tf_hvd as hvd
{before}
hvd.init()
if rank == {culprit}:
    {fault}
hvd.allreduce(tf.ones(3), name="g")
"""
# The limits apply to init as well, which waits for ranks that are still importing.
TOGETHER = """
def come(to):
    open(f"{to}{rank}", "w").close()
    while not all(os.path.exists(f"{to}{each}") for each in range(2)):
        time.sleep(0.01)
come("up")
"""
# Rank 0 gets an error and ends after rank 1. The launcher may notice two ends in any order.
STAYS = """
import atexit
open(f"pid{rank}", "w").write(f"{os.getpid()}")
def stay():
    while os.path.exists(f"/proc/{open('pid1').read()}/exe"):
        time.sleep(0.01)
if rank == 0:
    atexit.register(stay)
"""
FIRST = "rank 1 was the first to end with an error "


@pytest.mark.parametrize(
    ("fault", "code", "what", "cure"),
    [
        (
            "sys.exit(3)",
            3,
            f"{FIRST}(exit code 3)",
            "no exception was raised: check where the program calls sys.exit or os._exit",
        ),
        pytest.param(
            "sys.exit('no images')",
            1,
            f"{FIRST}(exit code 1): its last line is 'no images'",
            "read the output of rank 1, above",
            marks=pytest.mark.one_mpi,
        ),
        (
            "os.kill(os.getpid(), signal.SIGTERM)",
            143,
            f"{FIRST}(signal 15, Terminated)",
            "check who sent the signal: tf_hvd run did not",
        ),
        (
            "os.kill(os.getpid(), signal.SIGKILL)",
            137,
            f"{FIRST}(signal 9, Killed)",
            "check who sent the signal: a scheduler or a user; the OOM killer did not",
        ),
        pytest.param(
            "signal.signal(signal.SIGSEGV, signal.SIG_DFL); os.kill(os.getpid(), signal.SIGSEGV)",
            139,
            f"{FIRST}(signal 11, Segmentation fault)",
            "native code crashed",
            marks=pytest.mark.one_mpi,
        ),
    ],
    ids=["exit-code", "exit-text", "terminated", "killed", "crash"],
)
def test_first_failed_rank_is_named(environ, call, program, closing, fault, code, what, cure):
    """SIGTERM named no rank, the text of sys.exit was missing, and exit code 3 became 1."""
    job = program(JOB.format(before=STAYS, culprit=1, fault=fault))
    ended, _, errors = call("run", "-np", "2", *job, environ=environ)
    told = closing(errors)
    assert (ended, told["what"]) == (code, what), errors
    assert told["where"].startswith("process ")
    assert told["next"].startswith(cure), errors
    assert "BAD TERMINATION" not in errors
    assert "noticed that process rank" not in errors


@pytest.fixture
def small_memory():
    with jobs.small_memory() as group:
        yield group or pytest.skip("cannot create a cgroup with a memory limit")


def test_rank_killed_by_the_oom_killer(environ, call, program, closing, small_memory):
    """The advice was to check who had sent SIGKILL."""
    fault = f"open('{small_memory}', 'w').write(f'{{os.getpid()}}'); b'1' * (1 << 29)"
    job = program(JOB.format(before=STAYS, culprit=1, fault=fault))
    code, _, errors = call("run", "-np", "2", *job, environ=environ)
    told = closing(errors)
    assert (code, told["what"]) == (137, f"{FIRST}(signal 9, Killed)"), errors
    assert told["next"].startswith("memory ran out: the kernel has killed a process"), errors


@pytest.mark.one_mpi
@pytest.mark.parametrize("stamps", [[], ["--prefix-output-with-timestamp"]], ids=["", "stamps"])
def test_reason_is_found_in_tagged_lines(environ, call, program, closing, stamps):
    """The reason was not found in tagged lines, which horovodrun always has."""
    job = program(JOB.format(before=STAYS, culprit=1, fault="sys.exit('no images')"))
    options = ["--tag-output", *stamps]
    _, _, errors = call("run", "-np", "2", *options, *job, environ=environ)
    told = closing(errors)
    assert told["what"] == f"{FIRST}(exit code 1): its last line is 'no images'"
    assert told["next"] == "read the output of rank 1, above"


@pytest.mark.one_mpi
def test_error_of_init_is_explained(environ, call, program, closing):
    """The error's text was not in the last line."""
    # The launcher ends all ranks immediately when the first has ended.
    before = f"{TOGETHER}import atexit; atexit.register(come, 'down')"
    before += "; sys.stderr.reconfigure(line_buffering=False)"  # a traceback in one piece
    before += "; os.environ['TF_HVD_BUCKET_BYTES'] = 'x'"
    job = program(JOB.format(before=before, culprit=9, fault="pass"))
    code, _, errors = call("run", "-np", "2", *job, environ=environ)
    told = closing(errors)
    assert code == 1
    assert "HorovodInitError: TF_HVD_BUCKET_BYTES='x' is not a whole number" in told["what"]
    assert told["where"].startswith("program.py, line 15, in <module>; process ")
    assert errors.count("Traceback") == 2  # one rank's error and its cause
    assert "the same traceback as rank " in errors


# The limits apply to init as well.
LIMITS = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "3", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "20"}
STOP = "os.kill(os.getpid(), signal.SIGSTOP)"


def test_rank_stopped_before_init(environ, call, program):
    job = program(JOB.format(before=f"{TOGETHER}if rank == 1: {STOP}", culprit=9, fault="pass"))
    code, _, errors = call("run", "-np", "2", *job, environ={**environ, **LIMITS})
    assert code == 1
    told = " ".join(errors[errors.rindex("tf_hvd run: ") :].split())
    assert "rank 0 was the first to end with an error (exit code 1)" in told
    who = (
        r"tf_hvd run: init\(\) has waited 3 s for other ranks; rank 1, process .* is stopped \(SIGS"
    )
    assert re.search(who, errors), errors


def test_stopped_rank_0_is_named(environ, call, program, closing):
    """Rank 0 names missing ranks. With short limits, no rank reported that rank 0 had stopped."""
    job = program(JOB.format(before=TOGETHER, culprit=0, fault=STOP))
    code, _, errors = call("run", "-np", "2", *job, environ={**environ, **LIMITS})
    assert code == 1
    assert "no answer from rank 0 (" in closing(errors)["what"]


def test_killed_launcher_is_named(environ, start, program, closing, tmp_path, wait_for):
    """Rank 1 was named, although it had only got the error that rank 0 had left."""
    wait = "open(f'here{rank}', 'w').write(f'{os.getpid()}\\n')\n"
    # A rank that gets the error may raise before the launcher's end is noticed.
    wait += "try:\n    while True: hvd.barrier()\nexcept tf.errors.OpError: time.sleep(300)"
    text = JOB.format(before="", culprit=9, fault="pass").replace("hvd.allreduce", f"{wait}\n#")
    job = start("run", "-np", "2", *program(text), environ=environ)
    ranks = wait_for([tmp_path / f"here{number}" for number in range(2)])
    for each in ranks:  # a keeper would end its rank too, perhaps sooner
        psutil.Process(each).parent().suspend()
    for process in psutil.Process(job.pid).children():
        if process.name().startswith(("prterun", "mpirun", "mpiexec")):
            process.kill()
    errors = job.communicate(timeout=600)[1]
    told = closing(errors)
    assert job.returncode == 137
    assert told["what"] == "the MPI launcher was ended by signal 9, Killed, and its ranks with it"


def test_rank_with_killed_keeper_ends_and_is_named(
    environ, start, program, closing, tmp_path, wait_for
):
    """Before init() it kept running, and Open MPI's launcher waited; later, rank 0 was named."""
    here = "open(f'here{rank}', 'w').write(f'{os.getpid()}\\n'); time.sleep(300)"
    job = start("run", "-np", "2", *program(here), environ=environ)
    wait_for([tmp_path / f"here{number}" for number in range(2)])
    for process in psutil.Process(job.pid).children(recursive=True):
        numbers = {process.environ().get(name) for name in MPI_RANK_VARIABLES}
        if process.name() == contract.KEEPER and "1" in numbers:
            process.kill()
    told = closing(job.communicate(timeout=600)[1])
    assert job.returncode == 137
    assert told["what"] == "rank 1 was the first to end with an error (signal 9, Killed)"


def test_segments_created_after_launchers_end_are_removed(tmp_path, wait_for):
    """A rank was in MPI_Init when its daemon on another machine was killed."""
    segment = f"/dev/shm/sm_segment.test.{os.getpid()}"
    makes = f"""
import mmap, os, pathlib, signal, time
def make(*_):
    with open({segment!r}, "w+b") as file:
        file.truncate(4096)
        held = mmap.mmap(file.fileno(), 4096)
    while os.path.exists({segment!r}):
        time.sleep(0.01)
    pathlib.Path("gone").write_text("1\\n")
    os._exit(0)
signal.signal(signal.SIGTERM, make)
pathlib.Path("here").write_text("1\\n")
time.sleep(300)
"""
    job = Job(ranks=2, command=(sys.executable, "-c", makes))
    rank = rank_command("openmpi", job, "none", "none")
    waits = "import subprocess, sys; subprocess.run(sys.argv[1:])"
    launcher = subprocess.Popen(
        [sys.executable, "-c", waits, *rank], cwd=tmp_path, start_new_session=True
    )
    wait_for([tmp_path / "here"])
    launcher.kill()
    launcher.wait()
    wait_for([tmp_path / "gone"])


@pytest.fixture
def state(said):
    """The state of a job with ranks 0 and 1 on this machine."""
    made = JobState()
    for rank in range(2):
        said(made, contract.RUNS, rank)
    return made


@pytest.fixture
def ends(state, said):
    """Ends a rank, after an exception if one is given."""

    def end(number, code, seconds, exception=""):
        time_ns = int(seconds * 1e9)
        where, _, raised = exception.partition("\n")
        if exception:
            said(state, contract.RAISED, number, raised, time_ns, where=where)
        said(state, contract.ENDED, number, time=time_ns, code=code)

    return end


def found(state, ranks=2, screen=None, **ending):
    return explain.explain(Ending(9, **ending), state, screen or Screen(print), ranks)


def test_sigterm_is_launchers_if_ranks_run_elsewhere(state, ends):
    """The launcher ends the ranks here when a rank on another machine has failed."""
    for number in (0, 1):
        ends(number, -signal.SIGTERM, 10 + number)
    assert found(state).what.startswith("rank 0 was the first to end with an error (signal 15")
    unknown = found(state, ranks=3)
    assert not unknown.known
    assert unknown.what == "rank 0 was process 10, rank 1 was process 11"
    assert "no rank on this machine failed on its own" in unknown.cure


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_rank_that_raised_before_the_launcher_ended_it(state, ends, signum):
    """The job's exit code was 137, from the launcher's SIGKILL."""
    ends(0, -signum, 11, "t.py, line 3, in f\nValueError: a")
    ends(1, 1, 12)
    told = found(state)
    assert told.what == "rank 0 was the first to end with an error (exit code 1): ValueError: a"
    assert told.code == 1


LEFT = "t.py, line 3, in f\nUnknownError: {{function_node __wrapped}} rank 2 (beta) left: "


@pytest.mark.parametrize(
    ("told", "what"),
    [
        (f"{LEFT}ValueError: a [Op:A]", "was the first to leave the job: ValueError: a"),
        (f"{LEFT}its program has ended; 'x' still waited for it [Op:A]", "was the first to end"),
        (f"{LEFT}UnknownError: rank 3 (beta) died: its process", "died: its process"),
        ("t.py, line 3, in f\nUnknownError: heading\n\nrank 2 (beta) died: its process ended", ""),
    ],
)
def test_rank_that_reports_a_remote_rank_is_not_the_culprit(state, ends, told, what):
    """Rank 0 was named, and the job had its exit code 1 instead of the other rank's 3."""
    ends(0, 1, 10, told)
    found_ = found(state, ranks=4)
    number = 3 if "rank 3" in told else 2
    assert found_.what.startswith(f"rank {number}, on beta, {what}")
    assert "[Op" not in found_.what
    assert found_.code == 9  # the launcher's


@pytest.mark.parametrize("called", [True, False])
def test_caught_traceback_is_only_the_last_line(state, ends, said, called):
    """After init a rank reports the exception that ends it."""
    ends(0, 3, 10)
    if called:
        said(state, contract.CALLED)
    screen = Screen(lambda text: None)
    text = 'Traceback (most recent call last):\n  File "t.py", line 3, in f\nValueError: a\n'
    screen.add(0, text, 0.0)
    screen.finish()
    why = "its last line is 'ValueError: a'" if called else "ValueError: a"
    told = found(state, screen=screen)
    assert told.what == f"rank 0 was the first to end with an error (exit code 3): {why}"
    assert ("t.py, line 3" in told.where) is not called


@pytest.mark.parametrize("code", [1, -signal.SIGKILL])
def test_pythons_additions_to_exceptions_are_shown(state, ends, said, code):
    """The rank only reports the exception's text; the traceback ended with "Did you mean"."""
    error, added = "NameError: name 'imges' is not defined", ". Did you mean: 'images'?"
    said(state, contract.CALLED)
    ends(0, code, 10, f"t.py, line 3, in f\n{error}" if code > 0 else "")
    screen = Screen(lambda text: None)
    text = f'Traceback (most recent call last):\n  File "t.py", line 3, in f\n{error}{added}\n'
    screen.add(0, text, 0.0)
    screen.finish()
    told = found(state, screen=screen).what
    assert told.endswith(f": {error}{added}" if code > 0 else "(signal 9, Killed)")


@pytest.mark.parametrize("raised", [True, False])
def test_exit_code_75_of_elastic_job_or_program(state, ends, raised):
    """A program that called `sys.exit(75)` was reported as a rank to be restarted."""
    ends(0, 75, 10, "t.py, line 3\nUnknownError: stall: 'g'" if raised else "")
    screen = Screen(lambda text: None)
    screen.add(0, "disk full\n", 0.0)
    screen.finish()
    told = found(state, screen=screen).what
    if raised:
        assert (
            told == "rank 0 ended in order to be restarted (exit code 75): UnknownError: stall: 'g'"
        )
    else:
        first = "rank 0 was the first to end with an error (exit code 75)"
        assert told == f"{first}: its last line is 'disk full'"


def test_rank_that_finished_too_early_is_named(state, ends):
    """Rank 0 "was the first to end with an error: ... rank 1 (a) left: exit"."""
    told = "UnknownError: rank 1 (a) left: its program has ended; 'score' still needed it"
    ends(0, 1, 10, f"t.py, line 3, in f\n{told} [Op:HorovodAllreduce] name: score")
    found_ = found(state)
    assert found_.what == (
        "rank 1 reached the end of its program before rank 0 did; 'score' still needed it"
    )
    assert found_.cure.startswith("make the same collective calls on all ranks")
    assert found_.code == 9  # the launcher's
    screen = Screen(lambda text: None)
    screen.add(1, "no data\n", 0.0)  # by sys.exit("no data")
    assert found(state, screen=screen).what == (
        "rank 1 reached the end of its program before rank 0 did (last line: 'no data'); "
        "'score' still needed it"
    )


def test_dead_rank_is_named_even_if_noted_last(state, ends):
    """Its keeper had to wait for a core."""
    ends(0, 1, 10, "t.py, line 3, in f\nUnknownError: rank 1 (a) died: its process ended")
    ends(1, -signal.SIGKILL, 12)
    told = "rank 1 was the first to end with an error (signal 9, Killed)"
    assert found(state).what == told


def test_terminated_local_rank_is_named_by_other_ranks(state, ends):
    """Without the other rank's report, the SIGTERM might be the launcher's."""
    ends(0, -signal.SIGTERM, 10)
    screen = Screen(lambda text: None)
    text = "UnknownError: rank 0 (alpha) died: its process ended"
    screen.add(2, f"Traceback (most recent call last):\n  File\n{text}\n", 0.0)
    screen.finish()
    told = found(state, ranks=3, screen=screen)
    assert told.what == "rank 0 was the first to end with an error (signal 15, Terminated)"


def test_exception_on_another_machine_is_reported(state, ends):
    screen = Screen(lambda text: None)
    screen.add(7, "Traceback (most recent call last):\n  File\nValueError: no images\n", 0.0)
    screen.finish()
    told = found(state, ranks=8, screen=screen)
    assert told.what == (
        "rank 7, on another machine, was the first to print an exception: ValueError: no images"
    )


def test_launcher_failing_after_a_rank_is_not_the_culprit(state, ends):
    """Open MPI's launcher failed with an assertion after a rank had ended."""
    now = time.time()
    ends(0, 1, now, "t.py, line 3, in f\nValueError: a")
    later, before = int((now + 1) * 1e9), int((now - 1) * 1e9)
    assert "ValueError: a" in found(state, signum=signal.SIGABRT, time_ns=later).what
    told = found(state, signum=signal.SIGKILL, time_ns=before)
    assert told.what == "the MPI launcher was ended by signal 9, Killed, and its ranks with it"


def test_launcher_outliving_its_ranks_is_explained(state, ends):
    """It waits for an unreachable machine, however the ranks here ended."""
    screen = Screen(print)
    told = explain.explain(Ending(137), state, screen, 4, outlived=True)
    assert told.what.startswith("all ranks on this machine have ended, at least one of them")
    assert told.code == 1
    ends(0, 3, 10)
    told = explain.explain(Ending(137), state, screen, 4, outlived=True)
    assert told.what == "rank 0 was the first to end with an error (exit code 3)"
    assert told.cure.startswith("check that all hosts can be reached: the MPI launcher was still")
    assert (told.code, told.host) == (3, "")


def test_launcher_killed_while_ranks_end_is_named(state, said, ends):
    """A rank was named that had left the job and was killed because the launcher had ended."""
    said(state, contract.EXITS, 0, time=int(10e9))
    ends(0, -signal.SIGKILL, 12)
    told = found(state, signum=signal.SIGKILL, time_ns=int(11e9))
    assert told.what == "the MPI launcher was ended by signal 9, Killed, and its ranks with it"


def test_rank_killed_while_ranks_end_is_named(state, said, ends):
    """The rank was named that had left first and was killed because of the other rank's end."""
    for number in range(2):
        said(state, contract.EXITS, number, time=int((10 + number) * 1e9))
    ends(1, -signal.SIGKILL, 12)
    ends(0, -signal.SIGKILL, 13)
    assert found(state).what == "rank 1 was the first to end with an error (signal 9, Killed)"


def test_keepers_killed_by_launcher_are_not_culprits(state, said):
    """MPICH's launcher kills keepers and ranks when it ends or a rank on another machine ends."""
    state.hear_end(5)
    killed = found(state, signum=signal.SIGKILL, time_ns=time.time_ns() + int(1e9))
    assert killed.what == "the MPI launcher was ended by signal 9, Killed, and its ranks with it"
    assert not found(state, ranks=3).known
    assert found(state).what == "rank 0 was the first to end with an error (signal 9, Killed)"


def test_rank_killed_by_tf_hvd_run_is_not_the_culprit(state, ends):
    """MPICH's launcher ends when a machine is lost, and leaves the ranks on this machine."""
    ends(0, -signal.SIGKILL, 12)
    assert not found(state, ranks=3, time_ns=int(11e9)).known
    assert found(state, ranks=3, time_ns=int(13e9)).what.startswith("rank 0 was the first to end")


def test_paragraph_is_wrapped():
    """The paragraph was a line of 900 characters."""
    text = explain.paragraph(explain.Explanation("word " * 150, "here", "do this", 1))
    assert max(map(len, text.splitlines())) <= 100
    assert text.splitlines()[0] == "tf_hvd run: the job ended with exit code 1"
    assert text.endswith("  where: here\n  next:  do this")
