"""`tf_hvd.run(func)` and `horovod.run(func)` call a function on several ranks."""

import atexit
import inspect
import os
import pathlib
import pickle
import re
import signal
import stat
import subprocess
import sys
import threading
import time

import pytest
from finished import finished

from tf_hvd.horovod import runner as horovod_runner
from tf_hvd.launch.job import run_function
from tf_hvd.launch.machine import task
from tf_hvd.launch.machine.proc import is_alive

WAIT = 600
HOROVOD_SIGNATURE = (
    "func, args=(), kwargs=None, num_proc=1, min_num_proc=None, max_num_proc=None, slots=None, "
    "reset_limit=None, cooldown_range=None, hosts=None, hostfile=None, host_discovery_script=None, "
    "start_timeout=None, ssh_port=None, ssh_identity_file=None, disable_cache=None, "
    "output_filename=None, verbose=None, use_gloo=None, use_mpi=None, mpi_args=None, "
    "network_interface=None, network_interfaces=None, executable=None, np=None, min_np=None, "
    "max_np=None"
)
# Imports `run` without the rest of the package, which would load TensorFlow.
STANDALONE = f"""
import sys, types
package = sys.modules["tf_hvd"] = types.ModuleType("tf_hvd")
package.__path__ = [{str(pathlib.Path(run_function.__file__).parents[2])!r}]
from tf_hvd.launch.job import run_function
"""
# Typed at a prompt, where functions have no file.
SESSION = """
import {module} as front
factor = 10
def train(add, times=1):
    import {tensorflow} as hvd
    hvd.init()
    return (hvd.rank() * factor + add) * times, hvd.size()

print("RESULT", front.run(train, args=(1,), kwargs={{"times": 2}}, np=2))
"""


@pytest.fixture
def mpi(monkeypatch, environ):
    """Selects the MPI that `run` finds."""
    monkeypatch.setenv("TF_HVD_MPI_LIBRARY", environ["TF_HVD_MPI_LIBRARY"])


