"""`tf_hvd run --as-horovod`: scripts written for Horovod, unchanged."""

import os
import sys

# As Horovod's users write it: eager loop, tape, broadcast, rank 0 reports.
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
if hvd.rank() == 0:
    print("size", hvd.size(), "module", hvd.allreduce.__module__.split(".")[0])
"""


def test_a_horovod_script_runs_unchanged(call, environ, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    code, output, errors = call(
        *("run", "-np", "2", "--as-horovod", "--require-init", sys.executable, "script.py"),
        environ=environ,
    )
    assert code == 0, output + errors
    assert "JOINED" not in errors
    assert "size 2 module tf_hvd" in output


def test_the_path_of_the_caller_stays(call, environ, program):
    show = program("say(os.environ['PYTHONPATH'])")
    code, output, errors = call(
        "run", "-np", "1", "--as-horovod", *show, environ={**environ, "PYTHONPATH": "/else/where"}
    )
    assert code == 0, errors
    ours, theirs = output.strip().split(os.pathsep)
    assert os.path.isdir(os.path.join(ours, "horovod"))
    assert theirs == "/else/where"
