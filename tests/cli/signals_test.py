"""The signals that ranks of `tf_hvd run` get, and the clean-up after a killed launcher."""

import contextlib
import os
import pathlib
import pty
import re
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tf_hvd.launch.machine.proc import is_alive

WAIT = 600
SEGMENTS = r"/dev/shm/(?:sm_segment\.|mpich_shm_)\S+"  # MPI's segments after a killed rank
# Each rank reports its start and its end by files, because launchers split lines.
HEAD = """
def note(what):
    # Not closed by garbage collection, where a KeyboardInterrupt would be lost.
    with open(f'{what}{rank}', 'w') as file:
        file.write(f'{os.getpid()}\\n')
def forever():
    while True:
        try:
            time.sleep(100)
        except KeyboardInterrupt:
            pass
"""
# Rank 1 ends immediately; rank 0 takes longer than the time that launchers give ranks to end.
SAVES = (
    HEAD
    + """
try:
    note('ready')
    time.sleep(300)
except KeyboardInterrupt:
    if rank == 0:
        time.sleep(2)
        note('saved')
    raise
"""
)
HANGS = (
    HEAD
    + """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
try:
    note('ready')
    time.sleep(300)
except KeyboardInterrupt:
    if rank == 0:
        note('saved')
        sys.exit(0)
    forever()
"""
)


def wait_until(holds):
    deadline = time.monotonic() + WAIT
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def own_folders(environ, tmp_path):
    """The environment with a temporary folder that only this job uses."""
    folder = tmp_path / "folders"
    folder.mkdir()
    return {**environ, "TMPDIR": str(folder)}


def nothing_is_left(tmp_path):
    return not list((tmp_path / "folders").glob("tf_hvd-*"))


@pytest.fixture(params=["pipe", "pty"])
def interruptible(request, start, own_folders):
    """Starts `tf_hvd`; also returns a function that sends it Ctrl-C."""

    def begin(*command):
        if request.param == "pipe":
            process = start(*command, environ=own_folders)
            return process, lambda: process.send_signal(signal.SIGINT)
        ours, theirs = pty.openpty()
        # A terminal sends Ctrl-C to all of its foreground process group.
        takes = f"import fcntl, termios; fcntl.ioctl(0, {0x540E}, 0)"
        process = start(*command, environ=own_folders, stdin=theirs, before=takes)
        return process, lambda: os.write(ours, b"\x03")

    return begin


def test_ctrl_c_lets_ranks_save(interruptible, program, tmp_path, wait_for):
    """They got SIGTERM from MPI's launcher, and died within a tenth of a second.

    Or the same signal came twice: `timeout` repeats signals that the terminal sends to all.
    """
    process, interrupt = interruptible("run", "-np", "2", "--grace", "60", *program(SAVES))
    ranks = wait_for([tmp_path / "ready0", tmp_path / "ready1"], WAIT)
    interrupt()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=WAIT)
    assert process.returncode == 128 + signal.SIGINT
    assert (tmp_path / "saved0").exists(), errors
    assert "tf_hvd run: sending SIGINT to ranks 0, 1 so that they can save" in errors
    end = "tf_hvd run: the job was ended by SIGINT; all ranks ended on their own\n"
    assert errors.endswith(end)
    assert not any(map(is_alive, ranks))
    assert nothing_is_left(tmp_path)


def test_ctrl_c_reaches_child_of_a_shell(own_folders, start, program, tmp_path, wait_for):
    """The shell got the signal but waited for its child, which got SIGKILL 10 s later."""
    shell = ("sh", "-c", '"$@"; exit $?', "sh")
    process = start(
        "run", "-np", "2", "--grace", "60", *shell, *program(SAVES), environ=own_folders
    )
    ranks = wait_for([tmp_path / "ready0", tmp_path / "ready1"], WAIT)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=WAIT)
    assert process.returncode == 128 + signal.SIGINT
    assert (tmp_path / "saved0").exists(), errors
    assert not any(map(is_alive, ranks))


