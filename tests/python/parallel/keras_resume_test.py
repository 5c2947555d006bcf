"""A `fit` that is interrupted and resumed equals an uninterrupted one, to the bit."""

import os
import pathlib
import random

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tf_hvd as hvd
import tf_hvd.keras as hvd_keras
from tf_hvd.keras import callbacks, plain_values
from tf_hvd.keras.compat import variables_of

pytestmark = [pytest.mark.framework, pytest.mark.jobs(2)]

KERAS = {"keras": keras, "tf_keras": tf_keras}
EPOCHS, BATCHES = 8, 3


@pytest.fixture(params=list(KERAS))
def flavour(request):
    return KERAS[request.param]


@pytest.fixture
def rank():
    return hvd.rank()


@pytest.fixture
def folder(tmp_path):
    """Rank 0's folder; the other ranks know its name, but do not need access."""
    return hvd.broadcast_object(str(tmp_path), 0) + f"/backup_{hvd.rank()}"


def data(rank):
    """Shuffled data: each epoch has another order."""
    numbers = np.random.default_rng(rank)
    x = numbers.normal(size=(4 * BATCHES, 3)).astype("float32")
    dataset = tf.data.Dataset.from_tensor_slices((x, x[:, :1] + 1.0))
    return dataset.shuffle(4 * BATCHES).batch(4)


class Counts:
    """A callback of the program, which lists its attributes for backups."""

    def __new__(cls, flavour):
        def begin(self, logs=None):
            self.losses, self.epochs_here = [], 0

        def end(self, epoch, logs=None):
            self.losses.append(logs["loss"])
            self.epochs_here += 1

        hooks = {"on_train_begin": begin, "on_epoch_end": end, "backup_attributes": ("losses",)}
        return type("Counts", (flavour.callbacks.Callback,), hooks)()


class Interrupt:
    def __new__(cls, flavour, epoch):
        def begin(self, number, logs=None):
            if number == epoch:
                raise KeyboardInterrupt

        return type("Interrupt", (flavour.callbacks.Callback,), {"on_epoch_begin": begin})()


class Program:
    """A process' code before its `fit`, with callbacks in one order."""

    def __init__(self, flavour, folder, order=(0, 1, 2, 3, 4), save_freq="epoch", **options):
        rank = hvd.rank()
        flavour.utils.set_random_seed(7 + rank)  # different on each rank
        self.model = make_model(flavour, **options)
        ours, theirs = callbacks.of(flavour), flavour.callbacks
        self.plateau = theirs.ReduceLROnPlateau("val_loss", 0.5, patience=2, min_delta=1e3)
        self.stop = theirs.EarlyStopping("loss", patience=5, min_delta=1e3)
        self.counts = Counts(flavour)
        given = [
            ours.BackupAndRestore(folder, save_freq=save_freq),
            self.plateau,
            self.stop,
            ours.BroadcastGlobalVariablesCallback(0),
            self.counts,
        ]
        self.callbacks = [given[place] for place in order]
        self.dataset = data(rank)

    def fit(self, *extra):
        validation = data(hvd.rank())
        self.history = self.model.fit(
            self.dataset, epochs=EPOCHS, verbose=0, validation_data=validation,
            callbacks=[*self.callbacks, *extra],
        ).history  # fmt: skip
        return self

    def state(self):
        """The state on which the next epoch depends."""
        model = self.model
        variables = [*model.weights, *model.variables, *variables_of(model.optimizer)]
        values = [np.asarray(tf.convert_to_tensor(v)) for v in variables]
        kept = [[float(c.wait), float(c.best), c.stopped_epoch] for c in (self.stop,)] + [
            float(self.plateau.wait),
            float(self.plateau.best),
            self.counts.losses,
        ]
        return values, kept, random.random(), np.random.rand()


