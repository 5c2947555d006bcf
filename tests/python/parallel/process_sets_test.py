"""Process sets: added and removed while the job runs, overlapping, and used concurrently."""

import contextlib
import itertools
import logging
import threading

import numpy as np
import psutil
import pytest
import tensorflow as tf

import tf_hvd as hvd


@pytest.fixture
def process_set(request):
    """Adds sets; those that still exist at the end are removed, on all ranks alike."""
    added = []

    def add(ranks):
        added.append(hvd.add_process_set(ranks))
        return added[-1]

    yield add
    for one in added:
        hvd.remove_process_set(one)


def summed(value, process_set, name):
    """The sum of a number over a set, as a number."""
    result = hvd.allreduce(
        tf.constant([value], tf.int64), op=hvd.Sum, name=name, process_set=process_set
    )
    return int(result[0])


def test_sets_can_be_added_and_removed(rank, size):
    ranks = list(range(0, size, 2))
    first = hvd.add_process_set(reversed(ranks))
    assert first.ranks == ranks
    assert first.size() == len(ranks)
    assert first.included() == (rank in ranks)
    assert str(first) == (
        f"ProcessSet(process_set_id={first.process_set_id}, ranks={ranks}, mpi_comm=None)"
    )
    if first.included():
        assert first.rank() == rank // 2
    else:
        with pytest.raises(ValueError, match=f"rank {rank} is not in process set"):
            first.rank()
    number = first.process_set_id
    assert hvd.remove_process_set(first)
    assert str(first) == f"ProcessSet(process_set_id=None, ranks={ranks}, mpi_comm=None)"
    assert (first.size(), first.rank(), first.included()) == (None, None, rank in ranks)
    assert not hvd.remove_process_set(first)
    assert not hvd.remove_process_set(hvd.global_process_set)
    second = hvd.add_process_set(hvd.ProcessSet(ranks))
    assert second.process_set_id == number + 1  # never used again
    assert hvd.remove_process_set(second)


def test_a_removed_set_can_be_added_again(rank, process_set):
    """As Horovod's can: the object keeps its ranks, and gets a new number."""
    back = hvd.add_process_set([0])
    number = back.process_set_id
    hvd.remove_process_set(back)
    assert hvd.add_process_set(back) is back
    assert (back.process_set_id, back.ranks) == (number + 1, [0])
    if rank == 0:
        assert summed(7, back, "of a set that was added again") == 7
    with pytest.raises(ValueError, match=f"process set {number + 1} has the same ranks"):
        process_set([0])
    assert hvd.remove_process_set(back)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("eager", [True, False], ids=["eager", "graph"])
def test_traces_of_a_removed_set_are_not_reused(rank, process_set, eager):
    """Broadcasts, tapes and objects kept its old number: "there is no process set 1"."""
    pair = process_set([0, 1])

    def use():
        if not pair.included():
            return []
        with contextlib.nullcontext() if eager else tf.Graph().as_default():
            told = [hvd.broadcast_object(rank, 1, process_set=pair)]
            told += hvd.allgather_object(rank, process_set=pair)
            if eager:
                variable = tf.Variable(float(rank))
                hvd.broadcast_variables([variable], 1, process_set=pair)
                with hvd.DistributedGradientTape(tf.GradientTape(), process_set=pair) as tape:
                    loss = variable * (1.0 + 2.0 * rank)
                told += [float(variable), float(tape.gradient(loss, variable))]
        return told

    wanted = [1, 0, 1, *([1.0, 2.0] if eager else [])] if rank < 2 else []
    assert use() == wanted
    hvd.remove_process_set(pair)
    hvd.add_process_set(pair)
    assert use() == wanted


