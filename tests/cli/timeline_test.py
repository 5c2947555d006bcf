"""`tf_hvd run --timeline` and `tf_hvd timeline`, on Keras fits."""

import contextlib
import fcntl
import io
import json
import os
import pathlib
import random

import pytest

from tf_hvd.launch.commands import main
from tf_hvd.observe import trace_reader

pytestmark = pytest.mark.parametrize("family", ["openmpi"], indirect=True)

MS = 1_000_000
STEPS = 12
ROUNDS = 60  # of damage to a job's timelines
# Rank 1 takes 0.1 s longer in the backward pass, before its first gradient exists.
FIT = """
import keras, numpy as np
import tensorflow as tf
import tf_hvd.keras as hvd

hvd.init()

def pause():
    time.sleep(0.1 if hvd.rank() == 1 else 0)
    return np.float32(0)

class Late(keras.layers.Layer):
    def call(self, x):
        @tf.custom_gradient
        def late(x):
            return tf.identity(x), lambda dy: dy + tf.numpy_function(pause, [], tf.float32)
        return late(x)

class Ends(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if hvd.rank() == 1 and batch == int(os.environ.get("ENDS", -1)):
            os.kill(os.getpid(), signal.SIGKILL)

layers = [keras.layers.Dense(256) for _ in range(4)]
model = keras.Sequential([keras.layers.Input([64]), *layers, Late(), keras.layers.Dense(1)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
x = np.ones([12 * 8, 64], "f")
model.fit(x, x[:, :1], batch_size=8, epochs=1, verbose=0, callbacks=[Ends()])
"""


def traced(call, environ, program, ranks=2, **more):
    """Runs the fit; returns its exit code, its messages and the ranks' files."""
    words = program(FIT)
    folder = words[-1].rpartition("/")[0]
    file = f"{folder}/trace.json"
    code, _, errors = call(
        *("run", "-np", str(ranks), "--timeline", file, *words), environ={**environ, **more}
    )
    others = [f"{folder}/trace.rank-{number}.json" for number in range(1, ranks)]
    return code, errors, [file, *others]


def report_of(call, environ, file):
    code, output, errors = call("timeline", "--json", file, environ=environ)
    assert code == 0, errors
    return json.loads(output)


@pytest.mark.parametrize("ranks", [2, 4])
def test_fit_is_traced(call, environ, program, ranks):
    """Ranks share their cores with each other and with other tests."""
    code, errors, files = traced(call, environ, program, ranks)
    assert code == 0, errors
    report = report_of(call, environ, files[0])
    assert not report["missing"]
    assert not report["dropped"]
    steps = [step for step in report["steps"] if "1" in step["ranks"]]
    assert len(steps) >= STEPS - 2
    late = [step["late"] and step["late"]["rank"] for step in steps]
    # In up to a quarter of steps, another rank may wait longer for a core than rank 1 sleeps.
    assert late.count(1) >= 3 * len(late) // 4, late
    assert report["advice"].startswith("Rank 1 ")
    for number, file in enumerate(files):
        (rank,) = trace_reader.read(file)
        assert (rank.rank, rank.size) == (number, ranks)
        # The report's waits match TensorFlow's.
        for step in steps:
            mine = step["ranks"][str(number)]
            begin, end = mine["begin_ns"], mine["begin_ns"] + mine["length_ns"]
            exposed = mine["transfer_ns"] + sum(mine["waiting_ns"].values())
            waits = [each for each in rank.spans["TensorFlow"] if begin <= each.begin < end]
            waited = sum(each.end - each.begin for each in waits)
            assert abs(waited - exposed) < 5 * MS, (step, waits)


def test_killed_rank_leaves_its_timeline(call, environ, program):
    code, _, files = traced(call, environ, program, ENDS="8")
    assert code == 137
    for number, file in enumerate(files):
        (trace,) = trace_reader.read(file)
        assert (trace.rank, trace.size) == (number, 2)
    report = report_of(call, environ, files[0])
    assert not report["missing"]
    assert 5 <= len(report["steps"]) <= 9
    whole = [pathlib.Path(file).read_bytes() for file in files]
    for seed in range(ROUNDS):
        chance = random.Random(seed)
        for file, data in zip(files, whole, strict=True):
            pathlib.Path(file).write_bytes(damaged(data, chance) if chance.random() < 0.7 else data)
        check_what_is_said(files[0], seed)


def damaged(data, chance):
    """The data with some bytes changed, removed, repeated or set to zero."""
    data = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        begin = chance.randrange(len(data) + 1)
        end = min(len(data), begin + chance.choice([1, 100, 3000, len(data)]))
        instead = chance.choice(
            [b"", b"", bytes(end - begin), chance.randbytes(end - begin), 2 * data[begin:end]]
        )
        data[begin:end] = instead
        if chance.random() < 0.5:  # also change the order of lines, which is that of the calls
            lines = data.splitlines(keepends=True)
            place = chance.randrange(len(lines) + 1)
            data = bytearray(b"".join([*lines[place:], *lines[:place]]))
    return bytes(data)


def check_what_is_said(file, seed):
    """Check that any file gives a report, or an error line with the reason."""
    said, errors, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(errors):
        try:
            main.main(["timeline", "--json", "--html", f"{file}.html", file])
        except SystemExit as error:
            code = error.code
    if code:
        assert code == 2, (seed, errors.getvalue())
        assert ".json" in errors.getvalue().splitlines()[-1], (seed, errors.getvalue())
        return
    for step in json.loads(said.getvalue())["steps"]:
        for one in step["ranks"].values():
            assert one["compute_ns"] >= 0, (seed, step)
            assert one["transfer_ns"] >= 0, (seed, step)


def test_invalid_timelines(call, environ, tmp_path):
    (tmp_path / "a.json").write_text("[]")
    code, output, errors = call("timeline", "a.json", environ=environ)
    assert (code, output) == (2, "")
    assert "a.json is not a timeline that tf_hvd wrote" in errors
    code, _, errors = call("timeline", "b.json", environ=environ)
    assert code == 2
    assert "b.json: No such file or directory" in errors


def test_pipe_and_timeline_of_another_job_are_not_used(call, environ, program, tmp_path):
    """Training continues without a timeline. At an unread pipe `init()` waited indefinitely."""
    os.mkfifo(tmp_path / "pipe.json")
    words = program("import tf_hvd as hvd\nhvd.init()\nprint(hvd.size())\n")
    path = str(tmp_path / "pipe.json")
    code, output, errors = call(
        "run", "-np", "2", *words, environ={**environ, "HOROVOD_TIMELINE": path}
    )
    assert (code, output.split()) == (0, ["2", "2"]), errors
    assert f"the timeline cannot be written to {path}: it is a pipe, not a file" in errors
    path = str(tmp_path / "busy.json")
    with open(path, "w") as busy:
        busy.write("theirs")
        busy.flush()
        fcntl.flock(busy, fcntl.LOCK_EX)
        code, output, errors = call("run", "-np", "2", "--timeline", path, *words, environ=environ)
    assert (code, output.split()) == (0, ["2", "2"]), errors
    assert (
        f"written to {path}: another timeline is being written to this file; choose another file"
        in errors
    )
    assert pathlib.Path(path).read_text() == "theirs"
