"""keras.distribution together with tf_hvd's own API; run on 2 ranks. Each function asserts."""

import os
import pathlib
import sys
import tempfile
import traceback

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np
import tensorflow as tf

import tf_hvd as hvd

CASES = []
distribution = keras.distribution
ROWS, BATCH = 61, 16


def case(function):
    CASES.append(function)
    return function


def arrays():
    x = np.random.default_rng(0).normal(size=(ROWS, 3))
    return x, x[:, :1] ** 2


def model(optimizer=None, **options):
    keras.utils.set_random_seed(3)
    made = keras.Sequential([
        keras.Input([3]), keras.layers.Dense(4, activation="tanh"),
        keras.layers.BatchNormalization(), keras.layers.Dropout(0.2), keras.layers.Dense(1),
    ])  # fmt: skip
    made.compile(optimizer or keras.optimizers.Adam(0.01), "mse", metrics=["mae"], **options)
    return made


def weights(made):
    return np.concatenate([np.ravel(w) for w in made.get_weights()])


def dataset(rank=None):
    """The global batches, or the rows of each that belong to a rank of 2."""
    x, y = arrays()
    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)

    def rows(*batch):
        total = tf.shape(batch[0])[0]
        return tuple(each[rank * total // 2 : (rank + 1) * total // 2] for each in batch)

    return batches if rank is None else batches.map(rows)


def global_run():
    with distribution.DataParallel().scope():
        made = model()
        history = made.fit(dataset(), epochs=2, verbose=0).history
        return made, history


def close(one, other):
    np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)


@case
def own_rows():
    own = distribution.DataParallel(auto_shard_dataset=False)
    expected, logs = global_run()
    mine = dataset(hvd.rank())
    with own.scope():
        made = model()
        history = made.fit(mine, epochs=2, verbose=0).history
        evaluated = made.evaluate(mine, verbose=0)
    close(weights(made), weights(expected))
    close(history["loss"], logs["loss"])
    with distribution.DataParallel().scope():
        close(evaluated, expected.evaluate(dataset(), verbose=0))


@case
def own_rows_of_several_lengths_are_evaluated():
    x, y = arrays()
    mine = slice(0, 40) if hvd.rank() == 0 else slice(40, None)
    made = model()
    with distribution.DataParallel(auto_shard_dataset=False).scope():
        found = made.evaluate(x[mine], y[mine], batch_size=8, verbose=0)
    with hvd.unguarded():
        close(found, made.evaluate(x, y, batch_size=8, verbose=0))


@case
def users_distributed_optimizer():
    expected, _ = global_run()
    with distribution.DataParallel().scope():
        made = model(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)))
        made.fit(dataset(), epochs=2, verbose=0)
    close(weights(made), weights(expected))


@case
def distribution_is_removed():
    """The optimizer is then plain again, and each rank trains alone, if the program wants it."""
    made, _ = global_run()
    x, y = arrays()
    with hvd.unguarded():
        made.fit(x + hvd.rank(), y, verbose=0)
    one, other = hvd.allgather_object(weights(made))
    assert (one != other).any()
    with distribution.DataParallel().scope():
        made.fit(dataset(), verbose=0)
    one, other = hvd.allgather_object(weights(made))
    assert (one == other).all()


@case
def seeds_of_each_rank():
    """hvd.set_random_seed gives layers their own seeds; a distribution needs equal ones."""
    expected, _ = global_run()
    hvd.set_random_seed(3)
    tf.random.set_seed(3)
    made = keras.models.clone_model(expected)
    made.compile(keras.optimizers.Adam(0.01), "mse")
    with distribution.DataParallel().scope():
        made.fit(dataset(), verbose=0)
    everyone = hvd.allgather_object(weights(made))
    close(everyone[0], everyone[1])


