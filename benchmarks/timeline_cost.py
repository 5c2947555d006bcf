"""Measures the cost of observation: the same calls unobserved, with a timeline, and with metrics.

    tf_hvd run -np 2 python benchmarks/timeline_cost.py

For each program, rank 0 prints the median unobserved time, and the median time that each observer
adds in adjacent runs, with a 95 % interval. It also prints the CPU time of the
observer's own thread as a share of the program's time. The stuck file is a pipe that is not read
during the measurement. Metrics end with hvd.shutdown(), so each turn with metrics is followed by
a new init; mpi4py keeps MPI initialised for it.
"""

import contextlib
import os
import pathlib
import random
import tempfile
import threading
import time

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags
from mpi4py import MPI  # noqa: F401 - initialises MPI, and finalizes it at exit

import tf_hvd as hvd
import tf_hvd.keras as hvd_keras

_TURNS = flags.DEFINE_integer("turns", 30, "turns per program")
_FILES = ("trace.json", "stuck.json")
_METRICS = "metrics"
_THREADS = ("tf_hvd timeline", "tf_hvd metrics")


class _Metrics:
    """Enables metrics on this rank; afterwards warms up the program without them."""

    def __init__(self, program):
        self._program = program

    def __enter__(self):
        hvd.metrics()

    def __exit__(self, *_):
        hvd.shutdown()
        hvd.init()
        for _ in range(3):
            self._program()


class _Timeline:
    """Enables a timeline of this rank, written to one of _FILES in a folder."""

    def __init__(self, folder, file):
        self._path = os.path.join(folder, file)
        self._stuck = file.startswith("stuck")

    def __enter__(self):
        hvd.start_timeline(self._path)
        if self._stuck:
            stem, suffix = os.path.splitext(self._path)
            own = self._path if hvd.rank() == 0 else f"{stem}.rank-{hvd.rank()}{suffix}"
            self._end, writes = os.pipe()
            for number in os.listdir("/proc/self/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/self/fd/{number}") == own:
                        os.dup2(writes, int(number), inheritable=False)
            os.close(writes)

    def __exit__(self, *_):
        drain = threading.Thread(target=self._drain) if self._stuck else None
        if drain:
            drain.start()
        hvd.stop_timeline()
        if drain:
            drain.join()

    def _drain(self):
        while os.read(self._end, 1 << 20):
            pass
        os.close(self._end)


def _programs():
    """The measured programs, by name."""
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
        "4000 eager calls of 4 kB": lambda: [
            hvd.allreduce(gradients[0], name="small") for _ in range(4000)
        ],
        "100 steps of 46 tensors, nothing else": lambda: [reduce_all() for _ in range(100)],
        "a step of ResNet-50, 4 images": lambda: model.train_on_batch(images, labels),
    }


def _median(values):
    """The median and its 95 % interval, from the order of the sorted values."""
    values = sorted(values)
    count, reach = len(values), 0.98 * len(values) ** 0.5
    low, high = int(max(count / 2 - reach, 0)), int(min(count / 2 + reach, count - 1))
    return values[count // 2], values[low], values[high]


def _observer_seconds():
    """CPU time of the observers' threads in this process."""
    total = 0
    for task in pathlib.Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # the thread has ended
            if (task / "comm").read_text().strip() in _THREADS:
                total += int((task / "schedstat").read_text().split()[0])
    return 1e-9 * total


def _measured(program, folder, observer):
    """Seconds of one run of the program, and of the observer's thread during it."""
    if observer is None:
        scope = contextlib.nullcontext()
    else:
        scope = _Metrics(program) if observer == _METRICS else _Timeline(folder, observer)
    with scope:
        hvd.barrier()  # a rank with a slow observer start delays no other
        before, began = _observer_seconds(), time.perf_counter()
        program()
        took = time.perf_counter() - began
        return took, _observer_seconds() - before


def _print(name, found):
    plain = [took for took, _ in found.pop(None)]
    print(f"{name}: {1e3 * _median(plain)[0]:.2f} ms", flush=True)
    for observer, runs in found.items():
        ratios = [took / a - 1 for a, (took, _) in zip(plain, runs, strict=True)]
        middle, low, high = (100 * x for x in _median(ratios))
        own = 100 * _median([spent / took for took, spent in runs])[0]
        print(
            f"  {observer}: {middle:+.1f} % ({low:+.1f} to {high:+.1f}), its thread {own:.2f} %",
            flush=True,
        )


def main(argv):
    del argv
    hvd.init()
    with tempfile.TemporaryDirectory() as folder:
        for name, program in _programs().items():
            program()
            found = {observer: [] for observer in (None, *_FILES, _METRICS)}
            order = random.Random(0)  # the same order on all ranks
            for _ in range(_TURNS.value):
                for observer in order.sample(list(found), len(found)):
                    found[observer].append(_measured(program, folder, observer))
            if hvd.rank() == 0:
                _print(name, found)


if __name__ == "__main__":
    app.run(main)
