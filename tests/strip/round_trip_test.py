"""From training to inference where tf_hvd is not installed, with a separate process per step."""

import os
import subprocess
import sys

from tf_hvd.strip import strip_ops

# Beginning of a program that must run without tf_hvd.
WITHOUT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "tf_hvd":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
try:
    import tf_hvd
    raise AssertionError("tf_hvd was found")
except ModuleNotFoundError:
    pass
"""


def run(program, *arguments):
    """Run a program with the installed packages; returns its output."""
    result = subprocess.run(
        [sys.executable, "-P", "-c", program, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    assert result.returncode == 0, result.stdout
    return result.stdout


TRAIN_SESSION = """
import sys, numpy as np, tensorflow as tf, tf_hvd as hvd
v1 = tf.compat.v1
v1.disable_eager_execution()
hvd.init()
x = v1.placeholder(tf.float32, [None, 4], name="x")
label = v1.placeholder(tf.int32, [None], name="label")
w = v1.get_variable("w", [4, 3], initializer=v1.glorot_uniform_initializer(seed=1))
b = v1.get_variable("b", [3], initializer=v1.zeros_initializer())
softmax = tf.nn.softmax(tf.matmul(x, w) + b, name="softmax")
logits = tf.matmul(x, w) + b
loss = v1.losses.sparse_softmax_cross_entropy(label, logits)
step = v1.train.get_or_create_global_step()
optimizer = hvd.DistributedOptimizer(v1.train.MomentumOptimizer(0.1, 0.9))
train = optimizer.minimize(loss, step)
start = hvd.broadcast_global_variables(0)
saver = v1.train.Saver()
data = np.random.default_rng(0).normal(size=[8, 4]).astype(np.float32)
with v1.Session() as session:
    session.run(v1.global_variables_initializer())
    session.run(start)
    for _ in range(3):
        session.run(train, {x: data, label: np.arange(8) % 3})
    if hvd.rank() == 0:
        saver.save(session, sys.argv[1] + "/model.ckpt", global_step=3)
        np.savez(sys.argv[1] + "/values.npz", x=data, y=session.run(softmax, {x: data}))
"""

INFER = (
    WITHOUT
    + """
import numpy as np, tensorflow as tf
from tensorflow.python.tools import freeze_graph, optimize_for_inference_lib
v1 = tf.compat.v1
v1.disable_eager_execution()
folder = sys.argv[1]
checkpoint = folder + "/model.ckpt-3"
values = np.load(folder + "/values.npz")

def check(session):
    assert session.run("softmax:0", {"x:0": values["x"]}).tobytes() == values["y"].tobytes()

def check_graph(definition):
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(definition, name="")
    with v1.Session(graph=graph) as session:
        check(session)

for name in sys.argv[2:]:
    meta, frozen = f"{folder}/{name}.meta", f"{folder}/{name}.pb"
    with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        v1.train.import_meta_graph(meta).restore(session, checkpoint)
        check(session)
    freeze_graph.freeze_graph(
        input_graph=None, input_saver="", input_binary=True, input_checkpoint=checkpoint,
        output_node_names="softmax", restore_op_name="", filename_tensor_name="",
        output_graph=frozen, clear_devices=True, initializer_nodes="", input_meta_graph=meta)
    definition = v1.GraphDef.FromString(open(frozen, "rb").read())
    check_graph(definition)
    check_graph(optimize_for_inference_lib.optimize_for_inference(
        definition, ["x"], ["softmax"], tf.float32.as_datatype_enum))
try:
    with tf.Graph().as_default():  # freeze_graph has left the stripped functions in the other graph
        v1.train.import_meta_graph(checkpoint + ".meta")
except tf.errors.NotFoundError as error:
    assert "Op type not registered 'Horovod" in str(error)
    print("all equal")
"""
)


def test_a_checkpoint_of_a_session(tmp_path, run_to_end, mpi_library):
    script = tmp_path / "train.py"
    script.write_text(TRAIN_SESSION)
    command = [sys.executable, "-P", "-m", "tf_hvd_command", "run", "-np", "2"]
    environ = {**os.environ, "TF_HVD_MPI_LIBRARY": str(mpi_library("openmpi"))}
    code, output = run_to_end([*command, sys.executable, str(script), str(tmp_path)], environ, 200)
    assert code == 0, output
    meta = tmp_path / "model.ckpt-3.meta"
    strip_ops(meta, tmp_path / "whole.meta")
    strip_ops(meta, tmp_path / "cut.meta", outputs=["softmax"])
    assert "all equal" in run(INFER, tmp_path, "whole", "cut")
    assert (tmp_path / "cut.meta").stat().st_size < (tmp_path / "whole.meta").stat().st_size


MODELS = """
import sys, numpy as np, tensorflow as tf, tf_hvd as hvd
from tf_hvd.core import _native
hvd.init()
folder = sys.argv[1]
x = np.random.default_rng(0).normal(size=[4, 2]).astype(np.float32)
y = {}

import keras
model = keras.Sequential([keras.Input([2]), keras.layers.Dense(3)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD()), "mse")
model.fit(x, np.ones([4, 3]), verbose=0)
model.export(folder + "/keras3", verbose=False)
y["keras3"] = model(x).numpy()

import tf_keras
class Mean(tf_keras.layers.Layer):
    def call(self, x, training=None):
        return hvd.allreduce(x, name="mean") if training else x
model = tf_keras.Sequential([tf_keras.Input([2]), tf_keras.layers.Dense(3), Mean()])
model.save(folder + "/tf_keras", save_format="tf")
y["tf_keras"] = model(x).numpy()

class Module(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([4, 2])])
    def __call__(self, x):
        def body(i, y):
            return i + 1, hvd.allreduce(y, prescale_factor=0.3, name="in_loop") + 1.0
        looped = tf.while_loop(lambda i, _: i < 5, body, [0, x])[1]
        return tf.cond(tf.reduce_sum(looped) > -1e9,
                       lambda: _native.ops.horovod_allgather(looped, name="rows"), lambda: looped)
model = Module()
y["module"] = model(tf.constant(x)).numpy()
tf.saved_model.save(model, folder + "/module")
np.savez(folder + "/values.npz", x=x, **y)
"""

INFER_MODELS = (
    WITHOUT
    + """
import numpy as np, tensorflow as tf
folder = sys.argv[1]
values = np.load(folder + "/values.npz")
x = tf.constant(values["x"])
for name in sys.argv[2:]:
    loaded = tf.saved_model.load(f"{folder}/{name}.stripped")
    call = getattr(loaded, "serve", loaded)
    assert call(x).numpy().tobytes() == values[name].tobytes(), name
try:
    tf.saved_model.load(folder + "/module")
except RuntimeError as error:
    assert "Op type not registered 'Horovod" in str(error)
    print("all equal")
"""
)


def test_saved_models(tmp_path):
    run(MODELS, tmp_path)
    names = ("keras3", "tf_keras", "module")
    for name in names:
        strip_ops(tmp_path / name, tmp_path / f"{name}.stripped", assume_single_process=True)
    assert "all equal" in run(INFER_MODELS, tmp_path, *names)
