# tf_hvd run -np 2 python examples/mnist_session.py [--data DIR] [--checkpoints DIR]
"""A convolutional network on handwritten digits, as a graph in a MonitoredTrainingSession."""

import os

import digits_data
import tensorflow as tf
from absl import app, flags
from training_report import Report, digest

import tf_hvd as hvd

v1 = tf.compat.v1


_DATA = flags.DEFINE_string(
    "data", None, "folder with MNIST's IDX files (default: use scikit-learn's digits)"
)
_EPOCHS = flags.DEFINE_integer(
    "epochs", None, "number of epochs (default: 5 for MNIST, 20 for the small digits)"
)
_BATCH = flags.DEFINE_integer("batch", 32, "images per rank and step")
_RATE = flags.DEFINE_float("rate", 0.03, "learning rate of one rank")
_CHECKPOINTS = flags.DEFINE_string(
    "checkpoints", None, "folder to save checkpoints to and to resume from"
)


def layer(name, inputs, shape, apply):
    """relu(apply(inputs, weights) + bias) with He's initial weights."""
    deviation = (2 / (shape[-2] * (9 if len(shape) == 4 else 1))) ** 0.5
    weights = v1.get_variable(
        f"{name}/weights", shape, initializer=v1.random_normal_initializer(0, deviation)
    )
    bias = v1.get_variable(f"{name}/bias", shape[-1:], initializer=v1.zeros_initializer())
    return apply(inputs, weights) + bias


def make_model(images):
    def convolve(x, weights):
        return tf.nn.conv2d(x, weights, strides=1, padding="SAME")

    x = images
    for index, (depth, width) in enumerate([(1, 16), (16, 32)]):
        x = tf.nn.relu(layer(f"conv{index}", x, [3, 3, depth, width], convolve))
        x = tf.nn.max_pool2d(x, 2, 2, "VALID")
    count = int(x.shape[1] * x.shape[2] * x.shape[3])
    x = tf.nn.relu(layer("dense", tf.reshape(x, [-1, count]), [count, 64], tf.matmul))
    return layer("logits", x, [64, 10], tf.matmul)


def main(_):
    epochs = _EPOCHS.value or (5 if _DATA.value else 20)
    hvd.init()  # 1. Join the job.
    train, test = digits_data.load(_DATA.value)
    mine = (hvd.rank(), hvd.size())
    steps = digits_data.steps_per_epoch(train[0], _BATCH.value, hvd.size())

    v1.disable_eager_execution()
    v1.logging.set_verbosity(v1.logging.ERROR)
    v1.set_random_seed(hvd.rank())
    images = v1.placeholder(tf.float32, [None, *train[0].shape[1:]])
    labels = v1.placeholder(tf.int64, [None])
    logits = make_model(images)
    loss = v1.losses.sparse_softmax_cross_entropy(labels, logits)
    hits = tf.math.count_nonzero(tf.equal(tf.argmax(logits, axis=1), labels))

    # 2. N ranks process N times as many images per step: N times the rate, reached slowly.
    global_step = v1.train.get_or_create_global_step()
    done = tf.cast(global_step, tf.float32) / steps
    rate = _RATE.value * (1 + tf.minimum(1.0, done) * (hvd.size() - 1))
    rate *= 1 - done / epochs
    optimizer = v1.train.AdagradOptimizer(rate)
    optimizer = hvd.DistributedOptimizer(optimizer)  # 3. Average the gradients across all ranks.
    train_step = optimizer.minimize(loss, global_step=global_step)

    mean_in, hits_in = v1.placeholder(tf.float32), v1.placeholder(tf.int64)
    means = hvd.allreduce(mean_in, name="loss"), hvd.allreduce(hits_in, op=hvd.Sum, name="hits")
    variables = v1.global_variables()
    threads = max(1, os.cpu_count() // hvd.local_size())
    # On GPUs, each rank uses one.
    gpus = max(1, len(tf.config.list_physical_devices("GPU")))
    session = v1.train.MonitoredTrainingSession(
        # 4. Only rank 0 writes; its initial values, new or restored, go to all ranks.
        checkpoint_dir=_CHECKPOINTS.value if hvd.rank() == 0 else None,
        hooks=[hvd.BroadcastGlobalVariablesHook(0)],
        config=v1.ConfigProto(
            intra_op_parallelism_threads=threads,
            inter_op_parallelism_threads=threads,
            gpu_options=v1.GPUOptions(visible_device_list=str(hvd.local_rank() % gpus)),
        ),
    )
    with session, Report(*mine, epochs, steps, len(train[0])) as report:

        def feed(batch):
            return dict(zip((images, labels), batch, strict=True))

        def evaluate(mean):
            found = sum(session.run(hits, feed(p)) for p in digits_data.pieces(*test, *mine))
            mean, found = session.run(means, {mean_in: mean, hits_in: found})
            return mean, found / len(test[0])

        for epoch in range(session.run(global_step) // steps, epochs):
            losses = 0.0
            report.begin_epoch()
            for batch in digits_data.batches(*train, _BATCH.value, epoch, *mine):
                losses += session.run([train_step, loss], feed(batch))[1]
                report.step()
            report.end_epoch()
            report.tell(epoch, *evaluate(losses / steps))
        accuracy = evaluate(0.0)[1]
        mine_now = digest(session.run(variables))
    report.close(accuracy)
    report.check_identical(hvd.allgather_object(mine_now))


if __name__ == "__main__":
    app.run(main)