def make_model(flavour, policy="float32", accumulate=1, passes=1):
    dropout = {"rng_type": "stateful"} if flavour is tf_keras else {}
    layers = [
        flavour.layers.Dense(4, activation="tanh", dtype=policy),
        flavour.layers.BatchNormalization(dtype=policy),
        flavour.layers.Dropout(0.5, dtype=policy, **dropout),
        flavour.layers.Dense(1, dtype="float32"),
    ]
    model = flavour.Sequential([flavour.layers.Input((3,)), *layers])
    steps = {"gradient_accumulation_steps": accumulate} if accumulate > 1 else {}
    optimizer = flavour.optimizers.Adam(0.5, **steps)
    if policy == "mixed_float16":
        scaled = flavour is keras and flavour.optimizers.LossScaleOptimizer
        scaled = scaled or flavour.mixed_precision.LossScaleOptimizer
        optimizer = scaled(optimizer)
    distributed = hvd_keras.DistributedOptimizer(optimizer, backward_passes_per_step=passes)
    model.compile(distributed, "mse")
    return model


def assert_equal(ours, wanted):
    for mine, reference in zip(ours[0], wanted[0], strict=True):
        np.testing.assert_array_equal(mine, reference)
    assert ours[1:] == wanted[1:]


def interrupt_and_resume(flavour, folder, order, options):
    with pytest.raises(KeyboardInterrupt):
        Program(flavour, folder, order, **options).fit(Interrupt(flavour, 3))
    return Program(flavour, folder, order, **options).fit()


ORDERS = {"first": (0, 1, 2, 3, 4), "between": (3, 1, 0, 4, 2), "last": (4, 3, 2, 1, 0)}
KINDS = {
    "plain": {},
    "half": {"policy": "mixed_float16"},
    "both": {"policy": "mixed_float16", "accumulate": 2},
}
CASES = [("keras", "plain", ("between",)), ("tf_keras", "plain", ("last",))]
ANY_SIZE = [("keras", "both", ("first",)), ("tf_keras", "half", ("between",))]


@pytest.mark.parametrize(
    ("library", "kind", "orders"),
    [pytest.param(*case, marks=pytest.mark.jobs(2)) for case in CASES]
    + [pytest.param(*case, marks=pytest.mark.jobs(1, 2, 3)) for case in ANY_SIZE],
)
def test_resumed_fit_equals_an_uninterrupted_one_to_the_bit(library, kind, orders, folder):
    """Covers halved rates, patience, dropout, the order of the data, and incomplete updates, with
    the backup at any position among the callbacks."""
    flavour, options = KERAS[library], KINDS[kind]
    wanted = Program(flavour, folder + "_reference", **options).fit()
    assert len(wanted.history["loss"]) == 6  # stopped early
    assert float(wanted.model.optimizer.learning_rate) < 0.5
    state = wanted.state()
    for order in orders:
        ours = interrupt_and_resume(flavour, folder, ORDERS[order], options)
        assert_equal(ours.state(), state)
        for name, values in ours.history.items():
            assert values == wanted.history[name][3:]
        assert ours.counts.epochs_here == 3  # in this process
        assert not os.path.exists(f"{folder}/tf_hvd_ranks")


def test_resume_between_swaps_of_averages(folder):
    """Regression: the backup had averages as weights, and the next swap went the wrong way."""

    def train(path, *extra):
        keras.utils.set_random_seed(5)
        model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5)
        model.compile(hvd_keras.DistributedOptimizer(optimizer), "mse")
        swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
        given = [callbacks.BackupAndRestore(path), swap, *extra]
        model.fit(data(hvd.rank()), epochs=4, verbose=0, callbacks=given)
        return [np.asarray(v) for v in (*model.weights, *model.optimizer.variables)]

    wanted = train(folder + "_reference")
    with pytest.raises(KeyboardInterrupt):
        train(folder, Interrupt(keras, 2))
    for ours, value in zip(train(folder), wanted, strict=True):
        np.testing.assert_array_equal(ours, value)


