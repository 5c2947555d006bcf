"""`tf_hvd strip-ops` as users start it: its output, its exit code and its files."""

import contextlib
import re
import sys

import pytest
import tensorflow as tf
from finished import finished
from tensorflow.core.protobuf import saved_model_pb2

import tf_hvd as hvd
from tf_hvd.core import _native
from tf_hvd.launch.commands.main import main

v1 = tf.compat.v1


@pytest.fixture
def run(capsys):
    """Calls the command in this process; returns exit code, standard output and error."""

    def call(*arguments):
        try:
            code = main(["strip-ops", *map(str, arguments)])
        except SystemExit as end:
            code = end.code
        streams = capsys.readouterr()
        return code, streams.out, streams.err

    return call


@pytest.fixture
def refused(run):
    """The error line for invalid arguments."""

    def call(*arguments):
        code, out, error = run(*arguments)
        assert (code, out) == (2, "")
        assert re.fullmatch(r"tf_hvd strip-ops: [^\n]+\n", error), error
        return error.removeprefix("tf_hvd strip-ops: ").rstrip()

    return call


def graph():
    with tf.Graph().as_default() as result:
        x = v1.placeholder(tf.float32, [2], name="x")
        y = tf.square(_native.ops.horovod_broadcast(x, 0, name="sent"), name="y")
        _native.ops.horovod_allreduce(y, 0, 1.0, 1.0, name="mean")
    return result.as_graph_def()


@pytest.fixture
def graph_file(tmp_path):
    path = tmp_path / "graph.pb"
    path.write_bytes(graph().SerializeToString())
    return path


def kinds(path):
    return [node.op for node in v1.GraphDef.FromString(path.read_bytes()).node]


def test_strip(run, graph_file, tmp_path):
    out = tmp_path / "stripped.pb"
    code, text, error = run("--input", graph_file, "--output", out)
    assert (code, error) == (0, "")
    assert text == (
        f"stripped 1 HorovodAllreduce, 1 HorovodBroadcast: {graph_file} -> {out}; "
        "checked 4 nodes and 0 functions\n"
    )
    assert kinds(out) == ["Placeholder", "Identity", "Square", "Identity"]


def test_outputs(run, graph_file, tmp_path):
    out = tmp_path / "stripped.pb"
    assert run("--input", graph_file, "--output", out, "--outputs", "sent,x:0")[0] == 0
    assert kinds(out) == ["Placeholder", "Identity"]


def test_check(run, graph_file, tmp_path):
    code, text, _ = run("--check", "--input", graph_file)
    assert code == 1
    assert text.splitlines() == [
        "HorovodBroadcast 'sent'",
        "HorovodAllreduce 'mean'",
        f"1 HorovodAllreduce, 1 HorovodBroadcast in {graph_file}; checked 4 nodes and 0 functions",
    ]
    run("--input", graph_file, "--output", tmp_path / "stripped.pb")
    code, text, _ = run("--check", "--input", tmp_path / "stripped.pb")
    assert (code, text.partition(" in ")[0]) == (0, "no ops of tf_hvd")


