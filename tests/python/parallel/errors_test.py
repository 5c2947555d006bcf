"""What the ranks may get wrong: an error on every rank, and the job goes on."""

import re
import threading

import numpy as np
import pytest
import tensorflow as tf

import tf_hvd as hvd

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
}


@pytest.mark.ranks(2)
@pytest.mark.parametrize("case", list(MISMATCHES))
def test_mismatch_is_explained_on_every_rank(case):
    call, parts = MISMATCHES[case]
    with pytest.raises(FAILED) as caught:
        call()
    text = caught.value.message
    for part in [*parts, r"\bm\b", "rank 0", "rank 1"]:
        assert re.search(part, text), (part, text)
    # What TensorFlow puts around it differs where the calls do.
    ours = re.sub(r"^\{\{.*?\}\} | \[Op:.*", "", text)
    texts = hvd.allgather_object(ours)
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


def test_average_of_bool():
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"Average.*bool"):
        hvd.allreduce(tf.constant([True]))


def test_dtype_that_cannot_travel():
    with pytest.raises((TypeError, tf.errors.InvalidArgumentError)):
        hvd.allreduce(tf.constant(["text"]))


def test_adasum_and_unknown_ops():
    with pytest.raises(NotImplementedError, match="Average"):
        hvd.allreduce(tf.zeros([1]), op=hvd.Adasum)
    with pytest.raises(ValueError, match="no reduce op"):
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
        attempt(results, lambda: call(0).numpy()[0])
        attempt(results, lambda: call(0).numpy()[0])
    good, bad = results if rank > 0 else reversed(results)
    assert good == size
    assert isinstance(bad, tf.errors.OpError)
    assert "in_map" in bad.message


def test_sequential_dataset_map_works(size):
    dataset = tf.data.Dataset.range(4).map(
        lambda i: hvd.allreduce(i, op=hvd.Sum, name="one_by_one")
    )
    assert list(dataset.as_numpy_iterator()) == [i * size for i in range(4)]
