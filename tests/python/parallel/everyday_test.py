"""Common parts of programs: seeds, callbacks on one rank, a warm-up, a custom Keras layer."""

import copy
import pickle
import random

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tf_hvd as hvd
from tf_hvd.keras import random_seed

pytestmark = [pytest.mark.framework, pytest.mark.jobs(2)]

KERAS = {"keras": keras, "tf_keras": tf_keras}


@pytest.fixture(params=list(KERAS))
def library(request):
    return KERAS[request.param]


@pytest.fixture
def own_seeds():
    """Afterwards, other tests again draw different numbers on each rank."""
    before = random.getstate(), np.random.get_state()
    yield
    random_seed._Seeded.rank = None
    random.setstate(before[0])
    np.random.set_state(before[1])


def drawn(library):
    """The weights of a new model, and numbers drawn after it."""
    model = library.Sequential(
        [library.layers.Input([3]), library.layers.Dense(4), library.layers.Dropout(0.5)]
    )
    weights = [np.asarray(weight).tolist() for weight in model.weights]
    images = np.arange(64, dtype="float32").reshape(1, 8, 8, 1)
    order = list(tf.data.Dataset.range(50).shuffle(50).as_numpy_iterator())
    return weights, {
        "augmentation": np.asarray(
            library.layers.RandomRotation(0.5)(images, training=True)
        ).tolist(),
        "dropout": np.asarray(model(tf.ones([20, 3]), training=True)).astype(bool).tolist(),
        "shuffle": [int(number) for number in order],
        "numpy": np.random.random(3).tolist(),
        "keras": np.asarray(keras.random.normal([3])).tolist(),
    }


@pytest.mark.usefixtures("own_seeds")
def test_a_seed_gives_equal_weights_and_each_rank_its_own_numbers(library, rank):
    random.seed(rank)
    hvd.set_random_seed(2017)
    mine = drawn(library)
    everyone = hvd.allgather_object(mine)
    assert all(weights == everyone[0][0] for weights, _ in everyone)
    for kind in mine[1]:
        assert everyone[0][1][kind] != everyone[1][1][kind], kind
    hvd.set_random_seed(2017)
    assert drawn(library) == mine
    random_seed._Seeded.rank = None  # on all ranks, which must create equally many layers
    keras.utils.set_random_seed(2017)
    library.utils.set_random_seed(2017)
    assert (drawn(library) == mine) == (rank == 0)  # as in a program of one process


@pytest.mark.usefixtures("own_seeds")
def test_invalid_seeds():
    for seed in (-1, 2**32, 1.0, True):
        with pytest.raises(ValueError, match=r"is not an integer from 0 to 2 \*\* 32 - 1"):
            hvd.set_random_seed(seed)


def make_model(library, optimizer):
    model = library.Sequential(
        [library.layers.Input([1]), library.layers.Dense(1, kernel_initializer="zeros")]
    )
    model.compile(hvd.DistributedOptimizer(optimizer), "mse")
    return model


def test_on_root_runs_a_callback_on_rank_0_only(library, rank):
    """A callback that is given functions, and a subclass."""
    seen = []

    class Mine(library.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(("mine", batch))

    told = library.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.append(("lambda", epoch))
    )
    mine = Mine()
    used = [hvd.callbacks.OnRoot(told), hvd.callbacks.OnRoot(mine)]
    assert used == [told, mine]
    assert hvd.callbacks.OnRoot(mine) is mine
    assert isinstance(mine, Mine)
    model = make_model(library, library.optimizers.SGD(0.1))
    for _ in range(2):  # nothing is undone after a `fit`
        model.fit(np.ones([4, 1]), np.ones([4, 1]), batch_size=2, verbose=0, callbacks=used)
    assert seen == [("mine", 0), ("mine", 1), ("lambda", 0)] * 2 * (rank == 0)
    with pytest.raises(TypeError, match="is not a Keras callback"):
        hvd.callbacks.OnRoot(print)


def test_is_root(rank, size):
    last = hvd.add_process_set([size - 1])
    assert hvd.is_root() == (rank == 0)
    assert hvd.is_root(process_set=last) == (rank == size - 1)
    hvd.remove_process_set(last)
    for other in (last, hvd.ProcessSet([]), 3):
        with pytest.raises(hvd.ProcessSetError):
            hvd.is_root(process_set=other)
    assert pickle.loads(pickle.dumps(hvd.global_process_set)) is hvd.global_process_set


