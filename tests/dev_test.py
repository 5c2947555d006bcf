"""`./dev`: refused arguments, and the processes of interrupted tests."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import psutil
import pytest
from finished import finished

from tf_hvd.launch.machine.proc import is_alive

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests" / "prove"))

import prove  # noqa: E402

BASICS = ["bash", "dirname", "env", "id", "mkdir", "sed", "cat", "cut", "sha256sum", "readlink"]
TOOLS = ["python3", "g++", "npm", "git", "flock"]


def run_dev(tmp_path, *arguments, tools=TOOLS):
    """Run it with these tools but no apt-get on the PATH, and with a separate home."""
    path = tmp_path / "bin"
    path.mkdir()
    for tool in [*BASICS, *tools]:
        found = shutil.which(tool)
        assert found, f"this test needs {tool}"
        (path / tool).symlink_to(found)
    home = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    return finished(
        [str(ROOT / "dev"), *arguments],
        cwd=tmp_path,
        env={"PATH": str(path), "LANG": os.environ.get("LANG", "C"), **home},
    )


def test_missing_tool_is_one_line_that_names_its_package(tmp_path):
    done = run_dev(tmp_path, "setup", tools=[name for name in TOOLS if name != "flock"])
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("dev: flock is missing: sudo apt-get install")
    assert line.endswith(" util-linux")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["wheel", "--tensorflow", "2.17"], "--tensorflow is '2.17'; pass one of 2.18 2.19"),
        (["smoke", "--python", "no_such_python"], "cannot find no_such_python"),
        (["prove"], f"unknown proof ''; pass one of {' '.join(prove.NAMES)}"),
        (["prove", "kills", "--quick"], "prove kills: unknown argument '--quick'; only --short"),
        (["test", "--all", "tests"], "test --all takes no further argument"),
    ],
)
def test_invalid_arguments_give_one_line(tmp_path, arguments, error):
    """Before anything is set up."""
    done = run_dev(tmp_path, *arguments)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"dev: {error}")


def run_marked(mark, *command):
    """Start a process with this mark, in a separate session."""
    environ = {**os.environ, "TF_HVD_TESTS_MARK": mark}
    return subprocess.Popen(command, env=environ, start_new_session=True)


def test_processes_of_interrupted_tests_are_ended(tmp_path):
    """Jobs are in separate process groups: Ctrl-C does not reach them."""
    mark = f"of_{tmp_path.name}"
    ours = [run_marked(mark, "sleep", "300"), run_marked(mark, "sh", "-c", "sleep 300 & wait")]
    other = run_marked(f"{mark}_other", "sleep", "300")
    try:
        (child,) = wait_for_children(ours[1])
        subprocess.run([sys.executable, ROOT / "dev_support/end_marked.py", mark], check=True)
        assert [process.wait(600) for process in ours] == [-signal.SIGKILL] * 2
        assert not is_alive(child)
        assert other.poll() is None
    finally:
        for process in [*ours, other]:
            process.kill()
            process.wait()


def wait_for_children(process):
    while True:
        children = psutil.Process(process.pid).children()
        if children:
            return [child.pid for child in children]
        time.sleep(0.01)


RANK = """
import os, subprocess, sys
with open(f"/proc/{os.getppid()}/stat") as file:  # of its keeper
    parent = file.read().rpartition(")")[2].split()[1]
loaded = "tensorflow" in sys.modules
code = "import os, sys; print(os.getppid(), 'tensorflow' in sys.modules)"
child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
# Written at once with its own newline: launchers mix the output of ranks.
os.write(1, f"{parent} {loaded} {child.split() == [str(os.getpid()), 'False']}\\n".encode())
"""


def test_ranks_of_tests_are_forked_from_one_standby(run_to_end, tmp_path):
    """Processes started by these ranks are not forked."""
    (tmp_path / "rank.py").write_text(RANK)
    command = [sys.executable, "-P", "-m", "tf_hvd_command", "run", "-np", "2"]
    command += [sys.executable, str(tmp_path / "rank.py")]
    run_to_end(command, os.environ, 300)  # the second such job may start the standby
    _, output = run_to_end(command, os.environ, 300)
    found = re.findall(r"^(\d+) (True|False) (True|False)$", output, re.MULTILINE)
    assert found == [(found[0][0], "True", "True")] * 2, output
