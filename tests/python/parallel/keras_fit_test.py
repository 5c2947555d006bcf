"""`fit` on several ranks: they begin, count, average, stop and resume together."""

import csv
import pathlib
import sys
import types
import zipfile

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tf_hvd
import tf_hvd.keras as hvd
from tf_hvd.keras import callbacks, fit_sync

pytestmark = [pytest.mark.framework, pytest.mark.jobs(2)]

KERAS = {"keras": keras, "tf_keras": tf_keras}


@pytest.fixture(params=list(KERAS))
def flavour(request):
    return KERAS[request.param]


@pytest.fixture
def shared(tmp_path):
    """A folder that all ranks can access."""
    return pathlib.Path(hvd.broadcast_object(str(tmp_path), 0))


def make_model(flavour, rate=0.1, momentum=0.9, layers=(), **options):
    ones = flavour.initializers.Constant(0.5)
    model = flavour.Sequential(
        [flavour.Input([3]), *layers, flavour.layers.Dense(1, kernel_initializer=ones)]
    )
    optimizer = hvd.DistributedOptimizer(flavour.optimizers.SGD(rate, momentum=momentum))
    model.compile(optimizer, "mse", **options)
    return model


def data(rows=4):
    random = np.random.default_rng(hvd.rank())
    return random.normal(size=(rows, 3)).astype("float32"), np.ones([rows, 1], "float32")


def fit(model, rows=4, callbacks=(), **options):
    options = {"batch_size": 1, "shuffle": False, "verbose": 0, **options}
    return model.fit(*data(rows), callbacks=list(callbacks), **options)


def assert_alike(model):
    first, *others = hvd.allgather_object([w.tobytes() for w in model.get_weights()])
    assert all(other == first for other in others)


def same_error(function, kind=ValueError):
    """Returns the error, which all ranks must have raised with the same text."""
    with pytest.raises(kind) as raised:
        function()
    texts = hvd.allgather_object(str(raised.value))
    assert len(set(texts)) == 1, texts
    return texts[0]


def hook(flavour, **hooks):
    """A callback with these functions (callback, number, logs)."""

    def method(function):
        return lambda self, number=None, logs=None: function(self, number, logs)

    contents = {name: method(function) for name, function in hooks.items()}
    return type("Hook", (flavour.callbacks.Callback,), contents)()


def falling_on_rank_0(flavour):
    """A callback that adds a metric to the logs that improves on rank 0 only."""

    def change(self, epoch, logs):
        logs["own"] = 1.0 / (epoch + 1) if hvd.rank() == 0 else 1.0 + epoch

    return hook(flavour, on_epoch_end=change)


@pytest.mark.parametrize("first", [True, False])
def test_drift_by_reduce_lr_before_metric_average(flavour, rank, first):
    """Regression: first the learning rates differed, and then the weights, without an error."""
    model = make_model(flavour, 0.01)
    # Patience is equal, but losses differ: rank 0's falls, rank 1's rises.
    plateau = flavour.callbacks.ReduceLROnPlateau(monitor="loss", patience=1, factor=0.5)
    average = callbacks.of(flavour).MetricAverageCallback()
    rates = []
    look = hook(
        flavour,
        on_epoch_end=lambda self, *_: rates.append(float(self.model.optimizer.learning_rate)),
    )
    used = [plateau, average] if first else [average, plateau]
    x, y = data()
    y = y if rank == 0 else np.float32([[1], [-3], [1], [-3]])
    history = model.fit(x, y, epochs=4, verbose=0, batch_size=1, callbacks=[*used, look]).history
    assert_alike(model)
    assert len({tuple(each) for each in hvd.allgather_object(rates)}) == 1
    assert len({tuple(each) for each in hvd.allgather_object(history["loss"])}) == 1