def test_every_overlap(evaluate, rank, size, process_set):
    """All sets of at least one rank; in a graph each rank has a different order."""
    subsets = [[r for r in range(size) if bits >> r & 1] for bits in range(1, 1 << size)]
    sets = [process_set(ranks) for ranks in subsets]
    mine = [one for one in sets if one.included()]

    def reduce(x):
        # Eager calls block, so all ranks must make them in the same order.
        turn = 0 if tf.executing_eagerly() else rank % len(mine)
        order = mine[turn:] + mine[:turn]
        results = {
            one.process_set_id: hvd.allreduce(
                x, op=hvd.Sum, name=f"overlap.{one.process_set_id}", process_set=one
            )
            for one in order
        }
        return [results[one.process_set_id] for one in mine]

    for one, result in zip(mine, evaluate(reduce, np.full([3], 2**rank, np.int64)), strict=True):
        np.testing.assert_array_equal(result, np.full([3], sum(2**r for r in one.ranks)))


@pytest.mark.ranks(2)
def test_the_same_name_in_different_sets(rank, size, process_set):
    """Submitted concurrently by threads, in another order on each rank."""
    sets = [process_set([0, last]) for last in range(1, size)]
    mine = [one for one in sets if one.included()]
    results = {}

    def call(one):
        results[one.process_set_id] = summed(10 + rank, one, "same name")

    threads = [threading.Thread(target=call, args=[one]) for one in mine]
    for thread in threads if rank % 2 else reversed(threads):
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {one.process_set_id: 20 + one.ranks[1] for one in mine}


@pytest.mark.ranks(3)
def test_collectives_of_disjoint_sets_overlap(rank, size, process_set):
    """Rank 1 keeps a collective of [0, 1] pending until the others have completed several.

    If collectives of all sets ran one after the other, no rank would make progress.
    """
    held, others, signal = process_set([0, 1]), process_set(range(2, size)), process_set([1, 2])
    if others.included():
        for number in range(5):
            assert summed(rank, others, f"others.{number}") == sum(range(2, size))
    if signal.included():
        summed(0, signal, "the others have finished")
    if held.included():
        assert summed(rank + 5, held, "held") == 11


def test_topology_ops(evaluate, rank, size, process_set):
    first = process_set([0])

    def run():
        return [
            hvd.size_op(first.process_set_id),
            hvd.process_set_included_op(first.process_set_id),
            hvd.process_set_included_op(),
            hvd.cross_rank_op(),
            hvd.cross_size_op(),
        ]

    expected = [1, int(rank == 0), 1, hvd.cross_rank(), hvd.cross_size()]
    assert [int(value) for value in evaluate(run)] == expected


def test_wrong_sets_are_refused_on_all_ranks(size, process_set):
    first = process_set([0])
    number = first.process_set_id
    with pytest.raises(ValueError, match=f"process set {number} has the same ranks; use that"):
        hvd.add_process_set([0])
    with pytest.raises(ValueError, match="is already registered"):
        hvd.add_process_set(first)
    with pytest.raises(ValueError, match=f"no rank {size}; its ranks are 0 to {size - 1}"):
        hvd.add_process_set([0, size])
    with pytest.raises(ValueError, match="no rank -1"):
        hvd.add_process_set([-1])
    with pytest.raises(ValueError, match="rank 0 is listed more than once"):
        hvd.add_process_set([0, 0])
    with pytest.raises(ValueError, match="at least one rank"):
        hvd.add_process_set([])
    for wrong in ([0.5], ["0"], [None], [True], "0", 3, None):
        with pytest.raises(ValueError, match=r"not a rank|pass a list of ranks"):
            hvd.add_process_set(wrong)
    assert summed(1, hvd.global_process_set, "the world continues") == size


@pytest.mark.ranks(2)
def test_ranks_must_make_the_same_change(rank, size, process_set):
    with pytest.raises(ValueError, match="rank 0 has ranks 0, rank 1 has ranks 1; process sets"):
        hvd.add_process_set([min(rank, 1)])
    sets = [process_set([0]), process_set([1])]
    numbers = [one.process_set_id for one in sets]
    text = f"rank 0 has process set {numbers[0]}, rank 1 has process set {numbers[1]}"
    with pytest.raises(ValueError, match=text):
        hvd.remove_process_set(sets[min(rank, 1)])
    # Neither set was removed, and one rank's mistake is reported to the others.
    assert [one.process_set_id for one in sets] == numbers
    with pytest.raises(ValueError, match=f"no rank {size}"):
        hvd.add_process_set([0, size] if rank == 1 else [0, 1])
    if rank < 2:
        assert summed(7, sets[rank], "alone") == 7