def rank_now():
    """The rank's number from the launcher's variables."""
    told = [os.environ.get(name) for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK")]
    return next(int(text) for text in told if text is not None)


@pytest.mark.usefixtures("mpi")
def test_results_come_in_the_order_of_the_ranks():
    base = 100
    assert run_function.run(lambda x, y: base + rank_now() * x + y, (10,), {"y": 1}, 3) == [
        101,
        111,
        121,
    ]


def test_interactively_defined_function_joins_a_job(family, environ, tmp_path):
    """`tf_hvd.run` with one MPI and `horovod.run` with the other."""
    names = {"openmpi": ("tf_hvd", "tf_hvd"), "mpich": ("horovod", "horovod.tensorflow")}
    module, tensorflow = names[family]
    first = "import tf_hvd; tf_hvd.install_as_horovod()\n"
    typed = first + SESSION.format(module=module, tensorflow=tensorflow)
    done = finished(
        [sys.executable, "-P", "-i", "-q"], cwd=tmp_path, env=environ, input=typed, timeout=4 * WAIT
    )
    assert "RESULT [(2, 2), (22, 2)]" in done.stdout, done.stdout + done.stderr


def fail_on_1():
    """Rank 1 raises; the other ranks wait until they are ended."""
    if rank_now() == 1:
        raise KeyError("what")
    time.sleep(10 * WAIT)


@pytest.mark.one_mpi
@pytest.mark.usefixtures("mpi")
def test_exception_of_a_rank_is_raised_in_the_caller():
    """The traceback has the source lines, although cloudpickle 3.1.3 drops the file's name."""
    with pytest.raises(run_function.RankError, match="rank 1 of 2 raised:") as caught:
        run_function.run(fail_on_1, np=2)
    assert caught.value.rank == 1
    assert isinstance(caught.value.__cause__, KeyError)
    assert "in fail_on_1\n" in str(caught.value)
    assert "raise KeyError" in str(caught.value)


def fail_and_wait():
    """Rank 1 raises after `init`; rank 0 makes no call that would fail."""
    import tf_hvd as hvd

    hvd.init()
    if hvd.rank() == 1:
        raise KeyError("what")
    time.sleep(10 * WAIT)


@pytest.mark.usefixtures("mpi")
def test_rank_ended_because_another_raised_is_not_blamed_on_sigterm(capfd):
    """It was "sending SIGTERM to ranks 0, 1 ..." and "the job was ended by SIGTERM"."""
    with pytest.raises(run_function.RankError, match=r"(?s)rank 1 of 2 raised:.*KeyError: 'what'"):
        run_function.run(fail_and_wait, np=2)
    errors = capfd.readouterr().err
    assert "tf_hvd run: rank 1 raised KeyError; ending rank 0\n" in errors
    assert "SIGTERM" not in errors
    said = " ".join(errors.split())
    assert "rank 1 was the first to end with an error (exit code 1): KeyError: 'what'" in said


def test_error_about_a_lost_rank_is_not_the_first_one():
    """Clocks of hosts may differ."""
    lost = "UnknownError: rank 1 (b) left: KeyError: 'what'"
    found = {
        0: {**task.NOTHING, "trace": lost, "when": 1.0},
        1: {**task.NOTHING, "trace": "KeyError: 'what'", "when": 2.0},
    }
    with pytest.raises(run_function.RankError, match="rank 1 of 2 raised:\nKeyError"):
        run_function._raise_first(found, 2)


def exit_after_the_other():
    """Rank 1 writes no result after rank 0 has written one. The launcher then ends the job."""
    while rank_now() == 1:
        if os.path.exists(os.path.join(sys.argv[1], "result.0")):
            os._exit(4)
        time.sleep(0.01)


@pytest.mark.one_mpi
@pytest.mark.usefixtures("mpi")
def test_rank_without_a_result_is_an_error():
    with pytest.raises(run_function.RankError, match="exit code 4 and without a result of rank 1"):
        run_function.run(exit_after_the_other, np=2)


def read_arguments():
    if rank_now() == 1:
        sys.exit(
            2
        )  # as argparse does, because it sees the rank's arguments instead of the program's


@pytest.mark.usefixtures("mpi")
def test_exiting_rank_is_named():
    """The message was that the job could not be started, which also has exit code 2."""
    with pytest.raises(run_function.RankError, match=r"(?s)rank 1 of 2 raised:.*SystemExit: 2"):
        run_function.run(read_arguments, np=2)


def fail_beside_others():
    """Rank 1 raises; the other ranks wait for it in a collective."""
    import tensorflow as tf

    import tf_hvd as hvd

    hvd.init()
    if hvd.rank() == 1:
        raise KeyError("what")
    try:
        hvd.allreduce(tf.constant(1.0), name="loss")
    except tf.errors.UnknownError as error:
        return str(error)
    return "no error"


@pytest.mark.one_mpi
@pytest.mark.usefixtures("mpi")
def test_other_ranks_get_the_raised_exception(monkeypatch, tmp_path):
    told = tmp_path / "told"
    monkeypatch.setenv("TOLD", str(told))
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")

    def leave_word():
        text = fail_beside_others()
        with open(os.environ["TOLD"], "w") as file:
            file.write(text)

    with pytest.raises(run_function.RankError, match="rank 1 of 2 raised:"):
        run_function.run(leave_word, np=2)
    assert re.search(r"rank 1 \(.*\) left: KeyError: 'what'", told.read_text())


class _FileError(Exception):
    """A common fault: pickle recreates it from `args`, which lacks an argument."""

    def __init__(self, message, path):
        super().__init__(message)


def test_unpicklable_exception_is_shown_as_traceback():
    def fail():
        raise _FileError("no such image", "/data/1.png")

    with pytest.raises(
        run_function.RankError, match=r"(?s)rank 0 of 1 raised:.*no such image"
    ) as caught:
        run_function.run(fail)
    assert caught.value.rank == 0


def test_unpicklable_functions_and_results():
    with pytest.raises(TypeError, match="cannot send the function and its arguments"):
        run_function.run(print, (threading.Lock(),))
    with pytest.raises(
        run_function.RankError, match="rank 0 of 1 returned:\na result that cannot be pickled"
    ):
        run_function.run(threading.Lock)
    with pytest.raises(ValueError, match="could not start the job"):
        run_function.run(print, np=0)
    with pytest.raises(
        TypeError, match=r"args=10 must be a tuple or a list; for one argument pass \(10,\)"
    ):
        run_function.run(print, 10)
    with pytest.raises(TypeError, match="func='x' is not callable; pass a function"):
        run_function.run("x")
    with pytest.raises(
        ValueError, match=r"cannot create a folder in /no/such: No such file .*; set directory"
    ):
        run_function.run(print, directory="/no/such")


class _Touches:
    """Creates a file when its pickle is loaded."""

    def __init__(self, path):
        self._path = path

    def __reduce__(self):
        return os.mknod, (str(self._path),)


WHOLE = pickle.dumps(task.NOTHING)
DAMAGED = {
    "empty": (b"", "Ran out of input"),
    "cut": (WHOLE[:-5], "pickle data was truncated|Ran out of input"),
    "no pickle": (b"loss 0.5\n", "could not|invalid load key|unpickling|expected"),
    "another object": (pickle.dumps(["loss", 0.5]), "the program has overwritten the file"),
    "of a module that is not here": (b"cno_such_module\nName\n.", "No module named 'no_such_modul"),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_result_names_the_rank(tmp_path, damage):
    """For a list the error was "AttributeError: 'list' object has no attribute 'get'"."""
    data, why = DAMAGED[damage]
    (tmp_path / "result.0").write_bytes(WHOLE)
    (tmp_path / "result.1").write_bytes(data)
    for other in ("result.txt", "result.2.new", "failed.1"):
        (tmp_path / other).write_bytes(b"not looked at")
    with pytest.raises(run_function.RankError, match=f"the result of rank 1 .*: .*({why})") as told:
        run_function._results(tmp_path, 2, 0, elastic=False)
    assert told.value.rank == 1


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink(__file__, path)])
def test_result_that_is_not_a_file_does_not_block(tmp_path, make):
    make(tmp_path / "result.0")
    with pytest.raises(run_function.RankError, match="the result of rank 0 cannot be unpickled"):
        run_function._results(tmp_path, 1, 0, elastic=False)


