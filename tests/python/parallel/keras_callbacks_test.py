"""Callbacks on Keras 3 and tf_keras, with several ranks."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tf_hvd as hvd
import tf_hvd.keras as hvd_keras
from tf_hvd.keras import callbacks
from tf_hvd.keras.compat import variables_of

pytestmark = [pytest.mark.framework, pytest.mark.jobs(2)]

KERAS = {"keras": keras, "tf_keras": tf_keras}


@pytest.fixture(params=list(KERAS))
def flavour(request):
    return KERAS[request.param]


def data(rank, rows=8):
    random = np.random.default_rng(rank)
    return random.normal(size=(rows, 3)).astype("float32"), random.normal(size=(rows, 1))


def make_model(flavour, rank, built=True, optimizer=None, **options):
    """A model with all kernels equal to `rank`."""
    initial = flavour.initializers.Constant(float(rank))
    layers = [flavour.layers.Dense(n, kernel_initializer=initial) for n in (2, 1)]
    model = flavour.Sequential(([flavour.layers.Input((3,))] if built else []) + layers)
    optimizer = optimizer or flavour.optimizers.SGD(0.0, momentum=0.5)
    optimizer = hvd_keras.DistributedOptimizer(optimizer)
    model.compile(optimizer=optimizer, loss="mse", metrics=["mae"], **options)
    return model


def all_ranks(values):
    """Gathers each rank's list of arrays."""
    return hvd.allgather_object([np.asarray(value) for value in values])


def assert_equal_everywhere(values):
    first, *others = all_ranks(values)
    for other in others:
        for a, b in zip(first, other, strict=True):
            np.testing.assert_array_equal(a, b)


class Recorder:
    """Records the calls of one hook, for either Keras."""

    def __new__(cls, flavour, hook, record):
        def call(self, number, logs=None):
            record(self.model, number, logs)

        return type("Recorder", (flavour.callbacks.Callback,), {hook: call})()


@pytest.mark.parametrize("built", [True, False], ids=["built", "late"])
def test_broadcast_before_the_first_update(flavour, built, rank, size):
    """With a learning rate of 0, all ranks end with the last rank's weights."""
    model = make_model(flavour, rank + 1, built)
    seen = []
    root = size - 1
    x, y = data(rank)
    model.fit(
        x, y, batch_size=4, verbose=0,
        callbacks=[
            callbacks.of(flavour).BroadcastGlobalVariablesCallback(root),
            Recorder(flavour, "on_train_batch_end",
                     lambda m, batch, logs: seen.append(m.layers[0].get_weights()[0])),
        ],
    )  # fmt: skip
    assert len(seen) == 2
    for kernel in seen:
        np.testing.assert_array_equal(kernel, np.full((3, 2), size, np.float32))
    assert_equal_everywhere(model.get_weights())


def test_broadcast_of_the_optimizers_state(flavour, rank):
    optimizer = flavour.optimizers.SGD(0.01 * (rank + 1), momentum=0.5)
    model = make_model(flavour, 1, optimizer=optimizer)
    optimizer.build(model.trainable_variables)
    for slot in variables_of(optimizer):
        slot.assign(tf.cast(tf.fill(slot.shape, rank + 3), slot.dtype))
    states = []
    model.fit(
        *data(rank), epochs=1, verbose=0, steps_per_epoch=1,
        callbacks=[
            callbacks.of(flavour).BroadcastGlobalVariablesCallback(0),
            Recorder(flavour, "on_train_batch_begin", lambda m, *_: states.extend(
                v.numpy() for v in variables_of(m.optimizer))),
        ],
    )  # fmt: skip
    assert states
    for state in states:
        np.testing.assert_array_equal(state, np.full(state.shape, 3, state.dtype))


def test_local_variables_stay(flavour, rank):
    model = make_model(flavour, rank)
    kernel = model.layers[0].kernel
    broadcast = callbacks.of(flavour).BroadcastGlobalVariablesCallback(0, local_variables=[kernel])
    with hvd_keras.unguarded():
        model.fit(*data(rank), batch_size=8, verbose=0, callbacks=[broadcast])
    np.testing.assert_array_equal(model.layers[0].get_weights()[0], np.full((3, 2), rank))
    with pytest.raises(ValueError, match="not a variable"):
        broadcast.register_local_var(3)


