"""Checkpoints' .meta files: parts that are removed, kept or refused."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2

from tf_hvd.core import _native
from tf_hvd.strip import strip_ops
from tf_hvd.strip.formats import strip_message
from tf_hvd.strip.meta_graph import Report, Request

v1 = tf.compat.v1


@pytest.fixture
def trained():
    """A v1 model with its training part, as a MetaGraphDef."""
    ops = _native.ops
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, [None, 3], name="x")
        w = v1.get_variable("w", initializer=np.eye(3, 2, dtype=np.float32), use_resource=False)
        softmax = tf.nn.softmax(tf.matmul(x, w), name="softmax")
        loss = tf.reduce_mean(softmax[:, 0], name="loss")
        optimizer = v1.train.MomentumOptimizer(0.1, 0.9)
        (gradient, _) = optimizer.compute_gradients(loss)[0]
        mean = ops.horovod_allreduce(gradient, 0, 1.0, 1.0, name="mean")
        step = v1.train.get_or_create_global_step()
        train = optimizer.apply_gradients([(mean, w)], step, name="train")
        v1.add_to_collection("train_op", train)
        v1.add_to_collection("kept", softmax)
        v1.add_to_collection("rates", 0.5)
        rows = ops.horovod_allgather(x, name="rows")
        tf.reduce_sum(rows, name="all_rows")
        for variable in v1.global_variables():
            tf.group(
                v1.assign(variable, ops.horovod_broadcast(variable.value(), 0)), name="synchronize"
            )
        v1.global_variables_initializer()
        return v1.train.Saver().export_meta_graph()


def names(meta):
    return {node.name for node in meta.graph_def.node}


def test_a_training_graph_is_stripped_whole(trained):
    stripped = strip_ops(trained, assume_single_process=True)
    assert names(stripped) == names(trained)
    assert not any("Horovod" in node.op for node in stripped.graph_def.node)
    assert any("Horovod" in op.name for op in trained.meta_info_def.stripped_op_list.op)
    assert not any("Horovod" in op.name for op in stripped.meta_info_def.stripped_op_list.op)
    with tf.Graph().as_default():
        v1.train.import_meta_graph(stripped)


def test_outputs_cut_the_training_part(trained):
    stripped = strip_ops(trained, outputs=["softmax"])
    assert {"x", "w", "softmax", "w/Assign", "save/restore_all"} <= names(stripped)
    assert not names(stripped) & {"train", "mean", "rows", "all_rows", "loss"}
    assert not any(name.startswith("gradients") for name in names(stripped))
    assert "train_op" not in stripped.collection_def
    assert list(stripped.collection_def["kept"].node_list.value) == ["softmax:0"]
    assert list(stripped.collection_def["rates"].float_list.value) == [0.5]
    with tf.Graph().as_default() as graph:
        v1.train.import_meta_graph(stripped)
        with v1.Session(graph=graph) as session:
            session.run([variable.initializer for variable in v1.global_variables()])
            value = session.run("softmax:0", {"x:0": np.zeros([1, 3], np.float32)})
    assert value.tolist() == [[0.5, 0.5]]


def test_outputs_may_be_tensors(trained):
    by_tensor = strip_ops(trained, outputs=["softmax:0"])
    assert by_tensor == strip_ops(trained, outputs=["softmax"])


def test_an_output_that_depends_on_other_processes(trained):
    with pytest.raises(ValueError, match=r"HorovodAllgather 'rows'; .*--assume-single-process"):
        strip_ops(trained, outputs=["all_rows"])
    assert "rows" in names(strip_ops(trained, outputs=["all_rows"], assume_single_process=True))


def test_unknown_outputs(trained):
    with pytest.raises(ValueError, match=r"are unknown.*HorovodAllgather 'rows'; name the outputs"):
        strip_ops(trained)


def test_an_output_that_does_not_exist(trained):
    with pytest.raises(ValueError, match="node 'sofmax' does not exist; did you mean 'softmax'"):
        strip_ops(trained, outputs=["sofmax"])
    with pytest.raises(ValueError, match="node 'Qq' does not exist; --outputs takes names"):
        strip_ops(trained, outputs=["Qq"])
    with pytest.raises(ValueError, match=r"pass outputs=\['softmax'\]"):
        strip_ops(trained, outputs="softmax")


def test_the_source_is_not_changed(trained):
    before = meta_graph_pb2.MetaGraphDef.FromString(trained.SerializeToString())
    strip_ops(trained, outputs=["softmax"])
    assert trained == before


def test_fields_of_a_later_tensorflow_are_kept():
    with tf.Graph().as_default() as graph:
        tf.add(v1.placeholder(tf.float32, name="x"), 1.0, name="y")
    node = b"\x0a\x0a\x0a\x01z\x12\x02No\x98\x06\x2a"
    data = node + graph.as_graph_def().SerializeToString() + b"\x98\x06\x2b"
    message = v1.GraphDef.FromString(data)
    parts = strip_message(v1.GraphDef.FromString(data), "GraphDef", Request(), Report())
    assert v1.GraphDef.FromString(b"".join(parts)) == message
    assert parts[0].startswith(node)
    assert parts[-1].endswith(b"\x98\x06\x2b")


def test_colocation_with_removed_nodes():
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, name="x")
        other = tf.constant(1.0, name="other")
        with v1.colocate_with(other), v1.colocate_with(x.op, ignore_existing=False):
            tf.negative(x, name="y")
    cut = strip_ops(graph.as_graph_def(), outputs=["y"])
    assert [node.name for node in cut.node] == ["x", "y"]
    with tf.Graph().as_default():
        tf.graph_util.import_graph_def(cut)


def test_device_and_colocation_of_a_node_are_kept():
    with tf.Graph().as_default() as graph:
        x = tf.constant([1.0], name="x")
        with v1.colocate_with(x), tf.device("/device:CPU:0"):
            y = _native.ops.horovod_allreduce(x, 0, 2.0, 1.0, name="y")
        with tf.control_dependencies([y]):
            tf.constant(0.0, name="z")
    before = {node.name: node for node in graph.as_graph_def().node}
    after = {node.name: node for node in strip_ops(graph.as_graph_def()).node}
    assert after["y"].device == before["y"].device != ""
    assert after["y"].attr["_class"] == before["y"].attr["_class"]
    assert {key for key in after["y"].attr if not key.startswith("_has")} == {"T", "_class"}
    assert after["z"] == before["z"]
    added = after.keys() - before.keys()
    assert added
    assert all(after[name].device == after["y"].device for name in added)


def test_an_op_of_a_later_version():
    graph = v1.GraphDef()
    graph.node.add(name="n", op="HorovodTeleport")
    with pytest.raises(ValueError, match="'n' has the op HorovodTeleport, which this version"):
        strip_ops(graph)


def test_an_incomplete_node():
    graph = v1.GraphDef()
    graph.node.add(name="n", op="HorovodAllreduce")
    with pytest.raises(ValueError, match=r"'n' .* has 0 inputs instead of 1"):
        strip_ops(graph, assume_single_process=True)


def test_other_sources_are_refused():
    with pytest.raises(ValueError, match="int is neither a path nor a GraphDef, MetaGraphDef"):
        strip_ops(7)
    with pytest.raises(ValueError, match="output is only for a source that is a path"):
        strip_ops(v1.GraphDef(), "out.pb")
    with pytest.raises(ValueError, match=r"output is missing.*graph\.pb"):
        strip_ops("graph.pb")
