"""Programs with all kinds of data."""

import keras
import numpy as np
import tensorflow as tf
from common import (
    BATCH,
    EVEN,
    SGD,
    UNEVEN,
    batches,
    classes,
    compiled,
    dense,
    fitted,
    layers,
    numbers,
    program,
    results,
    trained,
)


@program
def dataset_with_validation():
    model = compiled(dense(), metrics=["mae", "mse", keras.metrics.R2Score()])
    data = batches(*numbers())
    history = trained(model, data, validation_data=batches(*numbers(40, seed=1)))
    return results(model, history, evaluated=model.evaluate(data, verbose=0))


@program
def shuffled_dataset():
    data = tf.data.Dataset.from_tensor_slices(numbers()).shuffle(64).batch(BATCH)
    model = compiled(dense())
    return results(model, trained(model, data, epochs=3))


@program
def uneven_dataset():
    return fitted(compiled(dense(), metrics=["mae"]), UNEVEN)


@program
def last_batch_of_one_row():
    return fitted(compiled(dense(), metrics=["mae", keras.metrics.R2Score()]), 49)


@program
def dataset_of_two_rows():
    return fitted(compiled(dense(), metrics=["mae"]), 2)


@program
def fixed_batches():
    model = compiled(dense())
    return results(model, trained(model, batches(*numbers(UNEVEN), drop=True)))


@program
def dataset_of_unknown_length():
    data = batches(*numbers(UNEVEN)).filter(lambda x, y: True)
    model = compiled(dense())
    return results(model, trained(model, data, epochs=3))


@program
def steps_per_epoch():
    data = batches(*numbers(UNEVEN)).repeat()
    model = compiled(dense())
    history = trained(
        model, data, steps_per_epoch=3, validation_data=data, validation_steps=2, epochs=4,
        validation_freq=2, initial_epoch=1,
    )  # fmt: skip
    return results(model, history)


@program
def arrays_with_validation_split():
    model = compiled(dense(), metrics=["mae"])
    x, y = numbers(UNEVEN)
    return results(
        model, trained(model, x, y, batch_size=BATCH, validation_split=0.3, shuffle=False)
    )


@program
def shuffled_arrays():
    model = compiled(dense())
    x, y = numbers(UNEVEN)
    return results(model, trained(model, x, y, batch_size=BATCH, epochs=3))


@program
def sample_weights():
    x, y = numbers(UNEVEN)
    weights = np.linspace(0.0, 2.0, UNEVEN)
    model = compiled(dense(), metrics=["mae"], weighted_metrics=["mse"])
    history = trained(model, x, y, batch_size=BATCH, sample_weight=weights)
    loss = model.evaluate(x, y, sample_weight=weights, batch_size=BATCH, verbose=0)
    return results(model, history, evaluated=loss)


@program
def class_weights():
    x, y = classes(UNEVEN, count=2)
    model = dense(layers.Dense(1, activation="sigmoid"))
    compiled(model, "binary_crossentropy", metrics=["AUC", "Precision", "Recall"])
    y = y.astype("float64").reshape(-1, 1)
    history = trained(
        model, x, y, batch_size=BATCH, class_weight={0: 1.0, 1: 3.0}, validation_split=0.2
    )
    return results(model, history)


@program
def classification_metrics():
    x, y = classes(UNEVEN)
    model = keras.Sequential([dense(out=3), layers.Softmax()])
    chosen = [
        "accuracy",
        keras.metrics.MeanIoU(3, sparse_y_pred=False, name="iou"),
        keras.metrics.SparseCategoricalCrossentropy(name="entropy"),
    ]
    compiled(model, "sparse_categorical_crossentropy", metrics=chosen)
    return results(model, trained(model, x, y, batch_size=BATCH))


@program
def one_hot_metrics():
    x, y = classes(UNEVEN)
    model = keras.Sequential([dense(out=3), layers.Softmax()])
    chosen = [
        keras.metrics.F1Score(),
        keras.metrics.AUC(multi_label=True),
        keras.metrics.RootMeanSquaredError(),
        keras.metrics.CosineSimilarity(),
        keras.metrics.FalsePositives(),
    ]
    compiled(model, "categorical_crossentropy", metrics=chosen)
    return results(model, trained(model, x, keras.utils.to_categorical(y, 3), batch_size=BATCH))


