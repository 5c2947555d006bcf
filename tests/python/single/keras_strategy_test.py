"""tf.distribute strategies with several replicas are refused; other strategies are accepted."""

import sys

from finished import finished

PROGRAM = """
import keras, numpy as np, tensorflow as tf, tf_keras
import tf_hvd
import tf_hvd.keras as hvd
from tf_hvd.keras import guard, patches

cpu = tf.config.list_physical_devices("CPU")[0]
two = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(cpu, two)
hvd.init()

def said(what, function):
    try:
        function()
    except RuntimeError as error:
        print(f"{what}: {error}")
    else:
        print(f"{what} passes")

def allreduce():
    assert float(tf_hvd.allreduce(tf.constant(2.0))) == 2.0

def fit(library, optimizer):
    model = library.Sequential([library.Input([3]), library.layers.Dense(1)])
    model.compile(optimizer, "mse")
    model.fit(np.ones([4, 3]), np.ones([4, 1]), verbose=0)

said("default", allreduce)
with tf.distribute.OneDeviceStrategy("CPU:0").scope():
    said("one device", allreduce)
    said("one device fit", lambda: fit(keras, hvd.DistributedOptimizer(keras.optimizers.SGD())))
mirrored = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
wrapped = hvd.DistributedOptimizer(keras.optimizers.SGD())
# Simulates a job of several ranks.
guard.watches = patches.watches = lambda: True
with mirrored.scope():
    said("collective", allreduce)
    said("wrap", lambda: hvd.DistributedOptimizer(keras.optimizers.SGD()))
    said("use", lambda: wrapped.apply([tf.ones([2])], [keras.Variable(np.ones(2, "float32"))]))
    said("keras fit", lambda: fit(keras, keras.optimizers.SGD()))
    said("tf_keras fit", lambda: fit(tf_keras, tf_keras.optimizers.SGD()))

@tf.function(autograph=False)
def replica():
    return tf_hvd.allreduce(tf.constant(1.0))

said("replica", lambda: mirrored.run(replica))
"""
REFUSED = "within tf.distribute's MirroredStrategy of 2 replicas: both would reduce the gradients"


def test_strategies_with_replicas_are_refused(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    done = finished([sys.executable, "-P", str(tmp_path / "program.py")])
    lines = dict(
        line.split(": tf_hvd: ") for line in done.stdout.splitlines() if ": tf_hvd" in line
    )
    assert [line for line in done.stdout.splitlines() if line.endswith("passes")] == [
        "default passes",
        "one device passes",
        "one device fit passes",
    ], done.stdout + done.stderr
    starts = {
        "collective": "HorovodAllreduce was called ",
        "wrap": "DistributedOptimizer was called ",
        "use": "a DistributedOptimizer was used ",
        "keras fit": "fit() was called ",
        "tf_keras fit": "fit() was called ",
        "replica": "HorovodAllreduce was called ",
    }
    assert list(lines) == list(starts), done.stdout + done.stderr
    for what, start in starts.items():
        assert lines[what].startswith(start + REFUSED)
    assert all("one rank for each device (tf_hvd run -np 2)" in text for text in lines.values())
