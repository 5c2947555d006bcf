"""Resuming: what the first rank has backed up is where all ranks go on.

Only the first rank writes. Before training its files go to the others, into folders
of their own for the time of this `fit`, and Keras restores there as it does anywhere.
"""

import os
import tempfile
from typing import Any

import tensorflow as tf

from tf_hvd._tensorflow import tf_variable
from tf_hvd.keras.metrics import is_root, process_set_of
from tf_hvd.objects import broadcast_object
from tf_hvd.process_sets import ProcessSet
from tf_hvd.variables import is_seed

Files = dict[str, bytes]


def _read(directory: str) -> Files:
    """All files below a folder, by their path in it."""
    found = {}
    for folder, _, names in tf.io.gfile.walk(directory):
        for name in names:
            path = os.path.join(folder, name)
            with tf.io.gfile.GFile(path, "rb") as file:
                found[os.path.relpath(path, directory)] = file.read()
    return found


def _write(directory: str, files: Files) -> None:
    for name, contents in files.items():
        path = os.path.join(directory, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(contents)


def hand_out(directory: str | None, process_set: ProcessSet) -> Files:
    """The first rank's backup, on all ranks; one broadcast.

    Args:
      directory: where it is, at the first rank; ignored elsewhere.
      process_set: who takes part.
    """
    root = (process_set.ranks or [0])[0]
    mine = _read(directory) if directory is not None and process_set.rank() == 0 else None
    files: Files = broadcast_object(mine, root, name="tf_hvd_backup", process_set=process_set)
    return files


class BackupAndRestore:
    """Keras' BackupAndRestore: rank 0 writes, and all ranks go on where it had come to.

    The other ranks need not see its files. Random layers go on with numbers of each
    rank's own. Arguments are those of Keras.
    """

    root_writes = True
    model: Any
    params: Any
    backup_dir: Any

    def __init__(self, backup_dir: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(backup_dir, *args, **kwargs)  # type: ignore[call-arg]
        self._of_root = backup_dir
        self._others = (args, kwargs)
        self._received = False
        self._folder: Any = None

    def receive(self, files: Files) -> None:
        """Takes what `hand_out` has brought. Called before training, on all ranks."""
        self._received = True
        if is_root(self.model):
            return
        model, params = self.model, self.params
        self._folder = tempfile.TemporaryDirectory(prefix="tf_hvd_backup_")
        _write(self._folder.name, files)
        args, kwargs = self._others
        super().__init__(self._folder.name, *args, **kwargs)  # type: ignore[call-arg]
        self.set_params(params)  # type: ignore[attr-defined]
        self.set_model(model)  # type: ignore[attr-defined]

    def on_train_begin(self, logs: Any = None) -> None:
        """Restores, if there is something."""
        process_set = process_set_of(self.model)
        if not self._received and process_set.included():
            self.receive(hand_out(self._of_root, process_set))
        seeds = {}
        if not is_root(self.model):
            variables = map(tf_variable, filter(is_seed, self.model.variables))
            seeds = {id(variable): (variable, variable.numpy()) for variable in variables}
        super().on_train_begin(logs)  # type: ignore[misc]
        for variable, own in seeds.values():
            variable.assign(own)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Writes on rank 0, if it is time."""
        if is_root(self.model):
            super().on_train_batch_end(batch, logs)  # type: ignore[misc]

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Writes on rank 0."""
        if is_root(self.model):
            super().on_epoch_end(epoch, logs)  # type: ignore[misc]

    def on_train_end(self, logs: Any = None) -> None:
        """Deletes the backup, as Keras does."""
        super().on_train_end(logs)  # type: ignore[misc]
        self._received = False
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None
