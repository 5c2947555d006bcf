"""`tf_hvd.run(func)` and `horovod.run(func)`: a function on several ranks."""

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
# `run` without the rest of the package, which would load TensorFlow.
ALONE = f"""
import sys, types
package = sys.modules["tf_hvd"] = types.ModuleType("tf_hvd")
package.__path__ = [{str(pathlib.Path(run_function.__file__).parents[2])!r}]
from tf_hvd.launch.job import run_function
"""
# As typed at a prompt, where functions have no file.
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
    """The MPI that `run` finds."""
    monkeypatch.setenv("TF_HVD_MPI_LIBRARY", environ["TF_HVD_MPI_LIBRARY"])


def rank_now():
    """The rank that the launcher told."""
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


def test_a_function_that_was_typed_joins_a_job(family, environ, tmp_path):
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
    """Rank 1 raises, the others wait until they are ended."""
    if rank_now() == 1:
        raise KeyError("what")
    time.sleep(10 * WAIT)


@pytest.mark.one_mpi
@pytest.mark.usefixtures("mpi")
def test_an_exception_of_a_rank_is_raised_here():
    """With the source's lines, whose file cloudpickle 3.1.3 does not name."""
    with pytest.raises(run_function.RankError, match="rank 1 of 2 raised:") as caught:
        run_function.run(fail_on_1, np=2)
    assert caught.value.rank == 1
    assert isinstance(caught.value.__cause__, KeyError)
    assert "in fail_on_1\n" in str(caught.value)
    assert "raise KeyError" in str(caught.value)


def exit_after_the_other():
    """Rank 1 leaves no result, once rank 0 has left its own: the launcher then ends the job."""
    while rank_now() == 1:
        if os.path.exists(os.path.join(sys.argv[1], "result.0")):
            os._exit(4)
        time.sleep(0.01)


@pytest.mark.one_mpi
@pytest.mark.usefixtures("mpi")
def test_a_rank_without_a_result_is_an_error():
    with pytest.raises(run_function.RankError, match="exit code 4 and without a result of rank 1"):
        run_function.run(exit_after_the_other, np=2)


def read_arguments():
    if rank_now() == 1:
        sys.exit(2)  # as argparse does, which finds other arguments than the program's


@pytest.mark.usefixtures("mpi")
def test_a_rank_that_exits_is_named():
    """It was said that the job could not be started, for which the exit code 2 stands too."""
    with pytest.raises(run_function.RankError, match=r"(?s)rank 1 of 2 raised:.*SystemExit: 2"):
        run_function.run(read_arguments, np=2)


def fail_beside_others():
    """Rank 1 raises, the others wait for it in a collective."""
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
def test_the_other_ranks_are_told_what_was_raised(monkeypatch, tmp_path):
    told = tmp_path / "told"
    monkeypatch.setenv("TOLD", str(told))
    monkeypatch.setattr(run_function, "_GRACE", 60.0)
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")

    def leave_word():
        text = fail_beside_others()
        with open(os.environ["TOLD"], "w") as file:
            file.write(text)

    with pytest.raises(run_function.RankError, match="rank 1 of 2 raised:"):
        run_function.run(leave_word, np=2)
    assert re.search(r"rank 1 \(.*\) left: KeyError: 'what'", told.read_text())


class _FileError(Exception):
    """As many are: pickle makes it from its arguments, of which it has one."""

    def __init__(self, message, path):
        super().__init__(message)


def test_an_exception_that_cannot_be_unpickled_is_told_with_its_traceback():
    def fail():
        raise _FileError("no such image", "/data/1.png")

    with pytest.raises(
        run_function.RankError, match=r"(?s)rank 0 of 1 raised:.*no such image"
    ) as caught:
        run_function.run(fail)
    assert caught.value.rank == 0


def test_what_cannot_be_sent_or_brought_back():
    with pytest.raises(TypeError, match="cannot send the function and its arguments"):
        run_function.run(print, (threading.Lock(),))
    with pytest.raises(
        run_function.RankError, match="rank 0 of 1 returned:\nwhat cannot be pickled"
    ):
        run_function.run(threading.Lock)
    with pytest.raises(ValueError, match="could not start the job"):
        run_function.run(print, np=0)
    with pytest.raises(
        TypeError, match=r"args=10 must be a tuple or a list; for one argument \(10,\)"
    ):
        run_function.run(print, 10)
    with pytest.raises(TypeError, match="calls a function, and 'x' is not callable"):
        run_function.run("x")
    with pytest.raises(ValueError, match=r"cannot make a folder in /no/such: No such file .*pass"):
        run_function.run(print, directory="/no/such")


class _Touches:
    """As a pickle it makes a file where it is loaded."""

    def __init__(self, path):
        self._path = path

    def __reduce__(self):
        return os.mknod, (str(self._path),)


