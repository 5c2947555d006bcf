"""Each example's ranks together see the data exactly once in each epoch."""

import importlib
import pathlib
import sys

import keras
import numpy as np
import pytest
from absl import flags

import tf_hvd as hvd

pytestmark = [pytest.mark.framework, pytest.mark.jobs(2, 3)]

EXAMPLES = str(pathlib.Path(__file__).resolve().parents[3] / "examples")
COUNT, BATCH = 96, 5  # 2 and 3 ranks get shares of equal size


@pytest.fixture(scope="module")
def load():
    def load_one(name):
        module = importlib.import_module(name)
        # Each is a separate program: they define flags with the same names.
        for flag in list(flags.FLAGS.flags_by_module_dict().get(name, [])):
            delattr(flags.FLAGS, flag.name)
        return module

    sys.path.insert(0, EXAMPLES)
    yield load_one
    sys.path.remove(EXAMPLES)


def of_a_dataset(module):
    """The labels that the model sees, by epoch; a label is an image's number."""
    images = np.zeros([COUNT, 8, 8, 1], np.float32)
    dataset = module.make_dataset(images, np.arange(COUNT), BATCH)
    return [[label for _, batch in dataset for label in batch.numpy()] for _ in range(2)]


def of_batches(module):
    numbers, mine = np.arange(COUNT), (hvd.rank(), hvd.size())
    return [
        [n for _, batch in module.digits_data.batches(numbers, numbers, BATCH, epoch, *mine)
         for n in batch]
        for epoch in range(2)
    ]  # fmt: skip


SEEN = {
    "mnist_keras": of_a_dataset,
    "mnist_keras_advanced": of_a_dataset,
    "mnist_tape": of_batches,
    "mnist_session": of_batches,
}


@pytest.mark.parametrize("example", list(SEEN))
def test_overlapping_shards(load, example, rank):
    keras.utils.set_random_seed(rank)  # as the examples do
    everybody = hvd.allgather_object(SEEN[example](load(example)))
    orders = []
    for epoch in range(2):
        seen = [int(number) for shares in everybody for number in shares[epoch]]
        assert sorted(seen) == list(range(COUNT))
        orders.append(seen)
    assert orders[0] != orders[1]


def test_every_example_is_tested():
    found = {path.stem for path in pathlib.Path(EXAMPLES).glob("mnist_*.py")}
    assert found == set(SEEN)
