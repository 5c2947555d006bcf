"""Programs with layers that depend on the whole batch, or draw random numbers."""

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
def batch_normalization():
    return fitted(compiled(dense(layers.BatchNormalization())))


@program
def uneven_batch_normalization():
    return fitted(compiled(dense(layers.BatchNormalization(), layers.Activation("relu"))), UNEVEN)


@program
def batch_normalization_with_empty_ranks():
    return fitted(compiled(dense(layers.BatchNormalization())), 49)


@program
def frozen_batch_normalization():
    frozen = layers.BatchNormalization(trainable=False)
    return fitted(compiled(dense(frozen)), UNEVEN)


@program
def masked_batch_normalization():
    x = np.random.default_rng(0).normal(size=(UNEVEN, 5, 3))
    x[::3, 3:] = 0
    model = keras.Sequential([
        keras.Input([5, 3]), layers.Masking(), layers.BatchNormalization(),
        layers.GlobalAveragePooling1D(), layers.Dense(1),
    ])  # fmt: skip
    return results(
        model, trained(compiled(model, optimizer=SGD(0.1)), batches(x, numbers(UNEVEN)[1]))
    )


@program
def dropout():
    return fitted(compiled(dense(layers.Dropout(0.4))))


@program
def uneven_dropout():
    return fitted(compiled(dense(layers.Dropout(0.4), layers.Dropout(0.2, seed=5))), UNEVEN)


@program
def spatial_dropout():
    x = np.random.default_rng(0).normal(size=(UNEVEN, 5, 3))
    model = keras.Sequential([
        keras.Input([5, 3]), layers.Conv1D(4, 2), layers.SpatialDropout1D(0.5),
        layers.Dropout(0.3, noise_shape=(None, 1, 4)), layers.Flatten(), layers.Dense(1),
    ])  # fmt: skip
    return results(model, trained(compiled(model), batches(x, numbers(UNEVEN)[1])))


@program
def noise():
    more = layers.GaussianNoise(0.1), layers.GaussianDropout(0.2), layers.AlphaDropout(0.2)
    return fitted(compiled(dense(*more)), UNEVEN)


@program
def images():
    x = np.random.default_rng(0).normal(size=(UNEVEN, 8, 8, 1))
    model = keras.Sequential([
        keras.Input([8, 8, 1]), layers.Conv2D(4, 3), layers.BatchNormalization(),
        layers.ReLU(), layers.MaxPooling2D(), layers.Flatten(), layers.Dropout(0.3),
        layers.Dense(3, activation="softmax"),
    ])  # fmt: skip
    compiled(model, "sparse_categorical_crossentropy", SGD(0.1), metrics=["accuracy"])
    return results(model, trained(model, batches(x, classes(UNEVEN)[1])))


@program
def augmented_images():
    x = np.random.default_rng(0).uniform(size=(UNEVEN, 8, 8, 3))
    model = keras.Sequential([
        keras.Input([8, 8, 3]), layers.RandomFlip(), layers.RandomTranslation(0.1, 0.1),
        layers.RandomBrightness(0.2, value_range=(0, 1)), layers.Flatten(), layers.Dense(1),
    ])  # fmt: skip
    return results(model, trained(compiled(model), batches(x, numbers(UNEVEN)[1])))


@program
def embedding():
    ids = np.random.default_rng(0).integers(0, 20, size=(UNEVEN, 4))
    model = keras.Sequential([
        keras.Input([4], dtype="int64"), layers.Embedding(20, 3), layers.Flatten(), layers.Dense(1),
    ])  # fmt: skip
    return results(
        model, trained(compiled(model, optimizer=SGD(0.1)), batches(ids, numbers(UNEVEN)[1]))
    )


@program
def embedding_with_adam():
    """Each index occurs once in a batch: Keras squares equal rows one by one."""
    generator = np.random.default_rng(0)
    ids = np.concatenate([generator.permutation(64)[:size] for size in (16, 16, 16, 13)])
    model = keras.Sequential([keras.Input([1], dtype="int64"), layers.Embedding(64, 3)])
    model.add(layers.Flatten())
    model.add(layers.Dense(1))
    data = batches(ids.reshape(-1, 1), numbers(UNEVEN)[1])
    return results(compiled(model), trained(model, data))


def _masked(rows, out, **options):
    ids = np.random.default_rng(0).integers(0, 9, size=(rows, 5))
    ids[np.arange(5) >= (np.arange(rows) % 5 + 1)[:, None]] = 0
    model = keras.Sequential([
        keras.Input([5], dtype="int64"), layers.Embedding(9, 4, mask_zero=True),
        layers.LSTM(4, return_sequences=True), layers.Dense(out),
    ])  # fmt: skip
    compiled(model, optimizer=SGD(0.1), **options)
    wanted = np.random.default_rng(1).normal(size=(rows, 5, out))
    return results(model, trained(model, batches(ids, wanted)))


@program
def masks():
    return _masked(EVEN, 1, metrics=["mae"])


@program
def uneven_masks():
    return _masked(UNEVEN, 1, metrics=["mae"])


@program
def masks_with_empty_ranks():
    return _masked(49, 2)


@program
def masked_sequences():
    x = np.random.default_rng(0).normal(size=(UNEVEN, 5, 3))
    x[::2, 2:] = 0
    model = keras.Sequential([
        keras.Input([5, 3]), layers.Masking(), layers.Bidirectional(layers.GRU(3)), layers.Dense(1),
    ])  # fmt: skip
    return results(model, trained(compiled(model), batches(x, numbers(UNEVEN)[1])))


@program
def attention():
    x = np.random.default_rng(0).normal(size=(UNEVEN, 5, 4))
    inputs = keras.Input([5, 4])
    hidden = layers.MultiHeadAttention(2, 3, dropout=0.1)(inputs, inputs)
    hidden = layers.LayerNormalization()(layers.Add()([inputs, hidden]))
    outputs = layers.Dense(1)(layers.GlobalMaxPooling1D()(hidden))
    model = compiled(keras.Model(inputs, outputs), optimizer=SGD(0.1))
    return results(model, trained(model, batches(x, numbers(UNEVEN)[1])))


@program
def shared_layers():
    x, y = numbers(UNEVEN)
    shared = layers.Dense(4, activation="relu")
    first, second = keras.Input([6]), keras.Input([6])
    outputs = layers.Dense(1)(layers.Subtract()([shared(first), shared(second)]))
    model = compiled(keras.Model([first, second], outputs))
    data = tf.data.Dataset.from_tensor_slices(((x, x[::-1]), y)).batch(BATCH)
    return results(model, trained(model, data))
