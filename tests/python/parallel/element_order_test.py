"""shard refuses datasets with elements in a different order on each rank."""

import numpy as np
import pytest
import tensorflow as tf

import tf_hvd as hvd

pytestmark = [pytest.mark.framework, pytest.mark.jobs(2)]

Dataset = tf.data.Dataset
RANDOM = r"is random on rank 0 .*hvd\.shard\(dataset\)\.shuffle"
SEEDS = r"different seeds on the ranks.* on rank 0, .* on rank 1.*set_random_seed"


@pytest.fixture(autouse=True)
def no_global_seed():
    tf.random.set_seed(None)  # other files set the global seed
    yield
    tf.random.set_seed(None)


def numbers():
    return Dataset.range(12)


def files(folder, shuffle):
    for number in range(4):
        (folder / f"{number}.txt").touch()
    return Dataset.list_files(str(folder / "*.txt"), shuffle=shuffle)


def unordered():
    options = tf.data.Options()
    options.deterministic = False
    return numbers().with_options(options)


def same(i):
    return i


def halves(number):
    return number % 2


SHUFFLED = {
    "shuffle": lambda: numbers().shuffle(12),
    "then batch": lambda: numbers().shuffle(12).batch(2).prefetch(1),
    "repeat": lambda: numbers().shuffle(12).repeat(2),
    "zip": lambda: Dataset.zip((numbers().shuffle(12), numbers())),
    "and repeat": lambda: numbers().apply(tf.data.experimental.shuffle_and_repeat(12, 2)),
    "sample": lambda: Dataset.sample_from_datasets([numbers(), numbers()]),
    "map": lambda: numbers().map(same, num_parallel_calls=2, deterministic=False),
    "options": unordered,
    "v1": lambda: tf.compat.v1.data.Dataset.range(12).shuffle(12),
}


@pytest.mark.parametrize("kind", list(SHUFFLED))
def test_shard_refuses_a_shuffle_without_seed(kind):
    with pytest.raises(ValueError, match=RANDOM):
        hvd.shard(SHUFFLED[kind]())


def test_list_files_without_a_seed_is_refused(tmp_path):
    with pytest.raises(ValueError, match=RANDOM + r".*list_files, pass shuffle=False"):
        hvd.shard(files(tmp_path, shuffle=None))
    assert len(list(hvd.shard(files(tmp_path, shuffle=False)))) == 2


SHARES = {
    "shard": lambda rank: Dataset.range(8).shard(hvd.size(), rank),
    "then batch": lambda rank: Dataset.range(8).shard(hvd.size(), rank).batch(2).repeat(),
    "hvd.shard": lambda _: hvd.shard(Dataset.range(8)),
    "skip": lambda rank: Dataset.range(8).skip(4 * rank).take(4),
}


@pytest.mark.parametrize("kind", list(SHARES))
def test_sharding_twice_is_refused(kind, rank):
    """After .shard(size, rank), shard gave 0, 4 and 3, 7: the lengths are equal."""
    dataset = SHARES[kind](rank)
    with pytest.raises(
        ValueError, match=r"already sharded.* on rank 0, .* on rank 1.*Pass the whole"
    ):
        hvd.shard(dataset)


def test_the_error_names_each_ranks_share(rank):
    text = r"shard\(2, 0\) on rank 0, shard\(2, 1\) on rank 1"
    with pytest.raises(ValueError, match=text) as raised:
        hvd.shard(Dataset.range(8).shard(2, rank))
    assert len(set(hvd.allgather_object(str(raised.value)))) == 1
    with pytest.raises(ValueError, match=r"none on rank 0, shard\(2, 0\) on rank 1"):
        hvd.shard(Dataset.range(8).shard(2, 0) if rank else Dataset.range(4))


@pytest.mark.parametrize("index", [0, 1])
def test_a_part_that_is_equal_on_all_ranks_is_sharded(index):
    tenth = Dataset.range(80).shard(10, index)
    shares = hvd.allgather_object([int(x) for x in hvd.shard(tenth.skip(2))])
    assert sorted(shares[0] + shares[1]) == list(range(20 + index, 80, 10))


def ragged():
    rows = tf.ragged.constant([[1], [2, 3], []])
    return Dataset.from_tensor_slices(rows).interleave(Dataset.from_tensors, num_parallel_calls=2)


UNSHUFFLED = {
    "ragged": ragged,
    "choose": lambda: Dataset.choose_from_datasets([numbers()] * 2, numbers().map(halves)),
    "window": lambda: numbers().window(3).flat_map(same),
    "group": lambda: numbers().group_by_window(halves, lambda _, group: group.batch(2), 2),
    "unique": lambda: numbers().unique(),
    "rebatch": lambda: numbers().batch(4).rebatch(3).unbatch(),
    "generator": lambda: Dataset.from_generator(
        lambda: iter(range(12)), output_signature=tf.TensorSpec((), tf.int64)
    ),
    "interleave": lambda: numbers().interleave(Dataset.range, num_parallel_calls=2),
}


@pytest.mark.parametrize("kind", list(UNSHUFFLED))
def test_datasets_with_a_fixed_order_are_sharded(kind):
    hvd.shard(UNSHUFFLED[kind]())


def test_overlapping_shards_of_a_seeded_shuffle(rank):
    """set_random_seed(rank) affects shuffle(seed=...): 8 of 12 elements were seen."""
    tf.keras.utils.set_random_seed(rank)
    with pytest.raises(ValueError, match=SEEDS) as raised:
        hvd.shard(numbers().shuffle(12, seed=2017))
    assert len(set(hvd.allgather_object(str(raised.value)))) == 1
    with pytest.raises(ValueError, match=SEEDS):
        hvd.shard(numbers().shuffle(12))
    with pytest.raises(ValueError, match=SEEDS):
        hvd.shard(numbers().shuffle(12, seed=2017) if rank else numbers())


@pytest.mark.parametrize("global_seed", [None, 7])
def test_an_equal_shuffle_on_all_ranks_is_sharded(global_seed):
    tf.random.set_seed(global_seed)
    shuffled = numbers().shuffle(12, seed=2017)
    shares = hvd.allgather_object([[int(x) for x in hvd.shard(shuffled)] for _ in range(2)])
    orders = []
    for epoch in range(2):
        assert sorted(shares[0][epoch] + shares[1][epoch]) == list(range(12))
        orders.append(shares[0][epoch])
    assert orders[0] != orders[1]


def test_each_rank_may_shuffle_its_share(rank):
    tf.keras.utils.set_random_seed(rank)
    shares = hvd.allgather_object(
        [int(x) for _ in range(2) for x in hvd.shard(numbers()).shuffle(6)]
    )
    assert sorted(np.concatenate(shares).tolist()) == sorted(2 * list(range(12)))


def test_different_datasets_are_refused(rank):
    with pytest.raises(ValueError, match=r"12 elements on rank 0, 6 elements on rank 1.*whole"):
        hvd.shard(numbers() if rank == 0 else numbers().take(6))
    with pytest.raises(ValueError, match="'keep' on rank 0, 'drop' on rank 1"):
        hvd.shard(numbers(), uneven="keep" if rank == 0 else "drop")


def test_in_a_graph(rank):
    with tf.Graph().as_default():
        with pytest.raises(ValueError, match=RANDOM):
            hvd.shard(numbers().shuffle(12))
        hvd.shard(numbers().shuffle(12, seed=1))
        with pytest.raises(ValueError, match="already sharded"):
            hvd.shard(numbers().shard(2, rank))
