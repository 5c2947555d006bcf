"""SavedModels: functions, control flow, signatures, and the folder around the graph."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

import tf_hvd as hvd
from tf_hvd.core import _native
from tf_hvd.strip import strip_ops
from tf_hvd.strip.api import find_ops

X = np.arange(6, dtype=np.float32).reshape(3, 2)


class Model(tf.Module):
    """Functions with collectives in branches, in loops and in called functions."""

    def __init__(self):
        self.weight = tf.Variable([[1.5, -2.0], [0.25, 3.0]])

    @tf.function(input_signature=[tf.TensorSpec([None, 2])])
    def predict(self, x):
        return tf.nn.softmax(x @ self.weight)

    @tf.function(input_signature=[tf.TensorSpec([None, 2]), tf.TensorSpec([], tf.bool)])
    def branch(self, x, average):
        return tf.cond(
            average,
            lambda: hvd.allreduce(x, prescale_factor=0.1),
            lambda: hvd.allgather(x) * tf.cast(hvd.size_op(), tf.float32),
        )

    @tf.function(input_signature=[tf.TensorSpec([3, 2])])
    def loop(self, x):
        def body(i, y):
            sums = hvd.grouped_allreduce([y, y + 1.0], op=hvd.Sum, postscale_factor=0.3)
            sent, counts = _native.ops.horovod_alltoall(sums[1], tf.constant([], tf.int32))
            sent = tf.ensure_shape(sent, [3, 2])
            return i + counts[0], self.inner(sums[0] + sent)

        return tf.while_loop(lambda i, _: i < 9, body, [0, x])[1]

    @tf.function(experimental_attributes={"_noinline": True})
    def inner(self, x):
        return hvd.broadcast(x, 0, name="inner") + 1.0

    @tf.function(input_signature=[tf.TensorSpec([3, 2])])
    def gradient(self, x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = hvd.allreduce(x * x, op=hvd.Sum, name="y")
        return tape.gradient(y, x)


def values(loaded):
    x = tf.constant(X)
    return [
        loaded.predict(x).numpy(),
        loaded.branch(x, tf.constant(True)).numpy(),
        loaded.branch(x, tf.constant(False)).numpy(),
        loaded.loop(x).numpy(),
        loaded.gradient(x).numpy(),
    ]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A SavedModel with a single signature that needs no other process."""
    path = str(tmp_path_factory.mktemp("saved") / "model")
    model = Model()
    tf.saved_model.save(model, path, signatures={"serving_default": model.predict})
    return path


def ops_in(path):
    with open(f"{path}/saved_model.pb", "rb") as file:
        model = saved_model_pb2.SavedModel.FromString(file.read())
    graph = model.meta_graphs[0].graph_def
    bodies = [graph.node, *(function.node_def for function in graph.library.function)]
    return [node.op for body in bodies for node in body]


def test_functions_compute_the_same(saved, tmp_path):
    out = str(tmp_path / "stripped")
    assert strip_ops(saved, out) == out
    assert any("Horovod" in op for op in ops_in(saved))
    assert not any("Horovod" in op for op in ops_in(out))
    for before, after in zip(
        values(tf.saved_model.load(saved)), values(tf.saved_model.load(out)), strict=True
    ):
        np.testing.assert_array_equal(before, after)


def test_compiled_functions(tmp_path):
    module = tf.Module()
    module.weight = tf.Variable([[1.5, -2.0], [0.25, 3.0]])

    @tf.function(jit_compile=True, input_signature=[tf.TensorSpec([3, 2])])
    def predict(x):
        summed = hvd.allreduce(x @ module.weight, op=hvd.Sum)
        gathered = hvd.alltoall(hvd.allgather(summed))
        return hvd.broadcast(gathered, 0) * tf.cast(hvd.size_op(), tf.float32)

    module.predict = predict
    saved, out = str(tmp_path / "saved"), str(tmp_path / "out")
    tf.saved_model.save(module, saved)
    strip_ops(saved, out, assume_single_process=True)
    assert not any("Horovod" in op for op in ops_in(out))
    wanted = X @ module.weight.numpy()
    for path in (saved, out):
        loaded = tf.saved_model.load(path)
        np.testing.assert_array_equal(loaded.predict(X), wanted)


