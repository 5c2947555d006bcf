"""Jobs with more ranks than other tests, on any number of cores: resources that grow with ranks.

Checks descriptors, segments, messages and a launcher's resources for each rank, but no times.
"""

import ctypes
import os
import pathlib
import sys

import pytest
import tensorflow as tf

import tf_hvd
from tf_hvd.core import _native

# Without TensorFlow, except the library with functions that ours needs: 5 MB per rank.
C_API = """
import ctypes, sys
framework, library, folder, size, options_bytes = sys.argv[1:]
ctypes.CDLL(framework, ctypes.RTLD_GLOBAL)
native, size = ctypes.CDLL(library), int(size)
error = ctypes.create_string_buffer(4096)

def numbers(values):
    return (ctypes.c_int * len(values))(*values)

def check(function, *arguments):
    assert function(*arguments, error, len(error)) == 0, error.value

def add(ranks):
    number = ctypes.c_int()
    check(native.tf_hvd_add_process_set, numbers(ranks), len(ranks), ctypes.byref(number))
    there = numbers([-1] * size)
    assert native.tf_hvd_process_set_ranks(number, there, size) == len(ranks)
    assert there[: len(ranks)] == ranks
    return number.value

slots = int(options_bytes) // ctypes.sizeof(ctypes.c_char_p)
options = (ctypes.c_char_p * slots)(folder.encode())  # tf_hvd_init_options: other fields are zero
check(native.tf_hvd_init, ctypes.byref(options))
rank = native.tf_hvd_rank()
assert native.tf_hvd_size() == native.tf_hvd_local_size() == size
# Each rank gives its own number rank % 3 times; -1 ends its part.
expected = [number for each in range(size) for number in (*[each] * (each % 3), -1)]
there, length = numbers([0] * len(expected)), ctypes.c_int()
own = [rank] * (rank % 3)
check(native.tf_hvd_gather_ranks, numbers(own), len(own), there, len(there), ctypes.byref(length))
assert (length.value, list(there)) == (len(expected), expected)
assert [add([rank, rank + size // 2]) for rank in range(4)] == [1, 2, 3, 4]
all_but_one = add([each for each in range(size) if each != 5])
check(native.tf_hvd_remove_process_set, all_but_one)
native.tf_hvd_shutdown(b"the program has ended", 1)
sys.stdout.write(f"rank {rank} has ended\\n")
"""
TRAINING = """
import sys
import numpy as np
import tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)
import keras
import tf_hvd as hvd
hvd.init()
rank, size = hvd.rank(), hvd.size()

@tf.function(autograph=False)
def many(x):  # these are fused
    return [hvd.allreduce(x + i, op=hvd.Sum, name=f"many.{i}") for i in range(40)]

total = size * (size - 1) / 2
for i, found in enumerate(many(tf.fill([7], float(rank)))):
    assert (found.numpy() == total + size * i).all(), (i, found)
gathered = hvd.allgather(tf.fill([rank], rank))  # rank 0 has no rows
assert gathered.numpy().tolist() == [each for each in range(size) for _ in range(each)]
large = hvd.broadcast(tf.fill([1 << 20], float(rank)), root_rank=size - 1)
assert (large.numpy() == size - 1).all()
received, splits = hvd.alltoall(tf.range(size) + rank * size, splits=[1] * size)
assert received.numpy().tolist() == [each * size + rank for each in range(size)]
assert splits.numpy().tolist() == [1] * size

keras.utils.set_random_seed(rank)
model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2)])
model.compile(hvd.keras.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
broadcast = hvd.keras.callbacks.BroadcastGlobalVariablesCallback(0)
x, y = np.full([4, 3], rank, np.float32), np.ones([4, 2], np.float32)
model.fit(x, y, epochs=2, verbose=0, callbacks=[broadcast])
weights = hvd.allgather_object(model.get_weights())
assert all(np.array_equal(a, b) for other in weights for a, b in zip(weights[0], other))
sys.stdout.write(f"rank {rank} has ended\\n")
"""


@pytest.fixture
def lines_of(tmp_path, run_to_end, mpi_library):
    """Run a program on `ranks` ranks, all of which must reach its end."""

    def run(text, ranks, *arguments):
        program = tmp_path / "program.py"
        program.write_text(text)
        command = [sys.executable, "-P", "-m", "tf_hvd_command", "run", "-np", str(ranks)]
        command += [sys.executable, str(program), *map(str, arguments)]
        environ = {**os.environ, "TF_HVD_MPI_LIBRARY": str(mpi_library("openmpi"))}
        code, output = run_to_end(command, environ, 600)
        assert code == 0, output
        ended = {line for line in output.splitlines() if line.endswith(" has ended")}
        assert ended == {f"rank {rank} has ended" for rank in range(ranks)}

    return run


@pytest.mark.tier2
def test_64_ranks_by_the_c_api(lines_of):
    """32 per core of a small machine: oversubscribed; 0.4 GB of memory in total."""
    framework = pathlib.Path(tf.sysconfig.get_lib()) / "libtensorflow_framework.so.2"
    library = _native.library._name
    folder = pathlib.Path(tf_hvd.__file__).parent
    options_bytes = ctypes.sizeof(_native._InitOptions)
    lines_of(C_API, 64, framework, library, folder, 64, options_bytes)


@pytest.mark.tier2
def test_16_ranks_train(lines_of):
    """8 per core of a small machine: oversubscribed; 3.3 GB of memory in total."""
    lines_of(TRAINING, 16)
