"""`horovod.runner.launch` and related modules: jobs that Python programs start."""

import os
import sys

import pytest
from finished import finished

from tf_hvd.horovod import hosts, launch, runner
from tf_hvd.launch.job.environment import horovod_path

pytestmark = pytest.mark.one_mpi
SAYS = "import os, sys; os.write(1, f'says {sys.argv[1:]}\\n'.encode())"


def places(*arguments):
    return [list(vars(slot).values()) for slot in hosts.get_host_assignments(*arguments)]


def test_hosts_are_filled_one_after_the_other():
    """Columns: host, rank, local and cross rank, size, local and cross size."""
    listed = hosts.parse_hosts("a:2, b-1.c:3,d:1")
    assert [(host.hostname, host.slots) for host in listed] == [("a", 2), ("b-1.c", 3), ("d", 1)]
    assert places(listed, 2, 4) == [
        ["a", 0, 0, 0, 4, 2, 2],
        ["a", 1, 1, 0, 4, 2, 2],
        ["b-1.c", 2, 0, 1, 4, 2, 2],
        ["b-1.c", 3, 1, 1, 4, 2, 2],
    ]
    assert places(listed, 6)[2:] == [
        ["b-1.c", 2, 0, 1, 6, 3, 3],
        ["b-1.c", 3, 1, 1, 6, 3, 2],
        ["b-1.c", 4, 2, 0, 6, 3, 1],
        ["d", 5, 0, 2, 6, 1, 3],
    ]
    assert hosts.get_host_assignments(listed, 6)[3].to_response_string() == "3,6,1,3,1,2"


@pytest.mark.parametrize("text", ["a", "a:", "a:x", "a:1,,b:1", ""])
def test_invalid_hosts(text):
    with pytest.raises(ValueError, match=r"name:slots|no slots|positive"):
        hosts.parse_hosts(text)


def test_more_ranks_than_slots():
    with pytest.raises(ValueError, match=r"3 processes were requested.*only 2 slots"):
        hosts.get_host_assignments(hosts.parse_hosts("a:2"), 3)


def test_attributes_become_flags():
    args = runner._HorovodArgs()
    assert (args.num_proc, args.command, args.use_gloo, args.nics) == (1, None, None, None)
    args.num_proc = 2
    args.nics = {"eth1", "eth0"}
    args.cooldown_range = (1, 2)
    args.mpi_args = "--mca a b"
    args.verbose = 0
    args.tcp_flag = True
    args.use_mpi = False
    assert list(launch._flags(args)) == [
        *("--num-proc=2", "--network-interface=eth0,eth1"),
        *("--blacklist-cooldown-range", "1", "2", "--mpi-args=--mca a b", "--tcp"),
    ]


@pytest.fixture
def horovods(environ):
    # An empty entry would mean the folder in which the tests run.
    paths = [str(horovod_path()), os.environ.get("PYTHONPATH", "")]
    return {**environ, "PYTHONPATH": ":".join(filter(None, paths))}


def test_launch_module_is_horovodrun(horovods):
    """As `python -m horovod.runner.launch`."""
    words = [sys.executable, "-P", "-m", "horovod.runner.launch", "-np", "2"]
    ended = finished([*words, sys.executable, "-c", SAYS, "--verbose"], env=horovods)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("says ['--verbose']") == 2


# The last job fails.
PROGRAM = f"""
import os
import sys
from horovod.runner import _HorovodArgs
from horovod.runner.launch import _run

def rank():
    names = ("OMPI_COMM_WORLD_RANK", "PMI_RANK")
    return int(next(os.environ[name] for name in names if name in os.environ))

args = _HorovodArgs()
args.num_proc, args.hosts, args.run_func = 2, "localhost:2", rank
print("result", _run(args), flush=True)
args.run_func, args.command = None, [sys.executable, "-c", {SAYS!r}]
print("result", _run(args), flush=True)
args.command = [sys.executable, "-c", "raise SystemExit(3)"]
try:
    _run(args)
except RuntimeError as error:
    print("result", "exit code 3" in str(error), flush=True)
"""


def test_jobs_described_by_a_program(horovods, tmp_path):
    """As cloudtik describes jobs."""
    (tmp_path / "program.py").write_text(PROGRAM)
    ended = finished([sys.executable, "-P", str(tmp_path / "program.py")], env=horovods)
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert sum(line.endswith("says []") for line in lines) == 2
    results = [line for line in lines if line.startswith("result ")]
    assert results == ["result [0, 1]", "result None", "result True"]
