"""Jobs with ranks on other machines, simulated by an ssh that runs commands here."""

import subprocess
import sys

import pytest

from tf_hvd.launch.job.asked import Job
from tf_hvd.launch.job.command_line import rank_command

SSH = """\
#!/bin/sh
echo "$@" >> {log}
while [ "${{1#-}}" != "$1" ]; do
  case "$1" in -p|-i|-o|-l) shift ;; esac
  shift
done
shift
exec sh -c "$*"
"""


@pytest.fixture
def ssh(environ, tmp_path):
    """The environment of a user with an ssh that logs its arguments, and the log's path."""
    program, log = tmp_path / "ssh", tmp_path / "ssh.log"
    program.write_text(SSH.format(log=log))
    program.chmod(0o755)
    environ |= {"PRTE_MCA_plm_ssh_agent": str(program), "PRTE_MCA_plm_ssh_args": "-x"}
    return environ | {"HYDRA_LAUNCHER": "ssh", "HYDRA_LAUNCHER_EXEC": str(program)}, log


def test_input_and_ssh_of_a_job_with_another_host(start, program, ssh, tmp_path):
    environ, log = ssh
    show = program("say(rank, len(sys.stdin.buffer.read()))")
    (tmp_path / "key").touch()
    (tmp_path / "input").write_bytes(b"x" * 1000)
    expected = {
        "localhost:1,elsewhere:1": ["0 1000", "1 0"],
        "elsewhere:1,localhost:1": ["0 0", "1 0"],
    }
    for hosts, lines in expected.items():
        log.unlink(missing_ok=True)
        with open(tmp_path / "input", "rb") as file:
            process = start(
                *("run", "-np", "2", "-H", hosts, "-p", "2222", "-i", "key", *show),
                environ=environ,
                stdin=file,
            )
        output, errors = process.communicate(timeout=600)
        assert process.returncode == 0, errors
        assert sorted(output.splitlines()) == lines
        assert ("rank 0 runs on elsewhere, where the standard input is empty" in errors) is (
            lines[0] == "0 0"
        )
        assert f"-p 2222 -i {tmp_path / 'key'} elsewhere " in log.read_text()


def test_machine_without_our_python_starts_the_program_directly(session):
    job = Job(ranks=2, command=("sh", "-c", "cat; echo $0 done", "it"), local=False)
    line = list(rank_command("openmpi", job, session.home.job, session.state.job))
    assert sys.executable in line
    line[line.index(sys.executable)] = "/no/such/python"
    done = subprocess.run(line, input="lost", text=True, capture_output=True, check=True)
    assert (done.stdout, done.stderr) == ("it done\n", "")
