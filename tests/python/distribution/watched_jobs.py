"""Jobs of 2 ranks with keras.distribution that are watched or fail: `watched_jobs.py NAME`."""

import os
import signal
import sys
import time

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np

import tf_hvd as hvd

JOBS = {}
X = np.random.default_rng(0).normal(size=(64, 6)).astype("float32")
Y = X[:, :1]


def job(function):
    JOBS[function.__name__] = function
    return function


def model():
    made = keras.Sequential([keras.Input([6]), keras.layers.Dense(4), keras.layers.Dense(1)])
    made.compile(keras.optimizers.SGD(0.01), "mse", metrics=["mae"])
    return made


def fit(made, on_batch=None, **options):
    calls = [keras.callbacks.LambdaCallback(on_train_batch_end=on_batch)] if on_batch else []
    made.fit(X, Y, batch_size=16, verbose=0, callbacks=calls, **options)


@job
def killed():
    """Trains, evaluates and predicts; then rank 1 is killed in the middle of an epoch."""
    made = model()
    fit(made, epochs=2)
    made.evaluate(X, Y, verbose=0)
    made.predict(X, verbose=0)

    def kill(batch, logs):
        if batch == 2 and hvd.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    fit(made, kill)


@job
def alone():
    """Rank 0 predicts; rank 1 does something else, and ends without an error."""
    made = model()
    fit(made)
    if hvd.rank() == 0:
        made.predict(X, verbose=0)
    time.sleep(4)


@job
def differing():
    """Rank 1 has other weights from the third batch on."""
    made = model()

    def change(batch, logs):
        if batch == 2 and hvd.rank() == 1:
            made.layers[0].bias.assign(np.ones(4))

    fit(made, change, epochs=3)


if __name__ == "__main__":
    keras.distribution.initialize()
    keras.distribution.set_distribution(keras.distribution.DataParallel())
    JOBS[sys.argv[1]]()