def test_metrics_are_averaged(flavour, rank, size):
    model = make_model(flavour, 1)
    x, y = data(rank)
    history = model.fit(
        x, y, batch_size=8, epochs=2, verbose=0, validation_data=(x, y),
        callbacks=[
            Recorder(flavour, "on_epoch_end", lambda m, epoch, logs: logs.update(mine=rank)),
            callbacks.of(flavour).MetricAverageCallback(),
        ],
    ).history  # fmt: skip
    # With a rate of 0, training changes nothing.
    before = hvd.allgather_object(model.evaluate(x, y, batch_size=8, verbose=0))
    for epoch in range(2):
        for place, name in enumerate(("loss", "mae")):
            expected = sum(np.float64(values[place]) for values in before) / size
            np.testing.assert_allclose(history[name][epoch], expected, rtol=1e-6)
            np.testing.assert_allclose(history[f"val_{name}"][epoch], expected, rtol=1e-6)
    assert history["mine"] == [(size - 1) / 2] * 2
    assert_equal_everywhere(history["loss"])


@pytest.mark.ranks(2)
def test_metrics_on_one_rank_only_are_an_error(flavour, rank):
    model = make_model(flavour, 1)
    x, y = data(rank)
    with pytest.raises(ValueError, match="only one of rank 0 and rank 1 has val_loss, val_mae"):
        model.fit(
            x, y, batch_size=8, verbose=0, validation_data=(x, y) if rank == 0 else None,
            callbacks=[callbacks.of(flavour).MetricAverageCallback()],
        )  # fmt: skip


def test_all_ranks_stop_together(flavour, rank):
    """Each rank's own loss is best in another epoch; the average is best in the first."""
    model = make_model(flavour, 1)
    x, y = data(0)
    losses = []

    def distort(m, epoch, logs):
        logs["loss"] = 50.0 if epoch == rank else 100.0
        losses.append(logs["loss"])

    model.fit(
        x, y, batch_size=8, epochs=20, verbose=0,
        callbacks=[
            Recorder(flavour, "on_epoch_end", distort),
            callbacks.of(flavour).EarlyStopping(monitor="loss", patience=2),
        ],
    )  # fmt: skip
    assert set(hvd.allgather_object(len(losses))) == {3}


def test_only_rank_0_writes(flavour, rank, tmp_path):
    model = make_model(flavour, 1)
    path, batches = tmp_path / "model.keras", tmp_path / "batches.keras"
    best = callbacks.of(flavour).BestModelCheckpoint(monitor="loss")
    model.fit(
        *data(rank), batch_size=8, verbose=0,
        callbacks=[
            callbacks.of(flavour).ModelCheckpoint(str(path), monitor="loss"),
            callbacks.of(flavour).ModelCheckpoint(str(batches), save_freq=1),
            best,
        ],
    )  # fmt: skip
    assert path.exists() == batches.exists() == (rank == 0)
    best.filepath = str(tmp_path / "best.keras")
    model.fit(*data(rank), batch_size=8, verbose=0, callbacks=[best])
    assert (tmp_path / "best.keras").exists() == (rank == 0)


def test_model_of_a_process_set_without_rank_0_is_saved(flavour, tmp_path):
    """Regression: ModelCheckpoint silently wrote on rank 0 only, which did not train the model."""
    trainers = hvd.add_process_set([1])
    try:
        # On all ranks, because Keras numbers models, and the names of their collectives contain it.
        model = flavour.Sequential([flavour.layers.Input((1,)), flavour.layers.Dense(1)])
        if trainers.included():
            sgd = flavour.optimizers.SGD(0.1)
            model.compile(hvd_keras.DistributedOptimizer(sgd, process_set=trainers), "mse")
            path = tmp_path / "model.keras"
            saves = callbacks.of(flavour).ModelCheckpoint(str(path))
            model.fit(np.ones([4, 1]), np.ones([4, 1]), verbose=0, callbacks=[saves])
            assert path.exists()
    finally:
        hvd.remove_process_set(trainers)


def test_progress_on_rank_0_only(flavour, rank, capsys):
    model = make_model(flavour, 1)
    model.fit(*data(rank), batch_size=8, epochs=2, verbose=0,
              callbacks=[callbacks.of(flavour).ProgbarLogger()])  # fmt: skip
    assert ("Epoch 2/2" in capsys.readouterr().out) == (rank == 0)


