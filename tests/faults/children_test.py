"""Processes that a rank starts never disturb the job."""

import re

import pytest

BOTH = pytest.mark.parametrize("family", ["openmpi", "mpich"])

# New processes of multiprocessing import this file, so only main() imports TensorFlow.
CHILDREN = """
import multiprocessing, os, subprocess, sys

def square(x):
    return x * x

def fail():
    raise ValueError("a worker's own error")

def main():
    import tensorflow as tf
    import tf_hvd as hvd
    hvd.init()
    rank = hvd.rank()

    def total(name):
        return int(hvd.allreduce(tf.constant([rank + 1]), op=hvd.Sum, name=name)[0])

    def forked(action):
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            action()
            sys.exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def collective():
        try:
            total("in a child")
        except tf.errors.FailedPreconditionError as error:
            print("child:", error.message, flush=True)
        try:
            hvd.init()
        except hvd.HorovodInitError as error:
            print("init:", error, flush=True)
        hvd.shutdown()

    def ask():
        os._exit(10 * hvd.size() + hvd.rank())

    assert total("before") == 3
    if rank == 0:
        assert forked(lambda: None) == 0
        assert forked(lambda: 1 / 0) == 1
        assert forked(ask) == 20
        assert forked(collective) == 0
        for method in ("fork", "spawn", "forkserver"):
            context = multiprocessing.get_context(method)
            with context.Pool(2) as pool:
                assert pool.map(square, [1, 2, 3]) == [1, 4, 9]
            worker = context.Process(target=fail)
            worker.start()
            worker.join()
            assert worker.exitcode == 1
        assert subprocess.run([sys.executable, "-c", "print()"]).returncode == 0
    print("after:", total("after"), flush=True)
    if rank == 1:
        raise RuntimeError("rank 1's own")
    total("failed")

if __name__ == "__main__":
    main()
"""


@BOTH
def test_children_of_a_rank(plain_job, family):
    """fork, multiprocessing and subprocess, then a correct sum on all ranks.

    Then rank 1 fails and is named: the ends of children were taken for that of rank 0.
    """
    code, output = plain_job(CHILDREN, family=family)
    told = re.search("child: (.*)", output)
    assert told, output
    assert re.search(r"'in a child': process \d+ was forked from rank 0 and is not in", told[1])
    assert re.search(r"init: process \d+ was forked from rank 0", output), output
    assert output.count("ValueError: a worker's own error") == 3
    assert output.count("after: 3") == 2, output
    words = " ".join(output.split())
    first = "rank 1 was the first to end with an error (exit code 1): RuntimeError: rank 1's own"
    assert f"what: {first}" in words
    assert code == 1


@BOTH
def test_program_started_by_a_rank_calls_init(plain_job, family):
    """It has the launcher's variables of the rank, but must not join in the rank's place."""
    program = """
import os, subprocess, sys
import tensorflow as tf
import tf_hvd as hvd

CHILD = '''
import tf_hvd as hvd
try:
    hvd.init()
    print("child:", hvd.rank(), "of", hvd.size(), flush=True)
except hvd.HorovodInitError as error:
    print("refused:", error, flush=True)
'''
early = dict(os.environ)
hvd.init()
late = dict(os.environ)
if hvd.rank() == 0:
    for environment in (early, late, {**late, "TF_HVD_ALONE": "1"}):
        assert subprocess.run([sys.executable, "-P", "-c", CHILD], env=environment).returncode == 0
print("after:", int(hvd.allreduce(tf.constant([hvd.rank() + 1]), op=hvd.Sum)[0]), flush=True)
"""
    code, output = plain_job(program, family=family)
    refused = re.findall("refused: (.*)", output)
    assert len(refused) == 2, output
    for text in refused:
        assert re.search(r"process \d+ was started by rank 0 of 2 \(process \d+\)", text)
        assert "TF_HVD_ALONE" in text
    assert re.findall("child: (.*)", output) == ["0 of 1"]
    assert output.count("after: 3") == 2
    assert code == 0


@BOTH
def test_script_closes_our_files(job, family):
    """The launcher may end the job immediately, after the fault was printed."""
    code, output = job(
        """
if rank == 1:
    os.closerange(3, 1024)
while True:  # a call may complete before the fault is noticed
    reduce()
""",
        family=family,
        keep_others=False,  # otherwise Open MPI ignores how that rank ended
    )
    assert re.search(
        r"tf_hvd error, rank 1 \(.*\): the script has closed file descriptors that it did", output
    )
    assert " died" not in output
    assert code != 0
