"""A step fails while one of its collectives is in progress: the step reports the error at once.

The other ranks are not affected: the call still takes part after its step has failed.
"""

import re

PREAMBLE = """
import pathlib
import numpy as np
from tf_hvd.core import _native

submitted = _native.library.tf_hvd_submitted_count

FLAGS = pathlib.Path(FLAG_FOLDER)

def wait_for(condition):
    for _ in range(6000):
        if condition():
            return
        time.sleep(0.01)
    raise TimeoutError("60 s")

def gate(name):
    '''Rank 1 fails here once its collective is submitted; rank 0 lets that happen first.'''
    before = submitted()
    def body(i):
        if rank == 1:
            wait_for(lambda: submitted() > before + int(i))
            raise ValueError(f"sample 17 of {name} is broken")
        wait_for((FLAGS / name).exists)
        return np.float32(0)
    return body

def attempt(name, step):
    '''Rank 1 gets the step's own error, rank 0 its normal result.'''
    if rank == 0:
        say(name, step())
        return
    try:
        step()
    except tf.errors.OpError as error:
        found = f"sample 17 of {name} is broken" in str(error)
        say(name, "raised" if found else str(error))
    (FLAGS / name).touch()

def concurrent(check, collective, i, in_loop=False):
    '''The collective concurrent with the failure on rank 1, after it on rank 0.

    `i` is not a constant and the function has no state, so TensorFlow neither runs it
    beforehand nor orders it after the collective. The collective depends on `i` as well:
    of two ops that become ready together, TensorFlow runs the expensive one on a new thread.
    '''
    failed = tf.ensure_shape(tf.numpy_function(check, [i], tf.float32, stateful=False), [])
    value = tf.constant([1.0 + rank])  # ready before `i` in a loop, after it elsewhere
    if not in_loop:
        value += tf.cast(i, tf.float32) * 0
    if rank == 0:
        value += failed
    return collective(value), failed

def both(name, collective):
    check = gate(name)
    step = tf.function(lambda i: concurrent(check, collective, i))
    attempt(name, lambda: step(tf.constant(0))[0].numpy().tolist())

def sum_as(name):
    return lambda x: hvd.allreduce(x, op=hvd.Sum, name=name)
"""

LIMIT_IS_FAR = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "90"}


def results(rank, output):
    lines = (line.split(" ", 1) for line in re.findall(rf"<{rank}> (.*)", output))
    return {line[0]: line[-1] for line in lines}


def test_step_fails_during_a_collective(job, tmp_path):
    """In functions and a loop, with results in every kind of memory in flight."""
    program = PREAMBLE.replace("FLAG_FOLDER", repr(str(tmp_path)))
    _, output = job(
        program
        + """
both("allreduce", sum_as("cancelled"))
both("allgather", lambda x: hvd.allgather(x, name="gathered"))
both("alltoall", lambda x: hvd.alltoall(tf.concat([x, x], 0), name="all"))
both("broadcast", lambda x: hvd.broadcast(x, 1, name="sent"))
variable = tf.Variable([7.0 + rank])
def into_variable(x):
    return hvd.broadcast_([variable], 1, name="in_place")[0] + 0 * x
both("in_place", into_variable)

check = gate("loop")
@tf.function
def loop():
    def body(i, total):
        reduced, failed = concurrent(check, sum_as("looped"), i, in_loop=True)
        return i + 1, total + reduced + failed
    return tf.while_loop(lambda i, _: i < 1, body, (0, tf.constant([0.0])))
attempt("loop", lambda: loop()[1].numpy().tolist())
reduce("end")  # no rank leaves earlier
""",
        **LIMIT_IS_FAR,
    )
    told = results(0, output), results(1, output)
    assert told[0] == {
        "allreduce": "[3.0]",
        "allgather": "[1.0, 2.0]",
        "alltoall": "[1.0, 2.0]",
        "broadcast": "[2.0]",
        "in_place": "[8.0]",
        "loop": "[3.0]",
    }, output
    assert told[1] == dict.fromkeys(told[0], "raised"), output


def test_failed_step_in_a_session_and_repeated_step(job, tmp_path):
    """The first call of the repeated step still waits then. It is not a duplicate."""
    program = PREAMBLE.replace("FLAG_FOLDER", repr(str(tmp_path)))
    _, output = job(
        program
        + """
check = gate("session")
with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    i = tf.compat.v1.placeholder(tf.int32, [])
    fetches = concurrent(check, sum_as("in_session"), i)
    attempt("session", lambda: session.run(fetches, {i: 0})[0].tolist())

check = gate("again")
@tf.function
def again(i, fails):
    reduced = sum_as("again")(tf.constant([1.0]))
    failed = tf.numpy_function(check, [i], tf.float32, stateful=False) if fails else 0
    return reduced, failed
if rank == 1:
    attempt("again", lambda: again(tf.constant(0), True))
    say("second", again(tf.constant(0), False)[0].numpy().tolist())
else:
    wait_for((FLAGS / "again").exists)
    say("again", again(tf.constant(0), False)[0].numpy().tolist())
    say("second", again(tf.constant(0), False)[0].numpy().tolist())
say("after", reduce())
""",
        **LIMIT_IS_FAR,
    )
    told = results(0, output), results(1, output)
    assert told[0] == {
        "session": "[3.0]",
        "again": "[2.0]",
        "second": "[2.0]",
        "after": "2.0",
    }, output
    expected = dict.fromkeys(told[0], "raised") | {"second": "[2.0]", "after": "2.0"}
    assert told[1] == expected, output


def test_both_ranks_fail_during_different_collectives(job, tmp_path):
    """Each rank reports its own error; neither waits for the other's collective."""
    program = PREAMBLE.replace("FLAG_FOLDER", repr(str(tmp_path)))
    code, output = job(
        program
        + """
before = submitted()
def check(_):
    wait_for(lambda: submitted() > before)
    raise ValueError(f"the loss of rank {rank} is not finite")
@tf.function
def step(i):
    reduced = hvd.allreduce(tf.constant([1.0]), name=f"of_rank_{rank}")
    return reduced, tf.numpy_function(check, [i], tf.float32, stateful=False)
try:
    step(tf.constant(0))
finally:
    # The rank that fails first does not leave before the other has failed.
    (FLAGS / str(rank)).touch()
    wait_for((FLAGS / str(1 - rank)).exists)
""",
        **LIMIT_IS_FAR,
    )
    assert code != 0
    for rank in (0, 1):
        assert f"the loss of rank {rank} is not finite" in output


def test_failed_step_is_reported_to_waiting_ranks(job, tmp_path):
    program = PREAMBLE.replace("FLAG_FOLDER", repr(str(tmp_path)))
    code, output = job(
        program
        + """
check = gate("step")
step = tf.function(lambda i: concurrent(check, sum_as("reduced"), i))
if rank == 1:
    try:
        step(tf.constant(0))
    finally:
        (FLAGS / "step").touch()
# The first call may have been agreed on before rank 1 left.
error_of(lambda: [step(tf.constant(0)) for _ in range(2)])
""",
        **LIMIT_IS_FAR,
    )
    assert code != 0
    told = results(0, output)["error:"]
    # In one line, without the headings and the traceback of the failed rank.
    assert re.search(r"rank 1 .*left: \w+: ValueError: sample 17 of step is broken", told), output
    assert "Traceback" not in told
