"""gs:// as input and output, with a small fake of the storage service."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tf_hvd.core import _native

_SPEC = importlib.util.spec_from_file_location(
    "gcs_server", pathlib.Path(__file__).with_name("gcs_server.py")
)
gcs_server = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(gcs_server)


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with gcs_server.Service(tmp_path_factory.mktemp("gcs")) as service:
        yield service
        service.shutdown()


# Several commands in one process: TensorFlow takes its time to load.
COMMANDS = """
import json, sys
sys.argv[0] = "tf_hvd"
import tf_hvd.launch.main as command
for line in json.loads(sys.argv.pop(1)):
    try:
        code = command.main(line)
    except SystemExit as end:
        code = end.code
    print("exit", code)
"""


def run(service, *commands):
    """Starts the command with the service as the internet: what it printed, line by line."""
    lines = [["strip-ops", *line] for line in commands]
    result = subprocess.run(
        [sys.executable, "-P", "-c", COMMANDS, json.dumps(lines)],
        env={**os.environ, **service.environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    assert result.returncode == 0, result.stdout
    return result.stdout.splitlines()


def graph():
    with tf.Graph().as_default() as result:
        # Larger than what is read at once, so that reads are of ranges.
        tf.constant(np.arange(3 << 20, dtype=np.float64), name="weights")
        x = tf.compat.v1.placeholder(tf.float32, [2], name="x")
        _native.ops.horovod_broadcast(x, 0, name="y")
    return result.as_graph_def()


def test_graphs_and_models(service, tmp_path):
    module = tf.Module()
    module.v = tf.Variable([1.0, 2.0])
    module.f = tf.function(
        lambda x: _native.ops.horovod_broadcast(x, 0) * module.v,
        input_signature=[tf.TensorSpec([2])],
    )
    tf.saved_model.save(module, str(tmp_path / "model"))
    for path in (tmp_path / "model").rglob("*"):
        if path.is_file():
            name = f"in/model/{path.relative_to(tmp_path / 'model')}"
            service.objects["bucket", name] = path.read_bytes()
    service.objects["bucket", "in/graph.pb"] = graph().SerializeToString()

    output = run(
        service,
        ["--input", "gs://bucket/in/graph.pb", "--output", "gs://bucket/out.pb"],
        ["--input", "gs://bucket/in/graph.pb", "--output", f"{tmp_path}/local.pb"],
        ["--input", "gs://bucket/in/model", "--output", "gs://bucket/models/stripped"],
        ["--check", "--input", "gs://bucket/models/stripped"],
        ["--input", "gs://bucket/none.pb", "--output", "gs://bucket/new.pb"],
        ["--input", "gs://bucket/in/graph.pb", "--output", "gs://bucket/out.pb"],
    )
    codes = [line for line in output if line.startswith("exit")]
    assert codes == ["exit 0"] * 4 + ["exit 2"] * 2, "\n".join(output)
    stripped = tf.compat.v1.GraphDef.FromString(service.objects["bucket", "out.pb"])
    assert [node.op for node in stripped.node] == ["Const", "Placeholder", "Identity"]
    assert (tmp_path / "local.pb").read_bytes() == service.objects["bucket", "out.pb"]

    written = {name for _, name in service.objects if not name.startswith("in/")}
    assert not [name for name in written if "tmp" in name]
    for name in written:
        if name.startswith("models/stripped/") and not name.endswith("/"):
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(service.objects["bucket", name])
    loaded = tf.saved_model.load(str(tmp_path / "models" / "stripped"))
    assert loaded.f(tf.constant([3.0, 4.0])).numpy().tolist() == [3.0, 8.0]


def test_a_bucket_that_is_full(service):
    service.objects["bucket", "full/graph.pb"] = graph().SerializeToString()
    service.full = 1 << 20
    output = run(
        service,
        ["--input", "gs://bucket/full/graph.pb", "--output", "gs://bucket/full/out.pb"],
    )
    service.full = 0
    assert output[-1] == "exit 2", "\n".join(output)
    assert "cannot write gs://bucket/full/out.pb: permission denied" in output[-2]
    assert [name for _, name in service.objects if name.startswith("full/")] == ["full/graph.pb"]