class InterruptAt:
    """Interrupts when certain batches begin, once each; `begun`: where each `fit` began."""

    def __new__(cls, flavour, *places):
        left = list(places)

        def train_begin(self, logs=None):
            self.begun = [*getattr(self, "begun", ()), None]

        def begin(self, epoch, logs=None):
            self.epoch = epoch

        def batch_begin(self, batch, logs=None):
            self.begun[-1] = self.begun[-1] or (self.epoch, batch)
            if left and left[0] == (self.epoch, batch):
                raise KeyboardInterrupt(left.pop(0))

        hooks = {
            "on_train_begin": train_begin,
            "on_epoch_begin": begin,
            "on_train_batch_begin": batch_begin,
        }
        return type("InterruptAt", (flavour.callbacks.Callback,), hooks)()


# A backup is made after every second batch, of three. It is written before the next batch begins,
# or at the end of the epoch, and therefore after the callback that interrupts.
PLACES = ((1, 0), (1, 1), (3, 2))


@pytest.mark.parametrize("added_up", ["by Keras", "by us"])
def test_fit_resumes_within_an_epoch(flavour, folder, added_up, rank, caplog):
    """Regression: Keras 3 went back to epoch 0 at the second interruption."""
    if added_up == "by Keras" and flavour is not keras:
        pytest.skip("tf_keras does not accumulate")
    kept_by_keras = {"policy": "mixed_float16", "accumulate": 2}
    options = kept_by_keras if added_up == "by Keras" else {"passes": 4}
    wanted = Program(flavour, folder + "_reference", save_freq=2, **options).fit()
    state = wanted.state()
    interrupt = InterruptAt(flavour, *PLACES)
    for _ in PLACES:
        with pytest.raises(KeyboardInterrupt):
            Program(flavour, folder, save_freq=2, **options).fit(interrupt)
    ours = Program(flavour, folder, save_freq=2, **options).fit(interrupt)
    # Resuming was silent.
    told = [line for line in caplog.messages if line.endswith(folder)]
    places = ["epoch 1, batch 3", "epoch 2", "epoch 4"]
    if flavour is tf_keras:  # it counts the batches of each epoch separately
        places = ["epoch 1, batch 3", "epoch 1, batch 3", "epoch 4, batch 2"]
    assert told == [f"tf_hvd, rank 0: resumed at {p}, from {folder}" for p in places] * (rank == 0)
    assert_equal(ours.state(), state)
    for name, values in ours.history.items():
        assert values == wanted.history[name][-len(values) :]
    assert any(batch for _, batch in interrupt.begun)


def test_resumed_epoch_without_an_update(folder):
    """Its batches are passes of one update. Regression: the guard counted restored updates."""
    options = {"save_freq": 1, "accumulate": 4}
    with pytest.raises(KeyboardInterrupt):
        Program(keras, folder, **options).fit(InterruptAt(keras, (1, 2)))
    watch = InterruptAt(keras)
    Program(keras, folder, **options).fit(watch)
    assert watch.begun[0] == (1, 1)


def test_epoch_restarts_if_ranks_have_different_backup_options(flavour, folder, rank):
    options = {"save_freq": 2 if rank == 0 else 1}
    with pytest.raises(KeyboardInterrupt):
        Program(flavour, folder, **options).fit(InterruptAt(flavour, (1, 2)))
    watch = InterruptAt(flavour)
    Program(flavour, folder, **options).fit(watch)
    assert watch.begun == [(1, 0) if hvd.size() > 1 else (1, 1)]


@pytest.mark.jobs(2)
def test_interrupted_fit_called_again(flavour, folder):
    """Regression: without the guard, rank 1 read old files, and began with epoch 0."""
    model, begun, interrupts = make_model(flavour), [], [2]

    def begin(self, epoch, logs=None):
        if epoch in interrupts:
            raise KeyboardInterrupt
        begun.append(epoch)
        assert hvd.allgather_object(begun) == [begun] * 2

    watch = type("Watch", (flavour.callbacks.Callback,), {"on_epoch_begin": begin})()
    ours = callbacks.of(flavour)
    given = [ours.BackupAndRestore(folder), ours.BroadcastGlobalVariablesCallback(0), watch]
    x = np.ones([4 * BATCHES, 3], "float32")

    def fit():
        model.fit(x, x[:, :1], epochs=4, batch_size=4, verbose=0, callbacks=given)

    with hvd_keras.unguarded():
        with pytest.raises(KeyboardInterrupt):
            fit()
        interrupts.clear()
        fit()
    assert begun == [0, 1, 2, 3]


