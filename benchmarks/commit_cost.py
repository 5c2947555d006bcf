"""Measures the cost of a commit in ResNet-50 training; steps with and without one alternate.

    tf_hvd run -np 2 --min-np 2 python benchmarks/commit_cost.py

Rank 0 prints medians: a step's time, the time that a commit adds with its 95 % interval, and
the time until a commit is written. The added time covers the call and the
following step. It is taken from pairs of adjacent steps, one of them with a commit.
"""

import statistics
import time

import keras
import numpy as np
from absl import app, flags

import tf_hvd as hvd
import tf_hvd.keras as hvd_keras

_BATCH = flags.DEFINE_integer("batch", 8, "images per rank")
_SIZE = flags.DEFINE_integer("size", 224, "image width and height in pixels")
_PAIRS = flags.DEFINE_integer("pairs", 40, "pairs of steps; one step of each has a commit")


def main(argv):
    del argv
    hvd.init()
    size = _SIZE.value
    model = keras.applications.ResNet50(weights=None, input_shape=(size, size, 3))
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    model.compile(hvd_keras.DistributedOptimizer(optimizer), "sparse_categorical_crossentropy")
    images = np.random.rand(_BATCH.value, size, size, 3).astype("f")
    labels = np.arange(_BATCH.value)
    state = hvd.elastic.TensorFlowKerasState(model, batch=0)

    def step(commit):
        began = time.perf_counter()
        if commit:
            state.commit()
        model.train_on_batch(images, labels)
        return time.perf_counter() - began

    @hvd.elastic.run
    def train(state):
        for commit in (True, False):
            step(commit)
        found = {False: [], True: []}
        for number in range(_PAIRS.value):
            for commit in (True, False) if number % 2 else (False, True):
                found[commit].append(step(commit))
        written = []
        for _ in range(7):
            state.commit()
            began = time.perf_counter()
            state.commit()  # waits for the previous one
            written.append(time.perf_counter() - began)
        return found, written

    found, written = train(state)
    if hvd.rank() == 0:
        plain = statistics.median(found[False])
        added = sorted(np.subtract(found[True], found[False]))
        # With this many values, the median is in this interval 19 times out of 20 (sign test).
        half = int(0.98 * len(added) ** 0.5)
        low, high = added[len(added) // 2 - half], added[(len(added) - 1) // 2 + half]
        stored = sum(np.asarray(v).nbytes for v in [*model.variables, *optimizer.variables])
        print(
            f"ResNet-50, {_BATCH.value} images of {_SIZE.value} pixels, {stored / 1e6:.0f} MB: "
            f"a step {1e3 * plain:.0f} ms, a commit adds {1e3 * statistics.median(added):.1f} ms "
            f"({1e3 * low:.1f} to {1e3 * high:.1f}), "
            f"{100 * statistics.median(added) / plain:.2f} %; "
            f"by itself it takes {1e3 * statistics.median(written):.0f} ms"
        )


if __name__ == "__main__":
    app.run(main)
