"""What a timeline costs: the same calls without one, with one, and with one that cannot write.

    tf_hvd run -np 2 python benchmarks/timeline_cost.py

On rank 0, for each program: the median without a timeline, and what each kind of file adds to it,
by the median over neighbours, with the 95 % interval of that median. The stuck file is a pipe
that nobody reads while it is measured.
"""

import os
import tempfile
import threading
import time

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags

import tf_hvd as hvd
import tf_hvd.keras as hvd_keras

_TURNS = flags.DEFINE_integer("turns", 30, "turns of each program")
_FILES = ("trace.json", "trace.pftrace", "stuck.json")


class _Timeline:
    """A timeline of this rank into one of _FILES of a folder; None: no timeline."""

    def __init__(self, folder, file):
        self._path = file and os.path.join(folder, file)
        self._stuck = file is not None and file.startswith("stuck")

    def __enter__(self):
        if self._path is None:
            return
        if self._stuck:
            stem, suffix = os.path.splitext(self._path)
            own = self._path if hvd.rank() == 0 else f"{stem}.rank-{hvd.rank()}{suffix}"
            if not os.path.exists(own):
                os.mkfifo(own)
            self._end = os.open(own, os.O_RDONLY | os.O_NONBLOCK)
        hvd.start_timeline(self._path)

    def __exit__(self, *_):
        if self._path is None:
            return
        drain = threading.Thread(target=self._drain) if self._stuck else None
        if drain:
            drain.start()
        hvd.stop_timeline()
        if drain:
            drain.join()

    def _drain(self):
        os.set_blocking(self._end, True)
        while os.read(self._end, 1 << 20):
            pass
        os.close(self._end)


def _programs():
    """What is measured, by name."""
    gradients = [tf.ones([n]) for n in [1000] * 40 + [200_000] * 6]

    @tf.function
    def reduce_all():
        return [hvd.allreduce(g, name=f"gradient{i}") for i, g in enumerate(gradients)]

    keras.utils.set_random_seed(0)
    model = keras.applications.ResNet50(weights=None, input_shape=(128, 128, 3))
    optimizer = hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.01))
    model.compile(optimizer, "sparse_categorical_crossentropy")
    images, labels = np.random.rand(4, 128, 128, 3).astype("f"), np.arange(4)
    return {
        "200 eager calls of 4 kB": lambda: [
            hvd.allreduce(gradients[0], name="small") for _ in range(200)
        ],
        "20 steps of 46 tensors, nothing else": lambda: [reduce_all() for _ in range(20)],
        "a step of ResNet-50, 4 images": lambda: model.train_on_batch(images, labels),
    }


def _median(values):
    """The median and its 95 % interval, by ranks of the sorted values."""
    values = sorted(values)
    count, reach = len(values), 0.98 * len(values) ** 0.5
    low, high = int(max(count / 2 - reach, 0)), int(min(count / 2 + reach, count - 1))
    return values[count // 2], values[low], values[high]


def main(argv):
    del argv
    hvd.init()
    with tempfile.TemporaryDirectory() as folder:
        for name, program in _programs().items():
            program()
            found = {file: [] for file in (None, *_FILES)}
            for turn in range(_TURNS.value):
                for file in list(found)[:: 1 if turn % 2 else -1]:
                    hvd.barrier()
                    with _Timeline(folder, file):
                        began = time.perf_counter()
                        program()
                        took = time.perf_counter() - began
                    found[file].append(took)
            if hvd.rank() == 0:
                print(f"{name}: {1e3 * _median(found[None])[0]:.2f} ms", flush=True)
                for file in _FILES:
                    ratios = [b / a - 1 for a, b in zip(found[None], found[file], strict=True)]
                    middle, low, high = (100 * x for x in _median(ratios))
                    print(f"  {file}: {middle:+.1f} % ({low:+.1f} to {high:+.1f})", flush=True)


if __name__ == "__main__":
    app.run(main)