def test_callbacks_that_decide_without_metric_average(flavour, rank, shared):
    """Keras' own EarlyStopping, ReduceLROnPlateau and ModelCheckpoint."""
    made = flavour.callbacks
    model = make_model(flavour, 0.05)
    used = [
        made.ReduceLROnPlateau(monitor="loss", patience=0, min_delta=10.0, factor=0.1),
        made.EarlyStopping(monitor="loss", patience=2, min_delta=10.0, restore_best_weights=True),
    ]
    if rank == 0:
        path = str(shared / "best.keras")
        used.append(made.ModelCheckpoint(path, monitor="loss", save_best_only=True))
    x, y = data()
    history = model.fit(
        x, (rank + 1) * y, epochs=9, verbose=0, validation_data=(x, y), callbacks=used
    ).history
    everybody = hvd.allgather_object([history["loss"], history["val_loss"]])
    assert everybody[0] == everybody[1]
    assert len(history["loss"]) == 3
    assert_alike(model)
    assert (shared / "best.keras").exists()


def test_validation_on_one_rank_only(flavour, rank):
    """Its metrics are used by all callbacks that decide by them."""
    model = make_model(flavour, 0.05)
    stop = flavour.callbacks.EarlyStopping(monitor="val_loss", patience=1, min_delta=10.0)
    options = {"validation_data": data()} if rank == 0 else {}
    history = fit(model, callbacks=[stop], epochs=9, **options).history
    assert hvd.allgather_object(len(history["loss"])) == [2, 2]
    assert_alike(model)


def test_one_rank_stops_all(flavour, rank):
    def stop(self, epoch, logs):
        self.model.stop_training = hvd.rank() == 1 and epoch == 1

    model = make_model(flavour)
    history = fit(model, callbacks=[hook(flavour, on_epoch_end=stop)], epochs=5)
    assert len(history.history["loss"]) == 2
    assert_alike(model)


def test_nan_loss_on_one_rank(flavour, rank):
    model = make_model(flavour)
    x, y = data()
    if rank == 1:
        y[1] = np.nan
    steps = []
    count = hook(flavour, on_train_batch_end=lambda *_: steps.append(1))
    model.fit(
        x, y, batch_size=1, shuffle=False, verbose=0, epochs=3,
        callbacks=[count, flavour.callbacks.TerminateOnNaN()],
    )  # fmt: skip
    assert hvd.allgather_object(len(steps)) == [2, 2]


def test_stop_within_an_epoch_on_one_rank(flavour, rank):
    def stop(self, batch, logs):
        self.model.stop_training = hvd.rank() == 0 and batch == 1

    used = [hook(flavour, on_train_batch_end=stop)]
    text = same_error(lambda: fit(make_model(flavour), callbacks=used))
    assert "2 on rank 0, 4 on rank 1" in text
    assert "stop_training" in text


def test_different_numbers_of_batches_are_refused(flavour, rank):
    """Arrays, datasets, and a Sequence, with lengths that are known in advance."""
    x, y = data(4 + rank)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(1)
    sequence_of = getattr(flavour.utils, "PyDataset", flavour.utils.Sequence)

    class Sequence(sequence_of):
        def __len__(self):
            return len(x)

        def __getitem__(self, index):
            return x[index : index + 1], y[index : index + 1]

    model = make_model(flavour)
    before = model.get_weights()[0].tobytes()
    for given in (dataset, Sequence()):
        text = same_error(lambda given=given: model.fit(given, verbose=0))
        assert "4 on rank 0, 5 on rank 1" in text
        assert "hvd.shard" in text
    assert "4 on rank 0, 5" in same_error(lambda: fit(model, rows=4 + rank))
    assert "epochs= differs between ranks" in same_error(lambda: fit(model, epochs=1 + rank))
    assert model.get_weights()[0].tobytes() == before


@pytest.mark.parametrize(("per_call", "rows"), [(1, (4, 5)), (3, (4, 5)), (4, (6, 9))])
def test_different_unknown_numbers_of_batches_are_refused(flavour, rank, per_call, rows):
    """Keras counts each execution of several steps as full; the text has the actual number."""
    if per_call > 1 and flavour is tf_keras:
        pytest.skip("tf_keras refuses this itself")
    x, y = data(rows[0] + rank * (rows[1] - rows[0]))
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(1).filter(lambda *_: True)
    model = make_model(flavour, steps_per_execution=per_call)
    text = same_error(lambda: model.fit(dataset, epochs=2, verbose=0))
    what = "steps" if per_call == 1 else "updates"
    assert f"different numbers of {what}: {rows[0]} on rank 0, {rows[1]} on rank 1" in text
    model = make_model(flavour, steps_per_execution=per_call)
    model.fit(dataset.take(4), epochs=2, verbose=0)
    assert_alike(model)


