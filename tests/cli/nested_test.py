"""`tf_hvd run` in a rank of `tf_hvd run`: a job of its own, not a part of the outer one."""

import pathlib
import sys

import pytest

from tf_hvd.launch.environment import without_launcher

INNER = """
names = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_NAMESPACE")
sizes = [os.environ[n] for n in names[:2] if n in os.environ]
say("inner", rank, sizes, sys.argv[1])
"""

OUTER = """
import subprocess
ours = [sys.executable, "-m", "tf_hvd.launch.main", "run", *sys.argv[1].split(",")]
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
    ours = [sys.executable, "-m", "tf_hvd.launch.main", "run", "--require-init", "-np", "3"]
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