def test_warm_up_of_any_schedule(library, rank, size, tmp_path):
    """Values of the steps, a `fit`, and a model saved with the schedule."""
    cosine = library.optimizers.schedules.CosineDecay(0.5, decay_steps=16)
    warm = hvd.WarmupSchedule.of(library)(cosine, warmup_steps=4)
    for step in range(10):
        factor = 1 / size + (1 - 1 / size) * min((step + 1) / 4, 1)
        assert float(warm(step)) == pytest.approx(float(cosine(step)) * factor, rel=1e-6)
    assert float(warm(7)) == float(cosine(7))
    number = hvd.WarmupSchedule.of(library)(0.5, warmup_steps=2, initial_factor=0.0)
    assert [float(number(step)) for step in range(3)] == [0.25, 0.5, 0.5]
    with pytest.raises(ValueError, match="initial_factor=-1 is out of range"):
        hvd.WarmupSchedule.of(library)(0.5, 1, initial_factor=-1)
    with pytest.raises(ValueError, match="warmup_steps=0"):
        hvd.WarmupSchedule.of(library)(0.5, 0)

    model = make_model(library, library.optimizers.SGD(warm))
    model.fit(np.ones([6, 1]), np.ones([6, 1]), batch_size=2, epochs=1, verbose=0)
    path = str(tmp_path / f"{rank}.keras")
    model.save(path)
    again = hvd.load_model(path).optimizer
    assert int(again.iterations) == 3
    config = again.get_config()["learning_rate"]["config"]
    assert (config["warmup_steps"], config["initial_factor"]) == (4, 1 / size)
    for copied in (copy.deepcopy(model), library.models.load_model(path)):
        rate = copied.optimizer.get_config()["learning_rate"]["config"]
        assert rate == config
    nested = hvd.WarmupSchedule.of(library)(warm, 2).get_config()
    assert float(type(warm).from_config(nested)(9)) == float(warm(9))
    loaded = hvd.WarmupSchedule.of(library).from_config(config)
    assert [float(loaded(step)) for step in (0, 3)] == [float(warm(step)) for step in (0, 3)]


def test_warm_up_callback_names_the_schedule_for_a_schedule():
    decay = keras.optimizers.schedules.CosineDecay(0.5, decay_steps=16)
    model = make_model(keras, keras.optimizers.SGD(decay))
    with pytest.raises(ValueError, match=r"hvd\.WarmupSchedule\(schedule, warmup_steps\)"):
        model.fit(
            np.ones([2, 1]),
            np.ones([2, 1]),
            verbose=0,
            callbacks=[hvd.callbacks.LearningRateWarmupCallback(0.5, warmup_epochs=1)],
        )


def test_a_synchronized_layer_is_made_by_a_class(library, rank, size):
    kind = hvd.SyncBatchNormalization.of(library)
    assert issubclass(kind, library.layers.BatchNormalization)
    own = hvd.add_process_set([0])

    class Mine(kind):
        pass

    for made in (kind, Mine):
        layer, single = made(momentum=0.0), made(momentum=0.0, process_set=own)
        assert isinstance(layer, made)
        assert isinstance(single, made)
        copied = type(single).from_config(single.get_config())
        rows = tf.fill([2, 1], float(rank))
        for each in (layer, single, copied):
            each(rows, training=True)
        assert np.asarray(layer.moving_mean) == (size - 1) / 2
        assert np.asarray(single.moving_mean) == np.asarray(copied.moving_mean) == rank
    hvd.remove_process_set(own)


def test_a_registered_layer_of_a_process_set_is_loaded(library, rank, tmp_path):
    """Under the name of its class, and as that class."""
    own = hvd.add_process_set([0])

    @library.saving.register_keras_serializable("everyday")
    class Registered(hvd.SyncBatchNormalization.of(library)):
        pass

    path = str(tmp_path / f"{rank}.keras")
    library.Sequential([library.layers.Input([2]), Registered(process_set=own)]).save(path)
    assert type(library.models.load_model(path).layers[-1]) is Registered
    hvd.remove_process_set(own)


def test_arguments_of_a_synchronized_layer():
    with pytest.raises(ValueError, match=r"\(0\): the first argument is `fused`.* axis= "):
        hvd.SyncBatchNormalization(0)
    for other in ([0, 1], 3):
        with pytest.raises(hvd.ProcessSetError, match="is not a process set"):
            hvd.SyncBatchNormalization(process_set=other)


def test_the_class_belongs_to_the_keras_in_use():
    assert isinstance(hvd.SyncBatchNormalization(), tf.keras.layers.BatchNormalization)
    assert hvd.keras.SyncBatchNormalization is hvd.SyncBatchNormalization
