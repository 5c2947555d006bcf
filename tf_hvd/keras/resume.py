"""Resume training on all ranks from the first rank's backup.

Only the first rank writes a backup. Before training, its files are sent to the other ranks. These
ranks store the files in temporary folders for the duration of `fit`, and Keras restores from there.
A file next to the backup contains the state that tf_hvd.keras.rank_state collects.

Wherever BackupAndRestore is in the callback list, it runs after all other callbacks. When it
restores, the `on_train_begin` methods of the other callbacks have already run. When it writes,
their `on_epoch_end` methods have already run.
"""

import inspect
import os
import signal
import tempfile
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tf_hvd.collectives.objects import Title, broadcast_object
from tf_hvd.collectives.variables import is_seed
from tf_hvd.core import basics, log
from tf_hvd.core import files as local_files
from tf_hvd.core.process_sets import ProcessSet
from tf_hvd.core.tensorflow_hooks import tf_variable
from tf_hvd.keras import compat, data_order
from tf_hvd.keras.data_order import FollowsData, Place, new_orders
from tf_hvd.keras.rank_state import RankStates
from tf_hvd.keras.reduced_metrics import is_root, process_set_of
from tf_hvd.training.preemption import Preemption, on_preemption

Files = dict[str, bytes]
_STATES = "tf_hvd_ranks"  # name of rank_state's file in the backup folder


def _read(directory: str) -> Files:
    found = {}
    for folder, _, names in tf.io.gfile.walk(directory):
        for name in names:
            path = os.path.join(folder, name)
            if name.startswith(_STATES):
                continue  # rank_state sends its contents
            with tf.io.gfile.GFile(path, "rb") as file:
                found[os.path.relpath(path, directory)] = file.read()
    return found