def test_nothing_to_strip(run, tmp_path):
    empty = tmp_path / "plain.pb"
    with tf.Graph().as_default() as plain:
        tf.constant(1.0, name="c")
    empty.write_bytes(plain.as_graph_def().SerializeToString())
    code, text, _ = run("--input", empty, "--output", tmp_path / "out.pb")
    assert code == 0
    assert text.startswith("no ops of tf_hvd found, copied: ")
    assert (tmp_path / "out.pb").read_bytes() == empty.read_bytes()


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_keras_files_need_no_stripping(run, refused, tmp_path, suffix):
    """`tf_hvd strip-ops model.keras` had two errors: no --input, and not a graph."""
    import keras

    path, out = tmp_path / f"model{suffix}", tmp_path / "copy.txt"
    keras.Sequential([keras.Input([2]), keras.layers.Dense(1)]).save(path)
    for arguments in ((path,), ("--check", path), ("--input", path)):
        assert run(*arguments) == (
            0,
            f"no ops of tf_hvd in {path}: it loads without tf_hvd; "
            "Keras' own formats contain no graph\n",
            "",
        )
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    assert run(path, "--output", out)[0] == 0
    assert out.read_bytes() == path.read_bytes()
    assert "there is nothing to strip" in refused(path, "--outputs", "y")


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_keras_file_that_names_a_class_of_tf_hvd(run, tmp_path, library, suffix):
    """It said "it loads without tf_hvd", but Keras could not locate class 'WarmupSchedule'."""
    keras = pytest.importorskip(library)
    cosine = keras.optimizers.schedules.CosineDecay(0.1, 100)
    schedule = hvd.WarmupSchedule.of(keras)(cosine, warmup_steps=5, initial_factor=0.5)
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(schedule), "mse")
    path = tmp_path / f"model{suffix}"
    model.save(path)
    text = (
        f"no ops of tf_hvd in {path}: but it uses tf_hvd>WarmupSchedule, so it loads only where "
        "tf_hvd is imported; elsewhere, load it with compile=False; Keras' own formats contain no "
        "graph\n"
    )
    assert run("--check", path) == (1, text, "")
    assert run(path) == (0, text, "")
    program = "import sys, {0}; {0}.models.load_model(sys.argv[1], compile={1})"
    for compiled in (False, True):
        command = [sys.executable, "-P", "-c", program.format(library, compiled), path]
        ended = finished(command)
        assert (ended.returncode != 0) == compiled, ended.stderr
        assert ("WarmupSchedule" in ended.stderr) == compiled


def test_default_output_is_in_the_input_folder(run, refused, graph_file, tmp_path):
    out = tmp_path / "graph-stripped.pb"
    assert run(graph_file)[1].startswith(
        f"stripped 1 HorovodAllreduce, 1 HorovodBroadcast: {graph_file} -> {out}; "
    )
    assert kinds(out) == ["Placeholder", "Identity", "Square", "Identity"]
    assert refused(graph_file) == f"{out} exists; remove it or choose another path"
    # A model that loads unchanged is not copied.
    assert run(out) == run("--check", out)
    assert sorted(each.name for each in tmp_path.iterdir()) == [out.name, graph_file.name]
    folder = tmp_path / "model.v1"
    folder.mkdir()
    model = saved_model_pb2.SavedModel(saved_model_schema_version=1)
    model.meta_graphs.add().graph_def.CopyFrom(graph())
    (folder / "saved_model.pb").write_bytes(model.SerializeToString())
    assert run(f"{folder}/")[0] == 0
    assert (tmp_path / "model.v1-stripped" / "saved_model.pb").exists()


def test_text_forms(run, graph_file, tmp_path):
    text = tmp_path / "graph.pbtxt"
    tf.io.write_graph(graph(), str(tmp_path), "graph.pbtxt")
    assert run("--input", text, "--output", tmp_path / "a.pb")[0] == 0
    assert run("--input", graph_file, "--output", tmp_path / "b.pbtxt")[0] == 0
    assert run("--input", tmp_path / "b.pbtxt", "--output", tmp_path / "c.pb")[0] == 0
    expected = ["Placeholder", "Identity", "Square", "Identity"]
    assert kinds(tmp_path / "a.pb") == kinds(tmp_path / "c.pb") == expected
    assert (tmp_path / "b.pbtxt").read_text().startswith('node {\n  name: "x"\n')


def test_saved_model_on_the_memory_file_system(run):
    module = tf.Module()
    module.v = tf.Variable([1.0])
    module.f = tf.function(
        lambda x: _native.ops.horovod_broadcast(x, 0) + module.v,
        input_signature=[tf.TensorSpec([1])],
    )
    tf.saved_model.save(module, "ram://strip_model/in")
    assert run("--input", "ram://strip_model/in", "--output", "ram://strip_model/out")[0] == 0
    assert run("--check", "--input", "ram://strip_model/out")[0] == 0
    assert tf.saved_model.load("ram://strip_model/out").f(tf.constant([2.0])).numpy() == [3.0]


