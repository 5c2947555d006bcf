"""Uses of keras.distribution that are errors on all ranks; run on 2 ranks with `--keras`."""

import os
import sys

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np
import tensorflow as tf

import tf_hvd as hvd

CASES = {}
distribution = keras.distribution


def case(text):
    def add(function):
        CASES[function.__name__] = (function, text)
        return function

    return add


def model(optimizer="sgd", kind=keras.Sequential, **options):
    made = kind([keras.Input([3]), keras.layers.Dense(1, name="head")])
    made.compile(optimizer, "mse", **options)
    return made


def data(seed=0, rows=20):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 3)).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(8)


def fit(made, *args, **options):
    distribution.set_distribution(distribution.DataParallel())
    made.fit(*args, verbose=0, **options)


@case("called on rank 1 of 2")
def number_of_another_process():
    distribution.initialize(process_id=0)


@case("num_processes=4")
def number_of_processes():
    distribution.initialize(num_processes=4)


@case("rows differ on rank 1")
def other_data():
    fit(model(), data(seed=hvd.rank()))


@case("rows differ on rank 1")
def other_data_in_the_last_batch():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(72, 3)).astype("float32")
    x[-3] += hvd.rank()
    fit(model(), x, x[:, :1], batch_size=8, shuffle=False)


@case("rows differ on rank 1")
def other_data_in_evaluate():
    distribution.set_distribution(distribution.DataParallel())
    model().evaluate(data(seed=hvd.rank()), verbose=0)


@case("read different global batches in predict")
def other_data_in_predict():
    distribution.set_distribution(distribution.DataParallel())
    model().predict(data(seed=hvd.rank()).map(lambda x, y: x), verbose=0)


@case("different numbers of batches")
def other_number_of_batches():
    fit(model(), data(rows=20 + 8 * hvd.rank()))


@case("different numbers of steps")
def other_number_of_batches_in_evaluate():
    distribution.set_distribution(distribution.DataParallel())
    model().evaluate(data(rows=20 + 8 * hvd.rank()), verbose=0)


class Taped(keras.Sequential):
    def train_step(self, batch):
        x, y = batch
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = keras.ops.mean((self(x) - y) ** 2)
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


@case("Use tf.GradientTape instead of DistributedGradientTape")
def distributed_tape():
    fit(model(kind=Taped), data())


@case("Use tf.GradientTape instead of DistributedGradientTape")
def distributed_tape_in_eager_mode():
    fit(model(kind=Taped, run_eagerly=True), data())


@case("Pass the whole dataset")
def shard():
    distribution.set_distribution(distribution.DataParallel())
    hvd.shard(data())


@case("Pass the whole dataset to fit")
def elastic_sampler():
    distribution.set_distribution(distribution.DataParallel())
    hvd.elastic.ElasticSampler(20, 4).dataset()


@case("")
def elastic_sampler_of_each_rank():
    distribution.set_distribution(distribution.DataParallel(auto_shard_dataset=False))
    hvd.elastic.ElasticSampler(20, 4).weighted_dataset()


@case("do not shard the data")
def sharded_before():
    share = hvd.shard(data().unbatch()).batch(4)
    fit(model(), share)


@case("Call it instead of hvd.evaluate")
def evaluate():
    distribution.set_distribution(distribution.DataParallel())
    hvd.evaluate(model(), data())


class Running(keras.layers.Layer):
    def build(self, shape):
        self.mean = self.add_weight(shape=shape[1:], trainable=False, name="mean")

    def call(self, x):
        self.mean.assign(0.9 * self.mean + 0.1 * keras.ops.mean(x, axis=0))
        return x - self.mean


@case("running/mean, because a layer has assigned them")
def layer_with_a_state_of_its_rows():
    made = keras.Sequential([keras.Input([3]), Running(name="running"), keras.layers.Dense(1)])
    made.compile("sgd", "mse")
    fit(made, data())


@case("Set a distribution after keras.distribution.initialize()")
def no_distribution():
    distribution.set_distribution(None)
    model().fit(data(), verbose=0)


@case("a distribution averages gradients")
def sum_of_gradients():
    fit(model(hvd.DistributedOptimizer(keras.optimizers.SGD(), op=hvd.Sum)), data())


@case("has a process set")
def process_set():
    both = hvd.add_process_set([0])
    try:
        fit(model(hvd.DistributedOptimizer(keras.optimizers.SGD(), process_set=both)), data())
    finally:
        hvd.remove_process_set(both)


@case("the device mesh has 1 devices, but the job has 2 ranks")
def one_device():
    distribution.set_distribution(distribution.DataParallel(devices=["cpu:0"]))
    model().fit(data(), verbose=0)


def _layouts(shape, axes):
    mesh = distribution.DeviceMesh(shape, ["batch", "model"], distribution.list_devices())
    layouts = distribution.LayoutMap(mesh)
    layouts[".*kernel"] = axes
    return distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch")


@case("head/kernel over axes ('model', None)")
def sharded_kernel():
    distribution.set_distribution(_layouts((1, 2), ("model", None)))
    model().fit(data(), verbose=0)


@case("divides only the batch")
def other_axis():
    distribution.set_distribution(_layouts((1, 2), (None, None)))
    model().fit(data(), verbose=0)


@case("")
def replicated_layouts():
    distribution.set_distribution(_layouts((2, 1), (None, None)))
    made = model()
    made.fit(data(), verbose=0)
    hvd.check_weights(made)


def main():
    distribution.initialize()
    wrong = []
    for name, (function, text) in CASES.items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        said = ""
        try:
            function()
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        finally:
            distribution.set_distribution(None)
        if text not in said or bool(text) != bool(said):
            wrong.append(f"{name}: {said or 'no error'}")
        everyone = hvd.allgather_object(said)  # nothing is left behind on any rank
        if len({text in each for each in everyone}) > 1:
            wrong.append(f"{name}: {everyone}")
    print("\n".join(wrong) or "all refused")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
