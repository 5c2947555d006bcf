# python benchmarks/strip_ops_bench.py
"""Compares strip-ops on large graphs with TensorFlow's plain load and save of the same file.

Makes two files: a graph of 200,000 nodes and a GraphDef of 1.1 GB. Separate processes read and
write each file, alternately plain and stripped. Reports CPU time from open to close, without the
imports. Also reports the growth of the process's peak memory since the imports, in multiples of
the file's size.
"""

import json
import pathlib
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
import tensorflow as tf
from absl import app, flags

_NODES = flags.DEFINE_integer("nodes", 200_000, "nodes of the graph of small ops")
_MEGABYTES = flags.DEFINE_integer("megabytes", 1024, "size of the large GraphDef, in MiB")
_REPEATS = flags.DEFINE_integer("repeats", 3, "repetitions per measurement")
_FOLDER = flags.DEFINE_string("folder", None, "folder for the files; needs twice their size")
_WORK = flags.DEFINE_list("work", None, "task of a measured process (internal): kind, from, to")


def few_large(megabytes):
    """Constants of 4 MB, each scaled across all ranks."""
    graph = tf.compat.v1.GraphDef()
    data = np.random.default_rng(1).bytes(4 << 20)
    for i in range(megabytes // 4):
        node = graph.node.add(name=f"c{i}", op="Const")
        node.attr["dtype"].type = 1
        node.attr["value"].tensor.dtype = 1
        node.attr["value"].tensor.tensor_shape.dim.add(size=1 << 20)
        node.attr["value"].tensor.tensor_content = data
        add_collective(graph, i, f"c{i}")
    return graph


def many_small(nodes):
    """Chains of small ops, including a thousand collectives."""
    graph = tf.compat.v1.GraphDef()
    graph.node.add(name="n0", op="Placeholder").attr["dtype"].type = 1
    for i in range(1, nodes):
        if i % 200 == 0:
            add_collective(graph, i, f"n{i - 1}", f"n{i}")
            continue
        node = graph.node.add(name=f"n{i}", op="Add", input=[f"n{i - 1}", f"n{i // 2}"])
        node.attr["T"].type = 1
    return graph


def add_collective(graph, i, source, name=None):
    node = graph.node.add(name=name or f"mean{i}", op="HorovodAllreduce", input=[source])
    node.attr["T"].type = 1
    node.attr["reduce_op"].i = 0
    node.attr["prescale_factor"].f = node.attr["postscale_factor"].f = 1.0


def plain(source, target):
    graph = tf.compat.v1.GraphDef()
    with tf.io.gfile.GFile(source, "rb") as file:
        graph.ParseFromString(file.read())
    with tf.io.gfile.GFile(target, "wb") as file:
        file.write(graph.SerializeToString())


def stripped(source, target):
    from tf_hvd.strip import strip_ops

    strip_ops(source, target)


def peak_memory():
    """Return this process's peak memory since the last call in bytes, and reset it."""
    status = pathlib.Path("/proc/self/status").read_text()
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024


def memory():
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) * 1024


def work(kind, source, target):
    """Print CPU seconds and bytes of memory of this process."""
    from tf_hvd.strip import strip_ops  # noqa: F401 - the imports are not measured

    before = memory()
    peak_memory()
    start = time.process_time()
    {"plain": plain, "stripped": stripped}[kind](source, target)
    seconds = time.process_time() - start
    print(json.dumps([seconds, peak_memory() - before]))


def measure(source, repeats):
    results = {"plain": [], "stripped": []}
    for _ in range(repeats):
        for kind, values in results.items():
            target = source.with_name(f"{kind}.pb")
            command = [sys.executable, __file__, f"--work={kind},{source},{target}"]
            out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            values.append(json.loads(out.splitlines()[-1]))
            target.unlink()
    return {kind: [statistics.median(v) for v in zip(*values, strict=True)]
            for kind, values in results.items()}  # fmt: skip


def main(_):
    if _WORK.value:
        work(*_WORK.value)
        return
    with tempfile.TemporaryDirectory(dir=_FOLDER.value) as folder:
        for make, amount in ((many_small, _NODES.value), (few_large, _MEGABYTES.value)):
            source = pathlib.Path(folder) / "graph.pb"
            graph = make(amount)
            graph.versions.producer = tf.version.GRAPH_DEF_VERSION
            count = len(graph.node)
            source.write_bytes(graph.SerializeToString())
            del graph
            size = source.stat().st_size
            results = measure(source, _REPEATS.value)
            print(f"{count} nodes, {size / 1e6:.0f} MB")
            for kind, (seconds, used) in results.items():
                print(f"  {kind:9} {seconds:6.2f} s  memory {used / size:5.2f} x file")
            print(f"  time {results['stripped'][0] / results['plain'][0]:.2f} x plain")
    print(f"repeat with: {shlex.join(['python', *sys.argv])}")


if __name__ == "__main__":
    app.run(main)
