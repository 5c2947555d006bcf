# tf_hvd run -np 2 python examples/mnist_keras.py [--data DIR] [--checkpoint FILE.keras]
"""A convolutional network on handwritten digits with Keras 3's `model.fit`."""

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
    "epochs", None, "number of epochs (default: 5 for MNIST, 20 for the small digits)"
)
_BATCH = flags.DEFINE_integer("batch", 32, "images per rank and step")
_RATE = flags.DEFINE_float("rate", 0.002, "learning rate of one rank")
_CHECKPOINT = flags.DEFINE_string("checkpoint", None, "file in which rank 0 saves the best model")


def make_model(shape):
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input(shape),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.MaxPool2D(),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPool2D(),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10),
        ]
    )


def make_dataset(images, labels, batch):
    """This rank's share of the images, reshuffled in each epoch."""
    dataset = tf.data.Dataset.from_tensor_slices((images, labels))
    share = hvd.shard(dataset)  # 2. Each rank takes its share and shuffles it.
    return share.shuffle(len(images)).batch(batch)


def main(_):
    epochs = _EPOCHS.value or (5 if _DATA.value else 20)
    hvd.init()  # 1. Join the job.
    hvd.pin_gpu()
    hvd.set_random_seed(0)

    (images, labels), test = digits_data.load(_DATA.value)
    dataset = make_dataset(images, labels, _BATCH.value)

    model = make_model(images.shape[1:])
    rate = _RATE.value * hvd.size()  # 3. N times the images per step: N times the rate.
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(rate))  # 4. Average the gradients.
    model.compile(
        optimizer=optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    used = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),  # 5. Start the same on all ranks.
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(
            rate, warmup_epochs=1
        ),  # 3. Reach the rate slowly.
        hvd.callbacks.LearningRateScheduleCallback(
            rate, lambda epoch: 1 - epoch / epochs, start_epoch=1
        ),
        hvd.callbacks.ProgbarLogger(),
    ]
    if _CHECKPOINT.value:
        used.append(
            hvd.callbacks.ModelCheckpoint(_CHECKPOINT.value, monitor="loss", save_best_only=True)
        )
    model.fit(dataset, epochs=epochs, callbacks=used, verbose=0)

    hits = digits_data.count_hits(model.predict_on_batch, *test, hvd.rank(), hvd.size())
    hits = int(hvd.allreduce(tf.constant(hits), op=hvd.Sum, name="hits"))
    digests = hvd.allgather_object(digest(v.numpy() for v in model.weights + optimizer.variables))
    say_result(hvd.rank(), hits / len(test[0]), digests)


if __name__ == "__main__":
    app.run(main)
