"""Programs with models as users build them: several optimizers, several outputs, known designs."""

import keras
import numpy as np
import tensorflow as tf
from common import (
    BATCH,
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


class TwoOptimizers(keras.Model):
    """One tape, and an optimizer for each of two groups of variables."""

    def __init__(self):
        super().__init__()
        self.hidden, self.head = layers.Dense(5, activation="tanh"), layers.Dense(1)

    def call(self, x):
        return self.head(self.hidden(x))

    def compile(self, first, second, **options):
        super().compile(**options)
        self.first, self.second = first, second

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = self.compute_loss(x, y, predicted)
        groups = self.hidden.trainable_variables, self.head.trainable_variables
        gradients = tape.gradient(loss, groups)
        for optimizer, found, group in zip(
            (self.first, self.second), gradients, groups, strict=True
        ):
            optimizer.apply(found, group)
        return self.compute_metrics(x, y, predicted)


@program
def optimizers_of_two_groups():
    model = TwoOptimizers()
    model.compile(keras.optimizers.Adam(0.01), SGD(0.05), loss="mse", metrics=["mae"])
    return fitted(model, UNEVEN)


@program
def multi_optimizer():
    hidden = layers.Dense(4, activation="tanh", name="other")
    table = keras.optimizers.OptimizerMap(keras.optimizers.Adam(0.01))
    table["other/.*"] = SGD(0.05, momentum=0.9)
    optimizer = keras.optimizers.MultiOptimizer(table)
    return fitted(compiled(dense(hidden), optimizer=optimizer), UNEVEN)


@program
def outputs_with_sample_weights():
    x, y = numbers(UNEVEN)
    inputs = keras.Input([6])
    hidden = layers.Dense(4, activation="tanh")(inputs)
    outputs = [layers.Dense(1, name="a")(hidden), layers.Dense(1, name="b")(hidden)]
    model = keras.Model(inputs, outputs)
    model.compile(
        keras.optimizers.Adam(0.01), ["mse", "huber"], loss_weights=[1.0, 0.3],
        metrics=[["mae"], ["mse"]], weighted_metrics=[["mse"], ["mae"]],
    )  # fmt: skip
    weights = np.linspace(0.0, 2.0, UNEVEN), np.linspace(1.5, 0.2, UNEVEN)
    data = batches(x, (y, y**2), weights)
    history = trained(model, data)
    return results(model, history, evaluated=model.evaluate(data, verbose=0))


@program
def losses_of_many_kinds():
    x, y = classes(UNEVEN)
    wanted = keras.utils.to_categorical(y, 3)
    kinds = [
        "mae", "msle", "log_cosh", "poisson", "kl_divergence", "categorical_focal_crossentropy",
        "cosine_similarity", "categorical_hinge", "squared_hinge", "binary_focal_crossentropy",
    ]  # fmt: skip
    inputs = keras.Input([6])
    outputs = {kind: layers.Dense(3, activation="softmax", name=kind)(inputs) for kind in kinds}
    model = keras.Model(inputs, outputs)
    model.compile(SGD(0.05), {kind: kind for kind in kinds})
    data = batches(x, dict.fromkeys(kinds, wanted))
    return results(model, trained(model, data))


def _block(hidden, mask=None, causal=False):
    """A block of a transformer."""
    attention = layers.MultiHeadAttention(2, 4, dropout=0.1)
    found = attention(hidden, hidden, attention_mask=mask, use_causal_mask=causal)
    hidden = layers.LayerNormalization()(hidden + layers.Dropout(0.1)(found))
    found = layers.Dense(8)(layers.Dense(16, activation="gelu")(hidden))
    return layers.LayerNormalization()(hidden + layers.Dropout(0.1)(found))


class Positions(layers.Layer):
    """Embeddings of tokens and of their positions."""

    def __init__(self, words, length, width, **options):
        super().__init__()
        self.supports_masking = True
        self.tokens = layers.Embedding(words, width, **options)
        self.places = layers.Embedding(length, width)

    def call(self, ids):
        return self.tokens(ids) + self.places(keras.ops.arange(keras.ops.shape(ids)[1]))

    def compute_mask(self, ids, mask=None):
        return self.tokens.compute_mask(ids)


@program
def transformer_decoder():
    ids = np.random.default_rng(0).integers(0, 11, size=(UNEVEN, 7))
    inputs = keras.Input([6], dtype="int64")
    hidden = Positions(11, 6, 8)(inputs)
    for _ in range(2):
        hidden = _block(hidden, causal=True)
    model = keras.Model(inputs, layers.Dense(11)(hidden))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    compiled(model, loss, SGD(0.1), metrics=["accuracy"])
    return results(model, trained(model, batches(ids[:, :-1], ids[:, 1:])))


@program
def transformer_encoder():
    ids = np.random.default_rng(0).integers(1, 11, size=(UNEVEN, 6))
    ids[np.arange(6) > (np.arange(UNEVEN) % 5 + 1)[:, None]] = 0
    inputs = keras.Input([6], dtype="int64")
    hidden = _block(Positions(11, 6, 8, mask_zero=True)(inputs))
    model = keras.Model(inputs, layers.Dense(1)(layers.GlobalAveragePooling1D()(hidden)))
    compiled(model, optimizer=SGD(0.1), metrics=["mae"])
    return results(model, trained(model, batches(ids, numbers(UNEVEN)[1])))


def _images(rows=UNEVEN):
    return np.random.default_rng(0).normal(size=(rows, 8, 8, 2))


@program
def residual_network():
    inputs = keras.Input([8, 8, 2])
    hidden = layers.Conv2D(4, 3, padding="same", use_bias=False)(inputs)
    for strides in (1, 2):
        before = layers.Conv2D(4, 1, strides=strides)(hidden)
        for step in (strides, 1):
            hidden = layers.Conv2D(4, 3, step, padding="same", use_bias=False)(hidden)
            hidden = layers.ReLU()(layers.BatchNormalization()(hidden))
        hidden = layers.Add()([hidden, before])
    outputs = layers.Dense(3, activation="softmax")(layers.GlobalAveragePooling2D()(hidden))
    model = keras.Model(inputs, outputs)
    compiled(model, "sparse_categorical_crossentropy", metrics=["accuracy"])
    wanted = classes(UNEVEN)[1]
    history = trained(model, batches(_images(), wanted))
    return results(model, history, evaluated=model.evaluate(_images(), wanted, verbose=0))


@program
def convolutional_autoencoder():
    x = _images()
    model = keras.Sequential([
        keras.Input([8, 8, 2]),
        layers.SeparableConv2D(4, 3, strides=2, padding="same", activation="relu"),
        layers.GroupNormalization(2), layers.GaussianNoise(0.1),
        layers.Conv2DTranspose(3, 3, strides=2, padding="same", activation="relu"),
        layers.SpectralNormalization(layers.Conv2D(2, 3, padding="same")),
    ])  # fmt: skip
    return results(model, trained(compiled(model), batches(x, x)))


def _sequences():
    return np.random.default_rng(0).normal(size=(UNEVEN, 5, 3))


@program
def recurrent_layers():
    model = keras.Sequential([
        keras.Input([5, 3]), layers.Bidirectional(layers.LSTM(3, return_sequences=True)),
        layers.GRU(4, return_sequences=True, dropout=0.2, recurrent_dropout=0.2, seed=3),
        layers.RNN([layers.LSTMCell(3), layers.GRUCell(2)]), layers.Dense(1),
    ])  # fmt: skip
    return results(model, trained(compiled(model), batches(_sequences(), numbers(UNEVEN)[1])))


@program
def states_of_a_recurrent_encoder():
    x = _sequences()
    encoder, decoder = keras.Input([5, 3]), keras.Input([4, 3])
    _, *states = layers.LSTM(4, return_state=True)(encoder)
    hidden = layers.LSTM(4, return_sequences=True)(decoder, initial_state=states)
    model = compiled(keras.Model([encoder, decoder], layers.Dense(3)(hidden)))
    return results(model, trained(model, batches((x, x[:, :-1]), x[:, 1:])))


@program
def convolutional_recurrent_layer():
    x = np.random.default_rng(0).normal(size=(UNEVEN, 3, 4, 4, 1))
    model = keras.Sequential([
        keras.Input([3, 4, 4, 1]), layers.ConvLSTM2D(2, 3, padding="same"),
        layers.BatchNormalization(), layers.Flatten(), layers.Dense(1),
    ])  # fmt: skip
    return results(model, trained(compiled(model), batches(x, numbers(UNEVEN)[1])))


@program
def time_distributed_layers():
    normalized = layers.Dense(4, use_bias=False), layers.BatchNormalization()
    inner = keras.Sequential([*normalized, layers.ReLU()])
    model = keras.Sequential([
        keras.Input([5, 3]), layers.TimeDistributed(inner),
        layers.TimeDistributed(layers.Dropout(0.2)), layers.LSTM(3), layers.Dense(1),
    ])  # fmt: skip
    return results(model, trained(compiled(model), batches(_sequences(), numbers(UNEVEN)[1])))


@program
def weights_of_three_classes():
    """The last batch has one row, so a rank has none."""
    model = keras.Sequential([dense(out=3), layers.Softmax()])
    compiled(model, "sparse_categorical_crossentropy", weighted_metrics=["accuracy"])
    data = batches(*classes(49))
    return results(model, trained(model, data, class_weight={0: 0.5, 1: 2.0, 2: 1.5}))


class Within(keras.metrics.Metric):
    """The part of the rows with an error below a limit."""

    def __init__(self, limit, **options):
        super().__init__(**options)
        self.limit = limit
        self.near = self.add_weight(name="near", initializer="zeros")
        self.rows = self.add_weight(name="rows", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        near = keras.ops.cast(keras.ops.abs(y_true - y_pred) < self.limit, self.dtype)
        weights = keras.ops.ones_like(near)
        if sample_weight is not None:
            weights = keras.ops.reshape(keras.ops.cast(sample_weight, self.dtype), (-1, 1))
        self.near.assign_add(keras.ops.sum(near * weights))
        self.rows.assign_add(keras.ops.sum(weights))

    def result(self):
        return self.near / (self.rows + 1e-9)


@program
def own_metric():
    x, y = numbers(UNEVEN)
    chosen = {"metrics": [Within(1.0, name="one")], "weighted_metrics": [Within(2.0, name="two")]}
    model = compiled(dense(), **chosen)
    data = batches(x, y, np.linspace(0.0, 2.0, UNEVEN))
    history = trained(model, data, validation_data=data)
    return results(model, history, evaluated=model.evaluate(data, verbose=0))


@program
def fine_tuning():
    """A part of a trained model is frozen, and the model is compiled again."""
    normalized = layers.Dense(5, use_bias=False), layers.BatchNormalization()
    base = keras.Sequential([keras.Input([6]), *normalized])
    model = compiled(keras.Sequential([base, layers.Dropout(0.2), layers.Dense(1)]))
    x, y = numbers(UNEVEN)
    trained(model, x, y, batch_size=BATCH)
    base.trainable = False
    compiled(model, optimizer=SGD(0.05), metrics=["mae"])
    return results(model, trained(model, x, y, batch_size=BATCH))


@program
def low_rank_adaptation():
    hidden = layers.Dense(6, activation="relu")
    model = compiled(dense(hidden))
    x, y = numbers(UNEVEN)
    trained(model, x, y, batch_size=BATCH)
    hidden.enable_lora(2)
    return results(model, trained(compiled(model), x, y, batch_size=BATCH))


@program
def distillation():
    x, y = classes(UNEVEN)
    teacher, student = dense(out=3), dense(layers.Dense(2), out=3)
    cost = keras.distillation.LogitsDistillation(temperature=2.0)
    model = keras.distillation.Distiller(teacher, student, cost)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    return results(model, trained(model, batches(x, y)))
