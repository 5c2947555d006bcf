# tf_hvd run -np 2 python examples/mnist_keras_advanced.py [--data DIR]
"""More features of `model.fit` on several ranks.

- augmented images
- batch normalization across all ranks' batches
- gradients sent at half size
- SGD with momentum on a schedule
- early stopping at the same epoch on all ranks
"""

import digits_data
import keras
import tensorflow as tf
from absl import app, flags
from training_report import digest, say_result

import tf_hvd as hvd

_DATA = flags.DEFINE_string(
    "data", None, "folder with MNIST's IDX files (default: use scikit-learn's digits)"
)
_EPOCHS = flags.DEFINE_integer(
    "epochs", None, "number of epochs (default: 8 for MNIST, 30 for the small digits)"
)
_BATCH = flags.DEFINE_integer("batch", 32, "images per rank and step")
_RATE = flags.DEFINE_float("rate", 0.03, "learning rate of one rank")


def make_model(shape):
    layers = keras.layers

    def block(filters):
        return [
            layers.Conv2D(filters, 3, padding="same", use_bias=False),
            hvd.SyncBatchNormalization(),
            layers.ReLU(),
            layers.MaxPool2D(),
        ]

    return keras.Sequential(
        [
            layers.Input(shape),
            *block(16),
            *block(32),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dropout(0.2),
            layers.Dense(10),
        ]
    )


def make_dataset(images, labels, batch):
    """This rank's share, augmented: each rank shifts and rotates its images differently."""
    augment = keras.Sequential(
        [
            keras.layers.RandomTranslation(0.08, 0.08, fill_mode="constant"),
            keras.layers.RandomRotation(0.03, fill_mode="constant"),
        ]
    )
    dataset = hvd.shard(tf.data.Dataset.from_tensor_slices((images, labels)))
    dataset = dataset.shuffle(len(images)).batch(batch)
    return dataset.map(lambda x, y: (augment(x, training=True), y)).prefetch(2)


def main(_):
    epochs = _EPOCHS.value or (8 if _DATA.value else 30)
    hvd.init()
    hvd.pin_gpu()
    hvd.set_random_seed(0)

    (images, labels), test = digits_data.load(_DATA.value)
    model = make_model(images.shape[1:])
    rate = _RATE.value * hvd.size()
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(rate, momentum=0.9), compression=hvd.Compression.fp16
    )
    model.compile(
        optimizer=optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(
        make_dataset(images, labels, _BATCH.value),
        epochs=epochs,
        verbose=0,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
            hvd.callbacks.LearningRateWarmupCallback(rate, warmup_epochs=2),
            hvd.callbacks.LearningRateScheduleCallback(
                rate,
                lambda epoch: 1 - epoch / epochs,
                start_epoch=2,
                staircase=False,
            ),
            hvd.callbacks.EarlyStopping(monitor="loss", patience=5),
            hvd.callbacks.ProgbarLogger(),
        ],
    )
    hits = digits_data.count_hits(model.predict_on_batch, *test, hvd.rank(), hvd.size())
    hits = int(hvd.allreduce(tf.constant(hits), op=hvd.Sum, name="hits"))
    digests = hvd.allgather_object(digest(v.numpy() for v in model.weights + optimizer.variables))
    say_result(hvd.rank(), hits / len(test[0]), digests)


if __name__ == "__main__":
    app.run(main)