def test_data_that_end_early(flavour, rank):
    """One rank's data is shorter than steps_per_epoch."""
    model = make_model(flavour)
    dataset = tf.data.Dataset.from_tensor_slices(data(4 - rank)).batch(1)
    text = same_error(lambda: model.fit(dataset, steps_per_epoch=4, verbose=0))
    assert "4 on rank 0, 3 on rank 1" in text


def test_readme_example_with_an_odd_number_of_batches(flavour):
    dataset = tf.data.Dataset.from_tensor_slices(
        (np.ones([7, 3], "float32"), np.ones([7, 1], "float32"))
    )
    for known in (True, False):
        batches = dataset.batch(1) if known else dataset.batch(1).filter(lambda *_: True)
        model = make_model(flavour)
        steps = []
        count = hook(flavour, on_train_batch_end=lambda *_, steps=steps: steps.append(1))
        model.fit(tf_hvd.shard(batches), epochs=2, verbose=0, callbacks=[count])
        assert len(steps) == 8
        assert_alike(model)


@pytest.mark.parametrize("split", [True, False])
def test_unsplit_data_is_reported(flavour, told, rank, size, split):
    """Regression: each rank silently trained on all of the data."""
    x = np.random.default_rng(7).normal(size=(4 * size, 3)).astype("float32")
    dataset = tf.data.Dataset.from_tensor_slices((x, x[:, :1]))
    model = make_model(flavour)
    model.fit((tf_hvd.shard(dataset) if split else dataset).batch(2), epochs=2, verbose=0)
    assert [text.count("hvd.shard(dataset)") for text in told] == [1, 1] * (rank == 0 and not split)


def test_loss_averaged_by_a_train_step_causes_no_warning(flavour, told):
    class Averaging(flavour.Sequential):
        def train_step(self, *given):
            return {"loss": tf_hvd.allreduce(super().train_step(*given)["loss"])}

    model = Averaging([flavour.Input([3]), flavour.layers.Dense(1, kernel_initializer="ones")])
    model.compile(hvd.DistributedOptimizer(flavour.optimizers.SGD(0.1)), "mse")
    fit(model)
    assert told == []


def test_callbacks_of_one_rank_only(flavour, rank):
    stop = flavour.callbacks.EarlyStopping(monitor="loss")
    text = same_error(lambda: fit(make_model(flavour), callbacks=[stop] if rank == 0 else []))
    assert "EarlyStopping on rank 0, none on rank 1" in text
    text = same_error(lambda: fit(make_model(flavour), initial_epoch=1 - rank, epochs=3))
    assert "epoch 1 on rank 0, epoch 0 on rank 1" in text
    text = same_error(lambda: fit(make_model(flavour), initial_epoch=3 * rank, epochs=3))
    assert "epoch 0 on rank 0, no epoch on rank 1" in text


def test_callback_list_used_in_two_fits(flavour, rank):
    """Regression: the second fit did not check that the ranks begin with the same epoch."""
    model = make_model(flavour)
    params = {"epochs": 2, "steps": 4, "verbose": 0}
    used = flavour.callbacks.CallbackList([], add_history=True, model=model, **params)
    given = {"batch_size": 1, "shuffle": False, "verbose": 0, "callbacks": used}
    model.fit(*data(), epochs=2, **given)
    again = {"initial_epoch": 1 - rank, "epochs": 2, **given}
    text = same_error(lambda: model.fit(*data(), **again))
    assert "epoch 1 on rank 0, epoch 0 on rank 1" in text


def writers(module, folder):
    return {
        "CSVLogger": module.CSVLogger(str(folder / "log.csv")),
        "TensorBoard": module.TensorBoard(str(folder / "board"), write_graph=False),
        "BackupAndRestore": module.BackupAndRestore(str(folder / "backup")),
        "ModelCheckpoint": module.ModelCheckpoint(str(folder / "model.keras")),
    }


@pytest.fixture
def told(monkeypatch):
    """Collects this rank's warnings."""
    texts = []
    monkeypatch.setattr(fit_sync.log, "warn_once", texts.append)
    return texts


