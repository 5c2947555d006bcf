"""Evaluation, prediction and the logs of `fit` across all ranks equal those of one process."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from absl import logging

import tf_hvd as hvd
from tf_hvd import evaluate, predict
from tf_hvd.keras import callbacks

pytestmark = pytest.mark.framework
EXACT = pytest.mark.jobs(2, 3, 4)
PAIR = pytest.mark.jobs(2)
TRIPLE = pytest.mark.jobs(3)

KERAS = {"keras": keras, "tf_keras": tf_keras}
ROWS = 1003


@pytest.fixture(params=list(KERAS))
def flavour(request):
    return KERAS[request.param]


def data(rows=ROWS):
    """The data of all ranks; the targets equal the first column."""
    random = np.random.default_rng(7)
    x = random.normal(size=(rows, 3)).astype("float32")
    y = x[:, :1] + random.normal(size=(rows, 1)) > 0.3
    return x, y.astype("float32")


def edges(rows, size):
    """The boundaries of the ranks' uneven shares."""
    return [round(rows * (place / size) ** 2) for place in range(size + 1)]


def share(*arrays):
    """This rank's share of the data."""
    first, end = edges(len(arrays[0]), hvd.size())[hvd.rank() :][:2]
    return [array[first:end] for array in arrays]


def make_model(flavour, rate=0.0, distributed=True, metrics=("mae",), **options):
    """Runs eagerly by default, because most tests make few steps."""
    kernel = flavour.initializers.Constant([[0.7], [-0.2], [0.1]])
    layers = [flavour.Input([3])]
    layers += [flavour.layers.Dense(1, activation="sigmoid", kernel_initializer=kernel)]
    model = flavour.Sequential(layers)
    optimizer = flavour.optimizers.SGD(rate)
    optimizer = hvd.DistributedOptimizer(optimizer) if distributed else optimizer
    options = {"run_eagerly": True, **options}
    model.compile(optimizer, "binary_crossentropy", metrics=list(metrics), **options)
    return model


def many(flavour):
    made = flavour.metrics
    return [
        "accuracy",
        made.AUC(name="auc"),
        made.R2Score(name="r2"),
        made.Precision(name="precision"),
        made.F1Score(threshold=0.5, name="f1"),
        made.RootMeanSquaredError(name="rmse"),
        made.FalsePositives(name="fp"),
    ]


def assert_equal_everywhere(value):
    first, *others = hvd.allgather_object(value)
    for other in others:
        tf.nest.map_structure(np.testing.assert_array_equal, first, other)


def assert_same(logs, expected):
    assert set(logs) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(logs[name], value, rtol=1e-6, err_msg=name)
    assert_equal_everywhere(dict(logs))