def test_result_damaged_by_its_rank_is_an_error():
    def damage():
        atexit.register(os.truncate, os.path.join(sys.argv[1], "result.0"), 9)

    with pytest.raises(run_function.RankError, match="the result of rank 0 cannot be unpickled"):
        run_function.run(damage)


@pytest.mark.parametrize("owner", ["another user's", "open to all"])
def test_files_of_other_users_are_not_unpickled(tmp_path, owner):
    """Users who can write to the parent folder, such as a group, can put their own there."""
    if owner == "another user's" and os.geteuid() != 0:
        pytest.skip("only root can change a file's owner")
    folder, made = tmp_path / "tf_hvd-run-x", tmp_path / "made"
    folder.mkdir()
    for name in (task.CALL, f"{task.RESULT}0"):
        (folder / name).write_bytes(pickle.dumps(_Touches(made)))
    if owner == "another user's":
        os.chown(folder, 65534, 65534)
    else:
        folder.chmod(0o777)
    refused = f"{folder} belongs to another user, or other users can write to it"
    with pytest.raises(run_function.RankError, match=f"the results are lost: {refused}"):
        run_function._results(folder, 1, 0, elastic=False)
    rank = [sys.executable, task.__file__, str(folder)]
    done = finished(rank)
    assert done.returncode == 1
    assert done.stderr == f"tf_hvd.run: {refused}; set directory to another folder\n"
    assert not made.exists()


