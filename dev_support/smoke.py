"""A job of two ranks that checks that an installed wheel works.

Run by ./dev smoke, in an environment that has the wheel and its dependencies.
"""

import importlib.metadata
import json
import pathlib
import platform
import subprocess
import sys
import tempfile

import keras
import numpy as np
import tensorflow as tf

import tf_hvd as hvd
from tf_hvd.keras import callbacks

ROWS = 32


def check(what: str, holds: bool) -> None:
    """End the job if a check fails, with or without Python's optimisation."""
    if not holds:
        raise SystemExit(f"rank {hvd.rank()}: {what}: check failed")


def collectives() -> None:
    """Run each operation once eagerly, and the gradient of one in a tf.function."""
    rank, size = hvd.rank(), hvd.size()
    mine = tf.range(6, dtype=tf.float32) + float(rank)
    total = sum(np.arange(6) + other for other in range(size))
    check("allreduce", np.array_equal(hvd.allreduce(mine, op=hvd.Sum), total))
    grouped = hvd.grouped_allreduce([mine, 2.0 * mine], op=hvd.Sum)
    check("grouped_allreduce", np.array_equal(grouped[1], 2 * total))
    gathered = hvd.allgather(tf.fill([rank + 1], rank))
    check("allgather", gathered.numpy().tolist() == [0] + [1] * 2)
    check("broadcast", np.array_equal(hvd.broadcast(mine, root_rank=1), np.arange(6) + 1))
    received, splits = hvd.alltoall(tf.constant([rank] * size), splits=[1] * size)
    check("alltoall", received.numpy().tolist() == [0, 1] and splits.numpy().tolist() == [1, 1])
    half = np.split(total, size)[rank]
    check("reducescatter", np.array_equal(hvd.reducescatter(mine, op=hvd.Sum), half))
    check("objects", hvd.allgather_object({"rank": rank}) == [{"rank": 0}, {"rank": 1}])
    hvd.barrier()

    @tf.function
    def gradient(value: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(value)
            loss = tf.reduce_sum(hvd.allreduce(value, op=hvd.Sum))
        return tape.gradient(loss, value)

    check("the gradient of allreduce", np.array_equal(gradient(mine), np.full(6, size)))
    sparse = tf.IndexedSlices(tf.ones([1, 2]), [rank], dense_shape=[size, 2])
    dense = tf.convert_to_tensor(hvd.allreduce(sparse, op=hvd.Sum))
    check("IndexedSlices", np.array_equal(dense, np.ones([size, 2])))


def keras_fit() -> None:
    """Train: the ranks have different data and end with the same weights."""
    hvd.barrier()
    keras.utils.set_random_seed(hvd.rank())
    model = keras.Sequential(
        [keras.Input([4]), keras.layers.Dense(3, "relu"), keras.layers.Dense(1)]
    )
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse")
    source = np.random.default_rng(hvd.rank())
    data = source.normal(size=[ROWS, 4]).astype(np.float32)
    target = data.sum(axis=1, keepdims=True)
    history = model.fit(
        data,
        target,
        batch_size=8,
        epochs=3,
        verbose=0,
        callbacks=[
            callbacks.BroadcastGlobalVariablesCallback(0),
            callbacks.MetricAverageCallback(),
        ],
    )
    losses = history.history["loss"]
    check("the loss falls", losses[-1] < losses[0])
    weights = [weight.tobytes() for weight in model.get_weights()]
    check("the weights are equal", hvd.allgather_object(weights) == [weights] * hvd.size())


def session(folder: pathlib.Path) -> pathlib.Path:
    """Run a training step in a TensorFlow 1 graph; return its saved graph."""
    v1 = tf.compat.v1
    with tf.Graph().as_default():
        weight = v1.get_variable("weight", [2], initializer=v1.constant_initializer(hvd.rank()))
        loss = tf.reduce_sum(weight * float(hvd.rank() + 1))
        optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0))
        step = v1.train.get_or_create_global_step()
        train = optimizer.minimize(loss, global_step=step)
        saved = folder / "graph.meta"
        v1.train.export_meta_graph(str(saved))
        with v1.train.MonitoredTrainingSession(
            hooks=[hvd.BroadcastGlobalVariablesHook(0)]
        ) as running:
            running.run(train)
            values = running.run(weight)
    # Rank 0's zeros minus the mean of 1 and 2.
    check("the step of the session", np.array_equal(values, [-1.5, -1.5]))
    return saved


def strip(saved: pathlib.Path, folder: pathlib.Path) -> None:
    """Check that the stripped graph loads in a process that never imports tf_hvd."""
    stripped = folder / "stripped.meta"
    command = pathlib.Path(sys.executable).parent / "tf_hvd"
    subprocess.run(
        [command, "strip-ops", "--input", saved, "--output", stripped],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    load = (
        "import sys, tensorflow as tf\n"
        "with tf.Graph().as_default():\n"
        "    tf.compat.v1.train.import_meta_graph(sys.argv[1])\n"
    )
    for graph, status in ((saved, 1), (stripped, 0)):
        done = subprocess.run([sys.executable, "-c", load, graph], capture_output=True, text=True)
        check(f"loading {graph.name}", done.returncode == status)


def main() -> None:
    hvd.init()
    check("the number of ranks", hvd.size() == 2)
    collectives()
    keras_fit()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        saved = session(folder)
        if hvd.rank() == 0:
            strip(saved, folder)
    hvd.barrier()
    if hvd.rank() == 0:
        said = {
            "python": platform.python_version(),
            "tensorflow": tf.__version__,
            "keras": keras.__version__,
            "numpy": np.__version__,
            "tf_hvd": importlib.metadata.version("tf_hvd"),
            "glibc": platform.libc_ver()[1],
        }
        print(f"smoke test passed: {json.dumps(said)}", flush=True)


main()