def test_keras_exports_have_no_ops(run, tmp_path):
    import keras

    import tf_hvd as hvd

    hvd.init()
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD()), "mse")
    model.fit(tf.ones([4, 2]), tf.ones([4, 1]), verbose=0)
    model.export(str(tmp_path / "model"), verbose=False)
    code, text, _ = run("--check", "--input", tmp_path / "model")
    assert (code, text.partition(" in ")[0]) == (0, "no ops of tf_hvd")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "{path}: the file is empty; save the graph again"),
        (b"not a graph at all", "this is not a GraphDef, or it is truncated or damaged"),
        (b"\x89PNG\r\n\x1a\n\0\0\0", "this is not a GraphDef, or it is truncated or damaged"),
        (b"PK\x03\x04 a .keras file", "this is not a graph; if Keras has saved it (.keras, .h5)"),
        (b"node { name: 7 }", "this is not a GraphDef in text format: 1:14"),
        (b"\x0a\x05\x0a\x01x\x12\x00", "this is not a MetaGraphDef, or it is truncated or damaged"),
        (b"\x08\x02\x12\x00", "the SavedModel has version 2"),
        (b"\x0a\x07\x0a\x01x\x12\x02No\x22\x03\x10\xff\x7f", "the graph needs GraphDef version"),
    ],
)  # fmt: skip
def test_invalid_graph_files(refused, tmp_path, content, message):
    path = tmp_path / "input.pb"
    path.write_bytes(content)
    error = refused("--input", path, "--output", tmp_path / "out.pb")
    assert message.format(path=path) in error
    assert str(path) in error
    assert sorted(p.name for p in tmp_path.iterdir()) == ["input.pb"]


def test_every_truncation_is_detected_or_harmless(tmp_path):
    """A file truncated anywhere is refused, or contains complete nodes of the graph."""
    from tf_hvd.strip import formats
    from tf_hvd.strip.errors import StripError
    from tf_hvd.strip.meta_graph import Report, Request

    data = graph().SerializeToString()
    ends = {0}
    for node in graph().node:
        size = node.ByteSize()
        ends.add(max(ends) + (2 if size < 128 else 3) + size)
    taken = set()
    for size in range(len(data)):
        with contextlib.suppress(StripError):
            message, kind = formats.from_binary(data[:size], None)
            formats.strip_message(message, kind, Request(), Report())
            taken.add(size)
    assert taken < ends


def test_wrong_names_are_refused(refused, graph_file, tmp_path):
    out = tmp_path / "out.pb"
    assert refused("--input", graph_file, "--output", out, "--outputs", "seent") == (
        f"{graph_file}: node 'seent' does not exist; did you mean 'sent'?"
    )
    missing = tmp_path / "missing.meta"
    assert (
        refused("--input", missing, "--output", out) == f"{missing} does not exist; check the path"
    )
    assert refused("--input", tmp_path, "--output", out) == (
        f"{tmp_path} contains no saved_model.pb; name a SavedModel folder, a .meta or a graph"
    )
    part = tmp_path / "saved_model.pb"
    part.write_bytes(b"x")
    assert "name the folder that contains it" in refused("--input", part, "--output", out)
    wrong = "expected exactly one graph or model; run: tf_hvd strip-ops PATH"
    assert wrong in refused("--output", out)
    assert wrong in refused(graph_file, "--input", graph_file)
    assert "pass either --check or --output" in refused(
        "--check", "--input", graph_file, "--output", out
    )


def test_unwritable_outputs(refused, graph_file, tmp_path):
    gone = tmp_path / "gone" / "out.pb"
    assert "no such file or folder; check the path" in refused(
        "--input", graph_file, "--output", gone
    )
    # Not even root can create a file there.
    error = refused("--input", graph_file, "--output", "/sys/out.pb")
    assert error == "cannot write /sys/out.pb: permission denied; choose a path that you may use"
    assert "cannot write" in refused("--input", graph_file, "--output", f"{graph_file}/out.pb")