def test_unshared_folder_is_reported_in_one_line(tmp_path):
    """The rank could not write its error there, which gave two tracebacks."""
    rank = [sys.executable, task.__file__, str(tmp_path / "none")]
    done = finished(rank)
    assert done.returncode == 1
    assert re.fullmatch(
        r"tf_hvd\.run: .*/none does not exist on \S+; set directory to a folder that all hosts "
        r"share\n",
        done.stderr,
    )


def test_folder_is_private_and_removed(tmp_path):
    (mode, folder, found) = run_function.run(
        lambda: (os.stat(sys.argv[1]).st_mode, sys.argv[1], os.path.exists(sys.argv[1])),
        directory=str(tmp_path),
    )[0]
    assert stat.S_IMODE(mode) == 0o700
    assert found
    assert list(tmp_path.iterdir()) == []
    assert pathlib.Path(folder).parent == tmp_path


def test_caller_does_not_load_tensorflow(tmp_path):
    """`run` itself does not need TensorFlow: it works when it is imported on its own."""
    code = (
        STANDALONE + "print(run_function.run(lambda: 'tensorflow' in __import__('sys').modules))\n"
        "assert 'tensorflow' not in sys.modules\n"
    )
    command = [sys.executable, "-P", "-c", code]
    done = finished(command, cwd=tmp_path)
    assert done.stdout == "[False]\n", done.stderr


CALLER = """

def wait(folder):
    import os, time
    told = [os.environ.get(name) for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK")]
    rank = next(text for text in told if text is not None)
    with open(f"{folder}/new{rank}", "w") as file:
        file.write(f"{os.getpid()}\\n")
    os.rename(f"{folder}/new{rank}", f"{folder}/pid{rank}")
    time.sleep(300)

import signal

# A shell without job control starts background processes with SIGINT ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    run_function.run(wait, (sys.argv[1],), np=2)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL], ids=["SIGINT", "SIGKILL"])
def test_job_ends_with_its_caller(environ, tmp_path, signum):
    """The private folder of a killed caller, with the function in it, was not removed."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environ = {**environ, "TMPDIR": str(temporary)}
    command = [sys.executable, "-P", "-c", STANDALONE + CALLER, str(tmp_path)]
    caller = subprocess.Popen(
        command, env=environ, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    files = [tmp_path / "pid0", tmp_path / "pid1"]
    deadline = time.monotonic() + 2 * WAIT
    while not all(file.exists() for file in files) and time.monotonic() < deadline:
        time.sleep(0.05)
    pids = [int(file.read_text()) for file in files]
    caller.send_signal(signum)
    output, _ = caller.communicate(timeout=WAIT)
    if signum == signal.SIGINT:
        assert output.endswith("interrupted\n")
    while any(map(is_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(is_alive, pids))
    while list(temporary.glob("tf_hvd-run-*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not list(temporary.glob("tf_hvd-run-*"))


def test_horovods_signature():
    parameters = inspect.signature(horovod_runner.run).parameters.values()
    written = [
        f"{p.name}" if p.default is p.empty else f"{p.name}={p.default!r}" for p in parameters
    ]
    assert ", ".join(written) == HOROVOD_SIGNATURE


def test_horovods_arguments_are_honoured(tmp_path, capfd):
    with pytest.warns(DeprecationWarning, match="older name of num_proc"):
        result = horovod_runner.run(
            lambda: print("said") or "done",
            np=1,
            output_filename=str(tmp_path / "out"),
            start_timeout=60,
            ssh_port=22,
            disable_cache=True,
            use_mpi=True,
            verbose=2,
            mpi_args="--x",
            network_interfaces=["lo"],
        )
    assert result == ["done"]
    assert (tmp_path / "out" / "rank.0" / "stdout").read_text() == "said\n"
    assert "1 rank needs no MPI" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"use_gloo": True}, "tf_hvd does not use Gloo"),
        ({"hosts": "a:1", "hostfile": "b"}, "hosts and hostfile were both given"),
    ],
)
def test_unsupported_horovod_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        horovod_runner.run(print, **arguments)