@case
def files_are_written_once():
    folder = pathlib.Path(hvd.broadcast_object(tempfile.mkdtemp(), 0))
    made = model()
    with distribution.DataParallel().scope():
        callbacks = [
            keras.callbacks.ModelCheckpoint(folder / "best.keras"),
            keras.callbacks.CSVLogger(folder / "log.csv"),
            keras.callbacks.TensorBoard(folder / "events"),
            keras.callbacks.BackupAndRestore(folder / "backup"),
        ]
        made.fit(dataset(), epochs=2, verbose=0, callbacks=callbacks)
        made.save(folder / "all.keras")
    hvd.barrier()
    assert len((folder / "log.csv").read_text().splitlines()) == 3
    close(weights(keras.models.load_model(folder / "all.keras")), weights(made))
    close(weights(keras.models.load_model(folder / "best.keras")), weights(made))
    written = [name for name in os.listdir(folder / "events" / "train") if "events" in name]
    assert len(written) == 1, written


@case
def model_saved_by_all_ranks_to_one_path():
    """Ranks that write one file at the same time had damaged it (Bad CRC-32)."""
    folder = pathlib.Path(hvd.broadcast_object(tempfile.mkdtemp(), 0))
    made = model()
    with distribution.DataParallel().scope():
        made.fit(dataset(), verbose=0)
        for _ in range(10):
            made.save(folder / "model.keras")
            close(weights(keras.models.load_model(folder / "model.keras")), weights(made))
            made.save_weights(folder / "model.weights.h5")
            made.load_weights(folder / "model.weights.h5")
        if hvd.rank() == 0:
            made.save(folder / "root.h5")
            made.save(folder / "folder", zipped=False)
    hvd.barrier()
    names = {"model.keras", "model.weights.h5", "root.h5", "folder"}
    assert set(os.listdir(folder)) == names


@case
def on_batches_with_own_rows():
    x, y = arrays()
    expected, made = (model(keras.optimizers.SGD(0.1)) for _ in range(2))
    with distribution.DataParallel().scope():
        loss = expected.train_on_batch(x, y)
        tested = expected.test_on_batch(x, y)
    mine = slice(0, 7) if hvd.rank() == 0 else slice(7, None)
    with distribution.DataParallel(auto_shard_dataset=False).scope():
        made.train_on_batch(x[mine], y[mine])
        predicted = made.predict_on_batch(x[mine])
    assert len(predicted) == ROWS
    close(weights(made), weights(expected))
    assert np.isfinite(loss).all()
    assert np.isfinite(tested).all()


@case
def keras_test_of_the_dataset():
    """As test_dataset_distribution_data_parallel of Keras' JAX backend."""
    batch, ranks = 8, hvd.size()
    parallel = distribution.DataParallel(devices=distribution.list_devices())
    found = list(parallel.distribute_dataset(tf.data.Dataset.range(4 * batch).batch(batch)))
    first = np.arange(batch // ranks) + hvd.rank() * batch // ranks
    assert [each.numpy().tolist() for each in found] == [
        (first + number * batch).tolist() for number in range(4)
    ]


@case
def keras_test_from_end_to_end():
    """As test_e2e_data_parallel_model of Keras' JAX backend."""
    with distribution.DataParallel(devices=distribution.list_devices()).scope():
        inputs = keras.Input([28, 28, 1])
        y = keras.layers.Flatten()(inputs)
        y = keras.layers.Dense(200, use_bias=False, activation="relu")(y)
        y = keras.layers.Dropout(0.4)(y)
        made = keras.Model(inputs, keras.layers.Dense(10, activation="softmax")(y))
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(128, 28, 28, 1)), generator.normal(size=(128, 10))
    data = tf.data.Dataset.from_tensor_slices(rows).batch(16)
    with distribution.DataParallel().scope():
        made.compile(loss="mse")
        made.fit(data, epochs=3, verbose=0)
        made.evaluate(data, verbose=0)
    hvd.check_weights(made)


def main():
    keras.config.set_floatx("float64")
    distribution.initialize()
    wrong = 0
    for function in CASES:
        if sys.argv[1:] and function.__name__ not in sys.argv[1:]:
            continue
        try:
            function()
        except Exception:
            wrong += 1
            print(function.__name__, traceback.format_exc())
    print(f"{wrong} wrong")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