def test_models_with_ambiguous_outputs(refused, run, tmp_path):
    with tf.Graph().as_default() as gathering:
        x = v1.placeholder(tf.float32, [2], name="x")
        tf.negative(_native.ops.horovod_allgather(x, name="rows"), name="y")
    path, out = tmp_path / "g.pb", tmp_path / "out.pb"
    path.write_bytes(gathering.as_graph_def().SerializeToString())
    common = ("--input", path, "--output", out)
    assert "the outputs of this graph are unknown" in refused(*common)
    error = refused(*common, "--outputs", "y")
    assert "by HorovodAllgather 'rows'; " in error
    assert "with --assume-single-process" in error
    assert not out.exists()
    assert run(*common, "--outputs", "y", "--assume-single-process")[0] == 0


# Writes reach a limit on the size of files, similar to a full disk.
LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv.pop(1)),) * 2)
import tf_hvd_command
sys.exit(tf_hvd_command.main())
"""


def limited(limit, *arguments):
    """The command in a separate process that cannot write files larger than `limit`."""
    return finished(
        [sys.executable, "-P", "-c", LIMITED, str(limit), "strip-ops", *map(str, arguments)]
    )


def test_full_disk(tmp_path):
    with tf.Graph().as_default() as large:
        tf.constant(b"x" * (1 << 20), name="large")
    (tmp_path / "in.pb").write_bytes(large.as_graph_def().SerializeToString())
    result = limited(1 << 19, "--input", tmp_path / "in.pb", "--output", tmp_path / "out.pb")
    assert (result.returncode, result.stdout) == (2, ""), result.stderr
    assert f"cannot write {tmp_path}/out.pb: " in result.stderr.splitlines()[-1]
    assert [p.name for p in tmp_path.iterdir()] == ["in.pb"]


def test_full_disk_in_the_middle_of_a_folder(tmp_path):
    """The variables do not fit; no complete or partial folder is left."""
    module = tf.Module()
    module.v = tf.Variable(tf.zeros([1 << 18]))
    tf.saved_model.save(module, str(tmp_path / "model"))
    result = limited(1 << 19, "--input", tmp_path / "model", "--output", tmp_path / "out")
    assert (result.returncode, result.stdout) == (2, ""), result.stderr
    assert "cannot copy" in result.stderr.splitlines()[-1]
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_a_saved_model_in_parts(refused, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "saved_model.cpb").write_bytes(b"riegeli")
    error = refused("--input", folder, "--output", tmp_path / "out")
    assert "stores its graph in parts (saved_model.cpb); save the model again" in error


def test_a_saved_model_in_text_form(run, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    model = saved_model_pb2.SavedModel(saved_model_schema_version=1)
    model.meta_graphs.add().graph_def.CopyFrom(graph())
    (folder / "saved_model.pbtxt").write_text(str(model))
    assert run("--input", folder, "--output", tmp_path / "out")[0] == 0
    written = (tmp_path / "out" / "saved_model.pb").read_bytes()
    nodes = saved_model_pb2.SavedModel.FromString(written).meta_graphs[0].graph_def.node
    assert [node.op for node in nodes] == ["Placeholder", "Identity", "Square", "Identity"]


def test_names_and_paths_are_printed_without_control_characters(run, tmp_path):
    graph = v1.GraphDef()
    graph.node.add(name="a\x1b[2Jb", op="HorovodSize")
    path, out = tmp_path / "\x1b[31mred.pb", tmp_path / "out.pb"
    path.write_bytes(graph.SerializeToString())
    code, text, _ = run("--check", "--input", path)
    assert code == 1
    assert text.splitlines()[0] == r"HorovodSize 'a\x1b[2Jb'"
    assert r"/\x1b[31mred.pb; checked 1 nodes" in text
    code, text, _ = run("--input", path, "--output", out, "--assume-single-process")
    assert code == 0
    assert rf"/\x1b[31mred.pb -> {out}" in text
    assert "\x1b" not in text


def test_internal_error_is_not_reported_as_found_ops(run, graph_file, monkeypatch):
    from tf_hvd.strip import formats

    monkeypatch.setattr(formats, "strip_message", lambda *_: [].pop())
    code, text, error = run("--check", "--input", graph_file)
    assert (code, text) == (2, "")
    assert "IndexError: pop from empty list" in error