@pytest.mark.parametrize("verbose", ["auto", 1, 2])
def test_one_progress_bar(flavour, rank, capsys, monkeypatch, verbose):
    """Even if all ranks request a bar: two bars on one terminal are unreadable."""
    model = make_model(flavour, 1, run_eagerly=True)
    x, y = data(rank)

    def shows():
        capsys.readouterr()
        model.fit(x, y, batch_size=8, epochs=2, verbose=verbose)
        fitted = capsys.readouterr().out
        model.evaluate(x, y, verbose=verbose)
        evaluated = capsys.readouterr().out
        model.predict(x, verbose=verbose)
        return "Epoch 2/2" in fitted, "loss: " in evaluated, "1/1" in capsys.readouterr().out

    assert shows() == (rank == 0,) * 3
    monkeypatch.setenv("TF_HVD_VERBOSE_RANKS", "all")
    assert shows() == (True,) * 3
    monkeypatch.delenv("TF_HVD_VERBOSE_RANKS")
    with hvd_keras.unguarded():
        assert shows() == (True,) * 3


def rates(flavour, callback, epochs, momentum=0.5, batch_size=4):
    """Returns the learning rate of each batch, and the history of epochs."""
    optimizer = flavour.optimizers.SGD(0.5, momentum=momentum)
    model = make_model(flavour, 1, optimizer=optimizer, run_eagerly=True)
    seen = []
    look = Recorder(flavour, "on_train_batch_end", lambda m, *_: seen.append(
        float(m.optimizer.learning_rate)))  # fmt: skip
    history = model.fit(
        *data(0), batch_size=batch_size, epochs=epochs, verbose=0, callbacks=[callback, look]
    ).history
    return seen, history


def test_warmup(flavour, size, rank, capsys):
    callback = callbacks.of(flavour).LearningRateWarmupCallback(0.8, warmup_epochs=2, verbose=1)
    seen, history = rates(flavour, callback, 3)
    expected = [0.8 / size * (1 + min(i / 4, 1) * (size - 1)) for i in range(1, 7)]
    np.testing.assert_allclose(seen, expected, rtol=1e-6)
    np.testing.assert_allclose(history["lr"], expected[1::2], rtol=1e-6)
    assert ("finished gradual" in capsys.readouterr().out) == (rank == 0)


def test_schedule_counts_the_batches_of_each_fit(flavour):
    """Regression: a second `fit` with more batches used the first one's number."""
    made = callbacks.of(flavour)
    for make in (
        lambda: made.LearningRateWarmupCallback(0.8, warmup_epochs=2),
        lambda: made.LearningRateScheduleCallback(0.5, lambda e: 0.5**e, staircase=False),
    ):
        used = make()
        rates(flavour, used, 1)
        again, _ = rates(flavour, used, 2, batch_size=2)
        fresh, _ = rates(flavour, make(), 2, batch_size=2)
        assert again == fresh


def test_staircase_schedule(flavour):
    callback = callbacks.of(flavour).LearningRateScheduleCallback(
        0.5, lambda epoch: 1 / (1 + epoch), start_epoch=1, end_epoch=3
    )
    seen, _ = rates(flavour, callback, 4)
    np.testing.assert_allclose(
        seen, [0.5, 0.5, 0.25, 0.25, 0.5 / 3, 0.5 / 3, 0.5 / 3, 0.5 / 3], rtol=1e-6
    )


def test_exponential_schedule(flavour):
    callback = callbacks.of(flavour).LearningRateScheduleCallback(0.5, 0.5)
    seen, _ = rates(flavour, callback, 3)
    np.testing.assert_allclose(seen[::2], [0.5, 0.25, 0.125], rtol=1e-6)


