"""A rank is gone or does not arrive: the errors that the other ranks get."""

import re

import pytest

pytestmark = pytest.mark.usefixtures("usual_garbage")
BOTH = pytest.mark.parametrize("family", ["openmpi", "mpich"])


def lines_of(rank, output):
    return re.findall(rf"<{rank}> (.*)", output)


def test_a_rank_is_killed(job):
    _, output = job(
        """
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
error_of(reduce)
error_of(lambda: reduce("later"))
""",
        ranks=3,
    )
    for rank in (0, 2):
        first, later = lines_of(rank, output)
        assert re.search(r"error: .*rank 1 .*died", first), output
        assert re.search(r"error: .*rank 1 .*died", later), output
    assert lines_of(1, output) == []


def test_killed_rank_under_mpich(job):
    """MPICH's launcher ends the job immediately, before the other ranks get an error."""
    code, output = job(
        "if rank == 1:\n    os.kill(os.getpid(), signal.SIGKILL)\nreduce()\n", family="mpich"
    )
    assert code != 0
    assert "signal 9" in output


def test_a_rank_raises(job):
    """The other ranks' errors contain its exception, also in later calls."""
    code, output = job(
        """
if rank == 1:
    raise ValueError("sample 17 is broken")
error_of(reduce)
error_of(tf.function(reduce))
""",
        ranks=3,
    )
    for rank in (0, 2):
        assert len(lines_of(rank, output)) == 2
        for line in lines_of(rank, output):
            assert re.search(r"rank 1 .*left: ValueError: sample 17 is broken", line), output
    assert "Traceback" in output
    assert code != 0


@BOTH
def test_rank_raises_while_its_thread_runs(job, family):
    """Python waits for the thread, so other ranks waited for this rank until the stall limit."""
    code, output = job(
        """
if rank == 1:
    import threading
    threading.Thread(target=time.sleep, args=(600,)).start()
    raise ValueError("sample 17 is broken")
error_of(reduce)
sys.exit(1)
""",
        family=family,
        keep_others=False,
    )
    (line,) = lines_of(0, output)
    assert re.search(r"rank 1 .*left: ValueError: sample 17 is broken", line), output
    assert code != 0


def test_shutdown_while_a_thread_adds_a_set(job):
    """`shutdown` waited for that thread, which waited for the other ranks."""
    _, output = job(
        """
if rank == 0:
    import threading
    from tf_hvd.core.process_sets import _Registry
    def add():
        try:
            hvd.add_process_set([0])
        except (ValueError, hvd.HorovodInternalError) as error:
            say("error:", error)
    thread = threading.Thread(target=add)
    thread.start()
    while _Registry.lock.acquire(blocking=False):
        _Registry.lock.release()
        time.sleep(0.01)
    hvd.shutdown()
    thread.join()
else:
    error_of(reduce)
"""
    )
    assert re.search("shut ?down", "".join(lines_of(0, output))), output
    assert "left: shutdown()" in "".join(lines_of(1, output)), output


def test_a_rank_exits_early(job):
    code, output = job(
        """
if rank == 1:
    sys.exit(0)
error_of(reduce)
try:
    hvd.add_process_set([0])
except hvd.HorovodInternalError as error:
    say("no set:", error)
"""
    )
    call, process_set = lines_of(0, output)
    assert re.search(r"error: .*rank 1 .*left: its program has ended", call), output
    assert re.search(r"no set: .*rank 1 .*left: its program has ended", process_set), output
    assert code == 0


def test_a_rank_shuts_down(job):
    code, output = job(
        """
if rank == 1:
    hvd.shutdown()
else:
    error_of(reduce)
say("good end")
""",
        ranks=3,
    )
    for rank in (0, 2):
        error, end = lines_of(rank, output)
        assert re.search(r"error: .*rank 1 .*left: shutdown\(\)", error), output
        assert end == "good end"
    assert lines_of(1, output) == ["good end"]
    assert code == 0


def test_shutdown_is_bounded_with_a_stopped_peer(job):
    """In the middle of an operation, without the stall check that would end it."""
    _, output = job(
        """
import threading
from tf_hvd.core import _native
pids = hvd.allgather_object(os.getpid())
large = tf.zeros([1 << 26])
before = _native.library.tf_hvd_submitted_count()
def take_part():
    error_of(lambda: hvd.allreduce(large, name="large"))
thread = threading.Thread(target=take_part)
thread.start()
while _native.library.tf_hvd_submitted_count() == before:
    time.sleep(0.01)
if rank == 1:
    os.mkdir(flag("submitted"))
if rank == 0:
    wait_for("submitted")
    time.sleep(0.2)
    os.kill(pids[1], signal.SIGSTOP)
    hvd.shutdown()
    say("is down")
    os.kill(pids[1], signal.SIGCONT)
thread.join()
""",
        HOROVOD_STALL_CHECK_DISABLE="1",
    )
    assert "is down" in lines_of(0, output), output
    moved = any(line == "no error" for line in lines_of(0, output))
    told = "left while an operation was stuck: no data from rank 1"
    assert moved or told in output, output


@BOTH
def test_shutdown_of_an_idle_job_with_a_stopped_peer(job, family):
    """MPI_Finalize would wait as long as the peer is stopped. The launcher ends the peer."""
    code, output = job(
        """
pids = hvd.allgather_object(os.getpid())
if rank == 0:
    os.kill(pids[1], signal.SIGSTOP)
    hvd.shutdown()
    say("is down")
else:
    while True:
        time.sleep(1)
""",
        family=family,
        keep_others=False,
    )
    (line,) = lines_of(0, output)
    assert line.startswith("is down")  # MPICH's launcher may append another line
    told = r"tf_hvd error, rank 0 \(.*\): rank 1 \(.*\) is stopped .*MPI_Finalize, which would wait"
    assert re.search(told, output), output
    assert code != 0


def test_monitored_sessions_end_when_a_rank_has_left(job):
    """At ABORTED, TensorFlow would create new sessions and repeat the step indefinitely."""
    _, output = job(
        """
v1 = tf.compat.v1
def train(session_of, steps):
    with tf.Graph().as_default():
        weight = v1.get_variable("w", initializer=tf.constant([1.0]), use_resource=True)
        optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(0.1))
        step = optimizer.minimize(tf.reduce_sum(weight))
        with session_of() as session:
            for _ in range(steps):
                session.run(step)
plain = v1.train.MonitoredTrainingSession
if rank == 1:
    train(hvd.MonitoredTrainingSession, 2)
else:
    error_of(lambda: train(hvd.MonitoredTrainingSession, 3))
    error_of(lambda: train(lambda: plain(hooks=[hvd.BroadcastGlobalVariablesHook(0)]), 1))
    error_of(lambda: train(plain, 1))
""",
    )
    lines = lines_of(0, output)
    assert len(lines) == 3, output
    assert all(
        re.search(r"error: .*rank 1 \(.*\) left: its program has ended", line) for line in lines
    ), output
