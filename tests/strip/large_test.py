"""Graphs of many nodes and of large constants: the parts in which they are written, and limits."""

import io
import itertools

import pytest
import tensorflow as tf
from rich.console import Console

from tf_hvd.strip import formats, strip_ops
from tf_hvd.strip.errors import StripError
from tf_hvd.strip.meta_graph import Report, Request
from tf_hvd.strip.progress import steps

COUNT = 30_000


def many_nodes():
    graph = tf.compat.v1.GraphDef()
    graph.node.add(name="n0", op="Placeholder").attr["dtype"].type = 1
    for i in range(1, COUNT):
        ours = i % 100 == 0
        node = graph.node.add(name=f"n{i}", op="HorovodBroadcast" if ours else "Neg")
        node.attr["T"].type = 1
        node.input.append(f"n{i - 1}")
    graph.versions.producer = 1882
    return graph


def test_many_nodes():
    report = Report()
    request = Request(outputs=(f"n{COUNT - 2}",))
    parts = formats.strip_message(many_nodes(), "GraphDef", request, report)
    stripped = tf.compat.v1.GraphDef.FromString(b"".join(parts))
    assert (report.nodes, len(report.found)) == (COUNT, (COUNT - 1) // 100)
    assert [node.name for node in stripped.node] == [f"n{i}" for i in range(COUNT - 1)]
    assert {node.op for node in stripped.node} == {"Placeholder", "Neg", "Identity"}


def test_large_constants_are_written_in_parts():
    graph = tf.compat.v1.GraphDef()
    for i in range(12):
        node = graph.node.add(name=f"c{i}", op="Const")
        node.attr["value"].tensor.tensor_content = bytes([i]) * (3 << 20)
    graph.versions.producer = 1882
    whole = graph.SerializeToString(deterministic=True)
    parts = formats.strip_message(graph, "GraphDef", Request(), Report())
    assert b"".join(parts) == whole
    assert [len(part) >> 20 for part in parts] == [18, 18, 0, 0]


def test_more_than_2_gib_is_refused(monkeypatch):
    monkeypatch.setattr(formats, "_LARGEST", 99)
    with pytest.raises(StripError, match="larger than 2 GiB, which neither protobuf nor TensorF"):
        formats.from_binary(bytes(100), None)


def test_new_names_are_unused():
    graph = tf.compat.v1.GraphDef()
    graph.node.add(name="x", op="Placeholder").attr["dtype"].type = 1
    graph.node.add(name="y/one_process/Mul", op="Neg", input=["x"]).attr["T"].type = 1
    node = graph.node.add(name="y", op="HorovodAllreduce", input=["x"])
    node.attr["T"].type = 1
    node.attr["reduce_op"].i = 0
    node.attr["postscale_factor"].f = 2.0
    names = [node.name for node in strip_ops(graph).node]
    assert len(names) == len(set(names))
    assert "y/one_process_1/Mul" in names


def test_a_node_after_the_versions(tmp_path):
    """Serialized messages may have their fields in any order."""
    graph = many_nodes()
    nodes = [graph.node[0], graph.node[100], graph.node[99]]
    fields = [tf.compat.v1.GraphDef(node=[node]).SerializeToString() for node in nodes]
    fields.insert(1, tf.compat.v1.GraphDef(versions=graph.versions).SerializeToString())
    for number, order in enumerate(itertools.permutations(fields)):
        source, out = tmp_path / f"{number}.pb", tmp_path / f"{number}.out"
        source.write_bytes(b"".join(order))
        strip_ops(source, out)
        before, after = (tf.compat.v1.GraphDef.FromString(p.read_bytes()) for p in (source, out))
        assert [n.name for n in after.node] == [n.name for n in before.node]
        assert {n.op for n in after.node} == {"Placeholder", "Neg", "Identity"}
        assert after.versions == graph.versions


def test_progress_bars():
    def shown(size, **options):
        stream = io.StringIO()
        console = Console(file=stream, width=80, **options)
        assert list(steps(range(3), "reading", size, True, console)) == [0, 1, 2]
        return stream.getvalue()

    assert "reading" in shown(1 << 30, force_terminal=True)
    assert shown(1 << 20, force_terminal=True) == ""
    assert shown(1 << 30, force_terminal=False) == ""