def test_momentum_correction_scales_the_velocity(flavour):
    """With one weight and gradient 1 in each step: v = m * (new / old) * v - new."""
    model = flavour.Sequential([flavour.layers.Input((1,)), flavour.layers.Dense(
        1, use_bias=False, kernel_initializer="zeros")])  # fmt: skip
    optimizer = hvd_keras.DistributedOptimizer(flavour.optimizers.SGD(0.5, momentum=0.5))
    model.compile(optimizer=optimizer, loss=lambda t, p: tf.reduce_mean(p))
    callback = callbacks.of(flavour).LearningRateScheduleCallback(0.5, lambda e: 0.5**e)
    ones = np.ones((1, 1))
    model.fit(ones, ones, batch_size=1, epochs=3, verbose=0, callbacks=[callback])
    velocity, weight, old = 0.0, 0.0, 0.5
    for new in (0.5, 0.25, 0.125):
        velocity = 0.5 * velocity * new / old - new
        weight, old = weight + velocity, new
    np.testing.assert_array_equal(model.get_weights()[0], [[weight]])


def test_bad_arguments(flavour):
    made = callbacks.of(flavour)
    with pytest.raises(ValueError, match="initial_lr"):
        made.LearningRateScheduleCallback(None, 0.5)
    warmup = made.LearningRateWarmupCallback(0.1)
    warmup.set_params({})
    warmup.set_model(make_model(flavour, 1))
    with pytest.raises(ValueError, match="steps_per_epoch"):
        warmup.on_train_begin()


@pytest.mark.parametrize("legacy", [False, True])
def test_warmup_of_a_model_built_by_its_first_batch(flavour, size, legacy):
    """Horovod's tensorflow2_keras_mnist: "Weights ... have not yet been created"."""
    if legacy and flavour is keras:
        pytest.skip("Keras 3 has no legacy optimizers")
    optimizers = flavour.optimizers.legacy if legacy else flavour.optimizers
    model = make_model(flavour, 1, built=False, optimizer=optimizers.SGD(0.5, momentum=0.5))
    made = callbacks.of(flavour)
    model.fit(
        *data(0), batch_size=4, epochs=3, verbose=0,
        callbacks=[
            made.BroadcastGlobalVariablesCallback(0),
            made.LearningRateWarmupCallback(0.01, warmup_epochs=1),
            made.LearningRateScheduleCallback(0.01, 0.5, start_epoch=1),
        ],
    )  # fmt: skip
    np.testing.assert_allclose(float(model.optimizer.learning_rate), 0.005, rtol=1e-6)
    assert_equal_everywhere(model.get_weights())


def test_overridden_on_batch_end_is_called(flavour):
    """Horovod's callback broadcasts in `on_batch_end`."""
    made = callbacks.of(flavour)
    seen = []

    class Own(made.BroadcastGlobalVariablesCallback):
        def on_batch_end(self, batch, logs=None):
            super().on_batch_end(batch, logs)
            seen.append(batch)

    class Rate(made.LearningRateScheduleCallback):
        def on_batch_begin(self, batch, logs=None):
            super().on_batch_begin(batch, logs)
            seen.append(batch)

    used = [Own(0), Rate(0.0, 1.0)]
    make_model(flavour, 1).fit(*data(0), batch_size=4, verbose=0, callbacks=used)
    assert seen == [0, 0, 1, 1]


@pytest.mark.parametrize("per_call", [1, 2])
def test_variables_created_late_are_broadcast(flavour, rank, per_call):
    """Regression: with steps_per_execution > 1 they were not broadcast."""

    class Model(flavour.Model):
        def __init__(self):
            super().__init__()
            self.main = flavour.layers.Dense(1)
            start = flavour.initializers.Constant(rank + 5.0)
            self.late = [flavour.layers.Dense(1, kernel_initializer=start) for _ in range(2)]

        def call(self, inputs):
            return self.main(inputs)

    model = Model()
    model(np.ones([2, 3], "float32"))
    for layer in model.late:
        layer.trainable = False
    optimizer = hvd_keras.DistributedOptimizer(flavour.optimizers.SGD(0.0))
    model.compile(optimizer, "mse", steps_per_execution=per_call)
    makes = iter(model.late)

    def make(m, number, logs):
        next(makes).build((None, 3))

    model.fit(
        *data(0), batch_size=4, epochs=2, verbose=0, steps_per_epoch=per_call,
        callbacks=[
            Recorder(flavour, "on_train_batch_end", make),
            callbacks.of(flavour).BroadcastGlobalVariablesCallback(0),
        ],
    )  # fmt: skip
    for layer in model.late:
        np.testing.assert_array_equal(layer.get_weights()[0], np.full((3, 1), 5.0, np.float32))