class _Batches(keras.utils.PyDataset):
    def __init__(self, rows, **options):
        super().__init__(**options)
        self._x, self._y = numbers(rows)

    def __len__(self):
        return -(-len(self._x) // BATCH)

    def __getitem__(self, index):
        part = slice(index * BATCH, (index + 1) * BATCH)
        return self._x[part], self._y[part]


@program
def pydataset():
    model = compiled(dense())
    return results(model, trained(model, _Batches(UNEVEN), shuffle=False))


@program
def pydataset_with_workers():
    model = compiled(dense())
    return results(model, trained(model, _Batches(EVEN, workers=2), shuffle=False))


@program
def generator():
    x, y = numbers(UNEVEN)

    def generate():
        while True:
            for begin in range(0, UNEVEN, BATCH):
                yield x[begin : begin + BATCH], y[begin : begin + BATCH]

    model = compiled(dense())
    return results(model, trained(model, generate(), steps_per_epoch=4))


@program
def dictionaries():
    x, y = numbers(UNEVEN)
    inputs = {"a": keras.Input([3], name="a"), "b": keras.Input([3], name="b")}
    joined = layers.Concatenate()(list(inputs.values()))
    hidden = layers.Dense(4, activation="relu")(joined)
    outputs = {
        "u": layers.Dense(1, name="u")(hidden),
        "v": layers.Dense(2, activation="softmax", name="v")(hidden),
    }
    model = keras.Model(inputs, outputs)
    model.compile(
        "adam",
        {"u": "mse", "v": "sparse_categorical_crossentropy"},
        loss_weights={"u": 1.0, "v": 0.5},
        metrics={"u": ["mae"], "v": ["accuracy"]},
    )
    given = {"a": x[:, :3], "b": x[:, 3:]}
    wanted = {"u": y, "v": (y[:, 0] > 0).astype("int64")}
    data = tf.data.Dataset.from_tensor_slices((given, wanted)).batch(BATCH)
    history = trained(model, data)
    predicted = model.predict(given, batch_size=BATCH, verbose=0)
    return results(model, history, **{f"predicted_{k}": v for k, v in predicted.items()})


@program
def sparse_tensors():
    x, y = numbers(UNEVEN)
    x = np.where(np.abs(x) > 0.7, x, 0)
    data = batches(x, y).map(lambda a, b: (tf.sparse.from_dense(a), b))
    model = keras.Sequential([keras.Input([6], sparse=True), layers.Dense(4), layers.Dense(1)])
    compiled(model)
    return results(model, trained(model, data))


class Ragged(keras.Model):
    def __init__(self):
        super().__init__()
        self.head = layers.Dense(1)

    def call(self, rows):
        return self.head(tf.reduce_mean(rows, axis=1, keepdims=True))


@program
def ragged_tensors():
    lengths = np.arange(UNEVEN) % 4 + 1
    values = np.random.default_rng(0).normal(size=lengths.sum())
    rows = tf.RaggedTensor.from_row_lengths(values, lengths)
    data = tf.data.Dataset.from_tensor_slices((rows, numbers(UNEVEN)[1])).batch(BATCH)
    model = compiled(Ragged())
    return results(model, trained(model, data))


@program
def strings():
    words = np.array([f"w{number % 7}" for number in range(UNEVEN)])
    lookup = layers.StringLookup(vocabulary=[f"w{number}" for number in range(7)])
    inputs = keras.Input([1], dtype="string")
    hidden = layers.Flatten()(layers.Embedding(8, 3)(lookup(inputs)))
    model = compiled(keras.Model(inputs, layers.Dense(1)(hidden)), optimizer=SGD(0.1))
    data = batches(words.reshape(-1, 1), numbers(UNEVEN)[1])
    return results(model, trained(model, data))


@program
def adapted_normalization():
    x, y = numbers(UNEVEN)
    normalization = layers.Normalization()
    normalization.adapt(x)
    model = keras.Sequential([keras.Input([6]), normalization, layers.Dense(1)])
    return results(model, trained(compiled(model), x, y, batch_size=BATCH))
