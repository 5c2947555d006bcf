"""Loading a model that is to be trained on."""

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

# What the older formats call an optimizer's count of updates.
_COUNTS = re.compile(r"(^|/)_?iter(ation|ations)?(:0|/\.ATTRIBUTES/VARIABLE_VALUE)?$")


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


def _scaled_by_policy(filepath: Any) -> bool:
    """Whether the saved optimizer was in a LossScaleOptimizer that is not in the model's config.

    `compile` had put it there under the policy mixed_float16, and does so again only under it.
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
    """Within it the global policy of a Keras is `name`; None: what it is."""
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
    """The optimizer's count of updates in one of the older formats; 0 if it cannot be told."""
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
    """Raises if Keras has left the state of a loss-scaled optimizer behind."""
    leaves = list(compat.leaves(optimizer))
    if leaves == [optimizer] or any(compat.updates_of(leaf) for leaf in leaves):
        return
    updates = _updates_in(filepath)
    if updates:
        raise ValueError(
            f"load_model: {filepath}: Keras does not restore the state of "
            f"{type(optimizer).__name__} from this format ({updates} updates so far). "
            "Save the model as .keras; or, to train with a new optimizer, load this file with "
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
    """Loads a model that Keras has saved, as one that trains on all ranks again.

    Its optimizer is distributed, its SyncBatchNormalization layers normalize over the
    batches of all ranks. A model of the policy mixed_float16 goes on with its loss scale and the
    state of its optimizer, whatever the policy is now. `keras.models.load_model` gives the same
    model with a plain optimizer and plain layers.

    Args:
      filepath: a file of Keras 3 (.keras, .h5) or of tf_keras (these, and a
        SavedModel's directory).
      custom_optimizers: optimizer classes that are not Keras' own.
      custom_objects: other classes and functions that are not, by name.
      compression: see `tf_hvd.keras.DistributedOptimizer`.
      legacy_opts: the file is one of tf_keras with an optimizer of
        `optimizers.legacy`; only needed where the file says no version.
      process_set: the ranks that train together and normalize together.
      **options: other arguments of `tf_hvd.keras.DistributedOptimizer`; no file has them.

    Returns:
      The model. If the file has no optimizer, neither has the model, and a warning
      is logged.

    Raises:
      ValueError, OSError: as Keras' `load_model`.
      ValueError: the state of a LossScaleOptimizer is in the file (.h5, a SavedModel), and Keras
        does not restore it.
      ImportError: the file is one of tf_keras, which is not installed.
    """
    objects = {kind.__name__: kind for kind in custom_optimizers or ()}
    objects.update(custom_objects or {})
    keras = _keras_for(filepath, legacy_opts)
    scaled = _scaled_by_policy(filepath)
    with _policy(keras, "mixed_float16" if scaled else None):
        model = keras.models.load_model(filepath, custom_objects=objects)
    synchronize_again(compat.layers_of(model), keras.layers.BatchNormalization, process_set)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        log.warning(
            "%s holds no optimizer: compile the model with a DistributedOptimizer to train it.",
            filepath,
        )
    else:
        _check_state(filepath, optimizer)
        DistributedOptimizer(optimizer, compression=compression, process_set=process_set, **options)
    return model
