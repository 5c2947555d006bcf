"""`tf_hvd run --as-horovod`: scripts written for Horovod, unchanged."""

import os
import subprocess
import sys

import pytest
from finished import finished

pytestmark = pytest.mark.one_mpi

# As Horovod's users write it: an eager loop, a tape, a broadcast and a report by rank 0.
SCRIPT = """
import tensorflow as tf
import horovod.tensorflow as hvd

hvd.init()
gpus = tf.config.experimental.list_physical_devices("GPU")
if gpus:
    tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], "GPU")

weights = tf.Variable([[1.0 + hvd.rank()]])
optimizer = tf.keras.optimizers.SGD(0.25 * hvd.size())

@tf.function
def step(x, y, first):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.matmul(x, weights) - y) ** 2)
    tape = hvd.DistributedGradientTape(tape)
    grads = tape.gradient(loss, [weights])
    optimizer.apply_gradients(zip(grads, [weights]))
    return loss

for batch in range(3):
    x = tf.constant([[1.0 + hvd.rank()]])
    step(x, 2.0 * x, batch == 0)
    if batch == 0:
        hvd.broadcast_variables([weights], root_rank=0)
        hvd.broadcast_variables(optimizer.variables, root_rank=0)

same = hvd.allgather(weights)
assert len(set(same.numpy().ravel())) == 1, same
with tf.GradientTape() as tape:
    rows = hvd.allgather(weights)
average = tape.gradient(rows, weights).numpy().item()
if hvd.rank() == 0:
    module = hvd.allreduce.__module__.split(".")[0]
    print("size", hvd.size(), "module", module, "gradient", average)
"""


def test_horovod_script_runs_unchanged(call, environ, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    code, output, errors = call(
        *("run", "-np", "2", "--as-horovod", "--require-init", sys.executable, "script.py"),
        environ=environ,
    )
    assert code == 0, output + errors
    assert "JOINED" not in errors
    assert "size 2 module tf_hvd gradient 1.0" in output  # the average, as in Horovod


# As in Horovod's elastic examples, which train one step to create the optimizer's variables.
ELASTIC = """
import numpy as np
import tensorflow as tf
import horovod.tensorflow.keras as hvd

hvd.init()
tf.keras.utils.set_random_seed(hvd.rank())
model = tf.keras.Sequential([tf.keras.layers.Input((1,)), tf.keras.layers.Dense(1)])
model.compile(hvd.DistributedOptimizer(tf.optimizers.Adam(0.001 * hvd.size())), "mse")
x = np.float32([[1.0]] * 8)
model.fit(x, x, steps_per_epoch=1, epochs=1, verbose=0)
model.optimizer.lr.assign(0.5)
state = hvd.elastic.KerasState(model, batch=0, epoch=0)

@hvd.elastic.run
def train(state):
    state.model.fit(x, x, steps_per_epoch=2, epochs=1 - state.epoch, verbose=0, callbacks=[
        hvd.elastic.UpdateEpochStateCallback(state), hvd.elastic.UpdateBatchStateCallback(state),
        hvd.elastic.CommitStateCallback(state),
    ])
    assert (state.epoch, state.batch) == (1, 0)

train(state)
weights = hvd.allgather(model.get_weights()[0])
told = "same" if weights[0] == weights[1] else "other"
print(f"{told}\\n", end="", flush=True)  # in one piece, also where Python does not buffer
"""


def test_elastic_program_creates_its_variables_first(call, environ, tmp_path):
    """The first step has no broadcast. In another program the guard would reject it."""
    (tmp_path / "script.py").write_text(ELASTIC)
    code, output, errors = call(
        *("run", "-np", "2", "--as-horovod", sys.executable, "script.py"), environ=environ
    )
    assert code == 0, errors
    assert sorted(output.split()) == ["same", "same"]


# As Horovod's tensorflow2_keras_mnist.py does with the arguments `2 localhost:2 mpi`.
RUNS_ITSELF = """
import sys
import horovod
import horovod.tensorflow as hvd

def main():
    hvd.init()
    return hvd.rank(), hvd.size()

if __name__ == "__main__":
    np, hosts, comm = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    print(horovod.run(main, np=np, hosts=hosts, use_gloo=comm == "gloo", use_mpi=comm == "mpi"))
"""


def test_script_that_starts_itself_on_hosts(call, environ, tmp_path):
    (tmp_path / "script.py").write_text(RUNS_ITSELF)
    code, output, errors = call(
        *("run", "-np", "1", "--as-horovod", sys.executable, "script.py"),
        *("2", "localhost:2", "mpi"),
        environ=environ,
    )
    assert code == 0, errors
    assert "[(0, 2), (1, 2)]" in output


def test_callers_pythonpath_is_kept(call, environ, program):
    show = program("say(os.environ['PYTHONPATH'])")
    code, output, errors = call(
        "run", "-np", "1", "--as-horovod", *show, environ={**environ, "PYTHONPATH": "/else/where"}
    )
    assert code == 0, errors
    ours, theirs = output.strip().split(os.pathsep)
    assert os.path.isdir(os.path.join(ours, "horovod"))
    assert theirs == "/else/where"


# A console script as written by pip, for a program that only knows Horovod.
CONSOLE_SCRIPT = """#!{python}
import sys
import horovod.tensorflow as hvd

hvd.init()
ranks = hvd.allgather_object(hvd.rank())
if hvd.rank() == 0:
    print("ranks", ranks, "files", "tf_hvd" in hvd.__file__, "arguments", sys.argv[1:])
"""


def test_unmodified_console_script_under_mpirun(environ, family, mpi_prefixes, tmp_path):
    """It only needs PYTHONPATH, as docs/horovod.md says."""
    script = tmp_path / "train"
    script.write_text(CONSOLE_SCRIPT.format(python=sys.executable))
    script.chmod(0o755)
    shown = [sys.executable, "-P", "-m", "tf_hvd_command", "--horovod-path"]
    path = finished(shown, check=True).stdout
    launcher = str(mpi_prefixes[family] / "bin" / "mpirun")
    words = {
        "openmpi": ["-x", f"PYTHONPATH={path.strip()}", "-H", "localhost:2"],
        "mpich": ["-genv", "PYTHONPATH", path.strip()],
    }[family]
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    root["PRTE_MCA_rmaps_default_mapping_policy"] = ":oversubscribe"
    ended = finished(
        [launcher, "-np", "2", *words, str(script), "--fast"],
        env={**environ, **root},
        stdin=subprocess.DEVNULL,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "ranks [0, 1] files True arguments ['--fast']" in ended.stdout


def test_users_pythonpath_comes_second(call, program):
    """`-x PYTHONPATH=...`, common with mpirun, used to remove our horovod from the path."""
    words = ["run", "-np", "1", "--as-horovod", "-x", "PYTHONPATH=/project"]
    code, output, errors = call(*words, *program("say(os.environ['PYTHONPATH'])"))
    assert code == 0, errors
    ours, theirs = output.strip().split(":")
    assert ours.endswith("_as_horovod")
    assert theirs == "/project"


def test_horovod_path_does_not_load_tensorflow():
    command = [sys.executable, "-P", "-X", "importtime", "-m", "tf_hvd_command", "--horovod-path"]
    ended = finished(command, check=True)
    assert os.path.isdir(os.path.join(ended.stdout.strip(), "horovod"))
    assert "tf_hvd.launch." in ended.stderr
    assert "tensorflow" not in ended.stderr
