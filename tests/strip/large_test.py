"""Graphs of many nodes and of large constants: what is kept, and that the bytes stay bytes."""

import io
import itertools

import tensorflow as tf
from rich.console import Console

from tf_hvd.strip import strip_ops
from tf_hvd.strip.formats import strip_message
from tf_hvd.strip.meta_graph import Report, Request
from tf_hvd.strip.progress import Bars
from tf_hvd.strip.wire import Pieces

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
    graph = many_nodes()
    seen = []
    report = Report()
    request = Request(outputs=(f"n{COUNT - 2}",), tick=seen.append)
    data = graph.SerializeToString()
    stripped = type(graph).FromString(strip_message(data, "GraphDef", request, report).to_bytes())
    assert (report.nodes, len(report.found)) == (COUNT, (COUNT - 1) // 100)
    assert [node.name for node in stripped.node] == [f"n{i}" for i in range(COUNT - 1)]
    assert {node.op for node in stripped.node} == {"Placeholder", "Neg", "Identity"}
    assert seen
    assert max(seen) <= len(data)


def test_constants_are_not_copied_until_they_are_written():
    graph = tf.compat.v1.GraphDef()
    node = graph.node.add(name="c", op="Const")
    node.attr["value"].tensor.tensor_content = b"Horovod" * (1 << 20)
    graph.node.add(name="b", op="HorovodBroadcast", input=["c"]).attr["T"].type = 1
    data = graph.SerializeToString()
    pieces = strip_message(data, "GraphDef", Request(), Report())
    assert sum(len(part) for part in pieces._parts if isinstance(part, bytes)) < 200
    assert [n.op for n in type(graph).FromString(pieces.to_bytes()).node] == ["Const", "Identity"]


def test_new_names_are_not_taken():
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


def test_a_node_after_the_versions():
    """Serialized messages may have their fields in any order."""
    graph = many_nodes()
    parts = [graph.node[0], graph.node[100], graph.node[99]]
    fields = [tf.compat.v1.GraphDef(node=[part]).SerializeToString() for part in parts]
    fields.insert(1, tf.compat.v1.GraphDef(versions=graph.versions).SerializeToString())
    for order in itertools.permutations(fields):
        message = tf.compat.v1.GraphDef.FromString(b"".join(order))
        pieces = strip_message(b"".join(order), "GraphDef", Request(), Report())
        stripped = tf.compat.v1.GraphDef.FromString(pieces.to_bytes())
        assert [n.name for n in stripped.node] == [n.name for n in message.node]
        assert {n.op for n in stripped.node} == {"Placeholder", "Neg", "Identity"}
        assert stripped.versions == graph.versions


def test_pieces():
    source = bytes(range(100))
    inner, out = Pieces(source), Pieces(source)
    inner.keep(10, 20)
    inner.keep(20, 30)
    inner.add(1, b"xyz")
    out.keep(0, 5)
    out.add_pieces(2, inner)
    expected = source[:5] + b"\x12\x19" + source[10:30] + b"\x0a\x03xyz"
    assert out.size == len(expected)
    for limit in (1, 3, 7, 1000):
        chunks = list(out.chunks(limit))
        assert b"".join(chunks) == expected
        assert all(len(chunk) <= limit for chunk in chunks)


def test_progress_bars():
    def shown(total, **options):
        stream = io.StringIO()
        bars = Bars(True, Console(file=stream, width=80, **options))
        bars.step("reading", total)(total // 2)
        bars.close()
        return stream.getvalue()

    assert "reading" in shown(1 << 30, force_terminal=True)
    assert shown(1 << 20, force_terminal=True) == ""
    assert shown(1 << 30, force_terminal=False) == ""
