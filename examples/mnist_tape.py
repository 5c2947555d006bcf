# tf_hvd run -np 2 python examples/mnist_tape.py [--data DIR]
"""A convolutional network on handwritten digits, in a custom training loop."""

import digits_data
import tensorflow as tf
from absl import app, flags
from training_report import Report, digest

import tf_hvd as hvd

_DATA = flags.DEFINE_string(
    "data", None, "folder with MNIST's IDX files (default: use scikit-learn's digits)"
)
_EPOCHS = flags.DEFINE_integer(
    "epochs", None, "number of epochs (default: 5 for MNIST, 20 for the small digits)"
)
_BATCH = flags.DEFINE_integer("batch", 32, "images per rank and step")
_RATE = flags.DEFINE_float("rate", 0.002, "learning rate of one rank")


def make_model():
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.MaxPool2D(),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPool2D(),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10),
        ]
    )


def main(_):
    epochs = _EPOCHS.value or (5 if _DATA.value else 20)
    hvd.init()  # 1. Join the job.
    hvd.pin_gpu()
    hvd.set_random_seed(0)

    train, test = digits_data.load(_DATA.value)
    mine = (hvd.rank(), hvd.size())
    steps = digits_data.steps_per_epoch(train[0], _BATCH.value, hvd.size())
    model = make_model()
    optimizer = tf.keras.optimizers.Adam()
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def train_step(images, labels, rate):
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        tape = hvd.DistributedGradientTape(tape)  # 2. Average the gradients across all ranks.
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.learning_rate.assign(rate)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function(reduce_retracing=True)
    def count_hits(images, labels):
        return tf.math.count_nonzero(tf.argmax(model(images), axis=1) == labels)

    def test_accuracy():
        hits = sum(int(count_hits(*piece)) for piece in digits_data.pieces(*test, *mine))
        return int(hvd.allreduce(tf.constant(hits), op=hvd.Sum, name="hits")) / len(test[0])

    accuracy = 0.0
    with Report(*mine, epochs, steps, len(train[0])) as report:
        for epoch in range(epochs):
            losses = tf.constant(0.0)
            report.begin_epoch()
            for step, batch in enumerate(digits_data.batches(*train, _BATCH.value, epoch, *mine)):
                # 3. N ranks process N times as many images per step: N times the rate, reached
                # slowly.
                done = epoch + step / steps
                rate = _RATE.value * (1 + min(1, done) * (hvd.size() - 1))
                rate *= 1 - done / epochs
                losses += train_step(*batch, tf.constant(rate))
                if epoch == step == 0:  # 4. All variables exist now: copy rank 0's values.
                    hvd.broadcast_variables(model.variables + optimizer.variables, root_rank=0)
                report.step()
            mean = float(hvd.allreduce(losses / steps, name="loss"))
            report.end_epoch()
            accuracy = test_accuracy()
            report.tell(epoch, mean, accuracy)
    report.close(accuracy)
    variables = model.variables + optimizer.variables
    report.check_identical(hvd.allgather_object(digest(v.numpy() for v in variables)))


if __name__ == "__main__":
    app.run(main)
