"""`tf_hvd run` in a rank of `tf_hvd run`: a job of its own, not a part of the outer one."""

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
def test_a_nested_job_is_a_job_of_its_own(environ, call, program, tmp_path, mpi_prefixes, mpi):
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


def test_a_rank_starts_a_job_and_goes_on(environ, start, program):
    process = start("run", "-np", "2", *program(JOINED), "0", environ=environ)
    output, errors = process.communicate(timeout=600)  # five processes load TensorFlow
    assert process.returncode == 0, errors
    expected = [f"depth 0 rank {rank} of 2 sum 3" for rank in range(2)]
    expected += [f"depth 1 rank {rank} of 3 sum 6" for rank in range(3)]
    assert sorted(output.splitlines()) == expected


def test_ranks_that_start_jobs_of_ranks_are_not_taken_for_serial_trainings(
    environ, call, program, tmp_path
):
    """As ranks that call `tf_hvd.run` do, and have TensorFlow from the import."""
    inner = program("import tf_hvd as hvd\nhvd.init()\n")
    script = tmp_path / "inner.py"
    script.write_text(pathlib.Path(inner[1]).read_text())
    outer = program(f"import tensorflow\n{OUTER}")
    code, _, errors = call(
        *("run", "-np", "2", *outer, "-np,1", sys.executable, str(script)), environ=environ
    )
    assert code == 0, errors
    assert "NO RANK JOINED" not in errors


def test_what_a_launcher_told_is_taken_away():
    told = ["OMPI_COMM_WORLD_RANK", "OMPI_MCA_num_procs", "PMIX_NAMESPACE", "PMI_FD", "PMI_SIZE"]
    kept = ["HOME", "HYDRA_LAUNCHER", "OMPI_MCA_btl", "PMIX_MCA_gds", "SLURM_JOB_ID"]
    environ = dict.fromkeys([*told, *kept], "x")
    assert without_launcher(environ) == dict.fromkeys(kept, "x")
    settings = {"PMI_DEBUG": "1", "PMIX_VERBOSE": "1"}
    assert without_launcher(settings) == settings, "this is no rank"


HERE = socket.gethostname()
# What schedulers tell a job of one slot on each of two hosts, of which this one is the second.
# Each has the form by which one of the MPIs knows it; FILE is a file of these lines.
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
# Who is on the same machine, as the MPI has it.
NEIGHBOURS = """
names = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
say("rank", rank, "of", *[os.environ[n] for n in names if n in os.environ])
"""
# Hydra waits for ever for a daemon that srun has not started.
TWO = ("run", "-np", "2", "--start-timeout", "60")
BESIDE = ["rank 0 of 2", "rank 1 of 2"]


@pytest.fixture
def scheduled(environ, tmp_path):
    """The environment of a process in a scheduler's job, and where remote starts leave a line."""
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
def test_a_rank_starts_its_job_beside_itself(scheduled, call, program, scheduler):
    """MPI was given no hosts then, and took the scheduler's: the ranks came to be elsewhere."""
    inside, called = scheduled
    environ = inside(scheduler, PMIX_RANK="1")
    code, output, errors = call(*TWO, *program(NEIGHBOURS), environ=environ)
    assert not called.exists(), called.read_text()
    assert (code, sorted(output.splitlines()), errors) == (0, BESIDE, "")


@pytest.mark.wire
@pytest.mark.parametrize("scheduler", ["PBS", "Slurm"])
def test_a_rank_starts_its_elastic_job_beside_itself(scheduled, call, program, scheduler):
    """It took all nodes of Slurm, and no others' at all."""
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
def test_a_function_that_a_rank_runs_runs_beside_it(scheduled, start, family):
    inside, called = scheduled
    process = start(environ=inside("Slurm", PMIX_RANK="1"), before=f"exec({RUNS!r})")
    output, errors = process.communicate(timeout=600)
    assert not called.exists(), called.read_text()
    assert (process.returncode, output) == (0, f"{[HERE] * 2}\n"), errors


@pytest.mark.wire
@pytest.mark.parametrize("hosts", ["localhost:2", f"{HERE}:2"])
def test_this_machine_is_told_whatever_hosts_are_given(scheduled, call, program, hosts):
    """Slurm's srun was to find "localhost", and Open MPI lacked a host that was not allocated."""
    inside, called = scheduled
    environ = inside("Slurm", SLURM_JOB_NODELIST="other,third", SLURM_NODELIST="other,third")
    code, output, errors = call(*TWO, "-H", hosts, *program(NEIGHBOURS), environ=environ)
    assert not called.exists(), called.read_text()
    assert (code, sorted(output.splitlines()), errors) == (0, BESIDE, "")


@pytest.mark.wire
def test_a_rank_names_hosts_and_gets_them(scheduled, call, program):
    inside, called = scheduled
    job = ("run", "--no-host-check", "-H", "other:1", *program(NEIGHBOURS))
    code, output, _ = call(*job, environ=inside("PBS", PMIX_RANK="1"))
    assert code != 0
    assert "rank 0" not in output
    assert called.read_text().startswith("ssh -x other ")


@pytest.mark.one_mpi
@pytest.mark.wire
@pytest.mark.parametrize("scheduler", ["Flux", "Cobalt", "LoadLeveler"])
def test_a_job_of_an_unknown_scheduler_says_that_it_stays_here(scheduled, call, program, scheduler):
    """It did so in silence, or, under Cobalt, went elsewhere without a way to the other ranks."""
    inside, called = scheduled
    environ = inside(scheduler)
    code, output, errors = call(*TWO, *program(NEIGHBOURS), environ=environ)
    assert (code, sorted(output.splitlines())) == (0, BESIDE), errors
    assert errors == (
        f"tf_hvd run: inside a job of {scheduler}, whose hosts are not known: all ranks run on "
        "this machine; list hosts with -H\n"
    )
    assert not called.exists(), called.read_text()
