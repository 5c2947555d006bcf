"""Failures in steps that XLA compiles: they raise errors with tf_hvd's texts."""

import re

import pytest

pytestmark = pytest.mark.usefixtures("usual_garbage")

STEP = """
@tf.function(autograph=False, jit_compile=True)
def compiled():
    return hvd.allreduce(tf.constant([1.0]), op=hvd.Sum, name="g")

def step():
    return float(compiled()[0])

"""
STALL = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "2", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "20"}


def errors_of(rank, output):
    return re.findall(rf"<{rank}> error: (.*)", output)


def test_rank_killed_in_a_compiled_step(job):
    _, output = job(
        STEP
        + """
assert step() == 3.0
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
error_of(step)
error_of(step)
""",
        ranks=3,
    )
    for rank in (0, 2):
        first, later = errors_of(rank, output)
        assert re.search(r"rank 1 .*died", first), output
        assert re.search(r"rank 1 .*died", later), output


def test_rank_raises_during_a_compiled_step(job):
    code, output = job(
        STEP
        + """
if rank == 1:
    raise ValueError("sample 17 is broken")
error_of(step)
"""
    )
    assert code != 0
    (error,) = errors_of(0, output)
    assert "left: ValueError: sample 17 is broken" in error


def test_rank_missing_in_a_compiled_step(job):
    _, output = job(
        STEP
        + """
if rank == 1:
    wait_for("told")
error_of(step)
if rank == 0:
    os.mkdir(flag("told"))
""",
        **STALL,
    )
    for rank in (0, 1):
        (error,) = errors_of(rank, output)
        assert re.search(r"stall: 'compiled/g' \(world\) .*missing rank 1 ", error), output


def test_slow_compilation_is_reported(job):
    """It was reported as missing, with the advice to look for a branch in the program."""
    _, output = job(
        """
@tf.function(autograph=False, jit_compile=True)
def step(x):
    for i in range(300 if rank == 1 else 1):  # about 25 ms each
        x = tf.sin(x @ x) + i
    return hvd.allreduce(x, op=hvd.Sum, name="g")

step.get_concrete_function(tf.TensorSpec([8, 8]))  # only XLA's part takes long
reduce("traced")
step(tf.ones([8, 8]))
say("done")
""",
        HOROVOD_STALL_CHECK_TIME_SECONDS="1",
    )
    assert re.search(
        r"slow compilation: 'step/g' \(world\) waited .*submitted by rank 0 .*missing rank 1 .*"
        r"rank 1 has begun to compile 'step' and made no call since, at \S*program\.py, line \d+, "
        r"in <module>\. XLA compiles a step at ",
        output,
    ), output
    assert "stall: 'step/g'" not in output  # 'traced' may wait: rank 1 traces 300 times as much
    assert output.count("done") == 2


def test_more_parallel_compiled_steps_than_threads(job):
    """Each step occupies a thread of TensorFlow, and ranks begin with different steps."""
    _, output = job(
        """
import threading

def function_of(i):
    @tf.function(autograph=False, jit_compile=True)
    def step(x):
        return hvd.allreduce(x, op=hvd.Sum, name=f"g{i}")

    return step

steps = [function_of(i) for i in range(8)]
first, second = (steps[:4], steps[4:]) if rank == 0 else (steps[4:], steps[:4])
gate = tf.queue.FIFOQueue(1, tf.float32, [2])  # waiting here occupies no thread

@tf.function(autograph=False)
def all_steps(x):
    later = gate.dequeue()
    return [step(x) for step in first] + [step(later) for step in second]

def train():
    threading.Timer(1.0, gate.enqueue, [tf.ones([2])]).start()
    all_steps(tf.ones([2]))

error_of(train)
""",
        TF_NUM_INTEROP_THREADS="2",
        **STALL,
    )
    for rank in (0, 1):
        (error,) = errors_of(rank, output)
        assert re.search(
            r"stall: 'step/g\d' .*; rank \d waits for 'step/g\d' .*one of TensorFlow's inter-op "
            r"threads: run fewer such steps at a time, or raise the number of threads",
            error,
        ), output


def test_ranks_that_compile_differently_get_an_error(job):
    """Their calls have different names, so each rank waited until the limit."""
    _, output = job(
        STEP
        + """
error_of(step if rank == 0 else tf.function(reduce))
"""
    )
    for rank in (0, 1):
        (error,) = errors_of(rank, output)
        assert re.search(
            r"mismatch in 'compiled/g' \(world\): rank 0 .*from a step that XLA compiles; rank 1 "
            r".*waits for 'g' \(world\).*; jit_compile must be the same on all ranks",
            error,
        ), output
        assert "stall" not in error


def test_explicit_name_is_the_same_request_in_both_modes(job):
    """Calls with explicit names match, and the ranks get an error immediately."""
    _, output = job(
        """
from tf_hvd.core import _native

def named(jit):
    @tf.function(autograph=False, jit_compile=jit)
    def call():
        return _native.ops.horovod_allreduce(tf.constant([1.0]), 1, 1.0, 1.0, wire_name="w")

    return call

error_of(named(rank == 0), tf.errors.FailedPreconditionError)
error_of(named(True), tf.errors.FailedPreconditionError)
"""
    )
    for rank in (0, 1):
        (error,) = errors_of(rank, output)
        assert "rank 0 has a step that XLA compiles, rank 1 has a step that XLA does not" in error
        assert f"<{rank}> no error" in output


def test_step_compiled_after_shutdown(job):
    _, output = job(
        STEP
        + """
step()
hvd.shutdown()
error_of(step, tf.errors.FailedPreconditionError)
"""
    )
    for rank in (0, 1):
        (error,) = errors_of(rank, output)
        assert "shut down" in error
