"""Mistakes in calls: an error on every rank, and the job continues."""

import os
import pathlib
import re
import signal
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

import tf_hvd as hvd
from tf_hvd.core import _native
from tf_hvd.core.tensorflow_hooks import let_interrupts_through

FAILED = tf.errors.FailedPreconditionError


@pytest.fixture(autouse=True)
def next_collective_works(rank, size):
    """Runs after each test here, whatever failed in it."""
    yield
    total = hvd.allreduce(tf.constant([rank], tf.int64), op=hvd.Sum, name="afterwards")
    np.testing.assert_array_equal(total.numpy(), [sum(range(size))])


def tensor(first, other):
    """A tensor that is `first` on rank 0 and `other` elsewhere."""
    return first if hvd.rank() == 0 else other


def wide():
    """As many rows as alltoall needs to send one to each rank."""
    return tf.zeros([hvd.size()])


# Types, shapes, reduce ops, factors and roots: see MISTAKES in programs.py.
MISMATCHES = {
    "group order": (
        lambda: hvd.grouped_allreduce(
            [tf.zeros([2])] * 2, name="m", member_names=tensor(["w", "b"], ["b", "w"])
        ),
        ["'w' as tensor 0", "'b' as tensor 0", "same order"],
    ),
    "group membership": (
        lambda: hvd.grouped_allgather(
            [tf.zeros([2])] * tensor(3, 2),
            name="m",
            member_names=tensor(["a", "b", "c"], ["a", "c"]),
        ),
        ["'b' as tensor 1", "'c' as tensor 1", "same tensors"],
    ),
    "compression": (
        lambda: hvd.allreduce(
            tf.zeros([2]),
            compression=tensor(hvd.Compression.fp16, hvd.Compression.none),
            name="m",
        ),
        ["fp16 of float32", "no compression"],
    ),
    "kind of compression": (
        lambda: hvd.reducescatter(
            tf.zeros([2]),
            compression=tensor(hvd.Compression.fp16, hvd.Compression.bf16),
            name="m",
        ),
        ["fp16 of float32", "bf16 of float32"],
    ),
    "number of variables": (
        lambda: hvd.broadcast_([tf.Variable(0.0)] * tensor(2, 1), 0, name="m"),
        ["2 tensors", "1 tensor;"],
    ),
    "barrier": (
        lambda: hvd.barrier(name="m") if hvd.rank() == 0 else hvd.alltoall(wide(), name="m"),
        ["barrier", "alltoall", "different names"],
    ),
}


def ours(text):
    """Without what TensorFlow puts around it, which differs where the calls do."""
    return re.sub(r"^\{\{.*?\}\} | \[Op:.*", "", text, flags=re.DOTALL)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("case", list(MISMATCHES))
def test_mismatch_is_explained_on_every_rank(case):
    call, parts = MISMATCHES[case]
    with pytest.raises(FAILED) as caught:
        call()
    text = caught.value.message
    for part in [*parts, r"\bm\b", "rank 0", "rank 1"]:
        assert re.search(part, text), (part, text)
    texts = hvd.allgather_object(ours(text))
    assert len(set(texts)) == 1, texts


@pytest.mark.ranks(2)
def test_mismatch_in_a_function_and_in_a_session(evaluate, rank):
    if evaluate.__name__ == "run_eagerly":
        return  # covered by the tests above
    with pytest.raises(FAILED, match=r"\[1\].*\[2\]"):
        evaluate(lambda t: hvd.allreduce(t, name="m"), np.zeros(1 if rank == 0 else 2))


def test_a_missing_root_is_an_error(evaluate, size):
    for root in (-1, size):
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"no rank {root}"):
            evaluate(lambda t, root=root: hvd.broadcast(t, root), np.zeros(2))


def test_allgather_of_a_scalar(evaluate):
    with pytest.raises(tf.errors.InvalidArgumentError, match="scalar"):
        evaluate(hvd.allgather, np.float32(1))


AFTER_JOIN = {
    "broadcast": lambda: hvd.broadcast(tf.zeros([1]), 0, name="m"),
    "broadcast_": lambda: hvd.broadcast_([tf.Variable(0.0)], 0, name="m"),
    "alltoall": lambda: hvd.alltoall(wide(), name="m"),
    "reducescatter": lambda: hvd.reducescatter(tf.zeros([4]), name="m"),
    "grouped_reducescatter": lambda: hvd.grouped_reducescatter([tf.zeros([4])] * 2, name="m"),
}


@pytest.mark.ranks(2)
@pytest.mark.parametrize("operation", list(AFTER_JOIN))
def test_operations_that_need_every_rank_fail_after_a_join(operation, rank, size):
    if rank < size - 1:
        with pytest.raises(FAILED, match=r"'m' cannot run: a rank has already joined"):
            AFTER_JOIN[operation]()
        total = hvd.allreduce(tf.constant([1.0]), op=hvd.Sum, name="without_the_last")
        assert total.numpy() == [size - 1]
    hvd.join()


