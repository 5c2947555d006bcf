"""The processes that a job leaves running when it ends."""

import os
import signal
import subprocess
import sys
import time

import pytest
from finished import finished

from tf_hvd.launch.machine.proc import is_alive

COMMAND = [sys.executable, "-m", "tf_hvd_command"]
WAIT = 600


@pytest.fixture(autouse=True)
def not_under_nohup():
    """Undo nohup, under which these tests may run."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


CHILDREN = """
import subprocess
quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
children = {
    "plain": subprocess.Popen(["sleep", "300"], **quiet),
    "setsid": subprocess.Popen(["sleep", "300"], start_new_session=True, **quiet),
    "nohup": subprocess.Popen(["nohup", "sleep", "300"], **quiet),
}
for name, child in children.items():
    open(f"{name}{rank}", "w").write(f"{child.pid}\\n")
while open(f"/proc/{children['nohup'].pid}/comm").read() != "sleep\\n":
    time.sleep(0.01)
"""


@pytest.mark.parametrize("ranks", [1, 2])
def test_processes_left_by_a_rank(environ, call, program, tmp_path, ranks):
    """Processes started to outlive the job are kept; all others end with the job."""
    code, _, errors = call("run", "-np", str(ranks), *program(CHILDREN), environ=environ)
    assert code == 0, errors
    left = {
        name: [int(file.read_text()) for file in tmp_path.glob(f"{name}*")]
        for name in ("plain", "setsid", "nohup")
    }
    running = {name: [is_alive(pid) for pid in pids] for name, pids in left.items()}
    for pid in left["setsid"] + left["nohup"]:
        os.kill(pid, signal.SIGKILL)
    on = [True] * ranks
    assert running == {"plain": [False] * ranks, "setsid": on, "nohup": on}


def test_nothing_is_left_under_nohup(program, tmp_path):
    """All processes of such a job ignore SIGHUP, so this does not mark any to be kept."""
    command = ["nohup", *COMMAND, "run", "-np", "1", *program(CHILDREN)]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=WAIT)
    assert not is_alive(int((tmp_path / "nohupNone").read_text()))
    os.kill(int((tmp_path / "setsidNone").read_text()), signal.SIGKILL)


def test_nohup_outlives_its_terminal(program, tmp_path):
    """It received the SIGHUP that it was meant to ignore, and ended the job."""
    waits = program("open('here', 'w').close()\nwhile not os.path.exists('go'): time.sleep(0.05)\n")
    command = ["nohup", *COMMAND, "run", "-np", "1", *waits]
    job = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    while not (tmp_path / "here").exists():
        assert job.poll() is None
        time.sleep(0.05)
    job.send_signal(signal.SIGHUP)
    (tmp_path / "go").touch()
    output, _ = job.communicate(timeout=WAIT)
    assert job.returncode == 0, output


def test_background_jobs_of_exec_script_are_kept(tmp_path, program):
    """`tensorboard & exec tf_hvd run ...`: processes started before do not belong to the job."""
    words = [*COMMAND, "run", "-np", "1", *program("say('ran')")]
    script = f'sleep 100 >/dev/null 2>&1 & echo $! > {tmp_path}/pid; exec "$@"'
    done = finished(["sh", "-c", script, "sh", *words])
    assert done.stdout == "ran\n", done.stderr
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)  # fails if it has ended
