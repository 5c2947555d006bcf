"""Load saved models for training on all ranks."""

import contextlib
import importlib
import json
import os
import re
import zipfile
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_hvd.collectives.compression import Compression, Compressor
from tf_hvd.core import log
from tf_hvd.core.process_sets import ProcessSet, global_process_set
from tf_hvd.keras import compat
from tf_hvd.keras.optimizer import DistributedOptimizer
from tf_hvd.keras.sync_batch_norm import synchronize_again

# Names of an optimizer's update counter in older formats.
_COUNTS = re.compile(r"(^|/)_?iter(ation|ations)?(:0|/\.ATTRIBUTES/VARIABLE_VALUE)?$")


def _version_in(filepath: Any) -> str:
    """The Keras version that wrote the file; empty if the file does not contain a version."""
    path = os.fspath(filepath)
    if os.path.isdir(path):
        return "2"  # Keras 3 cannot load a SavedModel
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
    """The module that can load the file: `keras`, `tf_keras`, or `tf.keras` if this is unknown."""
    major = "2" if legacy_opts else _version_in(filepath).partition(".")[0]
    if not major:
        return tf.keras
    return importlib.import_module("tf_keras" if major == "2" else "keras")


def _scaled_by_policy(filepath: Any) -> bool:
    """Whether `compile` wrapped the optimizer in a LossScaleOptimizer before the model was saved.

    Under the policy mixed_float16, `compile` adds a LossScaleOptimizer that is not in the model's
    config. The optimizer's state can be restored only under this policy.
    """
    path = os.fspath(filepath)
    if not (os.path.isfile(path) and zipfile.is_zipfile(path)):
        return False
    h5py = importlib.import_module("h5py")
    with zipfile.ZipFile(path) as archive:
        if not {"config.json", "model.weights.h5"} <= set(archive.namelist()):
            return False
        compiled = json.loads(archive.read("config.json")).get("compile_config") or {}
        optimizer = compiled.get("optimizer")
        kind = optimizer.get("class_name", "") if isinstance(optimizer, dict) else ""
        with archive.open("model.weights.h5") as contents, h5py.File(contents, "r") as weights:
            scaled = "optimizer/inner_optimizer" in weights
        return scaled and not kind.startswith("LossScaleOptimizer")


@contextlib.contextmanager
def _policy(keras: Any, name: str | None) -> Iterator[None]:
    """Set the global dtype policy of `keras` within the block; None leaves it unchanged."""
    if hasattr(keras, "config"):
        get, put = keras.config.dtype_policy, keras.config.set_dtype_policy
    else:
        get, put = keras.mixed_precision.global_policy, keras.mixed_precision.set_global_policy
    before = get()
    if name is not None:
        put(name)
    try:
        yield
    finally:
        put(before)


def _updates_in(filepath: Any) -> int:
    """The optimizer's update count in a file with an older format; 0 if it cannot be read."""
    path = os.fspath(filepath)
    if os.path.isdir(path):
        reader = tf.train.load_checkpoint(os.path.join(path, "variables", "variables"))
        counts = [n for n in reader.get_variable_to_shape_map() if _COUNTS.search(n)]
        return max((int(reader.get_tensor(name)) for name in counts), default=0)
    h5py = importlib.import_module("h5py")
    if not (os.path.isfile(path) and h5py.is_hdf5(path)):
        return 0
    found = [0]

    def look(name: str, item: Any) -> None:
        if _COUNTS.search(name) and getattr(item, "shape", None) == ():
            found.append(int(item[()]))

    with h5py.File(path, "r") as file:
        if "optimizer_weights" in file:
            file["optimizer_weights"].visititems(look)
    return max(found)


def _check_state(filepath: Any, optimizer: Any) -> None:
    """Raise an error if Keras did not restore the state of a loss-scaled optimizer."""
    leaves = list(compat.leaves(optimizer))
    if leaves == [optimizer] or any(compat.updates_of(leaf) for leaf in leaves):
        return
    updates = _updates_in(filepath)
    if updates:
        raise ValueError(
            f"load_model: Keras did not restore the state of {type(optimizer).__name__} from "
            f"{filepath}, because it does not support this format ({updates} updates so far). "
            "Save the model as .keras. Or, to train with a new optimizer, load this file with "
            "keras.models.load_model(..., compile=False) and compile the model."
        )


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
    """Load a saved Keras model for training on all ranks.

    The loaded model's optimizer is distributed, and its SyncBatchNormalization layers normalize
    over the batches on all ranks. If you load the model with `keras.models.load_model` instead, its
    optimizer and layers are not distributed.

    A model with the policy mixed_float16 keeps its loss scale and optimizer state, whatever the
    current policy is.

    Args:
      filepath: a file saved by Keras 3 (.keras, .h5) or tf_keras (.keras, .h5, or a SavedModel
        folder).
      custom_optimizers: list of the model's optimizer classes that are not part of Keras.
      custom_objects: dictionary of other custom classes and functions, with their names as keys.
      compression: how gradients are compressed for transport; see `tf_hvd.Compression`.
      legacy_opts: whether to load the file with tf_keras, for a model with an optimizer from
        `optimizers.legacy`. Needed only if the file does not contain a version.
      process_set: the ranks that train and normalize together.
      **options: other arguments for `tf_hvd.DistributedOptimizer`. Saved files do not contain these
        options.

    Returns:
      The model. If the file does not contain an optimizer, the model has none, and a warning is
      logged.

    Raises:
      ValueError, OSError: Keras' `load_model` raised the error.
      ValueError: the file (.h5 or a SavedModel) contains the state of a LossScaleOptimizer. Keras
        cannot restore this state from this format.
      ImportError: the file needs tf_keras, which is not installed.

    Example:
      model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
      model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(1e-3)), "mse")
      same = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
      model.fit(np.ones([4, 2]), np.ones([4, 1]), callbacks=[same], verbose=0)
      model.save(f"model-{hvd.rank()}.keras")
      again = hvd.load_model(f"model-{hvd.rank()}.keras")
    """
    keras = _keras_for(filepath, legacy_opts)
    objects = {kind.__name__: kind for kind in custom_optimizers or ()}
    objects.update(custom_objects or {})
    scaled = _scaled_by_policy(filepath)
    with _policy(keras, "mixed_float16" if scaled else None):
        model = keras.models.load_model(filepath, custom_objects=objects)
    synchronize_again(compat.layers_of(model), keras.layers.BatchNormalization, process_set)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        log.warning(
            "%s does not contain an optimizer: to train the model, compile it with a "
            "DistributedOptimizer.",
            filepath,
        )
    else:
        _check_state(filepath, optimizer)
        DistributedOptimizer(optimizer, compression=compression, process_set=process_set, **options)
    return model
