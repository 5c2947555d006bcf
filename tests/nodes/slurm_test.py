"""Jobs under a real Slurm of two nodes; skipped if Debian's packages of it are not installed."""

import re
import subprocess
import sys
import time

import cluster as machines
import pytest
import slurm as scheduler

LIMIT = 600
TF_HVD = f"{sys.executable} -P -m tf_hvd_command run"

SHOW = """
import os, socket
import tensorflow as tf
import tf_hvd as hvd
hvd.init()
total = int(hvd.allreduce(tf.constant(1 << hvd.rank()), op=hvd.Sum))
says = [hvd.rank(), socket.gethostname(), hvd.local_rank(), hvd.local_size(), total]
os.write(1, ("rank " + " ".join(map(str, says)) + chr(10)).encode())
"""
FOUR = [
    "rank 0 alpha 0 2 15",
    "rank 1 alpha 1 2 15",
    "rank 2 beta 0 2 15",
    "rank 3 beta 1 2 15",
]


@pytest.fixture(scope="module")
def cluster_of_slurm(tmp_path_factory):
    reason = machines.why_not() or scheduler.why_not()
    if reason:
        pytest.skip(f"no Slurm on this machine: {reason}")
    folder = tmp_path_factory.mktemp("slurm")
    with machines.cluster(["alpha", "beta"]) as nodes, scheduler.slurm(nodes, folder) as environ:
        yield nodes["alpha"], environ


@pytest.fixture
def batch(cluster_of_slurm, tmp_path, mpi_library):
    """Runs a batch script to its end: (its lines, sbatch's options) -> (exit code, output)."""
    node, environ = cluster_of_slurm
    (tmp_path / "show.py").write_text(SHOW)

    def run(lines, *options, family="openmpi"):
        script = tmp_path / "job.sh"
        script.write_text(f"#!/bin/bash\ncd {tmp_path}\n{lines}\n")
        library = {"TF_HVD_MPI_LIBRARY": str(mpi_library(family)), "TF_CPP_MIN_LOG_LEVEL": "2"}
        settings = {**environ, **library}

        def call(*command):
            # Not sbatch --wait, which polls after 2 s, 10 s, and then every 30 s.
            return subprocess.check_output(node.command(command), env=settings, text=True)

        output = f"--output={tmp_path}/output.%a"
        job = call("sbatch", "--parsable", output, *options, str(script)).strip()
        for _ in range(4 * LIMIT):
            told = call("scontrol", "--oneliner", "show", "job", job)
            states = set(re.findall(r"JobState=(\w+)", told))
            if not states & {"PENDING", "RUNNING", "COMPLETING"}:
                break
            time.sleep(0.25)
        else:
            call("scancel", job)
        codes = [int(code) for code in re.findall(r" ExitCode=(\d+)", told)]
        text = "".join(file.read_text() for file in sorted(tmp_path.glob("output.*")))
        return (max(codes) if states == {"COMPLETED"} else max(*codes, 1)), text

    return run


def said(output):
    return sorted(re.findall(r"^rank .*$", output, re.MULTILINE))


@pytest.mark.parametrize("family", ["openmpi", "mpich"])
def test_batch_job_needs_no_host_list(batch, family):
    lines = f"{TF_HVD} {sys.executable} show.py"
    code, output = batch(lines, "--nodes=2", "--ntasks-per-node=2", family=family)
    assert code == 0, output
    assert said(output) == FOUR, output


def test_single_rank_runs_where_it_is_started(batch):
    """With `tf_hvd run -np 1` and with plain Python, whatever nodes Slurm has allocated."""
    command = f"{sys.executable} show.py"
    code, output = batch(f"{TF_HVD} -np 1 {command} && {command}", "--nodes=2")
    assert code == 0, output
    assert said(output) == ["rank 0 alpha 0 1 1"] * 2


def test_more_ranks_than_slurm_allocated_are_refused(batch):
    code, output = batch(f"{TF_HVD} -np 3 {sys.executable} show.py", "--nodes=2")
    assert code == 2, output
    assert "-np 3 is more than the 2 slots of alpha:1,beta:1; ask Slurm for more" in output


