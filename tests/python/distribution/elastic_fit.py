"""An elastic `fit` under keras.distribution; `elastic_fit.py OUT [--one-process]`.

KILLS has items EPOCH.BATCH:RANK:SLOTS. Each kills a rank once, when the machine gets a new number
of slots. Results must be those of one process that nothing has disturbed.
"""

import os
import pathlib
import signal
import sys

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np
import tensorflow as tf

FLAGS = pathlib.Path(os.environ.get("FLAGS", "."))
EPOCHS = 4


class Kill(keras.callbacks.Callback):
    def __init__(self, rank):
        super().__init__()
        self.rank = rank

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        for each in os.environ.get("KILLS", "").split():
            place, rank, slots = each.split(":")
            if place != f"{self.epoch}.{batch}" or int(rank) != self.rank:
                continue
            if not (FLAGS / place).exists():
                (FLAGS / place).touch()
                (FLAGS / "hosts").write_text(f"localhost:{slots}\n")
                os.kill(os.getpid(), signal.SIGKILL)


def made():
    hidden = [keras.layers.Dense(8, "tanh"), keras.layers.BatchNormalization()]
    last = [keras.layers.Dropout(0.2), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input([6]), *hidden, *last])
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae", keras.metrics.R2Score()])
    return model


def train(model, state, callbacks):
    """Trains with a dataset that is shuffled with a seed; 122 rows, so the last batch has 10."""
    x = np.random.default_rng(0).normal(size=(122, 6))
    y = 2 * x[:, :1] + 0.1
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(122, seed=3).batch(16)
    model.fit(
        data, epochs=EPOCHS, initial_epoch=state.epoch, validation_data=(x[:20], y[:20]),
        verbose=0, callbacks=callbacks,
    )  # fmt: skip


class Plain:
    epoch = 0


def main():
    keras.config.set_floatx("float64")
    keras.utils.set_random_seed(7)
    if "--one-process" in sys.argv:
        rank, logs, model = 0, {}, made()
        keep = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, found: note(logs, found))
        train(model, Plain, [keep])
    else:
        rank, logs, model = elastic()
    weights = np.concatenate([np.ravel(each) for each in model.get_weights()])
    np.savez(f"{sys.argv[1]}.{rank}.npz", weights=weights, drawn=np.random.uniform(), **logs)


def note(logs, found):
    for name, value in found.items():
        logs[name] = [*logs.get(name, []), value]
    np.random.uniform()  # a rank that is new in the middle of the job must draw the next number


def elastic():
    import tf_hvd as hvd
    from tf_hvd.keras import elastic as callbacks_of

    keras.distribution.initialize()
    keras.distribution.set_distribution(keras.distribution.DataParallel())
    model = made()
    state = callbacks_of.KerasState(model, batch=0, epoch=0, logs={})

    @hvd.elastic.run
    def run(state):
        print(f"from {state.epoch} {state.batch} of {hvd.size()}")
        callbacks = [
            callbacks_of.UpdateEpochStateCallback(state),
            callbacks_of.UpdateBatchStateCallback(state),
            Kill(hvd.rank()),
            keras.callbacks.LambdaCallback(
                on_epoch_end=lambda epoch, found: note(state.logs, found)
            ),
            callbacks_of.CommitStateCallback(state, 2),
        ]
        train(model, state, callbacks)

    run(state)
    return hvd.rank(), state.logs, model


if __name__ == "__main__":
    main()
