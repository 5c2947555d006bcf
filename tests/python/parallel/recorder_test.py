"""A rank's flight recorder, read by the rank itself."""

import inspect
import os

import numpy as np
import pytest
import tensorflow as tf

import tf_hvd as hvd
from tf_hvd.observe import recording
from tf_hvd.training import preemption

HERE = os.path.relpath(__file__)


def calls_since(number=0):
    """This rank's calls after that number."""
    for process, file in recording.running():
        if process == os.getpid():
            one = recording.parse(file.read_bytes())
            if one.process == process and one.state == recording.JOINED:
                return [call for call in one.calls if call.number > number]
    raise AssertionError("no recorder")


def made():
    return calls_since()[-1].number


def line_of(test, text):
    """The first line of a test with this text, as a recorder stores it."""
    lines, first = inspect.getsourcelines(test)
    number = next(number for number, each in enumerate(lines) if text in each)
    return f"{HERE}:{first + number}"


def test_an_eager_call():
    before = made()
    hvd.allreduce(tf.ones([3, 2]), op=hvd.Sum, name="recorded")
    (call,) = calls_since(before)
    where = line_of(test_an_eager_call, "hvd.allreduce")
    assert (call.name, call.kind, call.dtype, call.shape) == (
        "recorded", "allreduce", "float32", (3, 2),
    )  # fmt: skip
    assert (call.bytes, call.tensors, call.reduce_op, call.device) == (24, 1, "Sum", "CPU")
    assert (call.set, call.code, call.state, call.source) == (0, "ok", "ended", where)
    assert 0 < call.submitted <= call.agreed <= call.started <= call.ended
    assert call.backend or hvd.size() == 1
    assert not call.compiled


def test_calls_are_recorded_in_the_agreed_order():
    before = made()
    names = ["one", "two", "three"]
    if hvd.rank() % 2:
        names.reverse()

    @tf.function
    def step():
        return [hvd.allreduce(tf.ones([2]), name=f"ordered_{name}") for name in names]

    step()
    mine = {call.name: call.order for call in calls_since(before) if "ordered" in call.name}
    assert len(mine) == 3
    for theirs in hvd.allgather_object(mine):
        assert theirs == mine


def test_each_kind_of_call():
    before = made()
    ones = tf.ones([hvd.size(), 2], tf.float64)
    hvd.allgather(ones, name="a")
    hvd.broadcast(ones, 0, name="b")
    hvd.alltoall(ones, name="c")
    hvd.reducescatter(ones, op=hvd.Max, name="d")
    hvd.grouped_allreduce([ones, ones], name="e")
    hvd.barrier()
    calls = calls_since(before)
    kinds = ["allgather", "broadcast", "alltoall", "reducescatter", "allreduce", "barrier"]
    assert [call.kind for call in calls] == kinds
    for call in calls:
        called = "grouped_allreduce" if call.tensors == 2 else call.kind
        assert call.source == line_of(test_each_kind_of_call, f"hvd.{called}(")
    assert [call.tensors for call in calls] == [1, 1, 1, 1, 2, 0]
    assert calls[3].reduce_op == "Max"
    assert calls[5].title == f"barrier ({calls[5].source})"


def test_the_line_of_an_op_in_a_function():
    before = made()

    @tf.function
    def step(x):
        if tf.reduce_sum(x) > 0:
            for _ in tf.range(2):
                x = hvd.allreduce(x, name="in_a_loop")
        return x

    step(tf.ones([2]))
    calls = calls_since(before)
    assert len(calls) == 2
    where = line_of(test_the_line_of_an_op_in_a_function, "hvd.allreduce")
    assert {call.source for call in calls} == {where}


@pytest.mark.compiled
def test_the_line_of_a_compiled_call():
    before = made()

    @tf.function(jit_compile=True)
    def step(x):
        return hvd.allreduce(x + 1, name="recorded")

    step(tf.ones([2]))
    (call,) = calls_since(before)
    assert call.compiled
    assert call.source == line_of(test_the_line_of_a_compiled_call, "hvd.allreduce")


def test_internal_calls_have_the_programs_line():
    before = made()
    variable = tf.Variable(np.float32([1, 2]))
    hvd.broadcast_variables([variable], 0)
    hvd.broadcast_object({"a": 1}, 0)
    test = test_internal_calls_have_the_programs_line
    sources = {call.source for call in calls_since(before)}
    assert sources == {
        line_of(test, "hvd.broadcast_variables"), line_of(test, "hvd.broadcast_object"),
    }  # fmt: skip


def test_calls_of_internal_threads_have_the_programs_line():
    """It was reported without a line: "rank 1 was killed in allreduce 'tf_hvd_elastic_notice'"."""
    before = made()
    together = preemption.Together("noticed")
    together.say(hvd.rank())
    together.heard()
    together.finish()
    hvd.barrier()
    test = test_calls_of_internal_threads_have_the_programs_line
    sources = [call.source for call in calls_since(before)]
    assert sources == [line_of(test, "together.say"), line_of(test, "hvd.barrier")]


def test_a_graph_of_version_1():
    before = made()
    with tf.Graph().as_default():
        result = hvd.allreduce(tf.ones([2]), name="v1")
        with tf.compat.v1.Session() as session:
            session.run(result)
    (call,) = calls_since(before)
    assert call.source == line_of(test_a_graph_of_version_1, "hvd.allreduce")


def test_calls_that_fail():
    before = made()
    with (
        pytest.raises(tf.errors.FailedPreconditionError)
        if hvd.size() > 1
        else (pytest.raises(tf.errors.InvalidArgumentError))
    ):
        if hvd.size() > 1:
            hvd.allreduce(tf.ones([2 + hvd.rank()]), name="apart")
        else:
            hvd.broadcast(tf.ones([2]), 7, name="apart")
    call = next(call for call in calls_since(before) if "apart" in call.name)
    assert call.code == ("disagreement" if hvd.size() > 1 else "invalid")


def test_a_program_that_keeps_creating_code(monkeypatch):
    from tf_hvd.core import call_sites

    monkeypatch.setattr(call_sites, "_MOST", 0)
    before = made()
    code = compile("hvd.allreduce(value, name='made')", os.path.abspath("made.py"), "exec")
    exec(code, {"hvd": hvd, "value": tf.ones([2])})
    (call,) = calls_since(before)
    assert call.source == ""
