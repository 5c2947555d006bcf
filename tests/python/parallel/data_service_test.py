"""TensorFlow's tf.data service with ranks as consumers, which share each epoch."""

import itertools

import data_servers
import pytest
import tensorflow as tf

import tf_hvd as hvd

pytestmark = [pytest.mark.framework, pytest.mark.jobs(2)]

service = tf.data.experimental.service
COUNT = 40


@pytest.fixture(scope="module")
def target():
    with data_servers.running() as address:
        yield address


@pytest.fixture
def served(target, request):
    """A dataset of the numbers below COUNT; each rank gets the elements that it requests."""

    def make(mode="distributed_epoch", repetitions=1):
        # A rank prefetches few elements, or one rank might take all.
        distribute = service.distribute(
            mode, target, job_name=request.node.name, max_outstanding_requests=2
        )
        shuffled = tf.data.Dataset.range(COUNT).shuffle(COUNT, seed=hvd.rank())
        return shuffled.repeat(repetitions).apply(distribute)

    return make


@pytest.mark.parametrize("mode", ["distributed_epoch", service.ShardingPolicy.DATA])
def test_each_element_once_in_each_epoch(served, mode):
    dataset = served(mode)
    for _ in range(2):
        shares = hvd.allgather_object([int(x) for x in dataset])
        assert sorted(shares[0] + shares[1]) == list(range(COUNT))


def test_unequal_numbers_of_elements_and_join(served, rank):
    """Rank 1 has most of the data before rank 0 asks for any; the sum has each element once."""
    numbers = iter(served())
    mine = [next(numbers) for _ in range(COUNT - 5)] if rank == 1 else []
    hvd.barrier()
    total = 0
    for number in itertools.chain(mine, numbers):
        total += int(hvd.allreduce(number, op=hvd.Sum, name="number"))
    assert int(hvd.join()) == 1
    assert rank == 0 or total == sum(range(COUNT))


def test_equal_numbers_of_steps(served):
    """Repeated before it is distributed: no rank runs out, whatever the other takes."""
    numbers = iter(served(repetitions=None))
    shares = hvd.allgather_object([int(next(numbers)) for _ in range(2 * COUNT)])
    assert set(shares[0] + shares[1]) == set(range(COUNT))


def registered(target):
    number = service.register_dataset(target, tf.data.Dataset.range(COUNT))
    return service.from_dataset_id(
        "distributed_epoch", target, number, tf.TensorSpec([], tf.int64), job_name="registered"
    )


SERVED = {
    "distribute": lambda served, target: served(),
    "then batch": lambda served, target: tf.data.Dataset.zip((served(), served())).batch(4),
    "by number": lambda served, target: registered(target),
    "on one rank": lambda served, target: served() if hvd.rank() else tf.data.Dataset.range(COUNT),
    "v1": lambda served, target: tf.compat.v1.data.Dataset.range(COUNT).apply(
        service.distribute("distributed_epoch", target)
    ),
}


@pytest.mark.parametrize("kind", list(SERVED))
def test_shard_suggests_an_alternative(served, target, kind):
    text = (
        r"tf\.data service.*Do not shard this dataset.*distributed_epoch.*same job_name.*hvd\.join"
    )
    with pytest.raises(ValueError, match=text) as raised:
        hvd.shard(SERVED[kind](served, target))
    assert len(set(hvd.allgather_object(str(raised.value)))) == 1
