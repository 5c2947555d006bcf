"""`tf_hvd run` in a rank of `tf_hvd run` starts a separate job, not a part of the outer one."""

import pathlib
import socket
import sys

import pytest

from tf_hvd.launch.job.environment import without_launcher

INNER = """
names = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_NAMESPACE")
sizes = [os.environ[n] for n in names[:2] if n in os.environ]
say("inner", rank, sizes, sys.argv[1])
"""

OUTER = """
import subprocess
ours = [sys.executable, "-m", "tf_hvd_command", "run", *sys.argv[1].split(",")]
done = subprocess.run([*ours, *sys.argv[2:], str(rank)], text=True, capture_output=True)
sys.stderr.write(done.stderr)
assert done.returncode == 0, done.returncode
say("; ".join(sorted(done.stdout.splitlines())))
"""

JOINED = """
import subprocess
import tensorflow as tf
import tf_hvd as hvd
hvd.init()
depth = int(sys.argv[1])
total = int(hvd.allreduce(tf.constant(hvd.rank() + 1), op=hvd.Sum))
say("depth", depth, "rank", hvd.rank(), "of", hvd.size(), "sum", total)
if hvd.rank() == 0 and depth == 0:
    ours = [sys.executable, "-m", "tf_hvd_command", "run", "--require-init", "-np", "3"]
    subprocess.run([*ours, sys.executable, __file__, "1"], check=True)
hvd.barrier()
"""


@pytest.mark.parametrize("mpi", ["auto", "openmpi", "mpich"])
def test_nested_job_is_separate(environ, call, program, tmp_path, mpi_prefixes, mpi):
    environ["PATH"] += f":{mpi_prefixes['mpich'] / 'bin'}"
    inner = tmp_path / "inner.py"
    inner.write_text(pathlib.Path(program(INNER)[1]).read_text())
    outer = program(OUTER)
    asked = f"-np,2,--mpi,{mpi}"
    code, output, errors = call(
        *("run", "-np", "2", *outer, asked, sys.executable, str(inner)), environ=environ
    )
    assert code == 0, errors
    line = "inner 0 ['2'] {0}; inner 1 ['2'] {0}"
    assert sorted(output.splitlines()) == [line.format(0), line.format(1)]
    code, output, errors = call(
        *("run", "-np", "2", *outer, "-np,1", sys.executable, str(inner)), environ=environ
    )
    assert code == 0, errors
    assert sorted(output.splitlines()) == ["inner None [] 0", "inner None [] 1"]


def test_rank_starts_a_job_and_continues(environ, start, program):
    process = start("run", "-np", "2", *program(JOINED), "0", environ=environ)
    output, errors = process.communicate(timeout=600)  # five processes load TensorFlow
    assert process.returncode == 0, errors
    expected = [f"depth 0 rank {rank} of 2 sum 3" for rank in range(2)]
    expected += [f"depth 1 rank {rank} of 3 sum 6" for rank in range(3)]
    assert sorted(output.splitlines()) == expected


def test_ranks_that_start_jobs_are_not_serial_trainings(environ, call, program, tmp_path):
    """For example ranks that call `tf_hvd.run` and load TensorFlow by the import."""
    inner = program("import tf_hvd as hvd\nhvd.init()\n")
    script = tmp_path / "inner.py"
    script.write_text(pathlib.Path(inner[1]).read_text())
    outer = program(f"import tensorflow\n{OUTER}")
    code, _, errors = call(
        *("run", "-np", "2", *outer, "-np,1", sys.executable, str(script)), environ=environ
    )
    assert code == 0, errors
    assert "NO RANK JOINED" not in errors


