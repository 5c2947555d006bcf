"""tf_hvd.keras.distribution in one process: its functions, and a Keras that lacks or has some."""

import random
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_hvd as hvd
from tf_hvd.keras import data_order
from tf_hvd.keras.distribution import active, backend, installed, private, rows


def test_one_process_is_plain_keras():
    assert keras.distribution.list_devices("cpu") == ["cpu:0"]
    assert keras.distribution.get_device_count("cpu") == 1
    distribution = keras.distribution.DataParallel()
    assert (distribution.num_processes, distribution.data_shard_id) == (1, 0)
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with distribution.scope():
        assert active.setup() is None
        history = model.fit(np.ones([8, 2]), np.ones([8, 1]), verbose=0).history
    assert list(history) == ["loss"]
    assert not hasattr(model.optimizer, "horovod_distributed")


@pytest.mark.parametrize("seed", [3, None])
def test_joining_shifts_no_random_numbers_of_a_program_with_a_seed(seed, monkeypatch):
    """The initial weights then differed from those of one process."""
    for name, value in (("is_initialized", True), ("size", 2)):
        monkeypatch.setattr(backend.basics, name, lambda value=value: value)
    monkeypatch.setattr(backend._Joined, "done", False)
    monkeypatch.setattr(backend.devices, "pin", lambda: None)
    monkeypatch.setattr(backend.private, "seed_of_program", lambda: seed)
    sent = []
    monkeypatch.setattr(backend, "allgather_object", lambda mine, name: sent.append(mine) or sent)
    monkeypatch.setattr(keras.utils, "set_random_seed", sent.append)
    before = random.getstate()
    backend._join()
    assert (random.getstate() == before) == (seed is not None)
    drawn = sent[0][1]
    assert sent[1:] == ([] if seed else [drawn])


def test_iterators_of_divided_batches_are_counted():
    """A `fit` that was resumed in an epoch read other rows, because the count was 0."""
    order = data_order.DataOrder()
    followed = order.follow(tf.data.Dataset.range(4).batch(2))
    setup = active.Setup(0, 2, shards=True)
    strategy = installed._Ranks(setup, None, None)
    divided = strategy.experimental_distribute_dataset(followed)
    for _ in range(3):
        list(divided)
    assert order.place() == 3


def test_keras_with_its_own_functions_is_left_alone(monkeypatch):
    own = types.SimpleNamespace(initialize=lambda *_: "Keras'", num_processes=lambda: 7)
    monkeypatch.setattr(private, "distribution_backend", lambda: own)
    before = keras.src.trainers.data_adapters.get_data_adapter
    installed.install()
    assert own.initialize() == "Keras'"
    assert own.num_processes() == 7
    assert not hasattr(own, "list_devices")
    assert keras.src.trainers.data_adapters.get_data_adapter is before


@pytest.mark.parametrize("name", ["apply_mask", "dropout", "get_data_adapter"])
def test_missing_name_is_an_error_of_fit(name, monkeypatch):
    """Importing tf_hvd.keras still works, and training without a distribution."""
    (module,) = [m for m, each in private.functions_of_whole_batches() if each == name]
    monkeypatch.delattr(module, name)
    assert private.missing_for_distribution() == [f"{module.__name__}.{name}"]
    with pytest.raises(NotImplementedError, match=rf"does not have .*{name}, which tf_hvd needs"):
        installed._refuse_missing()


def test_rows_of_all_ranks_are_the_batch():
    batch = {"x": tf.reshape(tf.range(26), [13, 2]), "y": tf.range(13), "scale": tf.constant(2.0)}
    for ranks in (1, 2, 3, 13, 15):
        parts = [rows.of(batch, rank, ranks) for rank in range(ranks)]
        joined = {name: tf.concat([part[name] for part in parts], 0) for name in ("x", "y")}
        assert (joined["x"].numpy() == batch["x"].numpy()).all()
        assert (joined["y"].numpy() == batch["y"].numpy()).all()
        assert {int(part["scale"]) for part in parts} == {2}
        counts = [len(part["y"]) for part in parts]
        assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: tf.random.stateless_normal([4, 3], [1, 2]),
        lambda: tf.constant([[1, 2], [3, 4]]),
        lambda: tf.constant([True, False]),
        lambda: tf.constant(["a", "b"]),
        lambda: tf.constant([1.5, 2.5], tf.bfloat16),
        lambda: tf.constant([1 + 2j, 3j], tf.complex128),
        lambda: tf.sparse.from_dense([[0.0, 1.0], [2.0, 0.0]]),
        lambda: tf.ragged.constant([[1.0], [2.0, 3.0]]),
    ],
)
def test_digest_depends_on_the_rows(make):
    data = make()
    assert int(rows.digest(data)) == int(rows.digest(make()))
    reordered = (
        tf.gather(tf.sparse.to_dense(data), [1, 0])
        if isinstance(data, tf.SparseTensor)
        else tf.gather(data, [1, 0])
    )
    assert int(rows.digest(data)) != int(rows.digest(reordered))


def test_tensors_of_unknown_rank_have_rows():
    @tf.function(input_signature=[tf.TensorSpec(None, tf.float32)])
    def part(batch):
        return rows.length(batch), rows.of(batch, 1, 2)

    count, mine = part(tf.reshape(tf.range(10.0), [5, 2]))
    assert int(count) == 5
    assert mine.numpy().tolist() == [[4, 5], [6, 7], [8, 9]]


def test_data_without_a_batch_dimension():
    with pytest.raises(ValueError, match="no tensor with a batch dimension"):
        rows.length(tf.constant(1.0))


def test_initialize_in_one_process():
    hvd.init()
    keras.distribution.initialize()
    with pytest.raises(ValueError, match=r"num_processes=4, .* on rank 0 of 1"):
        keras.distribution.initialize(num_processes=4)
    assert set(backend.FUNCTIONS) >= {"initialize", "num_processes", "process_id", "list_devices"}