@pytest.fixture
def informed(monkeypatch):
    """Collects this rank's lines at level INFO."""
    texts = []
    monkeypatch.setattr(fit_sync.log, "info_once", texts.append)
    return texts


@pytest.fixture
def done(flavour, monkeypatch):
    """Collects this rank's visible actions: saved models and weights, requests to a server."""
    found = []

    def note(self, target, *args, **kwargs):
        found.append(str(target))
        return save(self, target, *args, **kwargs)

    save = flavour.Model.save
    monkeypatch.setattr(flavour.Model, "save", note)
    requests = types.SimpleNamespace(post=lambda url, *_, **__: found.append(url))
    module = sys.modules[flavour.callbacks.RemoteMonitor.__module__]
    monkeypatch.setattr(module, "requests", requests)
    return found


def values_in(path):
    """The weights in a .keras file; other names in it contain numbers by Keras."""
    found = {}

    def look(name, item):
        if isinstance(item, h5py.Dataset):
            found[name] = item[()].tobytes()

    with zipfile.ZipFile(path) as archive, archive.open("model.weights.h5") as weights:
        h5py.File(weights, "r").visititems(look)
    return found


def written(folder):
    """The contents of a folder's files, without times and process IDs."""
    found = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name, contents = str(path.relative_to(folder)), path.read_bytes()
        if ".tfevents." in name:
            name, contents = name.partition(".tfevents.")[0], b""
            assert name not in found  # by one process only
        if name.endswith(".keras"):
            contents = values_in(path)
        found[name] = contents
    return found


def test_keras_writers_on_all_ranks_write_on_rank_0(flavour, rank, shared, told, informed, done):
    """Regression: they stopped the first real script; on several hosts all ranks wrote."""
    results = {}
    for origin, module in (("ours", callbacks.of(flavour)), ("Keras'", flavour.callbacks)):
        folder = shared / origin
        used = writers(module, folder)
        used["TensorBoard"] = module.TensorBoard(str(folder / "board"))  # with the graph
        best = str(folder / "best.keras")
        used["best"] = module.ModelCheckpoint(best, monitor="val_loss", save_best_only=True)
        used["RemoteMonitor"] = module.RemoteMonitor()
        model = make_model(flavour)
        tf_hvd.barrier()
        seen = fit(model, callbacks=used.values(), epochs=2, validation_data=data()).history
        assert_alike(model)
        tf_hvd.barrier()
        assert bool(done) == (rank == 0)
        rows = list(csv.DictReader((folder / "log.csv").open()))
        averages = hvd.broadcast_object(seen, 0)
        assert [float(row["val_loss"]) for row in rows] == averages["val_loss"]
        results[origin] = seen, [text.replace(str(folder), "") for text in done], written(folder)
        done.clear()
        kinds = "BackupAndRestore, CSVLogger, ModelCheckpoint, RemoteMonitor, TensorBoard"
        assert told == []  # it was a warning, although the documentation recommends this
        assert [kinds in text for text in informed] == [True] * (rank == 0 and origin == "Keras'")
    assert results["Keras'"] == results["ours"]


def test_keras_writers_with_separate_paths_all_write(flavour, rank, size, shared, informed):
    """Includes a writer on a rank other than 0, and one used on all ranks in the previous `fit`."""
    used = writers(flavour.callbacks, shared / f"rank{rank}")
    del used["BackupAndRestore"]
    used["TensorBoard"] = flavour.callbacks.TensorBoard(str(shared / f"rank{rank}"))
    log = flavour.callbacks.CSVLogger(str(shared / "all.csv"))
    (shared / f"rank{rank}").mkdir()
    fit(make_model(flavour), callbacks=[*used.values(), log], epochs=1)
    names = ["log.csv", "model.keras", "train/events.out"]
    assert sorted(written(shared / f"rank{rank}")) == names
    assert [text.count("CSVLogger") for text in informed] == [1] * (rank == 0)
    assert bool(getattr(log, "csv_file", None)) == (rank == 0)
    fit(make_model(flavour), callbacks=[log] if rank == size - 1 else [], epochs=1)
    assert bool(getattr(log, "csv_file", None)) == (rank in (0, size - 1))
    with hvd.unguarded():
        log.filename, log.csv_file = str(shared / f"single{rank}.csv"), None
        fit(make_model(flavour), callbacks=[log], epochs=1)
    assert log.csv_file


