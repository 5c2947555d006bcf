"""Runs parts of tests/python/parallel on a GPU that is not there (software_device.cc).

TensorFlow's placement, its copies, our GPU kernels and the runtime are the real ones. Once
with NCCL, of software too, and once by way of the host's memory. What needs kernels that
TensorFlow has for real GPUs alone is left out.
"""

import os
import pathlib
import re
import shutil
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "build" / "libsoftware_device.so"
FILES = (
    "adasum", "allreduce", "bits", "compression", "devices", "errors", "exchange",
    "gather_broadcast", "gradients", "horovod_gradients", "objects", "process_sets", "sparse",
    "sum_rows", "synchronize", "table", "verdicts",
)  # fmt: skip
# Through the host's memory: what the ways differ in.
FEW = ("allreduce", "compression", "exchange", "gather_broadcast", "sparse", "sum_rows")
LIMIT = 600


def environment_with(mpi_library, nccl):
    return dict(
        os.environ,
        TF_HVD_MPI_LIBRARY=str(mpi_library("openmpi")),
        TF_HVD_CUDA_LIBRARY=str(LIBRARY),
        TF_HVD_NCCL_LIBRARY=str(LIBRARY),
        TF_HVD_NCCL=nccl,
        PYTHONSAFEPATH="1",
    )


def launcher():
    return shutil.which("tf_hvd", path=str(pathlib.Path(sys.prefix) / "bin"))


OTHER_SETTINGS = """
import os
import tensorflow as tf
import tf_hvd as hvd
hvd.init()
if hvd.rank() == 1:
    os.environ["NCCL_ALGO"] = "Ring"
try:
    hvd.allreduce(tf.ones([3]))
except tf.errors.OpError as error:
    print(error.message)
"""


@pytest.mark.timeout(LIMIT)
def test_ranks_with_other_settings_of_nccl_are_told(run_to_end, mpi_library, tmp_path):
    script = tmp_path / "settings.py"
    script.write_text(OTHER_SETTINGS)
    command = [launcher(), "run", "-np", "2", sys.executable, str(script)]
    _, output = run_to_end(command, environment_with(mpi_library, "1"), LIMIT)
    told = re.findall(
        r"rank 0 \(.*\) has no NCCL_ALGO and rank 1 \(.*\) has NCCL_ALGO=Ring", output
    )
    assert len(told) >= 2, output[-3000:]


@pytest.mark.timeout(LIMIT + 60)
@pytest.mark.parametrize(("nccl", "names"), [("1", FILES), ("0", FEW)])
def test_parallel_on_a_software_gpu(nccl, names, run_to_end, mpi_library):
    assert LIBRARY.exists(), "./dev test builds it"
    files = [f"python/parallel/{name}_test.py" for name in names]
    command = [launcher(), "run", "-np", "2", sys.executable, "-m", "pytest", *files]
    command += ["-q", "-p", "no:cacheprovider"]
    if nccl == "1":  # which rounds half precisions before a factor does (docs/gpus.md)
        command += ["-k", "not have_the_same_bits and not (adasum_test and v1_)"]
    code, output = run_to_end(
        command, environment_with(mpi_library, nccl), LIMIT, cwd=ROOT / "tests"
    )
    assert code == 0, output[-5000:]
    # They did run there: nothing was placed on the CPU instead.
    launches = re.search(r"(\d+) launches and copies on the software GPU", output)
    assert launches, output[-2000:]
    assert int(launches[1]) > 500
    assert len(re.findall(r"\d{3} passed(?:, \d+ deselected)? in ", output)) == 2
