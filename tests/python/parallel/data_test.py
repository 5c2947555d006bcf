"""shard and steps_per_epoch."""

import numpy as np
import pytest
import tensorflow as tf

import tf_hvd as hvd


def elements(dataset):
    return [int(x) for x in dataset.as_numpy_iterator()]


def everybody(dataset):
    """All ranks' elements, by rank."""
    return hvd.allgather_object(elements(dataset))


def unknown(dataset):
    """The same elements, with a length unknown to tf.data."""
    return dataset.filter(lambda *_: True)


# For each number of elements, those that the ranks get; by default they are repeated.
IN_TURN = {
    "keep": lambda count, size: range(count),
    "drop": lambda count, size: range(count // size * size),
    None: lambda count, size: [i % count for i in range(-(-count // size) * size)],
}


@pytest.mark.parametrize("uneven", list(IN_TURN))
@pytest.mark.parametrize("count", [0, 1, 3, 7, 12])
@pytest.mark.parametrize("known", [True, False])
def test_shares(size, count, known, uneven):
    dataset = tf.data.Dataset.range(count)
    options = {"uneven": uneven} if uneven else {}
    parts = everybody(hvd.shard(dataset if known else unknown(dataset), **options))
    in_turn = list(IN_TURN[uneven](count, size))
    assert parts == [in_turn[r::size] for r in range(size)]


def test_structures_with_an_unknown_number_of_elements(rank, size):
    """Ragged rows, in a dictionary and a tuple, and a dataset of one component."""
    count = 3 * size - 1
    rows = tf.data.Dataset.range(count).map(lambda i: ({"x": tf.range(i)}, i))
    wanted = range(rank, count // size * size, size)
    got = list(hvd.shard(unknown(rows), uneven="drop").as_numpy_iterator())
    assert [(x["x"].tolist(), int(y)) for x, y in got] == [(list(range(i)), i) for i in wanted]
    maps = unknown(rows).map(lambda x, _: x)
    assert [len(x["x"]) for x in hvd.shard(maps, uneven="drop")] == list(wanted)
    rounds = -(-count // size)
    filled = [i % count for i in range(rank, rounds * size, size)]
    got = list(hvd.shard(unknown(rows)).as_numpy_iterator())
    assert [(x["x"].tolist(), int(y)) for x, y in got] == [(list(range(i)), i) for i in filled]
    assert [len(x["x"]) for x in hvd.shard(maps)] == filled


@pytest.mark.parametrize("uneven", ["keep", "drop", "repeat"])
def test_infinite_datasets_are_sharded(rank, size, uneven):
    dataset = hvd.shard(tf.data.Dataset.range(5).repeat(), uneven=uneven)
    assert elements(dataset.take(4)) == [(rank + i * size) % 5 for i in range(4)]


def test_batches_are_elements(rank, size):
    dataset = hvd.shard(tf.data.Dataset.range(4 * size + 1).batch(4), uneven="keep")
    batches = [batch.tolist() for batch in dataset.as_numpy_iterator()]
    wanted = [list(range(4 * rank, 4 * rank + 4))]
    assert batches == ([*wanted, [4 * size]] if rank == 0 else wanted)


def test_shard_refuses_invalid_arguments(size):
    dataset = tf.data.Dataset.range(3)
    with pytest.raises(ValueError, match=r"uneven='pad'.*'keep', 'drop', 'repeat'"):
        hvd.shard(dataset, uneven="pad")


@pytest.mark.parametrize("agree", ["min", "max"])
def test_steps_per_epoch_agrees(rank, size, agree):
    last = 3 if agree == "min" else 3 + size - 1
    dataset = tf.data.Dataset.range(3 + rank)
    assert hvd.steps_per_epoch(dataset, agree=agree) == last
    assert hvd.steps_per_epoch(3 + rank, agree=agree) == last
    batched = tf.data.Dataset.range(10 * (3 + rank)).batch(10)
    assert hvd.steps_per_epoch(batched, agree=agree) == last
    with tf.Graph().as_default():
        assert hvd.steps_per_epoch(3 + rank, agree=agree) == last


def test_steps_of_a_dataset_that_is_batched_later():
    assert hvd.steps_per_epoch(21, batch_size=5) == 5
    assert hvd.steps_per_epoch(21, batch_size=5, drop_remainder=True) == 4
    assert hvd.steps_per_epoch(tf.data.Dataset.range(20), batch_size=5) == 4


def test_steps_of_a_share(rank, size):
    """Different shares of `shard` lead to one number of steps."""
    dataset = tf.data.Dataset.range(3 * size + 1)
    least = 3 if size > 1 else 4
    kept = hvd.shard(dataset, uneven="keep")
    assert hvd.steps_per_epoch(kept) == least
    assert hvd.steps_per_epoch(kept, agree="max") == 4
    assert hvd.steps_per_epoch(hvd.shard(dataset, uneven="drop")) == least
    assert hvd.steps_per_epoch(hvd.shard(dataset)) == 4


@pytest.mark.parametrize("agree", ["min", "max"])
def test_an_unknown_length_on_one_rank_is_an_error_on_all(rank, size, agree):
    last = size - 1
    plain = tf.data.Dataset.range(5)
    for odd, text in (
        (unknown(plain), "is unknown on"),
        (plain.take(0), "no batch"),
    ):
        with pytest.raises(ValueError, match=f"rank {last}.*|{last}") as raised:
            hvd.steps_per_epoch(odd if rank == last else plain, agree=agree)
        assert text in str(raised.value)
        assert hvd.allgather_object(str(raised.value)) == [str(raised.value)] * size


def test_infinite_datasets_have_no_number_of_steps(rank, size):
    plain = tf.data.Dataset.range(5)
    several = "rank 0" if size == 1 else f"ranks 0.* and {size - 1}"
    with pytest.raises(ValueError, match=rf"infinite on {several}\. Limit"):
        hvd.steps_per_epoch(plain.repeat())
    with pytest.raises(ValueError, match=rf"is unknown on {several}\. "):
        hvd.steps_per_epoch(unknown(plain))
    with pytest.raises(ValueError, match="infinite on rank 0"):
        hvd.steps_per_epoch(plain.repeat() if rank == 0 else plain, agree="max")
    if size > 1:
        assert hvd.steps_per_epoch(plain.repeat() if rank == 0 else plain) == 5


def test_steps_per_epoch_refuses_invalid_arguments():
    for options, text in (
        ({"agree": "mean"}, r"agree='mean'.*'min', 'max'"),
        ({"batch_size": 0}, "batch_size=0"),
    ):
        with pytest.raises(ValueError, match=text):
            hvd.steps_per_epoch(5, **options)
    with pytest.raises(ValueError, match="-1"):
        hvd.steps_per_epoch(-1)


@pytest.mark.ranks(2)
def test_in_a_process_set(rank, size):
    last = hvd.add_process_set([size - 1, 0] if size > 1 else [0])
    try:
        if rank in (0, size - 1):
            part = elements(hvd.shard(tf.data.Dataset.range(5), process_set=last))
            assert part == ([0, 2, 4] if rank == 0 else [1, 3, 0])
            assert hvd.steps_per_epoch(len(part), process_set=last) == 3
        else:
            with pytest.raises(ValueError, match=f"rank {rank} is not in"):
                hvd.shard(tf.data.Dataset.range(5), process_set=last)
            with pytest.raises(ValueError, match=f"rank {rank} is not in"):
                hvd.steps_per_epoch(5, process_set=last)
    finally:
        hvd.remove_process_set(last)


def test_ranks_that_train_together_see_everything(rank, size):
    """The helpers in a loop: equally many steps, and each example is used."""
    data = np.arange(4 * size + 2)
    dataset = hvd.shard(tf.data.Dataset.from_tensor_slices(data)).batch(2)
    steps = hvd.steps_per_epoch(dataset, agree="max")
    total = 0
    for step, batch in enumerate(dataset.repeat().take(steps)):
        total += int(hvd.allreduce(tf.reduce_sum(batch), op=hvd.Sum, name="batch"))
        assert step < steps
    assert total >= data.sum()