# With UCX, the data that an MPICH rank publishes are too long for srun's PMI.
@pytest.mark.parametrize(("family", "mpi"), [("openmpi", "pmix"), ("mpich", "pmi2")])
def test_srun_starts_ranks_itself(batch, family, mpi):
    lines = f"srun --kill-on-bad-exit --mpi={mpi} {sys.executable} show.py"
    code, output = batch(lines, "--nodes=2", "--ntasks-per-node=2", family=family)
    assert code == 0, output
    assert said(output) == FOUR, output


def test_srun_without_mpi_is_detected(batch):
    code, output = batch(f"srun --mpi=none {sys.executable} show.py", "--nodes=2")
    assert code != 0
    assert said(output) == []
    assert "srun --mpi=pmix" in output


SAVES = """
import os, signal, sys, time
import tf_hvd as hvd

def save(*_):
    time.sleep(2)
    os.write(1, f"rank {hvd.rank()} saves\\n".encode())
    hvd.shutdown()
    sys.exit(0)

hvd.init()
signal.signal(signal.SIGUSR1, save)
if hvd.allgather_object(True) and hvd.rank() == 0:
    # As at the end of a job's time: sbatch --signal=B:USR1@60.
    os.system(f"scancel --batch --signal=USR1 {os.environ['SLURM_JOB_ID']}")
time.sleep(100)
"""


@pytest.mark.parametrize("family", ["openmpi", "mpich"])
def test_slurms_warning_reaches_all_ranks(batch, tmp_path, family):
    (tmp_path / "save.py").write_text(SAVES)
    lines = f"exec {TF_HVD} {sys.executable} save.py"
    code, output = batch(lines, "--nodes=2", "--ntasks-per-node=1", family=family)
    assert code == 0, output
    assert said(output) == ["rank 0 saves", "rank 1 saves"]


ENDS = """
import os, signal, socket, sys, time

def save(*_):
    time.sleep(2)
    os.write(1, f"rank on {socket.gethostname()} saves\\n".encode())
    sys.exit(int(sys.argv[1]))

signal.signal(signal.SIGTERM, save)
open(f"ready.{socket.gethostname()}", "w").close()
time.sleep(100)
"""


@pytest.mark.parametrize(("ranks_code", "expected"), [(0, 143), (75, 75)])
@pytest.mark.parametrize("family", ["openmpi", "mpich"])
def test_ranks_on_all_nodes_get_the_grace_period(batch, tmp_path, family, ranks_code, expected):
    """Ranks on other nodes got no signal, and MPI's launcher ended them.

    If all ranks end with 75, a batch script can start the job again.
    """
    (tmp_path / "ends.py").write_text(ENDS)
    wait = "until [ -e ready.alpha ] && [ -e ready.beta ]; do sleep 0.1; done"
    command = f"{TF_HVD} --grace 30 {sys.executable} ends.py {ranks_code}"
    lines = f"{command} &\n{wait}\nkill -TERM $!\nwait $!"
    code, output = batch(lines, "--nodes=2", "--ntasks-per-node=1", family=family)
    assert code == expected, output
    assert said(output) == ["rank on alpha saves", "rank on beta saves"]
    assert "all ranks ended on their own" in output


def test_an_array_of_jobs(batch):
    """Both run at once on the same machine, and do not mix their ranks."""
    lines = f"{TF_HVD} {sys.executable} show.py; echo task $SLURM_ARRAY_TASK_ID ends"
    code, output = batch(lines, "--nodes=1", "--ntasks=2", "--array=0-1")
    assert code == 0, output
    ranks = said(output)
    assert len(ranks) == 4
    for rank in (0, 1):
        lines = [line for line in ranks if line.startswith(f"rank {rank} ")]
        assert [line.split()[3:] for line in lines] == [[str(rank), "2", "3"]] * 2
    assert {"task 0 ends", "task 1 ends"} <= set(output.splitlines())


