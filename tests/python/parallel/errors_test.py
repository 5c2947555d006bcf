"""What the ranks may get wrong: an error on every rank, and the job goes on."""

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
    """After each test here, whatever went wrong in it."""
    yield
    total = hvd.allreduce(tf.constant([rank], tf.int64), op=hvd.Sum, name="afterwards")
    np.testing.assert_array_equal(total.numpy(), [sum(range(size))])


def tensor(first, other):
    """A tensor that is `first` on rank 0 and `other` elsewhere."""
    return first if hvd.rank() == 0 else other


def wide():
    """As many rows as alltoall needs to send one to each rank."""
    return tf.zeros([hvd.size()])


MISMATCHES = {
    "dtype": (
        lambda: hvd.allreduce(tensor(tf.zeros([2], tf.float32), tf.zeros([2], tf.int32)), name="m"),
        ["float32", "int32"],
    ),
    "allreduce shape": (
        lambda: hvd.allreduce(tf.zeros(tensor([3, 4], [3, 5])), name="m"),
        [r"\[3,4\]", r"\[3,5\]"],
    ),
    "broadcast shape": (
        lambda: hvd.broadcast(tf.zeros(tensor([7], [8])), 0, name="m"),
        [r"\[7\]", r"\[8\]"],
    ),
    "allgather dimension": (
        lambda: hvd.allgather(tf.zeros(tensor([2, 3], [2, 4])), name="m"),
        [r"3\]", r"4\]"],
    ),
    "allgather number of dimensions": (
        lambda: hvd.allgather(tf.zeros(tensor([2], [2, 2])), name="m"),
        [r"\[\?\]", r"\[\?,2\]"],
    ),
    "reduce op": (
        lambda: hvd.allreduce(tf.zeros([2]), op=tensor(hvd.Sum, hvd.Max), name="m"),
        ["Sum", "Max"],
    ),
    "prescale": (
        lambda: hvd.allreduce(tf.zeros([2]), prescale_factor=tensor(2.0, 3.0), name="m"),
        ["2", "3"],
    ),
    "root": (
        lambda: hvd.broadcast(tf.zeros([2]), tensor(0, 1), name="m"),
        ["root", "0", "1"],
    ),
    "operation": (
        lambda: (
            hvd.allreduce(tf.zeros([2]), name="m")
            if hvd.rank() == 0
            else hvd.allgather(tf.zeros([2]), name="m")
        ),
        ["allreduce", "allgather"],
    ),
    "group size": (
        lambda: hvd.grouped_allreduce([tf.zeros([2])] * tensor(2, 3), name="m"),
        ["2", "3"],
    ),
    "group member": (
        lambda: hvd.grouped_allreduce([tf.zeros([2]), tf.zeros(tensor([5], [6]))], name="m"),
        [r"\[5\]", r"\[6\]"],
    ),
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
    "group of reducescatter": (
        lambda: hvd.grouped_reducescatter([tf.zeros([2]), tf.zeros(tensor([5], [6]))], name="m"),
        [r"\[5\] as tensor 1", r"\[6\] as tensor 1"],
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
    "alltoall dimension": (
        lambda: hvd.alltoall(tf.zeros(tensor([hvd.size(), 3], [hvd.size(), 4])), name="m"),
        [r"\[\?,3\]", r"\[\?,4\]", "all dimensions but the first"],
    ),
    "alltoall dtype": (
        lambda: hvd.alltoall(tf.zeros([hvd.size()], tensor(tf.int8, tf.bool)), name="m"),
        ["int8", "bool"],
    ),
    "reducescatter shape": (
        lambda: hvd.reducescatter(tf.zeros(tensor([4], [5])), name="m"),
        [r"\[4\]", r"\[5\]"],
    ),
    "reducescatter reduce op": (
        lambda: hvd.reducescatter(tf.zeros([2]), op=tensor(hvd.Sum, hvd.Average), name="m"),
        ["Sum", "Average"],
    ),
    "reducescatter postscale": (
        lambda: hvd.reducescatter(tf.zeros([2]), postscale_factor=tensor(1.0, 0.5), name="m"),
        ["postscale 1,", "postscale 0.5;"],
    ),
    "variable's shape": (
        lambda: hvd.broadcast_([tf.Variable(tf.zeros(tensor([2], [3])))], 0, name="m"),
        [r"\[2\]", r"\[3\]"],
    ),
    "number of variables": (
        lambda: hvd.broadcast_([tf.Variable(0.0)] * tensor(2, 1), 0, name="m"),
        ["2 tensors", "1 tensor;"],
    ),
    "variables' root": (
        lambda: hvd.broadcast_([tf.Variable(0.0)], tensor(0, 1), name="m"),
        ["root rank 0", "root rank 1"],
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
        return  # the tests above
    with pytest.raises(FAILED, match=r"\[1\].*\[2\]"):
        evaluate(lambda t: hvd.allreduce(t, name="m"), np.zeros(1 if rank == 0 else 2))


def test_root_that_does_not_exist(evaluate, size):
    for root in (-1, size):
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"no rank {root}"):
            evaluate(lambda t, root=root: hvd.broadcast(t, root), np.zeros(2))


def test_allgather_of_a_scalar(evaluate):
    with pytest.raises(tf.errors.InvalidArgumentError, match="scalar"):
        evaluate(hvd.allgather, np.float32(1))


@pytest.mark.ranks(2)
def test_allgather_of_a_scalar_on_one_rank_fails_all(rank):
    with pytest.raises(tf.errors.OpError, match="scalar"):
        hvd.allgather(tf.zeros([] if rank == 0 else [1]), name="one_scalar")


# Calls that are wrong by themselves: the good one, the wrong one, and what is said.
REFUSALS = {
    "scalar to allgather": (hvd.allgather, [1.0], 1.0, "scalar, float32[]"),
    "scalar to alltoall": (hvd.alltoall, None, 1.0, "scalar, float32[]"),
    "scalar to reducescatter": (hvd.reducescatter, [1.0], 1.0, "scalar, float32[]"),
    "rows that cannot be divided": (hvd.alltoall, None, [1.0], "splits"),
}


@pytest.mark.ranks(2)
@pytest.mark.parametrize("case", list(REFUSALS))
def test_refusal_of_one_rank_is_told_to_all(case, rank, size):
    function, good, wrong, part = REFUSALS[case]
    good = wide() if good is None else tf.constant(good)
    odd = size - 1
    kind = tf.errors.InvalidArgumentError if rank == odd else FAILED
    with pytest.raises(kind) as caught:
        function(tf.constant(wrong) if rank == odd else good, name="m")
    text = ours(caught.value.message)
    assert part in text
    if rank != odd:
        assert text.startswith(f"rank {odd}: ")
    assert len(set(hvd.allgather_object(text.removeprefix(f"rank {odd}: ")))) == 1


@pytest.mark.ranks(2)
@pytest.mark.parametrize("splits", [[5], [-1], [1, 1]], ids=["too many", "negative", "length"])
def test_splits_of_one_rank_that_do_not_fit(splits, rank, size):
    """Rank 0 gives its splits, filled with zeros to one for each rank, or one too many."""
    given = [1] * size
    if rank == 0:
        given = splits + [0] * (size - len(splits)) if len(splits) == 1 else [0] * (size + 1)
    with pytest.raises(tf.errors.OpError, match="splits") as caught:
        hvd.alltoall(tf.zeros([size]), splits=given, name="m")
    text = ours(caught.value.message).removeprefix("rank 0: ")
    assert len(set(hvd.allgather_object(text))) == 1


AFTER_JOIN = {
    "broadcast": lambda: hvd.broadcast(tf.zeros([1]), 0, name="m"),
    "broadcast_": lambda: hvd.broadcast_([tf.Variable(0.0)], 0, name="m"),
    "alltoall": lambda: hvd.alltoall(wide(), name="m"),
    "reducescatter": lambda: hvd.reducescatter(tf.zeros([4]), name="m"),
    "grouped_reducescatter": lambda: hvd.grouped_reducescatter([tf.zeros([4])] * 2, name="m"),
}


@pytest.mark.ranks(2)
@pytest.mark.parametrize("operation", list(AFTER_JOIN))
def test_what_needs_every_rank_fails_after_a_join(operation, rank, size):
    if rank < size - 1:
        with pytest.raises(FAILED, match=r"'m' cannot run: a rank has already joined"):
            AFTER_JOIN[operation]()
        total = hvd.allreduce(tf.constant([1.0]), op=hvd.Sum, name="without_the_last")
        assert total.numpy() == [size - 1]
    hvd.join()


def test_average_of_bool():
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"Average.*bool"):
        hvd.allreduce(tf.constant([True]))


def test_dtype_that_cannot_travel():
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
    """Rank 0 submits one name twice while the others have not submitted it."""

    def call():
        return hvd.allreduce(tf.constant([1.0]), op=hvd.Sum, name="twice").numpy()[0]

    results = []
    threads = [threading.Thread(target=attempt, args=(results, call)) for _ in range(2)]
    if rank == 0:
        for thread in threads:
            thread.start()
        while not results:  # the second comes back at once, with the error
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
    """A function that was traced before is not seen by the check above."""

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
    """Sends Ctrl-C when one more request than those `before` was made, and says so by a file."""
    while _native.library.tf_hvd_submitted_count() == before:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)
    told.touch()


@pytest.mark.jobs(2)
@pytest.mark.parametrize("by", ["eagerly", "in a function"])
def test_ctrl_c_while_an_op_waits_that_then_fails(by, rank, tmp_path):
    """It was a RuntimeError of pybind11's, which `except KeyboardInterrupt` does not catch."""

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