@EXACT
def test_evaluate_and_logs_of_fit_are_those_of_one_process(flavour):
    """Shares have different sizes, but equal numbers of batches; validation resets metrics."""
    x, y = data()
    mine = share(x, y)
    validation = [each[:501] for each in (x, y)]
    model = make_model(flavour, metrics=many(flavour), run_eagerly=False)
    whole = model.evaluate(x, y, verbose=0, return_dict=True)
    validated = model.evaluate(*validation, verbose=0, return_dict=True)
    ordered = model.evaluate(x, y, verbose=0)
    own = model.evaluate(*mine, verbose=0, return_dict=True)
    assert any(abs(own["auc"] - each) > 1e-3 for each in hvd.allgather_object(own["auc"]))

    assert_same(evaluate(model, *mine, batch_size=50, verbose=0, return_dict=True), whole)
    # The variables still hold the rank's own sums.
    np.testing.assert_allclose(float(model.get_metrics_result()["auc"]), own["auc"])
    found = evaluate(model, *mine, verbose=0)
    for value, expected in zip(found, ordered, strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-6)

    seen = []

    class Look(flavour.callbacks.Callback):
        def on_test_end(self, logs=None):
            seen.append(dict(logs))

    history = model.fit(
        *mine, validation_data=tuple(share(*validation)), epochs=2, verbose=0,
        batch_size=-(-len(mine[0]) // 8),
        callbacks=[Look(), callbacks.of(flavour).MetricAverageCallback()],
    ).history  # fmt: skip
    expected = whole | {f"val_{name}": value for name, value in validated.items()}
    # With a rate of 0, the model does not learn.
    assert_same(history, {name: [value] * 2 for name, value in expected.items()})
    assert_same(seen[-1], validated)


@PAIR
def test_logs_while_the_model_learns(flavour, rank, size):
    """The batches of a step are split evenly; the validation shares are uneven."""
    x, y = data(960)
    vx, vy = data()
    made = flavour.metrics

    def model(distributed):
        metrics = ["accuracy", made.R2Score(name="r2"), made.RootMeanSquaredError(name="rmse")]
        return make_model(flavour, 0.3, distributed, metrics)

    options = {"epochs": 2, "verbose": 0, "shuffle": False}
    with hvd.unguarded():
        expected = model(False).fit(
            x, y, batch_size=96, validation_data=(vx, vy), **options
        ).history  # fmt: skip
    mine = [each.reshape(10, size, 96 // size, -1)[:, rank] for each in (x, y)]
    history = model(True).fit(
        *(each.reshape(960 // size, -1) for each in mine), batch_size=96 // size,
        validation_data=tuple(share(vx, vy)),
        callbacks=[flavour.callbacks.EarlyStopping(monitor="val_loss", patience=5)], **options,
    ).history  # fmt: skip
    assert_same(history, expected)


@PAIR
def test_logs_without_the_guard(flavour):
    """MetricAverageCallback acts at its position in the list."""
    x, y = data()
    model = make_model(flavour, metrics=["mae", flavour.metrics.R2Score(name="r2")])
    mine = share(x, y)
    whole = model.evaluate(x, y, verbose=0, return_dict=True)
    with hvd.unguarded():
        history = model.fit(
            *mine, batch_size=-(-len(mine[0]) // 8), validation_data=tuple(mine), verbose=0,
            callbacks=[callbacks.of(flavour).MetricAverageCallback()],
        ).history  # fmt: skip
    assert_same(history, {p + k: [v] for k, v in whole.items() for p in ("", "val_")})


@PAIR
def test_results_renamed_by_a_users_test_step(flavour):
    """As in Keras' examples of autoencoders: the loss must still be weighted by samples."""

    class Model(flavour.Model):
        def __init__(self):
            super().__init__()
            self.dense = flavour.layers.Dense(1, kernel_initializer="ones")
            self.tracker = flavour.metrics.Mean(name="total_loss")

        @property
        def metrics(self):
            return [self.tracker]

        def call(self, inputs):
            return self.dense(inputs)

        def test_step(self, data):
            self.tracker.update_state(self(data[0]) ** 2)
            return {"loss": self.tracker.result(), "last": tf.reduce_max(data[0])}

    x, y = data()
    model = Model()
    model.compile(hvd.DistributedOptimizer(flavour.optimizers.SGD(0.0)), run_eagerly=True)
    found = evaluate(model, *share(x, y), batch_size=1003, verbose=0, return_dict=True)
    np.testing.assert_allclose(found["loss"], np.mean(x.sum(axis=1) ** 2), rtol=1e-5)
    largest = hvd.allgather_object(share(x)[0].max())
    np.testing.assert_allclose(found["last"], np.mean(largest), rtol=1e-6)


class Largest:
    """A metric with a variable that is not a sum."""

    def __new__(cls, flavour, name="largest", **contents):
        def init(self):
            super(made, self).__init__(name=name)
            self.largest = self.add_weight(shape=(), initializer="zeros", name="largest")

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.largest.assign(tf.maximum(self.largest, tf.reduce_max(y_true)))

        contents |= {"__init__": init, "update_state": update_state}
        contents["result"] = lambda self: self.largest + 0
        made = type("Largest", (flavour.metrics.Metric,), contents)
        return made()


@pytest.fixture
def warnings(monkeypatch):
    told = []
    monkeypatch.setattr(logging, "warning", lambda text, *args: told.append(text % args))
    return told


@PAIR
def test_metric_that_is_not_a_sum_is_averaged_with_a_warning(flavour, rank, warnings):
    name = f"largest_of_{flavour.__name__}"
    model = make_model(flavour, metrics=["mae", Largest(flavour, name)])
    x = np.zeros([4, 3], "float32")
    y = np.full([4 + 4 * rank, 1], 1.0 + rank, "float32")
    for _ in range(2):
        found = evaluate(model, np.resize(x, [len(y), 3]), y, verbose=0, return_dict=True)
        assert found[name] == 1.5
        np.testing.assert_allclose(found["mae"], (4 * 0.5 + 8 * 1.5) / 12)
    told = [text for text in warnings if name in text]
    assert len(told) == (rank == 0)
    assert all("(Largest) is averaged" in text and "hvd_sums" in text for text in told)


@PAIR
@pytest.mark.parametrize("says", [True, False])
def test_metric_that_declares_hvd_sums(flavour, rank, warnings, says):
    metric = Largest(flavour, hvd_sums=says)
    model = make_model(flavour, metrics=[metric])
    y = np.full([4, 1], 1.0 + rank, "float32")
    found = evaluate(model, np.zeros([4, 3], "float32"), y, verbose=0, return_dict=True)
    assert found["largest"] == (3.0 if says else 1.5)
    assert not [text for text in warnings if "is averaged" in text]


class Ratio:
    """A metric of two sums with a dictionary as result."""

    def __new__(cls, flavour):
        class Ratio(flavour.metrics.Metric):
            hvd_sums = True

            def __init__(self):
                super().__init__(name="ratio")
                self.sum = self.add_weight(shape=(), initializer="zeros", name="sum")
                self.count = self.add_weight(shape=(), initializer="zeros", name="count")

            def update_state(self, y_true, y_pred, sample_weight=None):
                self.sum.assign_add(tf.reduce_sum(y_true))
                self.count.assign_add(float(len(y_true)))

            def result(self):
                return {"average": self.sum / self.count, "rows": self.count + 0}

        return Ratio()


@PAIR
def test_metric_with_a_dictionary_as_result(flavour, rank, warnings):
    x, y = data(12)
    mine = slice(0, 3) if rank == 0 else slice(3, 12)
    model = make_model(flavour, metrics=[Ratio(flavour)])
    found = evaluate(model, x[mine], y[mine], verbose=0, return_dict=True)
    assert found["rows"] == 12
    np.testing.assert_allclose(found["average"], y.mean(), rtol=1e-6)
    assert not warnings


@PAIR
def test_number_named_like_a_metric_but_not_its_result(flavour, rank, warnings):
    name = f"mine_of_{flavour.__name__}"

    class Model(flavour.Model):
        def __init__(self):
            super().__init__()
            self.mine = flavour.metrics.Mean(name=name)

        def call(self, inputs):
            return inputs

        def test_step(self, data):
            self.mine.update_state(data[0])
            # If the names are those of all metrics, Keras returns their results instead.
            return {name: tf.reduce_max(data[0]), "another": 1.0}

    model = Model()
    model.compile(hvd.DistributedOptimizer(flavour.optimizers.SGD(0.0)), run_eagerly=True)
    x = np.arange(4.0, dtype="float32") + rank
    found = evaluate(model, x, x, verbose=0, return_dict=True)
    assert found == {name: 3.5, "another": 1.0}
    assert len([text for text in warnings if f"'{name}' is averaged" in text]) == (rank == 0)
    assert len(warnings) == (rank == 0)


@PAIR
def test_result_that_depends_on_an_attribute_is_equal_on_all_ranks(flavour):
    class Best(flavour.metrics.AUC):
        best = 0.0

        def result(self):
            self.best = max(self.best, float(super().result()))
            return self.best

    x, y = data(60)
    model = make_model(flavour, metrics=[Best(name="best")])
    assert_equal_everywhere(evaluate(model, *share(x, y), verbose=0, return_dict=True))


@PAIR
def test_get_metrics_result_uses_a_metric_that_is_not_a_sum(flavour, rank):
    class Model(flavour.Model):
        def __init__(self):
            super().__init__()
            self.dense = flavour.layers.Dense(1, kernel_initializer="ones")
            self.largest = Largest(flavour, hvd_sums=False)

        def call(self, inputs):
            return self.dense(inputs)

        def test_step(self, data):
            self.largest.update_state(data[1], None)
            super().test_step(data)
            return self.get_metrics_result()

        def get_metrics_result(self):
            return {**super().get_metrics_result(), "root": tf.sqrt(self.largest.result())}

    model = Model()
    optimizer = hvd.DistributedOptimizer(flavour.optimizers.SGD(0.0))
    model.compile(optimizer, "mse", metrics=["mae"], run_eagerly=True)
    y = np.full([4 + 8 * rank, 1], [1.0, 4.0][rank], "float32")
    found = evaluate(model, np.zeros([len(y), 3], "float32"), y, verbose=0, return_dict=True)
    assert found == {"loss": 49 / 4, "mae": 13 / 4, "largest": 2.5, "root": 1.5}


@PAIR
@pytest.mark.parametrize(("empty", "kind"), [(0, "arrays"), (1, "dataset")])
def test_a_rank_without_data(flavour, rank, empty, kind):
    x, y = data(40)
    model = make_model(flavour, metrics=["mae", flavour.metrics.AUC(multi_label=True, name="auc")])
    mine = [each[: 0 if rank == empty else 40] for each in (x, y)]
    if kind == "dataset":
        mine = [tf.data.Dataset.from_tensor_slices(tuple(mine)).batch(8)]
    found = evaluate(model, *mine, verbose=0)
    assert_equal_everywhere(found)
    np.testing.assert_allclose(found, model.evaluate(x, y, verbose=0), rtol=1e-6)
    with pytest.raises(ValueError, match="no rank has data"):
        evaluate(model, x[:0], y[:0], verbose=0)


@PAIR
def test_rank_with_a_generator_or_sequence_without_batches(flavour, rank):
    x, y = data(8)
    model = make_model(flavour)
    expected = model.evaluate(x, y, verbose=0)

    class Batches(flavour.utils.Sequence if flavour is tf_keras else flavour.utils.PyDataset):
        def __len__(self):
            return 1 - rank

        def __getitem__(self, index):
            return x, y

    np.testing.assert_array_equal(evaluate(model, Batches(), verbose=0), expected)
    batches = iter([(x, y)] * (1 - rank))
    np.testing.assert_array_equal(evaluate(model, (b for b in batches), verbose=0), expected)


@TRIPLE
@pytest.mark.parametrize("kind", ["EarlyStopping", "MetricAverageCallback", "unguarded"])
def test_fit_with_an_empty_share_of_validation_data(rank, warnings, kind):
    """Keras 3 accepts it; tf_keras does not."""
    x, y = data(48)
    edge = [0, 5, 48, 48]
    mine = slice(edge[rank], edge[rank + 1])
    metrics = ["mae", keras.metrics.R2Score(name="r2"), Largest(keras, hvd_sums=False)]
    model = make_model(keras, metrics=metrics)
    whole = model.evaluate(x, y, verbose=0, return_dict=True)
    validation = tf.data.Dataset.from_tensor_slices((x[mine], y[mine])).batch(8)
    if kind == "EarlyStopping":
        chosen = keras.callbacks.EarlyStopping("val_loss")
    else:
        chosen = callbacks.of(keras).MetricAverageCallback()
    seen = []

    class Look(keras.callbacks.Callback):
        def on_test_end(self, logs=None):
            seen.append(dict(logs))

    with hvd.unguarded() if kind == "unguarded" else contextlib.nullcontext():
        history = model.fit(
            x, y, batch_size=48, validation_data=validation, callbacks=[Look(), chosen], verbose=0
        ).history
    assert_same(history, {p + k: [v] for k, v in whole.items() for p in ("", "val_")})
    if kind != "unguarded":
        assert_same(seen[0], whole)
    assert not [text for text in warnings if "averaged" in text]


@PAIR
def test_failure_on_one_rank_is_raised_on_all(flavour, rank):
    x, y = data(8)
    model = make_model(flavour)
    with pytest.raises(Exception, match="" if rank else "hvd.evaluate failed on rank 1: "):
        evaluate(model, x[:, : 3 - rank], y, verbose=0)
    with pytest.raises(Exception, match="" if rank else "hvd.predict failed on rank 1: "):
        predict(model, np.zeros([64, 3 - rank], "float32"), verbose=0)
    rows = r"64 rows in batches of 32 on rank 0, 65 rows in batches of 32 on rank 1"
    with pytest.raises(ValueError, match=rows):
        predict(model, np.zeros([64 + rank, 3], "float32"), verbose=0)
    with pytest.raises(ValueError, match="the data is empty"):
        predict(model, x[:0], verbose=0)


@PAIR
def test_predict_refuses_batches_that_differ_between_ranks(flavour, rank):
    x, _ = data(43)
    model = make_model(flavour)
    batches = r"43 rows in batches of 4 on rank 0, 43 rows in batches of 8 on rank 1"
    with pytest.raises(ValueError, match=batches):
        predict(model, x, batch_size=4 + 4 * rank, verbose=0)
    with pytest.raises(ValueError, match=r" 8 rows in batches of 4 on rank 0, 24 rows "):
        predict(model, x, batch_size=4, steps=2 + 4 * rank, verbose=0)


def several(flavour):
    """A model with named inputs and named outputs."""
    inputs = {name: flavour.Input([3], name=name) for name in ("a", "b")}
    both = flavour.layers.Add()([inputs["a"], inputs["b"]])
    outputs = {"sum": both, "one": flavour.layers.Dense(1, kernel_initializer="ones")(both)}
    return flavour.Model(inputs, outputs)


@EXACT
def test_predictions_are_in_order(flavour):
    x, _ = data()
    model = make_model(flavour)
    expected = model.predict(x, batch_size=100, verbose=0)
    np.testing.assert_array_equal(predict(model, x, batch_size=100, verbose=0), expected)
    np.testing.assert_array_equal(predict(model, x, verbose=0), model.predict(x, verbose=0))
    batches = tf.data.Dataset.from_tensor_slices(x).batch(100)
    for dataset in (batches, batches.filter(lambda _: True)):
        np.testing.assert_array_equal(predict(model, dataset, verbose=0), expected)
    inputs = {"a": x, "b": 2 * x}
    model = several(flavour)
    found = predict(model, inputs, batch_size=100, verbose=0)
    expected = model.predict(inputs, batch_size=100, verbose=0)
    assert set(found) == {"sum", "one"}
    tf.nest.map_structure(np.testing.assert_array_equal, found, expected)


@PAIR
def test_few_rows_and_few_batches(flavour):
    x, _ = data(70)
    model = make_model(flavour)
    expected = model.predict(x, batch_size=1, verbose=0)
    np.testing.assert_array_equal(predict(model, x[:1], verbose=0), expected[:1])
    np.testing.assert_allclose(predict(model, x[:33], verbose=0), expected[:33], rtol=1e-6)
    found = predict(model, x, batch_size=1, steps=3, verbose=0)
    np.testing.assert_array_equal(found, expected[:3])
    endless = tf.data.Dataset.from_tensor_slices(x).batch(1).repeat()
    np.testing.assert_array_equal(predict(model, endless, steps=3, verbose=0), expected[:3])
    with pytest.raises(ValueError, match=r"infinite\. Set steps to"):
        predict(model, endless, verbose=0)
    with pytest.raises(TypeError, match=r"a tf\.data\.Dataset of batches, not generator"):
        predict(model, (each for each in x), verbose=0)
    with pytest.raises(ValueError, match=r"different numbers of rows: \[1, 2\]"):
        predict(model, [x[:1], x[:2]], verbose=0)


@PAIR
def test_one_progress_bar(flavour, rank, capsys):
    model = make_model(flavour, metrics=["mae"])
    x, y = data(64)
    evaluate(model, x, y)
    assert ("loss: " in capsys.readouterr().out) == (rank == 0)
    predict(model, x)
    assert ("1/1" in capsys.readouterr().out) == (rank == 0)


def normalizing(flavour):
    """A model with BatchNormalization and Dropout, which differ between ranks after `fit`."""
    layers = [flavour.Input([3]), flavour.layers.Dense(4), flavour.layers.BatchNormalization()]
    layers += [flavour.layers.Dropout(0.3, seed=hvd.rank()), flavour.layers.Dense(1)]
    model = flavour.Sequential(layers)
    hvd.broadcast_variables(model.variables, root_rank=0)
    optimizer = hvd.DistributedOptimizer(flavour.optimizers.SGD(0.1))
    model.compile(optimizer, "mse", metrics=["mae"])
    return model


def untrained_state(model):
    """Moving statistics, and the seeds that Keras 3 has among the variables."""
    trained = {id(variable) for variable in model.trainable_variables}
    counted = {id(variable) for metric in model.metrics for variable in metric.variables}
    skipped = trained | counted
    return [np.array(v) for v in model.variables if id(v) not in skipped]


@PAIR
def test_evaluate_and_predict_with_different_moving_statistics(flavour, rank, size, tmp_path):
    """They used each rank's statistics, so the results belonged to no single model."""
    x, y = data(240)
    model = normalizing(flavour)
    mine = [each[rank::size] * (1 + rank) for each in (x, y)]
    model.fit(*mine, batch_size=20, epochs=2, verbose=0)
    path = hvd.broadcast_object(str(tmp_path / "model.keras"))
    if rank == 0:
        model.save(path)
    hvd.barrier()
    saved = flavour.models.load_model(path)
    before = untrained_state(model)
    means = hvd.allgather_object(before[0])
    assert not np.array_equal(*means)

    predictions = predict(model, x, batch_size=16, verbose=0)
    np.testing.assert_array_equal(predictions, saved.predict(x, batch_size=16, verbose=0))
    found = evaluate(model, x[rank::size], y[rank::size], verbose=0, return_dict=True)
    assert_same(found, saved.evaluate(x, y, verbose=0, return_dict=True))
    with pytest.raises(ValueError, match="the data is empty"):
        predict(model, x[:0], verbose=0)
    tf.nest.map_structure(np.testing.assert_array_equal, untrained_state(model), before)


@PAIR
def test_evaluate_keeps_registered_variables_and_uses_frozen_weights_of_the_first_rank(
    flavour, rank
):
    model = make_model(flavour, run_eagerly=False)
    kernel, bias = model.trainable_variables
    model.layers[0].trainable = False
    kernel.assign(kernel * (1 + rank))
    bias.assign([1.0 + rank])
    x = data(40)[0]
    model.optimizer.register_local_var(bias)
    expected = hvd.allgather_object(model.predict(x, verbose=0))[0]
    own = kernel.numpy()
    found = predict(model, x, batch_size=20, verbose=0)
    np.testing.assert_allclose(found[:20], expected[:20], rtol=1e-6)
    # Rank 1 predicted these with its own bias, which is larger by 1.
    logits = [np.log(each / (1 - each)) for each in (found[20:], expected[20:])]
    np.testing.assert_allclose(logits[0], logits[1] + 1, rtol=1e-4)
    np.testing.assert_array_equal(kernel.numpy(), own)
    np.testing.assert_array_equal(bias.numpy(), [1.0 + rank])


@PAIR
def test_process_set_of_one_rank(flavour, rank):
    """Ranks without others to reduce with behave as in plain Keras."""
    single = hvd.add_process_set([1])
    try:
        x, y = data(8)
        model = make_model(flavour, distributed=False, metrics=["mae"])
        optimizer = flavour.optimizers.SGD(0.0)
        model.compile(hvd.DistributedOptimizer(optimizer, process_set=single), "mse")
        if rank == 1:
            assert evaluate(model, x, y, verbose=0) == model.evaluate(x, y, verbose=0)
            np.testing.assert_array_equal(predict(model, x, verbose=0), model.predict(x, verbose=0))
    finally:
        hvd.remove_process_set(single)