def test_launchers_variables_are_removed():
    told = ["OMPI_COMM_WORLD_RANK", "OMPI_MCA_num_procs", "PMIX_NAMESPACE", "PMI_FD", "PMI_SIZE"]
    kept = ["HOME", "HYDRA_LAUNCHER", "OMPI_MCA_btl", "PMIX_MCA_gds", "SLURM_JOB_ID"]
    environ = dict.fromkeys([*told, *kept], "x")
    assert without_launcher(environ) == dict.fromkeys(kept, "x")
    settings = {"PMI_DEBUG": "1", "PMIX_VERBOSE": "1"}
    assert without_launcher(settings) == settings, "this is not a rank"


HERE = socket.gethostname()
# The variables of schedulers for one slot on each of two hosts; this host is the second. Each has a
# form that one of the MPIs recognizes. FILE is a file with these lines.
SCHEDULERS = {
    "PBS": (
        {"PBS_JOBID": "7.server", "PBS_ENVIRONMENT": "PBS_BATCH", "PBS_NODEFILE": "FILE"},
        f"other\n{HERE}\n",
    ),
    "Slurm": (
        {
            "SLURM_JOB_ID": "7", "SLURM_JOBID": "7", "SLURM_TASKS_PER_NODE": "1(x2)",
            **dict.fromkeys(("SLURM_JOB_NODELIST", "SLURM_NODELIST"), f"other,{HERE}"),
            **dict.fromkeys(("SLURM_JOB_NUM_NODES", "SLURM_NNODES"), "2"),
            "SLURMD_NODENAME": HERE,
        },
        "",
    ),
    "LSF": (
        {
            "LSB_JOBID": "7", "LSB_DJOB_HOSTFILE": "FILE", "LSF_BINDIR": "FAKES",
            "LSB_HOSTS": f"other {HERE}", "LSB_MCPU_HOSTS": f"other 1 {HERE} 1",
        },
        f"other\n{HERE}\n",
    ),
    "Grid Engine": (
        {"JOB_ID": "7", "PE_HOSTFILE": "FILE", "SGE_ROOT": "FAKES", "ARC": "here"},
        f"other 1 all.q@other UNDEFINED\n{HERE} 1 all.q@{HERE} UNDEFINED\n",
    ),
    "Cobalt": ({"COBALT_JOBID": "7", "COBALT_NODEFILE": "FILE"}, f"other\n{HERE}\n"),
    "Flux": ({"FLUX_URI": "local:///run/flux/local"}, ""),
    "LoadLeveler": (
        {
            "LOADL_STEP_ID": "other.7.0", "LOADL_HOSTFILE": "FILE", "LOADLBATCH": "yes",
            "LOADL_PROCESSOR_LIST": f"other {HERE}",
        },
        f"other\n{HERE}\n",
    ),
    "Kubeflow, Open MPI": (
        {"PRTE_MCA_prte_default_hostfile": "FILE"}, f"other slots=1\n{HERE} slots=1\n",
    ),
    "Kubeflow, MPICH": ({"HYDRA_HOST_FILE": "FILE"}, f"other:1\n{HERE}:1\n"),
}  # fmt: skip
REMOTE = ("ssh", "rsh", "srun", "blaunch", "qrsh", "pbs_tmrsh", "pbsdsh", "llspawn")
# Prints the number of ranks on the same machine according to MPI.
NEIGHBOURS = """
names = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
say("rank", rank, "of", *[os.environ[n] for n in names if n in os.environ])
"""
# Hydra waits indefinitely for a daemon that srun has not started.
TWO = ("run", "-np", "2", "--start-timeout", "60")
BESIDE = ["rank 0 of 2", "rank 1 of 2"]