WHOLE = pickle.dumps(task.NOTHING)
DAMAGED = {
    "empty": (b"", "Ran out of input"),
    "cut": (WHOLE[:-5], "pickle data was truncated|Ran out of input"),
    "no pickle": (b"loss 0.5\n", "could not|invalid load key|unpickling|expected"),
    "another object": (pickle.dumps(["loss", 0.5]), "it is not what a rank leaves"),
    "of a module that is not here": (b"cno_such_module\nName\n.", "No module named 'no_such_modul"),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_result_is_an_error_that_names_the_rank(tmp_path, damage):
    """A list was "AttributeError: 'list' object has no attribute 'get'"."""
    data, why = DAMAGED[damage]
    (tmp_path / "result.0").write_bytes(WHOLE)
    (tmp_path / "result.1").write_bytes(data)
    for other in ("result.txt", "result.2.new", "failed.1"):
        (tmp_path / other).write_bytes(b"not looked at")
    with pytest.raises(run_function.RankError, match=f"the result of rank 1 .*: .*({why})") as told:
        run_function._results(tmp_path, 2, 0, elastic=False)
    assert told.value.rank == 1


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink(__file__, path)])
def test_a_result_that_is_no_file_holds_nothing_up(tmp_path, make):
    make(tmp_path / "result.0")
    with pytest.raises(run_function.RankError, match="the result of rank 0 cannot be unpickled"):
        run_function._results(tmp_path, 1, 0, elastic=False)


def test_what_its_rank_has_damaged_is_told():
    def damage():
        atexit.register(os.truncate, os.path.join(sys.argv[1], "result.0"), 9)

    with pytest.raises(run_function.RankError, match="the result of rank 0 cannot be unpickled"):
        run_function.run(damage)


@pytest.mark.parametrize("whose", ["another user's", "open to all"])
def test_nothing_of_others_is_unpickled(tmp_path, whose):
    """Where others can write beside the folder, as in a group's, they can put theirs there."""
    if whose == "another user's" and os.geteuid() != 0:
        pytest.skip("only root can give files away")
    folder, made = tmp_path / "tf_hvd-run-x", tmp_path / "made"
    folder.mkdir()
    for name in (task.CALL, f"{task.RESULT}0"):
        (folder / name).write_bytes(pickle.dumps(_Touches(made)))
    if whose == "another user's":
        os.chown(folder, 65534, 65534)
    else:
        folder.chmod(0o777)
    refused = f"{folder} is another user's, or others can write to it"
    with pytest.raises(run_function.RankError, match=f"the results are lost: {refused}"):
        run_function._results(folder, 1, 0, elastic=False)
    rank = [sys.executable, task.__file__, str(folder)]
    done = finished(rank)
    assert done.returncode == 1
    assert done.stderr == f"tf_hvd.run: {refused}; pass another directory=\n"
    assert not made.exists()


def test_a_folder_that_no_host_shares_is_told_in_a_line(tmp_path):
    """The rank then failed to leave that there, which was two tracebacks."""
    rank = [sys.executable, task.__file__, str(tmp_path / "none")]
    done = finished(rank)
    assert done.returncode == 1
    assert re.fullmatch(
        r"tf_hvd\.run: \S+ does not see .*/none; pass directory=, .*\n", done.stderr
    )


def test_the_folder_is_private_and_goes(tmp_path):
    (mode, folder, found) = run_function.run(
        lambda: (os.stat(sys.argv[1]).st_mode, sys.argv[1], os.path.exists(sys.argv[1])),
        directory=str(tmp_path),
    )[0]
    assert stat.S_IMODE(mode) == 0o700
    assert found
    assert list(tmp_path.iterdir()) == []
    assert pathlib.Path(folder).parent == tmp_path


def test_the_caller_need_not_load_tensorflow(tmp_path):
    """`run` itself takes nothing of TensorFlow: loaded alone it works without."""
    alone = (
        ALONE + "print(run_function.run(lambda: 'tensorflow' in __import__('sys').modules))\n"
        "assert 'tensorflow' not in sys.modules\n"
    )
    command = [sys.executable, "-P", "-c", alone]
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

# A shell without job control starts what it puts into the background with SIGINT ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    run_function.run(wait, (sys.argv[1],), np=2)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL], ids=["SIGINT", "SIGKILL"])
def test_the_job_ends_with_its_caller(environ, tmp_path, signum):
    """Of a killed one its private folder stayed, with what it had sent."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environ = {**environ, "TMPDIR": str(temporary)}
    command = [sys.executable, "-P", "-c", ALONE + CALLER, str(tmp_path)]
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
        ({"use_gloo": True}, "there is no Gloo"),
        ({"hosts": "a:1", "hostfile": "b"}, "hosts and hostfile were both given"),
    ],
)
def test_what_horovod_has_and_we_have_not(arguments, message):
    with pytest.raises(ValueError, match=message):
        horovod_runner.run(print, **arguments)