NESTED = """
import os, socket, subprocess, sys
shows = "import os, socket; told = [os.environ.get(n) for n in ('PMIX_RANK', 'PMI_RANK')]; "
shows += "os.write(1, f'rank {[*filter(None, told)][0]} {socket.gethostname()}\\\\n'.encode())"
ours = [sys.executable, "-P", "-m", "tf_hvd_command", "run", "-np", "2"]
for more in ([], ["--min-np", "2"]):
    subprocess.run([*ours, *more, sys.executable, "-c", shows], check=True)
    os.write(1, f"{socket.gethostname()} has run {more}\\n".encode())
"""


@pytest.mark.parametrize(
    ("family", "outer"),
    [
        *(("openmpi", TF_HVD), ("openmpi", "srun --mpi=pmix")),
        *(("mpich", TF_HVD), ("mpich", "srun --mpi=pmi2")),
    ],
)
def test_jobs_of_ranks_run_on_their_nodes(batch, tmp_path, family, outer):
    """Open MPI's jobs all ran on the first node, MPICH's on any node."""
    (tmp_path / "nested.py").write_text(NESTED)
    lines = f"{outer} {sys.executable} nested.py"
    code, output = batch(lines, "--nodes=2", "--ntasks-per-node=1", family=family)
    assert code == 0, output
    # Each twice. Launchers mix lines.
    found = sorted(re.findall(r"rank ([01]) (alpha|beta)", output))
    assert found == sorted([(r, node) for r in "01" for node in ("alpha", "beta")] * 2), output


FOR_EVER = """
import os
import tensorflow as tf
import tf_hvd as hvd
hvd.init()
open(f"ready.{hvd.rank()}", "w").close()
while True:
    hvd.allreduce(tf.ones([1000]))
"""


def test_ranks_of_a_killed_srun_end(batch, cluster_of_slurm, tmp_path):
    """Slurm lets them run until the end of the allocation."""
    (tmp_path / "for_ever.py").write_text(FOR_EVER)
    lines = f"""
(srun --mpi=pmix {sys.executable} for_ever.py; echo srun ended) &
while [ ! -e ready.1 ] || [ ! -e ready.0 ]; do sleep 0.1; done
pkill -KILL -x srun
for i in $(seq 300); do
  sleep 1
  squeue -h -s -j $SLURM_JOB_ID | grep -v -e batch -e extern || break
done
echo after $i seconds
"""
    _, output = batch(lines, "--nodes=2", "--ntasks-per-node=1")
    seconds = int(re.search(r"after (\d+) seconds", output)[1])
    assert seconds < 300, output


GOES_ON = """
import os, signal, socket
import tensorflow as tf
import tf_hvd as hvd

hvd.init()
state = hvd.elastic.ObjectState(batch=0)

@hvd.elastic.run
def train(state):
    while state.batch < 40:
        state.batch += 1
        total = hvd.allreduce(tf.ones([2]), op=hvd.Sum, name=f"s{state.batch}")
        assert total.numpy().tolist() == [hvd.size()] * 2
        if state.batch == 20 and hvd.rank() == 1 and not os.path.exists("killed"):
            open("killed", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        state.commit()

train(state)
says = [hvd.rank(), hvd.size(), socket.gethostname(), state.batch]
os.write(1, ("rank " + " ".join(map(str, says)) + chr(10)).encode())
"""


@pytest.mark.parametrize("family", ["openmpi", "mpich"])
def test_elastic_job_uses_the_allocation_and_continues(batch, tmp_path, family):
    """It reaches its nodes through srun, because ssh may be disabled there."""
    (tmp_path / "goes_on.py").write_text(GOES_ON)
    lines = f"PATH={tmp_path}:$PATH {TF_HVD} --min-np 2 {sys.executable} goes_on.py"
    (tmp_path / "ssh").write_text("#!/bin/sh\ntouch ssh.called\nexit 255\n")
    (tmp_path / "ssh").chmod(0o755)
    code, output = batch(lines, "--nodes=2", "--ntasks-per-node=1", family=family)
    assert code == 0, output
    assert said(output) == ["rank 0 2 alpha 40", "rank 1 2 beta 40"], output
    assert re.search(r"restarting with 2 ranks on alpha:1,beta:1, from commit", output), output
    assert not (tmp_path / "ssh.called").exists()