def test_learning_rate_schedule_objects_are_refused(flavour):
    decay = flavour.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    made = callbacks.of(flavour)
    for callback in (made.LearningRateWarmupCallback(0.1), made.LearningRateScheduleCallback(1, 1)):
        model = make_model(flavour, 1, optimizer=flavour.optimizers.SGD(decay))
        with pytest.raises(ValueError, match=r"LearningRateSchedule.*remove this callback"):
            model.fit(*data(0), verbose=0, callbacks=[callback])
    if flavour is keras:
        several = keras.optimizers.MultiOptimizer(
            keras.optimizers.OptimizerMap(keras.optimizers.SGD(0.1))
        )
        model = make_model(flavour, 1, optimizer=several)
        with pytest.raises(ValueError, match="MultiOptimizer has several"):
            model.fit(*data(0), verbose=0, callbacks=[made.LearningRateWarmupCallback(0.1)])


def test_warmup_with_loss_scaling_and_initial_epoch(flavour, size):
    """Behaves as if the earlier epochs had run."""
    inner = flavour.optimizers.SGD(0.5, momentum=0.5)
    mixed = getattr(flavour, "mixed_precision", None)
    scaled_by = mixed.LossScaleOptimizer if flavour is tf_keras else (
        keras.optimizers.LossScaleOptimizer)  # fmt: skip
    model = make_model(flavour, 1, optimizer=scaled_by(inner))
    seen = []
    model.fit(
        *data(0), batch_size=4, initial_epoch=1, epochs=3, verbose=0,
        callbacks=[
            callbacks.of(flavour).LearningRateWarmupCallback(0.008, warmup_epochs=2),
            Recorder(flavour, "on_train_batch_end", lambda *_: seen.append(
                float(inner.learning_rate))),
        ],
    )  # fmt: skip
    expected = [0.008 / size * (1 + min(i / 4, 1) * (size - 1)) for i in range(3, 7)]
    np.testing.assert_allclose(seen, expected, rtol=1e-6)


def test_random_layers_keep_their_own_seeds(rank):
    """Regression: broadcast_variables(model.variables) gave all ranks the same dropout mask."""
    keras.utils.set_random_seed(rank)
    layers = keras.layers
    model = keras.Sequential(
        [layers.Input((8, 8, 3)), layers.RandomFlip(), layers.RandomRotation(0.1),
         layers.GaussianNoise(0.1), layers.Dropout(0.5), layers.SpatialDropout2D(0.5)]
    )  # fmt: skip
    seeds = [v for v in model.variables if "seed" in v.path]
    assert len(seeds) >= 5
    before = [v.numpy().tolist() for v in seeds]
    assert hvd.allgather_object(before)[0] != hvd.allgather_object(before)[1]
    for variables in (model.variables, [v.value for v in model.variables]):
        hvd.broadcast_variables(variables, 0)
        hvd.broadcast_variables(variables, 0, inplace=True)
    model.compile(hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.0)), "mse")
    assert [v.numpy().tolist() for v in seeds] == before
    outputs = hvd.allgather_object(model(np.ones([1, 8, 8, 3]), training=True).numpy())
    assert not np.array_equal(*outputs)


def test_accumulated_gradients_stay_local(rank, size):
    """A fit ends within an update, and the next one begins with a broadcast."""
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(
        1, use_bias=False, kernel_initializer="zeros")])  # fmt: skip
    optimizer = keras.optimizers.SGD(1.0, gradient_accumulation_steps=2)
    model.compile(hvd_keras.DistributedOptimizer(optimizer), loss=lambda t, p: tf.reduce_mean(p))
    x = np.full((1, 1), rank + 1.0)
    for _ in range(2):
        broadcast = callbacks.of(keras).BroadcastGlobalVariablesCallback(0)
        model.fit(x, x, batch_size=1, verbose=0, callbacks=[broadcast])
    mean = sum(r + 1 for r in range(size)) / size
    np.testing.assert_array_equal(model.get_weights()[0], [[-mean]])


def test_callback_of_the_other_keras_is_refused():
    model = tf_keras.Sequential([tf_keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    wrong = callbacks.of(keras).MetricAverageCallback()
    with pytest.raises(TypeError, match=r"is a Keras 3 callback.*callbacks\.of\(tf_keras\)"):
        model.fit(np.ones([2, 1]), np.ones([2, 1]), verbose=0, callbacks=[wrong])