def test_unsupported_dtypes():
    with pytest.raises((TypeError, tf.errors.InvalidArgumentError)):
        hvd.allreduce(tf.constant(["text"]))


def test_adasum_of_integers_and_unknown_ops():
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"cannot compute Adasum of int32"):
        hvd.allreduce(tf.zeros([1], tf.int32), op=hvd.Adasum)
    with pytest.raises(ValueError, match="not a reduce op"):
        hvd.allreduce(tf.zeros([1]), op=17)


def attempt(results, function):
    try:
        results.append(function())
    except tf.errors.OpError as error:
        results.append(error)


@pytest.mark.ranks(2)
def test_same_name_twice_at_once(rank, size):
    """Rank 0 submits one name twice before the others have submitted it."""

    def call():
        return hvd.allreduce(tf.constant([1.0]), op=hvd.Sum, name="twice").numpy()[0]

    results = []
    threads = [threading.Thread(target=attempt, args=(results, call)) for _ in range(2)]
    if rank == 0:
        for thread in threads:
            thread.start()
        while not results:  # the second one returns immediately, with the error
            threads[0].join(0.01)
    hvd.broadcast(tf.zeros([1]), 0, name="go")
    if rank > 0:
        attempt(results, call)
        attempt(results, call)
    else:
        for thread in threads:
            thread.join()
    good = [r for r in results if not isinstance(r, tf.errors.OpError)]
    (bad,) = [r for r in results if isinstance(r, tf.errors.OpError)]
    assert good == [size]
    assert "twice" in bad.message
    assert rank > 0 or isinstance(bad, tf.errors.InvalidArgumentError)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("use", ["map", "interleave"])
def test_parallel_dataset_function_is_refused(use):
    """Also where its calls would happen not to overlap."""

    def call(i):
        total = hvd.allreduce(i, op=hvd.Sum, name="in_map")
        return tf.data.Dataset.from_tensors(total) if use == "interleave" else total

    dataset = tf.data.Dataset.range(2)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"parallel tf\.data function"):
        getattr(dataset, use)(call, num_parallel_calls=2)


@pytest.mark.ranks(2)
def test_parallel_dataset_map_is_an_error(rank, size):
    """The check above does not see a function that was traced before."""

    @tf.function(input_signature=[tf.TensorSpec([], tf.int64)])
    def call(_):
        return hvd.allreduce(tf.constant([1.0]), op=hvd.Sum, name="in_map")

    call.get_concrete_function()
    results = []
    if rank == 0:
        dataset = tf.data.Dataset.range(2).map(call, num_parallel_calls=2, deterministic=False)
        iterator = iter(dataset)
        attempt(results, lambda: next(iterator).numpy()[0])
    hvd.broadcast(tf.zeros([1]), 0, name="go")
    if rank == 0:
        attempt(results, lambda: next(iterator).numpy()[0])
    else:
        # One after the other, under the name that the call has within a dataset.
        calls = iter(tf.data.Dataset.range(2).map(call))
        attempt(results, lambda: next(calls).numpy()[0])
        attempt(results, lambda: next(calls).numpy()[0])
    good, bad = results if rank > 0 else reversed(results)
    assert good == size
    assert isinstance(bad, tf.errors.OpError)
    assert "in_map" in bad.message


def test_sequential_dataset_map_works(size):
    dataset = tf.data.Dataset.range(4).map(
        lambda i: hvd.allreduce(i, op=hvd.Sum, name="one_by_one")
    )
    assert list(dataset.as_numpy_iterator()) == [i * size for i in range(4)]


def interrupt_after(before, told):
    """Send Ctrl-C after one more request than those `before`, and report it through a file."""
    while _native.library.tf_hvd_submitted_count() == before:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)
    told.touch()


@pytest.mark.jobs(2)
@pytest.mark.parametrize("by", ["eagerly", "in a function"])
def test_ctrl_c_during_an_op_that_fails(by, rank, tmp_path):
    """It was pybind11's RuntimeError, which `except KeyboardInterrupt` does not catch."""

    def call(value):
        return hvd.allreduce(value, name="interrupted")

    if by == "in a function":
        call = tf.function(call, input_signature=[tf.TensorSpec([None])])
    call(tf.ones([2]))
    told = pathlib.Path(hvd.broadcast_object(str(tmp_path), 0)) / "told"
    if rank == 1:
        while not told.exists():
            time.sleep(0.01)
        with pytest.raises(FAILED):
            call(tf.ones([3]))
        return
    made = _native.library.tf_hvd_submitted_count()
    sender = threading.Thread(target=interrupt_after, args=(made, told))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    let_interrupts_through()  # as init() does
    try:
        sender.start()
        with pytest.raises(KeyboardInterrupt):
            call(tf.ones([2]))
    finally:
        sender.join()
        signal.signal(signal.SIGINT, before)