@pytest.fixture
def scheduled(environ, tmp_path):
    """The environment of a process in a scheduler's job, and the log of remote starts."""
    fakes, called = tmp_path / "fakes", tmp_path / "called"
    for folder in (fakes, fakes / "bin" / "here"):
        folder.mkdir(parents=True, exist_ok=True)
        for name in REMOTE:
            (folder / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {called}\nexit 1\n')
            (folder / name).chmod(0o755)

    def inside(scheduler, **more):
        variables, lines = SCHEDULERS[scheduler]
        (tmp_path / "hosts").write_text(lines)
        places = {"FILE": str(tmp_path / "hosts"), "FAKES": str(fakes)}
        told = {name: places.get(text, text) for name, text in variables.items()}
        return {**environ, **told, "PATH": f"{fakes}:{environ['PATH']}", **more}

    return inside, called


@pytest.mark.wire
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_job_of_a_rank_runs_on_its_machine(scheduled, call, program, scheduler):
    """MPI got no hosts and took the scheduler's, so the ranks ran on other machines."""
    inside, called = scheduled
    environ = inside(scheduler, PMIX_RANK="1")
    code, output, errors = call(*TWO, *program(NEIGHBOURS), environ=environ)
    assert not called.exists(), called.read_text()
    assert (code, sorted(output.splitlines()), errors) == (0, BESIDE, "")


@pytest.mark.wire
@pytest.mark.parametrize("scheduler", ["PBS", "Slurm"])
def test_elastic_job_of_a_rank_runs_on_its_machine(scheduled, call, program, scheduler):
    """The job used all nodes of Slurm, and failed under other schedulers."""
    inside, called = scheduled
    job = (*TWO, "--min-np", "2", *program(NEIGHBOURS))
    code, output, errors = call(*job, environ=inside(scheduler, PMIX_RANK="1"))
    assert not called.exists(), called.read_text()
    assert (code, sorted(output.splitlines()), errors) == (0, BESIDE, "")


RUNS = """
from tf_hvd.launch.job.run_function import run
def where():
    import socket
    return socket.gethostname()
print(run(where, np=2))
raise SystemExit
"""


@pytest.mark.parametrize("family", ["openmpi"])
def test_function_job_of_a_rank_runs_on_its_machine(scheduled, start, family):
    inside, called = scheduled
    process = start(environ=inside("Slurm", PMIX_RANK="1"), before=f"exec({RUNS!r})")
    output, errors = process.communicate(timeout=600)
    assert not called.exists(), called.read_text()
    assert (process.returncode, output) == (0, f"{[HERE] * 2}\n"), errors


@pytest.mark.wire
@pytest.mark.parametrize("hosts", ["localhost:2", f"{HERE}:2"])
def test_job_on_this_machine_ignores_allocated_hosts(scheduled, call, program, hosts):
    """srun could not find "localhost", and Open MPI rejected a host that was not allocated."""
    inside, called = scheduled
    environ = inside("Slurm", SLURM_JOB_NODELIST="other,third", SLURM_NODELIST="other,third")
    code, output, errors = call(*TWO, "-H", hosts, *program(NEIGHBOURS), environ=environ)
    assert not called.exists(), called.read_text()
    assert (code, sorted(output.splitlines()), errors) == (0, BESIDE, "")


@pytest.mark.wire
def test_rank_can_start_a_job_on_named_hosts(scheduled, call, program):
    inside, called = scheduled
    job = ("run", "--no-host-check", "-H", "other:1", *program(NEIGHBOURS))
    code, output, _ = call(*job, environ=inside("PBS", PMIX_RANK="1"))
    assert code != 0
    assert "rank 0" not in output
    assert called.read_text().startswith("ssh -x other ")


@pytest.mark.one_mpi
@pytest.mark.wire
@pytest.mark.parametrize("scheduler", ["Flux", "Cobalt", "LoadLeveler"])
def test_job_of_unknown_scheduler_reports_running_here(scheduled, call, program, scheduler):
    """There was no message. Under Cobalt, ranks ran elsewhere and could not reach each other."""
    inside, called = scheduled
    environ = inside(scheduler)
    code, output, errors = call(*TWO, *program(NEIGHBOURS), environ=environ)
    assert (code, sorted(output.splitlines())) == (0, BESIDE), errors
    assert errors == (
        f"tf_hvd run: all ranks run on this machine, because the hosts of this {scheduler} job are "
        "unknown; list hosts with -H\n"
    )
    assert not called.exists(), called.read_text()
