"""Collectives in TensorFlow's profiler."""

import pathlib
import time

import pytest
import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

import tf_hvd as hvd

HOST = "/host:CPU"


@pytest.fixture
def profiled(tmp_path):
    """Runs a program under TensorFlow's profiler; returns its spans by the line's name, as
    (name, begin, end, values), times in nanoseconds since the profile began."""

    def run(program):
        tf.profiler.experimental.start(str(tmp_path))
        try:
            program()
        finally:
            tf.profiler.experimental.stop()
        (file,) = pathlib.Path(tmp_path).rglob("*.xplane.pb")
        space = xplane_pb2.XSpace.FromString(file.read_bytes())
        (plane,) = (plane for plane in space.planes if plane.name == HOST)
        assert len({line.id for line in plane.lines}) == len(plane.lines)
        spans = {}
        for line in plane.lines:
            for event in line.events:
                begin = line.timestamp_ns + event.offset_ps / 1000
                values = {
                    plane.stat_metadata[stat.metadata_id].name: getattr(
                        stat, stat.WhichOneof("value")
                    )
                    for stat in event.stats
                }
                name = plane.event_metadata[event.metadata_id].name
                spans.setdefault(line.name, []).append(
                    (name, begin, begin + event.duration_ps / 1000, values)
                )
        return spans

    return run


def ours(spans):
    return {line: found for line, found in spans.items() if line.startswith("tf_hvd ")}


def within(inner, outer):
    return outer[1] <= inner[1] <= inner[2] <= outer[2]


def named(spans, part):
    return [span for line in spans.values() for span in line if part in span[0]]


def operations_of(spans):
    return [span for line in ours(spans).values() for span in line if "operation" in span[3]]


def test_calls_appear_next_to_tensorflows_ops(profiled, rank, size):
    @tf.function
    def step(x):
        return hvd.allreduce(tf.linalg.matmul(x, x), name="product", op=hvd.Sum)

    x = tf.ones([64, 64])
    step(x)
    hvd.barrier()

    def program():
        with tf.profiler.experimental.Trace("the step"):
            if rank == size - 1:
                time.sleep(0.05)
            step(x)

    spans = profiled(program)
    if size == 1:
        return
    (outer,) = named(spans, "the step")
    (call,) = named({"": spans["tf_hvd agreement"]}, "product")
    assert call[3]["bytes"] == 64 * 64 * 4
    assert call[3]["last_rank"] == size - 1
    kernel = next(span for span in named(spans, "MatMul") if within(span, outer))
    (number,) = {operation[3]["operation"] for operation in operations_of(spans)}
    assert number == call[3]["operation"]
    for span in (call, *operations_of(spans)):
        assert within(span, outer)
        assert kernel[2] <= span[2]


def test_consecutive_profiles(profiled, tmp_path, size):
    for number in range(3):
        spans = ours(profiled(lambda n=number: hvd.allreduce(tf.ones([9]), name=f"sum{n}")))
        for file in tmp_path.rglob("*.xplane.pb"):
            file.unlink()
        if size > 1:
            names = [s[0] for s in spans["tf_hvd agreement"] if s[0].startswith("sum")]
            assert names == [f"sum{number}"]


def test_a_profile_during_a_timeline(profiled, tmp_path, size):
    hvd.start_timeline(str(tmp_path / "trace.json"))
    spans = ours(profiled(lambda: hvd.allreduce(tf.ones([9]), name="both")))
    hvd.stop_timeline()
    if size > 1:
        assert "both" in [s[0] for s in spans["tf_hvd agreement"]]
    assert any("both" in f.read_text() for f in tmp_path.glob("trace*.json"))


def test_a_profile_without_calls_has_no_tf_hvd_lines(profiled):
    assert ours(profiled(lambda: tf.ones([3]) + 1)) == {}