def test_ops_are_found_in_functions(saved):
    report = find_ops(saved)
    found = {(found.op, found.function.rpartition("_")[0]) for found in report.found}
    assert {op for op, _ in found} == {
        "HorovodAllreduce",
        "HorovodAllgather",
        "HorovodAlltoall",
        "HorovodBroadcast",
        "HorovodGroupedAllreduce",
        "HorovodSize",
    }
    assert all(function for _, function in found)
    assert any(function.startswith("loop_body") or "body" in function for _, function in found)
    assert report.functions > 5


def test_other_files_of_the_folder_are_copied(saved, tmp_path):
    (tmp_path / "model").mkdir()
    model = Model()
    words = tmp_path / "words.txt"
    words.write_text("a\nb\n")
    model.words = tf.saved_model.Asset(str(words))
    path, out = str(tmp_path / "model" / "m"), str(tmp_path / "out")
    tf.saved_model.save(model, path)
    strip_ops(path, out, assume_single_process=True)
    for name in ("variables/variables.index", "assets/words.txt"):
        with open(f"{path}/{name}", "rb") as a, open(f"{out}/{name}", "rb") as b:
            assert a.read() == b.read()
    assert not tf.io.gfile.exists(f"{out}/fingerprint.pb")
    assert [p.name for p in tmp_path.iterdir() if "tmp" in p.name] == []
    with open(tf.saved_model.load(out).words.asset_path.numpy()) as file:
        assert file.read() == "a\nb\n"


def test_without_signatures_every_function_is_an_output(tmp_path):
    path = str(tmp_path / "model")
    tf.saved_model.save(Model(), path, signatures={})
    with pytest.raises(ValueError, match=r"outputs depend on .*assume-single-process"):
        strip_ops(path, str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
    strip_ops(path, str(tmp_path / "out"), assume_single_process=True)


def test_a_signature_that_depends_on_other_processes(tmp_path):
    path = str(tmp_path / "model")
    model = Model()
    tf.saved_model.save(model, path, signatures=model.loop)
    with pytest.raises(ValueError, match=r"HorovodGroupedAllreduce '.*' in function '.*body"):
        strip_ops(path, str(tmp_path / "out"))


def test_a_signature_that_only_broadcasts(tmp_path):
    path, out = str(tmp_path / "model"), str(tmp_path / "out")
    module = tf.Module()
    module.f = tf.function(
        lambda x: hvd.broadcast(x, 0) + 1.0, input_signature=[tf.TensorSpec([2])]
    )
    tf.saved_model.save(module, path, signatures=module.f)
    strip_ops(path, out)
    loaded = tf.saved_model.load(out).signatures["serving_default"]
    assert [value.numpy().tolist() for value in loaded(tf.constant([1.0, 2.0])).values()] == [
        [2.0, 3.0]
    ]


def test_outputs_need_a_plain_graph(saved, tmp_path):
    with pytest.raises(ValueError, match=r"has signatures and functions.*omit --outputs"):
        strip_ops(saved, str(tmp_path / "out"), outputs=["StatefulPartitionedCall"])


def test_a_saved_model_of_tensorflow_1(tmp_path):
    v1 = tf.compat.v1
    path, out = str(tmp_path / "model"), str(tmp_path / "out")
    with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        x = v1.placeholder(tf.float32, [2], name="x")
        w = v1.get_variable("w", initializer=[2.0, 3.0])
        y = tf.multiply(x, w, name="y")
        rate = 0.1 * tf.cast(_native.ops.horovod_size(), tf.float32)
        tf.group(v1.assign_sub(w, rate * _native.ops.horovod_allgather(w)), name="train")
        session.run(v1.global_variables_initializer())
        v1.saved_model.simple_save(session, path, {"x": x}, {"y": y})
    strip_ops(path, out, outputs=["y"])
    assert not any("Horovod" in op or op == "AssignSubVariableOp" for op in ops_in(out))
    with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        meta = v1.saved_model.load(session, ["serve"], out)
        assert list(meta.signature_def) == ["serving_default"]
        assert session.run("y:0", {"x:0": [1.0, 1.0]}).tolist() == [2.0, 3.0]


def test_a_message(saved):
    with open(f"{saved}/saved_model.pb", "rb") as file:
        model = saved_model_pb2.SavedModel.FromString(file.read())
    stripped = strip_ops(model)
    assert isinstance(stripped, saved_model_pb2.SavedModel)
    assert b"Horovod" not in b"".join(
        op.name.encode() for op in stripped.meta_graphs[0].meta_info_def.stripped_op_list.op
    )
