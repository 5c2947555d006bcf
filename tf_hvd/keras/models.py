"""Loading a model that is to be trained on."""

import importlib
import json
import logging
import os
import zipfile
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_hvd.compression import Compression, Compressor
from tf_hvd.keras import compat
from tf_hvd.keras.optimizer import DistributedOptimizer
from tf_hvd.keras.sync_batch_norm import synchronize_again
from tf_hvd.process_sets import ProcessSet, global_process_set

_log = logging.getLogger(__name__)


def _version_in(filepath: Any) -> str:
    """The version of Keras that wrote the file; empty if it does not say."""
    path = os.fspath(filepath)
    if os.path.isdir(path):
        return "2"  # a SavedModel: Keras 3 writes none that it could load
    if not os.path.isfile(path):
        return ""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if "metadata.json" not in archive.namelist():
                return ""
            return str(json.loads(archive.read("metadata.json")).get("keras_version", ""))
    h5py = importlib.import_module("h5py")
    if not h5py.is_hdf5(path):
        return ""
    with h5py.File(path, "r") as file:
        version = file.attrs.get("keras_version", "")
    return version.decode() if isinstance(version, bytes) else str(version)


def _keras_for(filepath: Any, legacy_opts: bool) -> Any:
    """The Keras that can load the file: `keras` or `tf_keras`; tf.keras if it does not say."""
    major = "2" if legacy_opts else _version_in(filepath).partition(".")[0]
    if not major:
        return tf.keras
    return importlib.import_module("tf_keras" if major == "2" else "keras")


def load_model(
    filepath: Any,
    custom_optimizers: Sequence[type] | None = None,
    custom_objects: dict[str, Any] | None = None,
    compression: type[Compressor] = Compression.none,
    legacy_opts: bool = False,
    *,
    process_set: ProcessSet = global_process_set,
    **options: Any,
) -> Any:
    """Loads a model that Keras has saved, as one that trains on all ranks again.

    Its optimizer is distributed, its SyncBatchNormalization layers normalize over the
    batches of all ranks. `keras.models.load_model` gives the same model with a plain optimizer and
    plain layers.

    Args:
      filepath: a file of Keras 3 (.keras, .h5) or of tf_keras (these, and a
        SavedModel's directory).
      custom_optimizers: optimizer classes that are not Keras' own.
      custom_objects: other classes and functions that are not, by name.
      compression: see `tf_hvd.keras.DistributedOptimizer`.
      legacy_opts: the file is one of tf_keras with an optimizer of
        `optimizers.legacy`; only needed where the file says no version.
      process_set: the ranks over which both are.
      **options: other arguments of `tf_hvd.keras.DistributedOptimizer`; no file has them.

    Returns:
      The model. If the file has no optimizer, neither has the model, and a warning
      is logged.

    Raises:
      ValueError, OSError: as Keras' `load_model`.
      ImportError: the file is one of tf_keras, which is not installed.
    """
    objects = {kind.__name__: kind for kind in custom_optimizers or ()}
    objects.update(custom_objects or {})
    keras = _keras_for(filepath, legacy_opts)
    model = keras.models.load_model(filepath, custom_objects=objects)
    synchronize_again(compat.layers_of(model), keras.layers.BatchNormalization, process_set)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        _log.warning(
            "%s holds no optimizer: compile the model with a DistributedOptimizer to train it.",
            filepath,
        )
    else:
        DistributedOptimizer(optimizer, compression=compression, process_set=process_set, **options)
    return model
