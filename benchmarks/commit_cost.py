"""What a commit costs a training step of ResNet-50: steps with and without one, in turns.

    TF_HVD_ELASTIC_STANDBY=off tf_hvd run -np 2 --min-np 2 python benchmarks/commit_cost.py

On rank 0, medians over the rounds: of a step, of what a commit after each step adds to it, in the
call and beside the next step, and of a commit by itself, until it is written.
"""

import statistics
import time

import keras
import numpy as np
from absl import app, flags

import tf_hvd as hvd
import tf_hvd.keras as hvd_keras

_BATCH = flags.DEFINE_integer("batch", 8, "images of a rank")
_SIZE = flags.DEFINE_integer("size", 224, "pixels of a side")
_ROUNDS = flags.DEFINE_integer("rounds", 7, "rounds, each with both ways")
_STEPS = flags.DEFINE_integer("steps", 4, "steps of a way in a round")


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

    def steps(commit):
        began = time.perf_counter()
        for _ in range(_STEPS.value):
            model.train_on_batch(images, labels)
            if commit:
                state.commit()
        return (time.perf_counter() - began) / _STEPS.value

    @hvd.elastic.run
    def train(state):
        steps(True)
        found = {False: [], True: []}
        written = []
        for number in range(_ROUNDS.value):
            for commit in (True, False) if number % 2 else (False, True):
                found[commit].append(steps(commit))
                if commit:
                    state.commit()  # waits for the one before
                    began = time.perf_counter()
                    state.commit()
                    written.append(time.perf_counter() - began)
                    time.sleep(0.5)
        return found, written

    found, written = train(state)
    if hvd.rank() == 0:
        plain = statistics.median(found[False])
        added = statistics.median(np.subtract(found[True], found[False]))
        size = sum(np.asarray(v).nbytes for v in [*model.variables, *optimizer.variables])
        alone = 1e3 * statistics.median(written)
        print(
            f"ResNet-50, {_BATCH.value} images of {_SIZE.value} pixels, {size / 1e6:.0f} MB: "
            f"a step {1e3 * plain:.0f} ms, a commit adds {1e3 * added:.1f} ms, "
            f"{100 * added / plain:.2f} %; by itself it takes {alone:.0f} ms"
        )


if __name__ == "__main__":
    app.run(main)
