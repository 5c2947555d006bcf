"""Jobs with ranks on other machines, which an ssh that stays here stands for."""

import subprocess
import sys

import pytest

from tf_hvd.core import contract
from tf_hvd.launch.job.command_line import Job, by_way_of_rank
from tf_hvd.launch.job.environment import (
    exported_names,
    interface_environment,
    rank_environment,
    session_environment,
    ssh_environment,
)
from tf_hvd.launch.job.launchers import Launcher

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
    """The environment of a user whose ssh writes down its arguments; and where."""
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


def test_a_machine_without_our_python_starts_the_program_itself(session):
    job = Job(ranks=2, command=("sh", "-c", "cat; echo $0 done", "it"))
    line = list(by_way_of_rank("openmpi", job, session, local=False))
    assert sys.executable in line
    line[line.index(sys.executable)] = "/no/such/python"
    done = subprocess.run(line, input="lost", text=True, capture_output=True, check=True)
    assert (done.stdout, done.stderr) == ("it done\n", "")


def test_what_launchers_are_told_of_the_network():
    before = {"PRTE_MCA_plm_ssh_args": "-x", "HOME": "/"}
    assert ssh_environment("openmpi", ["-p", "22"], before) == {
        "PRTE_MCA_plm_ssh_args": "-x -p 22",
        "OMPI_MCA_plm_rsh_args": "-p 22",
    }
    assert ssh_environment("mpich", ["-p", "22"], before) == {"HYDRA_LAUNCHER_EXTRA_ARGS": "-p 22"}
    assert ssh_environment("openmpi", [], before) == {}
    assert interface_environment("openmpi", "lo,eth0")["OMPI_MCA_btl_tcp_if_include"] == "lo,eth0"
    assert interface_environment("mpich", "lo") == interface_environment("openmpi", "") == {}


def test_where_open_mpi_keeps_its_files():
    name = "PRTE_MCA_prte_local_tmpdir_base"
    assert session_environment("openmpi", "/job", {}) == {name: "/job"}
    assert session_environment("openmpi", "/job", {name: "/mine"}) == {name: "/mine"}
    assert session_environment("openmpi", "/job", {"PRTE_MCA_prte_tmpdir_base": "/x"}) == {}
    assert session_environment("mpich", "/job", {}) == {}


def test_mpich_has_a_variable_to_lose():
    """Its launcher loses the last one of its environment on other machines: a rank's job, once."""
    ranks = rank_environment(Launcher("mpich", "mpiexec"), {contract.JOB: "tf_hvd-1"}, False)
    assert list(ranks)[-1] == contract.LAST
    assert contract.LAST in exported_names(ranks)