def test_writer_with_overridden_hooks_is_refused(flavour, rank, size, shared):
    """Its own hook may be meant for all ranks, or for one."""

    def made(base, **contents):
        return type("Own", (base,), contents)(str(shared / "model.keras"))

    def hook_of_its_own(self, epoch, logs=None):
        sums.append(int(tf_hvd.allreduce(tf.constant(epoch + 1), op=tf_hvd.Sum)))
        super(type(self), self).on_epoch_end(epoch, logs)

    sums = []
    keras_s, ours = flavour.callbacks.ModelCheckpoint, callbacks.of(flavour).ModelCheckpoint
    refused = made(keras_s, on_epoch_end=hook_of_its_own)
    text = same_error(lambda: fit(make_model(flavour), callbacks=[refused]))
    assert "ModelCheckpoint on ranks 0, 1" in text
    assert f"would write {shared}" in text
    assert "Derive its class from tf_hvd.keras.callbacks.ModelCheckpoint" in text
    assert not (shared / "model.keras").exists()
    assert sums == []
    fit(make_model(flavour), callbacks=[made(ours, on_epoch_end=hook_of_its_own)])
    assert sums == [size]
    plain = made(keras_s, _should_save_on_batch=lambda self, batch: False)
    fit(make_model(flavour), callbacks=[plain])
    assert isinstance(plain, keras_s)


def test_keras_writers_passed_on_rank_0_only(flavour, rank, shared):
    used = list(writers(flavour.callbacks, shared).values()) if rank == 0 else []
    model = make_model(flavour)
    fit(model, callbacks=used, epochs=2, validation_data=data())
    assert_alike(model)
    tf_hvd.barrier()
    assert {"log.csv", "model.keras", "board/train/events.out"} <= set(written(shared))


def interrupt(self, epoch, logs):
    if epoch == 2:
        raise KeyboardInterrupt


@pytest.mark.parametrize("given", ["all", "rank 0", "Keras' on rank 0", "Keras' on all"])
def test_resumed_fit_equals_an_uninterrupted_one(flavour, rank, shared, given):
    """All ranks are interrupted after two epochs; the result equals an uninterrupted fit."""
    reference = make_model(flavour)
    fit(reference, epochs=4)
    module = flavour.callbacks if given.startswith("Keras") else callbacks.of(flavour)
    epochs = []

    def train(extra):
        # The other ranks do not need access to rank 0's folder.
        folder = str(shared / f"backup{0 if given.endswith('on all') else rank}")
        used = [callbacks.of(flavour).BroadcastGlobalVariablesCallback(0), *extra]
        if given.endswith("all") or rank == 0:
            used.insert(0, module.BackupAndRestore(folder))
        fit(model, callbacks=used, epochs=4)

    model = make_model(flavour)
    with pytest.raises(KeyboardInterrupt):
        train([hook(flavour, on_epoch_begin=interrupt)])
    assert (shared / "backup1").exists() is False
    model = make_model(flavour)  # like a new process
    train([hook(flavour, on_epoch_begin=lambda self, epoch, logs: epochs.append(epoch))])
    assert hvd.allgather_object(epochs) == [[2, 3], [2, 3]]
    for ours, wanted in zip(model.get_weights(), reference.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, wanted)
    assert_alike(model)


def test_backup_on_another_rank_than_0(flavour, rank, shared):
    ours = callbacks.of(flavour).BackupAndRestore(str(shared / "backup"))
    text = same_error(lambda: fit(make_model(flavour), callbacks=[ours] if rank == 1 else []))
    assert "missing on rank 0" in text


def test_ranks_that_train_independently(flavour, rank):
    with hvd.unguarded():
        model = make_model(flavour)
        model.compile(flavour.optimizers.SGD(0.1), "mse")
        stop = flavour.callbacks.EarlyStopping(monitor="loss", patience=0, min_delta=10.0)
        history = fit(model, rows=4 + rank, callbacks=[stop] if rank else [], epochs=3)
    assert len(history.history["loss"]) == (2 if rank else 3)