def test_second_sighup_does_not_end_the_grace_period(
    own_folders, start, program, tmp_path, wait_for
):
    """A closed terminal and the shell in it both send SIGHUP, and ranks were killed."""
    text = (
        "\ndef save(*_):\n    note('told')\n    time.sleep(2)\n    note('saved')\n    sys.exit(0)\n"
    )
    text = f"{HEAD}{text}signal.signal(signal.SIGHUP, save)\nnote('ready')\ntime.sleep(300)\n"
    process = start("run", "-np", "2", "--grace", "60", *program(text), environ=own_folders)
    wait_for([tmp_path / "ready0", tmp_path / "ready1"], WAIT)
    process.send_signal(signal.SIGHUP)
    wait_for([tmp_path / "told0", tmp_path / "told1"], WAIT)
    process.send_signal(signal.SIGHUP)
    _, errors = process.communicate(timeout=WAIT)
    assert process.returncode == 128 + signal.SIGHUP
    assert errors.endswith("all ranks ended on their own\n"), errors
    wait_for([tmp_path / "saved0", tmp_path / "saved1"], WAIT)


def test_rank_exceeding_the_grace_period_is_killed_and_named(
    interruptible, program, tmp_path, wait_for
):
    process, interrupt = interruptible("run", "-np", "2", "--grace", "15", *program(HANGS))
    ranks = wait_for([tmp_path / "ready0", tmp_path / "ready1"], WAIT)
    interrupt()
    _, errors = process.communicate(timeout=WAIT)
    assert process.returncode == 128 + signal.SIGINT
    assert (tmp_path / "saved0").exists(), errors
    assert errors.endswith("; rank 1 did not end in time and got SIGKILL\n")
    assert not any(map(is_alive, ranks))
    assert nothing_is_left(tmp_path)


def test_ranks_get_sigterm_as_sigterm(own_folders, start, program, tmp_path, wait_for):
    text = "\ndef save(signum, _):\n    time.sleep(2)\n    note('saved')\n    sys.exit(0)\n"
    text = f"{HEAD}{text}signal.signal(signal.SIGTERM, save)\nnote('ready')\ntime.sleep(300)\n"
    process = start("run", "-np", "2", "--grace", "60", *program(text), environ=own_folders)
    ranks = wait_for([tmp_path / "ready0", tmp_path / "ready1"], WAIT)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=WAIT)
    assert process.returncode == 128 + signal.SIGTERM
    assert wait_for([tmp_path / "saved0", tmp_path / "saved1"], WAIT) == ranks, errors


@pytest.mark.parametrize(("codes", "expected"), [((75, 75), 75), ((75, 0), 143), ((0, 75), 143)])
def test_job_exits_with_75_only_if_all_ranks_did(
    own_folders, start, program, tmp_path, wait_for, codes, expected
):
    """It was always 143, and a script that tests for 75 did not start the job again."""
    text = f"{HEAD}signal.signal(signal.SIGTERM, lambda *_: sys.exit({codes}[rank]))\n"
    text += "note('ready')\ntime.sleep(300)\n"
    process = start("run", "-np", "2", "--grace", "60", *program(text), environ=own_folders)
    wait_for([tmp_path / "ready0", tmp_path / "ready1"], WAIT)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=WAIT)
    assert process.returncode == expected, errors
    assert errors.endswith("the job was ended by SIGTERM; all ranks ended on their own\n")


PREEMPTED = (
    HEAD
    + """
import tf_hvd as hvd
hvd.init()
rank = hvd.rank()
preemption = hvd.on_preemption(lambda: note('saved'))
while True:
    preemption.check()
    if not os.path.exists(f'ready{rank}'):
        note('ready')
    time.sleep(0.05)
"""
)


@pytest.mark.parametrize("ranks", [1, 2])
def test_sigterm_to_the_launcher_ends_as_sigterm_to_a_rank(
    own_folders, start, program, tmp_path, wait_for, closing, ranks
):
    """The exit code was 143, and nothing said that the job can be started again."""
    job = ("run", "-np", str(ranks), "--grace", "60", *program(PREEMPTED))
    process = start(*job, environ=own_folders)
    wait_for([tmp_path / f"ready{rank}" for rank in range(ranks)], WAIT)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=WAIT)
    assert process.returncode == 75, errors
    assert all((tmp_path / f"saved{rank}").exists() for rank in range(ranks))
    if ranks > 1:  # for a single rank, a signal to the rank prints nothing either
        parts = closing(errors)
        assert parts[""] == "tf_hvd run: the job ended with exit code 75"
        said = "ranks 0, 1 received a termination signal, saved and exited cleanly"
        assert parts["what"] == said
        assert parts["next"] == "start the job again: it continues from the saved state"
        assert "ended by SIGTERM" not in errors


def segments_of(ranks):
    """The ranks' segments of MPI in shared memory."""
    maps = "".join(pathlib.Path(f"/proc/{rank}/maps").read_text() for rank in ranks)
    return [pathlib.Path(name) for name in set(re.findall(SEGMENTS, maps))]


