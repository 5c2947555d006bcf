"""Programs for Keras' distribution API; `programs.py OUT [NAME...]` writes their results.

The programs use Keras only. Started with `tf_hvd run --keras`, they train across all ranks; started
with `python` and `--one-process`, in one process. Results must be equal: weights, logs and
predictions.
"""

import importlib
import os
import sys
import traceback

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np
import tensorflow as tf
from common import PROGRAMS

for module in ("data", "layer", "step", "model", "callback"):
    importlib.import_module(f"{module}_programs")


def run(names):
    found = {}
    for name in names:
        keras.utils.set_random_seed(7)
        try:
            for key, value in PROGRAMS[name]().items():
                found[f"{name}:{key}"] = np.asarray(value, "float64")
        except Exception:
            found[f"{name}:error"] = np.array(traceback.format_exc())
    return found


def main():
    keras.config.set_floatx("float64")
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    rank = 0
    if "--one-process" in sys.argv:
        sys.argv.remove("--one-process")
    else:
        keras.distribution.initialize()
        keras.distribution.set_distribution(keras.distribution.DataParallel())
        rank = importlib.import_module("tf_hvd").rank()
    found = run(sys.argv[2:] or list(PROGRAMS))
    np.savez(f"{sys.argv[1]}.{rank}.npz", **found)


if __name__ == "__main__":
    main()