@pytest.mark.ranks(2)
def test_a_rank_outside_of_the_set_gets_an_error(evaluate, rank, process_set):
    first = process_set([0])
    if rank == 0:
        return
    text = f"rank {rank} is not in process set {first.process_set_id}; only its members"
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        evaluate(lambda x: hvd.allreduce(x, process_set=first), np.zeros([2], np.float32))


def test_a_removed_set_cannot_be_used(rank):
    removed = hvd.add_process_set([0])
    number = removed.process_set_id

    @tf.function
    def reduce(x):
        return hvd.allreduce(x, op=hvd.Sum, process_set=removed)

    if rank == 0:
        assert float(reduce(tf.ones([]))) == 1
    hvd.remove_process_set(removed)
    with pytest.raises(ValueError, match="was removed with remove_process_set"):
        hvd.allreduce(tf.ones([]), process_set=removed)
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"no process set {number}"):
        hvd.size_op(number)
    if rank == 0:
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"no process set {number}"):
            reduce(tf.ones([]))


@pytest.mark.ranks(2)
def test_removing_a_set_ends_its_waiting_calls(rank, size, process_set):
    """A collective that some members have not called fails when the set is removed."""
    everybody = hvd.add_process_set(range(size))
    failed = []

    def wait():
        try:
            summed(1, everybody, "never complete")
        except (tf.errors.OpError, ValueError) as error:  # called before the removal, or after
            failed.append(str(error))

    waiting = threading.Thread(target=wait)
    if rank > 0:
        waiting.start()
    summed(1, hvd.global_process_set, "all are here")
    hvd.remove_process_set(everybody)
    if rank > 0:
        waiting.join()
        assert len(failed) == 1
        assert any(
            text in failed[0] for text in ("was removed", "does not exist", "no process set")
        )


@pytest.mark.ranks(2)
def test_a_rank_outside_of_its_optimizers_set_gets_one_warning(caplog, rank, process_set):
    members = process_set([0])
    caplog.set_level(logging.WARNING, "absl")
    variable = tf.Variable(1.0)
    for _ in range(2):
        with tf.GradientTape() as plain:
            loss = variable * 2.0
        hvd.DistributedGradientTape(plain, process_set=members).gradient(loss, variable)
    told = [text for text in caplog.messages if "trains on its own" in text]
    assert len(told) == (0 if rank == 0 else 1)
    outside = f"tf_hvd, rank {rank}: this rank trains on its own, because it is not in {members}"
    assert all(text.startswith(outside) for text in told)


def test_init_again_finds_the_sets(process_set):
    first = process_set([0])
    again = hvd.ProcessSet([0])
    assert (again.process_set_id, again.size(), again.rank()) == (None, None, None)
    hvd.init(process_sets=[again])
    assert again.process_set_id == first.process_set_id
    with pytest.raises(ValueError, match=r"entry 1, .*has the same ranks.*The job is running"):
        hvd.init(process_sets=[hvd.ProcessSet([0]), hvd.ProcessSet([0])])
    hvd.init(process_sets="Dynamic")
    with pytest.raises(ValueError, match="register it with add_process_set"):
        hvd.init(process_sets=[hvd.ProcessSet([0, 7])])
    with pytest.raises(ValueError, match="call shutdown"):
        hvd.init(comm=[7])


@pytest.mark.jobs(2)
def test_removed_sets_leave_no_kernels(rank):
    """TensorFlow keeps an eager call's kernel for each number of a set: 20 kB for each set."""

    def come_and_go(times):
        for _ in range(times):
            single = hvd.add_process_set([0])
            if rank == 0:
                assert summed(7, single, "of a temporary set") == 7
            hvd.remove_process_set(single)
        memory = psutil.Process().memory_info()
        return memory.rss - memory.shared

    # In one of them another thread may allocate memory.
    sizes = [come_and_go(100), *(come_and_go(400) for _ in range(3))]
    assert min(b - a for a, b in itertools.pairwise(sizes)) < 3 << 20
