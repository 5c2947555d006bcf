"""The time of a step with keras.distribution, beside DistributedOptimizer, in paired turns.

    tf_hvd run --keras -np 2 python benchmarks/keras_distribution.py [--rows N] [--layers N]

Each turn is an epoch over data in memory, with the same rows on each rank in both ways. The time is
that from the first step's end to the last step's end. The ways alternate, and the order changes in
each turn. The result is the median of the ratios of each pair.
With --dropout, the model has Dropout layers, for which keras.distribution draws all ranks' numbers.
With --reader, a batch takes that many ms to read; keras.distribution reads whole batches.
"""

import argparse
import statistics
import time

import keras
import numpy as np
import tensorflow as tf

import tf_hvd as hvd

OPTIONS = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
OPTIONS.add_argument("--rows", type=int, default=64, help="rows per rank and step (default: 64)")
OPTIONS.add_argument("--layers", type=int, default=8, help="number of layers (default: 8)")
OPTIONS.add_argument("--width", type=int, default=512, help="units per layer (default: 512)")
OPTIONS.add_argument("--steps", type=int, default=50, help="steps per turn (default: 50)")
OPTIONS.add_argument("--turns", type=int, default=21, help="number of pairs (default: 21)")
OPTIONS.add_argument("--dropout", action="store_true", help="add a Dropout after each layer")
OPTIONS.add_argument(
    "--reader", type=float, default=0.0, help="ms per 1,000 rows read (default: 0)"
)


def make_model(options, optimizer):
    layers = [keras.Input([options.width])]
    for _ in range(options.layers):
        layers.append(keras.layers.Dense(options.width, activation="relu"))
        layers += [keras.layers.Dropout(0.1)] * options.dropout
    model = keras.Sequential([*layers, keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
    return model


def dataset(options, rows):
    """Batches of `rows` rows, from memory; reading a batch takes time if --reader is given."""
    x = np.random.default_rng(0).normal(size=(rows, options.width)).astype("float32")
    batch = tf.data.Dataset.from_tensors((x, x[:, :1])).cache()

    def read(*parts):
        time.sleep(options.reader * rows / 1e6)
        return parts

    repeated = batch.repeat(options.steps)
    if not options.reader:
        return repeated
    spec = batch.element_spec

    def slow(*parts):
        parts = tf.numpy_function(read, parts, [each.dtype for each in spec])
        return tuple(tf.ensure_shape(p, each.shape) for p, each in zip(parts, spec, strict=True))

    return repeated.map(slow).prefetch(2)


class Steps(keras.callbacks.Callback):
    """Measures the time from the end of the first step to the end of the last."""

    def on_epoch_begin(self, epoch, logs=None):
        self.ends = []

    def on_train_batch_end(self, batch, logs=None):
        self.ends.append(time.perf_counter())

    def per_step(self):
        return (self.ends[-1] - self.ends[0]) / (len(self.ends) - 1)


def main():
    options = OPTIONS.parse_args()
    keras.distribution.initialize()
    keras.utils.set_random_seed(1)
    parallel = keras.distribution.DataParallel()
    own = make_model(options, hvd.DistributedOptimizer(keras.optimizers.SGD(1e-4)))
    whole = make_model(options, keras.optimizers.SGD(1e-4))
    share = dataset(options, options.rows)
    batches = dataset(options, options.rows * hvd.size())

    def with_optimizer():
        steps = Steps()
        own.fit(share, verbose=0, callbacks=[steps])
        return steps.per_step()

    def with_distribution():
        steps = Steps()
        with parallel.scope():
            whole.fit(batches, verbose=0, callbacks=[steps])
        return steps.per_step()

    times = {with_optimizer: [], with_distribution: []}
    for turn in range(-2, options.turns):
        pair = [with_optimizer, with_distribution]
        for way in pair if turn % 2 else reversed(pair):
            hvd.barrier()
            taken = way()
            if turn >= 0:
                times[way].append(taken)
    ratios = [b / a for a, b in zip(times[with_optimizer], times[with_distribution], strict=True)]
    if hvd.rank() == 0:
        first, second = (statistics.median(each) * 1e3 for each in times.values())
        low, _, high = statistics.quantiles(ratios, n=4)
        print(
            f"{hvd.size()} ranks: DistributedOptimizer {first:.2f} ms, keras.distribution "
            f"{second:.2f} ms per step; ratio {statistics.median(ratios):.3f} (quartiles {low:.3f} "
            f"to {high:.3f})"
        )


if __name__ == "__main__":
    main()
