"""`tf_hvd run --timeline` and `tf_hvd timeline`, on Keras fits."""

import collections
import io
import json
import os
import pathlib

import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as perfetto
from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig

from tf_hvd.observe import trace_reader

pytestmark = pytest.mark.parametrize("family", ["openmpi"], indirect=True)

# The program trace_processor_shell, which Perfetto's package would download.
TRACE_PROCESSOR = os.environ.get("TF_HVD_TRACE_PROCESSOR")
MS = 1_000_000
STEPS = 12
# Rank 1 takes 0.1 s longer in the backward pass, before its first gradient is there.
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


def traced(call, environ, program, suffix, ranks=2, **more):
    """Runs the fit; returns its exit code, what it said, and the ranks' files."""
    words = program(FIT)
    folder = words[-1].rpartition("/")[0]
    file = f"{folder}/trace.{suffix}"
    code, _, errors = call(
        *("run", "-np", str(ranks), "--timeline", file, *words), environ={**environ, **more}
    )
    others = [f"{folder}/trace.rank-{number}.{suffix}" for number in range(1, ranks)]
    return code, errors, [file, *others]


def report_of(call, environ, file):
    code, output, errors = call("timeline", "--json", file, environ=environ)
    assert code == 0, errors
    return json.loads(output)


class Rank:
    """One rank's trace, by Perfetto's own definitions."""

    def __init__(self, file):
        trace = perfetto.Trace()
        with open(file, "rb") as data:
            trace.ParseFromString(data.read())
        self.packets = list(trace.packet)
        self.sequences = {each.trusted_packet_sequence_id for each in self.packets}
        self.clocks = [each.clock_snapshot for each in self.packets if each.clock_snapshot.clocks]
        self.tracks = {
            each.track_descriptor.uuid: each.track_descriptor
            for each in self.packets
            if each.HasField("track_descriptor")
        }
        self.spans = collections.defaultdict(list)  # of a track's name: begin and end
        self.open = collections.defaultdict(list)
        names = {}
        for packet in self.packets:
            names |= {each.iid: each.name for each in packet.interned_data.event_names}
            if packet.HasField("track_event"):
                self._take(packet, names)

    def _take(self, packet, names):
        event, time = packet.track_event, packet.timestamp
        track = self.tracks[event.track_uuid]
        open_spans = self.open[event.track_uuid]
        if event.type == event.TYPE_SLICE_BEGIN:
            assert event.name or names[event.name_iid]
            assert not open_spans or open_spans[-1] <= time
            open_spans.append(time)
        elif event.type == event.TYPE_SLICE_END:
            begin = open_spans.pop()
            assert begin <= time
            self.spans[track.name].append((begin, time))
        elif event.type == event.TYPE_COUNTER:
            assert track.HasField("counter")


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_fit_is_traced(call, environ, program, ranks):
    """Ranks share their cores with each other and with other tests."""
    code, errors, files = traced(call, environ, program, "pftrace", ranks)
    assert code == 0, errors
    report = report_of(call, environ, files[0])
    assert not report["missing"]
    assert not report["dropped"]
    steps = [step for step in report["steps"] if "1" in step["ranks"]]
    assert len(steps) >= STEPS - 2
    late = [step["late"] and step["late"]["rank"] for step in steps]
    # In one in four another rank may wait longer for a core than rank 1 sleeps.
    assert late.count(1) >= 3 * len(late) // 4, late
    assert report["advice"].startswith("Rank 1 ")
    for number, file in enumerate(files):
        rank = Rank(file)
        assert len(rank.sequences) == 1
        assert not any(rank.open.values())
        assert bool(rank.clocks) == (number == 0)
        (process,) = (each for each in rank.tracks.values() if each.HasField("process"))
        assert process.process.process_name.startswith(f"rank {number} of {ranks}, ")
        parents = {each.parent_uuid for each in rank.tracks.values() if each is not process}
        assert parents == {process.uuid}
        # What TensorFlow waits for is what the report says.
        for step in steps:
            mine = step["ranks"][str(number)]
            begin, end = mine["begin_ns"], mine["begin_ns"] + mine["length_ns"]
            exposed = mine["transfer_ns"] + sum(mine["waiting_ns"].values())
            waits = [each for each in rank.spans["TensorFlow"] if begin <= each[0] < end]
            waited = sum(until - since for since, until in waits)
            assert abs(waited - exposed) < 5 * MS, (step, waits)


@pytest.mark.skipif(not TRACE_PROCESSOR, reason="TF_HVD_TRACE_PROCESSOR names no binary")
def test_perfettos_own_queries_find_the_same(call, environ, program):
    """Both ranks' files in one, in the program by which ui.perfetto.dev reads traces."""
    code, errors, files = traced(call, environ, program, "pftrace")
    assert code == 0, errors
    both = b"".join(pathlib.Path(file).read_bytes() for file in files)
    config = TraceProcessorConfig(bin_path=TRACE_PROCESSOR)
    with TraceProcessor(trace=io.BytesIO(both), config=config) as traces:
        waits = traces.query(
            "select count(*) as count, sum(dur) as ns from slice "
            "where name = 'waits for collectives'"
        )
        (found,) = [(row.count, row.ns) for row in waits]
        unfinished = traces.query("select count(*) as count from slice where dur < 0")
        assert [row.count for row in unfinished] == [0]
    spans = [span for file in files for span in Rank(file).spans["TensorFlow"]]
    assert found == (len(spans), sum(end - begin for begin, end in spans))


@pytest.mark.parametrize("suffix", ["json", "pftrace"])
def test_a_killed_rank_leaves_its_timeline(call, environ, program, suffix):
    code, _, files = traced(call, environ, program, suffix, ENDS="8")
    assert code == 137
    for number, file in enumerate(files):
        (trace,) = trace_reader.read(file)
        assert (trace.rank, trace.size) == (number, 2)
    report = report_of(call, environ, files[0])
    assert not report["missing"]
    assert 5 <= len(report["steps"]) <= 9


def test_what_is_no_timeline(call, environ, tmp_path):
    (tmp_path / "a.json").write_text("[]")
    code, output, errors = call("timeline", "a.json", environ=environ)
    assert (code, output) == (2, "")
    assert "a.json is not a timeline that tf_hvd has written" in errors
    code, _, errors = call("timeline", "b.json", environ=environ)
    assert code == 2
    assert "b.json: No such file or directory" in errors