def _write(directory: str, files: Files) -> None:
    for name, contents in files.items():
        path = os.path.join(directory, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with local_files.writing(path) as file:
            file.write(contents)


def hand_out(directory: str | None, process_set: ProcessSet) -> Files:
    """Broadcast the files of the first rank's backup to all ranks.

    Args:
      directory: backup folder, or None if there is no backup; used only on the first rank.
      process_set: the ranks that train together.

    Returns:
      The contents of the files, by path within the backup folder.
    """
    root = (process_set.ranks or [0])[0]
    mine = _read(directory) if directory is not None and process_set.rank() == 0 else None
    files: Files = broadcast_object(
        mine, root, name=Title("BackupAndRestore: files of the backup"), process_set=process_set
    )
    return files


class BackupAndRestore(FollowsData):
    """Keras' BackupAndRestore for all ranks. Rank 0 writes the backup, and all ranks resume.

    Only rank 0 needs access to the backup folder. The callback may be anywhere in the callback
    list.

    In addition to the state that Keras restores, this callback restores:

    - the state of EarlyStopping, ReduceLROnPlateau and ModelCheckpoint;
    - the attributes that other callbacks list in `backup_attributes` (numbers, strings, arrays, and
      containers of these);
    - if the number of ranks is unchanged, each rank's random numbers and local variables, and the
      order of a shuffled tf.data.Dataset.

    With `save_freq=100`, for example, rank 0 writes a backup every 100 batches, and all ranks
    resume after the last batch in the backup.

    Arguments that are not listed here are the same as in Keras.

    Args:
      backup_dir: path of the backup folder.
      save_before_preemption: True: when any rank receives SIGTERM, a backup is written within two
        batches, and all ranks exit with code 75. A list of signals: these signals have this effect
        instead of SIGTERM. Default False: signals are not handled.
    """

    root_writes = True
    model: Any
    params: Any
    backup_dir: Any
    save_freq: Any
    delete_checkpoint: bool

    def __init__(
        self,
        backup_dir: Any,
        *args: Any,
        save_before_preemption: bool | Iterable[int] = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(backup_dir, *args, **kwargs)  # type: ignore[call-arg]
        self._of_root = backup_dir
        self._others = (args, kwargs)
        self._received = False
        self._folder: Any = None
        self._callbacks: Sequence[Any] | None = None
        self._agreed = self._within_epochs = False
        self._states: RankStates | None = None
        self._epoch = 0
        self._due = False  # whether a backup is due at the next batch or the epoch's end
        self._signals = _signals(save_before_preemption)
        self._preemption: Preemption | None = None
        self.orders = new_orders()
        self._place = Place(self.orders)

    @staticmethod
    def methods_around(base: Any) -> dict[str, Any]:
        found = {name: _and_states(base, name) for name in compat.SAVES if hasattr(base, name)}
        if hasattr(base, compat.ASKED_BY_TF_KERAS):  # tf_keras' method depends on `save_freq`
            found[compat.ASKED_BY_TF_KERAS] = lambda self: True
        return found

    def lead(self, callbacks: Sequence[Any]) -> None:
        """Prepare for `fit` with these callbacks; this callback runs after all others."""
        self._forget_fit()  # the previous `fit` may have been interrupted
        self._callbacks = callbacks

    @property
    def options(self) -> tuple[str, ...]:
        """The options that must be the same on all ranks for backups within epochs."""
        return (str(self.save_freq), *(str(int(signum)) for signum in self._signals))

    def agree(self, within_epochs: bool = False) -> None:
        """Record that all ranks have this callback, and whether to allow backups within epochs.

        `within_epochs` is True if the options are the same on all ranks.
        """
        self._agreed, self._within_epochs = True, within_epochs

    def receive(self, files: Files) -> None:
        """Store the files from `hand_out` in a temporary folder, except on the first rank.

        All ranks call this function before training.
        """
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
        """Restore the backup on all ranks, if there is one."""
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
        if self._callbacks is not None and process_set.size() == 1:
            self._within_epochs = True
        data_order.done.batches = 0  # an earlier `fit` may have failed before its first epoch
        self._place = Place(self.orders)
        together = process_set if self._agreed else None
        self._states = RankStates(self._callbacks or (), self.model, self._place, together)
        epoch = self._states.restore(self._path)
        if epoch is not None:
            compat.begin_with(self.model, epoch)
            self._tell(epoch)
        self._epoch = epoch or 0
        self._states.collect(self._epoch)
        self._listen(process_set)

    def _tell(self, epoch: int) -> None:
        """Log, on the first rank, the epoch and batch at which training resumes.

        Epochs and batches are numbered from 1, as in Keras' progress bar.
        """
        if is_root(self.model):
            done = self._place.batches
            batch = f", batch {done + 1}" if done else ""
            log.warning("resumed at epoch %d%s, from %s", epoch + 1, batch, self._of_root)

    def _listen(self, process_set: ProcessSet) -> None:
        self._preemption = None
        if self._signals:
            if not self._within_epochs or process_set.size() != basics.size():
                raise ValueError(
                    "BackupAndRestore: save_before_preemption= cannot work, because this callback "
                    "is not on all ranks of the job with equal options, or the guard is off. Pass "
                    "the same callback on all ranks, and leave the guard on."
                )
            self._preemption = on_preemption(signals=self._signals)

    @property
    def _path(self) -> str:
        return os.path.join(os.fspath(self._of_root), _STATES)

    def may_write(self) -> bool:
        """Whether Keras may write a backup now.

        Within an epoch, record that a backup is due, so that all ranks write it before the next
        batch.
        """
        if self._within_epochs and self._place.batches:
            self._due = True
            return False
        return is_root(self.model)

    def write_states(self) -> None:
        if self._states is not None:
            self._states.write(self._path)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch
        super().on_epoch_begin(epoch, logs)  # type: ignore[misc]

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """If a backup is due, write the state after the previous batch."""
        super().on_train_batch_begin(batch, logs)  # type: ignore[misc]
        if data_order.take_done():  # this Keras version cannot skip the completed batches
            self._place.restart()
        if self._preemption is not None and self._preemption.is_time():
            self._due = True
            self._write_now()
            self._preemption.leave()
        if self._due:
            self._write_now()
        self._place.batch_begin()

    def _write_now(self) -> None:
        """Write the backup on rank 0 with the state of all ranks; all ranks call this method."""
        self._due = False
        if self._states is None:
            return
        self._states.collect(self._epoch)
        within, self._within_epochs = self._within_epochs, False
        compat.save_backup(self)
        self._within_epochs = within

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Let Keras decide whether a backup is due."""
        self._place.batch_end(self.model, batch)
        if self.save_freq and (self._within_epochs or is_root(self.model)):
            super().on_train_batch_end(batch, logs)  # type: ignore[misc]

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Write the backup of the completed epoch on rank 0, with the state of all ranks."""
        self._place.epoch_end()
        self._epoch = epoch + 1
        if self._states is not None:
            self._states.collect(self._epoch)
        if self._within_epochs or is_root(self.model):
            super().on_epoch_end(epoch, logs)  # type: ignore[misc]
        if self._due:
            self._write_now()

    def on_train_end(self, logs: Any = None) -> None:
        super().on_train_end(logs)  # type: ignore[misc]
        if self.delete_checkpoint and is_root(self.model) and tf.io.gfile.exists(self._path):
            tf.io.gfile.remove(self._path)
        self._forget_fit()

    def _forget_fit(self) -> None:
        self._received = self._agreed = self._within_epochs = self._due = False
        self._callbacks = self._states = None
        if self._preemption is not None:
            self._preemption.finish()
            self._preemption = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


def _and_states(base: Any, name: str) -> Any:
    def write(self: Any, *args: Any, **kwargs: Any) -> None:
        if self.may_write():
            getattr(base, name)(self, *args, **kwargs)
            self.write_states()

    return write


def _signals(asked: bool | Iterable[int]) -> tuple[int, ...]:
    if isinstance(asked, bool):
        return (signal.SIGTERM,) if asked else ()
    return tuple(asked)


def last(callbacks: Sequence[Any]) -> list[Any]:
    """The callbacks for `fit`, with the first BackupAndRestore moved to the end."""
    first = next((each for each in callbacks if isinstance(each, BackupAndRestore)), None)
    if first is None:
        return list(callbacks)
    first.lead(callbacks)
    return [*(each for each in callbacks if each is not first), first]


def follow_data(fit: Any, model: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Replace the datasets in the arguments to `fit`, so that a callback can track the data.

    The first FollowsData callback in the arguments tracks the data. Without one, nothing changes.

    Returns:
      The positional and keyword arguments to pass to `fit`.
    """
    try:
        call = inspect.signature(fit).bind(model, *args, **kwargs)
    except TypeError:  # Keras reports this error
        return args, kwargs
    callbacks = call.arguments.get("callbacks")
    given = tf.nest.flatten(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks]
    found = [each for each in given if isinstance(each, FollowsData)]
    for name, steps in (("x", "steps_per_epoch"), ("validation_data", "validation_steps")):
        data = call.arguments.get(name)
        # With a fixed number of steps, one iterator may serve several epochs.
        if found and isinstance(data, tf.data.Dataset) and not call.arguments.get(steps):
            call.arguments[name] = found[0].orders[name].follow(data)
    return call.args[1:], call.kwargs