@pytest.mark.parametrize("killed", ["both", "command", "quit", "all but the programs"])
def test_ranks_of_a_killed_launcher_end(own_folders, start, program, tmp_path, killed, wait_for):
    """After a kill of the whole process group, ranks trained indefinitely and kept their folder."""
    deaf = "import tf_hvd\ntf_hvd.init()\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)"
    # Background processes of a shell, and their children, ignore SIGQUIT.
    heeds = "import signal; signal.signal(signal.SIGQUIT, signal.SIG_DFL)"
    job = program(f"{HEAD}{deaf}\nnote('ready')\nforever()")
    process = start("run", "-np", "2", *job, environ=own_folders, before=heeds)
    ranks = wait_for([tmp_path / "ready0", tmp_path / "ready1"], WAIT)
    segments = segments_of(ranks)
    assert any(segment.exists() for segment in segments)
    below = psutil.Process(process.pid).children(recursive=True)
    launchers = [each for each in below if each.name().startswith(("prterun", "mpiexec"))]
    assert launchers, below
    others = {
        "both": launchers,
        "all but the programs": [each for each in below if each.pid not in ranks],
    }
    signum = signal.SIGQUIT if killed == "quit" else signal.SIGKILL
    for victim in [psutil.Process(process.pid), *others.get(killed, [])]:
        with contextlib.suppress(psutil.NoSuchProcess):  # the first may end others
            victim.send_signal(signum)
    wait_until(lambda: not any(map(is_alive, ranks)))
    wait_until(lambda: not any(segment.exists() for segment in segments))
    wait_until(lambda: nothing_is_left(tmp_path))


def test_ranks_of_a_killed_mpirun_end(environ, family, mpi_prefixes, tmp_path, wait_for):
    """Without `tf_hvd run` no process is between the launcher and the rank."""
    script = tmp_path / "train.py"
    script.write_text(
        "import os, time\nimport tf_hvd as hvd\nhvd.init()\n"
        "with open(f'ready{hvd.rank()}', 'w') as file:\n    file.write(f'{os.getpid()}\\n')\n"
        "time.sleep(300)\n"
    )
    words = {"openmpi": ["-H", "localhost:2"], "mpich": []}[family]
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    root["PRTE_MCA_rmaps_default_mapping_policy"] = ":oversubscribe"
    root["TMPDIR"] = str(tmp_path)
    command = [str(mpi_prefixes[family] / "bin" / "mpirun"), "-np", "2", *words]
    launcher = subprocess.Popen(
        [*command, sys.executable, str(script)],
        env={**environ, **root},
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        ranks = wait_for([tmp_path / "ready0", tmp_path / "ready1"], WAIT)
        daemons = [
            each
            for each in psutil.Process(launcher.pid).children(recursive=True)
            if each.pid not in ranks
        ]
        segments = segments_of(ranks)
        assert any(segment.exists() for segment in segments)
        for each in daemons:  # MPICH's daemons kill the ranks themselves when the launcher is gone
            each.kill()
        launcher.kill()
        wait_until(lambda: not any(map(is_alive, ranks)))
    finally:
        launcher.kill()
        launcher.wait()
    assert not [segment for segment in segments if segment.exists()]


def state(pid):
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_ctrl_z_stops_a_single_rank_and_its_command(start, program, tmp_path, wait_for):
    """The command did not get the signal, and ran while its rank was stopped."""
    process = start("run", "-np", "1", *program(f"{HEAD}note('ready')\ntime.sleep(300)"))
    wait_for([tmp_path / "readyNone"], WAIT)
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    blocked = next(line for line in status.splitlines() if line.startswith("SigBlk:"))
    assert not int(blocked.split()[1], 16) >> (signal.SIGTSTP - 1) & 1


def test_ctrl_z_and_fg(own_folders, start, program, tmp_path, wait_for):
    process = start("run", "-np", "2", *program(SAVES), environ=own_folders)
    wait_for([tmp_path / "ready0", tmp_path / "ready1"], WAIT)
    process.send_signal(signal.SIGTSTP)
    wait_until(lambda: state(process.pid) == "T")
    process.send_signal(signal.SIGCONT)
    wait_until(lambda: state(process.pid) != "T")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=WAIT)
    assert process.returncode == 128 + signal.SIGINT
    assert (tmp_path / "saved0").exists(), errors
