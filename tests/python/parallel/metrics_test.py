"""Times and bytes of collectives, while programs run."""

import pathlib
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

import tf_hvd as hvd
from tf_hvd.core.metrics import StepSummaries
from tf_hvd.keras import DistributedOptimizer, callbacks

STEPS = 12


def scalars_of(folder):
    """The values of each tag that TensorBoard would show, in order."""
    found = {}
    for file in sorted(pathlib.Path(folder).rglob("events.out.*")):
        for record in tf.data.TFRecordDataset(str(file)):
            for value in tf.compat.v1.Event.FromString(record.numpy()).summary.value:
                number = value.simple_value
                if value.HasField("tensor"):
                    number = float(tf.make_ndarray(value.tensor))
                found.setdefault(value.tag, []).append(number)
    return found


def test_calls_and_bytes_are_counted(size):
    before = hvd.metrics()
    for number in range(30):
        hvd.allreduce(tf.ones([100]), name=f"sum{number % 3}")
    hvd.barrier()
    after = hvd.metrics()
    assert after.calls - before.calls == 31
    assert after.bytes - before.bytes == 30 * 400
    assert after.failed_calls == before.failed_calls
    assert after.dropped_calls == 0
    assert after.steps > before.steps
    assert after.step_seconds >= after.collective_seconds >= 0
    assert after.counted_seconds > before.counted_seconds


def test_a_failed_call_is_counted(rank, size):
    if size == 1:
        pytest.skip("one rank agrees with itself")
    before = hvd.metrics()
    with pytest.raises(tf.errors.OpError):
        hvd.allreduce(tf.ones([1 + rank]), name="unlike")
    assert hvd.metrics().failed_calls == before.failed_calls + 1


@pytest.mark.parametrize("before_call", ["early", "in_graph", "end"])
def test_waiting_time_is_counted_by_rank(rank, size, before_call):
    """The last rank is 20 ms late for a call in each step, which is not the step's last call."""
    if size == 1:
        pytest.skip("one rank waits for no other")
    late = size - 1
    hvd.metrics()

    @tf.function
    def graph(x):
        return hvd.allreduce(x, name=f"in_graph_{before_call}")

    def step():
        for name in ("early", "in_graph", "end"):
            if rank == late and name == before_call:
                time.sleep(0.02)
            if name == "in_graph":
                graph(tf.ones([10]))
            else:
                hvd.allreduce(tf.ones([10]), name=name)

    step()
    step()  # the first step also includes earlier calls
    before = hvd.metrics()
    for _ in range(STEPS):
        step()
    hvd.allreduce(tf.ones([10]), name="early")
    after = hvd.metrics()
    values = after.per_step(before)
    waited = values.get(f"waiting_ms/rank_{late}", 0.0)
    everyone = hvd.allgather_object((waited, after.steps - before.steps))
    for other, (ms, steps) in enumerate(everyone):
        assert steps >= STEPS
        if other == late:
            assert ms == 0
        else:
            assert ms > 15  # no upper bound: a busy machine may take longer
    assert values["bytes"] == 3 * 40
    assert 0 <= values["exposed_share"] <= 1
    assert values["step_ms"] >= 20


def test_per_step_is_empty_without_a_step():
    now = hvd.metrics()
    assert now.per_step(now) == {}


def test_the_callback_writes_them_for_tensorboard(folder, rank, size):
    keras = tf.keras
    model = keras.Sequential([keras.layers.Input([8]), keras.layers.Dense(4)])
    model.compile(DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    asked = [
        callbacks.BroadcastGlobalVariablesCallback(0),
        callbacks.CollectiveMetrics(folder, update_freq=4),
    ]
    for _ in range(2):
        model.fit(
            np.ones([64, 8]), np.ones([64, 4]), batch_size=4, epochs=2, verbose=0, callbacks=asked
        )
    if size == 1:
        return
    found = scalars_of(f"{folder}/rank-{rank}")
    # The second fit does not overwrite the first. Requests at the end of `fit` are not a step.
    assert len(found["tf_hvd/bytes"]) == 16
    # The first steps also include requests that `fit` makes once.
    assert found["tf_hvd/bytes"][-1] >= 4 * (8 * 4 + 4)
    assert all(value > 0 for value in found["tf_hvd/step_ms"])
    assert set(found) >= {f"tf_hvd/{name}" for name in ("collective_ms", "exposed_share")}


def test_an_interrupted_training_leaves_no_thread(folder):
    summaries = StepSummaries(folder, 1)
    summaries.begin()
    before = threading.active_count()
    for _ in range(5):
        summaries.begin()
    assert threading.active_count() == before


def test_the_hook_writes_them_for_tensorboard(folder, rank):
    with tf.Graph().as_default():
        total = hvd.allreduce(tf.ones([5]), name="in_graph")
        hook = hvd.MetricsHook(folder, every_n_steps=5)
        with tf.compat.v1.train.SingularMonitoredSession(hooks=[hook]) as session:
            for _ in range(20):
                session.run(total)
    found = scalars_of(f"{folder}/rank-{rank}")
    assert len(found["tf_hvd/bytes"]) == 4
    assert found["tf_hvd/bytes"][1:] == [20] * 3  # the first one also includes earlier calls