def rewrite(folder, change):
    """Changes the file that rank 0 has written next to the backup."""
    path = pathlib.Path(folder) / "tf_hvd_ranks"
    if hvd.rank() == 0:
        contents = plain_values.loads(path.read_bytes())
        change(contents)
        path.write_bytes(plain_values.dumps(contents))
    hvd.barrier()


def test_resume_with_another_number_of_ranks(folder, rank, caplog):
    """All state is rank 0's; each rank gets new random numbers."""
    with pytest.raises(KeyboardInterrupt):
        Program(keras, folder).fit(Interrupt(keras, 3))
    rewrite(folder, lambda contents: contents["ranks"].append(contents["ranks"][0]))
    caplog.clear()
    drawn = []

    def draw(self, epoch, logs=None):
        drawn.append(random.random())

    look = type("Look", (keras.callbacks.Callback,), {"on_epoch_begin": draw})()
    program = Program(keras, folder)
    fresh = random.Random(7 + hvd.rank())
    random.setstate(fresh.getstate())
    expected = fresh.random()
    program.fit(look)
    assert drawn[0] == expected
    assert (f"resumed at epoch 4, from {folder}" in caplog.text) == (rank == 0)
    assert len(program.history["loss"]) == 3  # patience was restored
    assert len(program.counts.losses) == 6
    hvd_keras.check_weights(program.model)


def test_rank_states_of_another_backup_are_ignored(folder, rank, caplog):
    with pytest.raises(KeyboardInterrupt):
        Program(keras, folder).fit(Interrupt(keras, 3))
    rewrite(folder, lambda contents: contents.update(updates=contents["updates"] - 1))
    program = Program(keras, folder).fit()
    assert len(program.history["loss"]) == 5  # epochs 3 to 7
    assert ("does not match the model" in caplog.text) == (rank == 0)


def test_unsupported_attribute_is_reported(folder):
    program = Program(keras, folder)
    program.counts.backup_attributes = ("model",)
    with pytest.raises(TypeError, match=r"Counts: cannot back up model \("):
        program.fit()


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_load_model_restores_the_loss_scale(flavour, suffix, tmp_path):
    """Under any current policy; or raises if it cannot."""
    own = getattr(flavour, "config", None)
    if own is not None:
        policy, set_policy = own.dtype_policy, own.set_dtype_policy
    else:
        precision = flavour.mixed_precision
        policy, set_policy = precision.global_policy, precision.set_global_policy
    before = policy()
    set_policy("mixed_float16")
    try:
        layers = [flavour.layers.Dense(1, dtype="float32", kernel_initializer="zeros")]
        model = flavour.Sequential([flavour.layers.Input((3,)), *layers])
        loss = flavour.losses.MeanSquaredError()
        model.compile(hvd_keras.DistributedOptimizer(flavour.optimizers.Adam(0.1)), loss)
    finally:
        set_policy(before)
    model.fit(np.ones([4, 3]), np.ones([4, 1]), batch_size=2, epochs=2, verbose=0)
    path = str(tmp_path / f"model{suffix}")
    model.save(path)
    if suffix == ".h5":
        with pytest.raises(ValueError, match=r"state of LossScaleOptimizer.*\(4 updates.*\.keras"):
            hvd_keras.load_model(path)
        return
    loaded = hvd_keras.load_model(path)
    assert policy() == before
    assert type(loaded.optimizer) is type(model.optimizer)
    for mine, saved in zip(
        variables_of(loaded.optimizer), variables_of(model.optimizer), strict=True
    ):
        np.testing.assert_array_equal(np.asarray(mine), np.asarray(saved))
    assert int(loaded.optimizer.iterations.numpy()) == 4
    loaded.fit(np.ones([4, 3]), np.ones([4, 1]), batch_size=2, verbose=0)
    hvd_keras.check_weights(loaded)
