"""Save and restore the state that a resumed `fit` needs besides the first rank's model.

- Callbacks: the attributes that determine their next actions, such as `best` and `wait` in
  EarlyStopping.
- Each rank: the state that training/snapshot.py collects, and the model and optimizer variables
  that differ from the first rank's. Such variables are moving statistics, seeds, local variables,
  and Keras' gradient sums for an incomplete update.

An entry is a plain value with a name. Each rank stores only the entries that differ from the first
rank's entries.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_hvd.collectives.objects import Title, broadcast_object
from tf_hvd.collectives.variables import is_seed
from tf_hvd.core import basics, log
from tf_hvd.core.process_sets import ProcessSet
from tf_hvd.core.tensorflow_hooks import tf_variable
from tf_hvd.keras import compat, plain_values
from tf_hvd.keras.data_order import Place
from tf_hvd.training import agreement
from tf_hvd.training.snapshot import Snapshot

_CALLBACK, _VARIABLE, _SEED, _PLACE = "callback/", "variable/", "variable/seed/", "place"
Entries = dict[str, Any]


def _named(callbacks: Sequence[Any]) -> dict[str, Any]:
    """The callbacks by name. The names do not depend on callbacks from other classes."""
    found: dict[str, Any] = {}
    for callback in callbacks:
        kind = type(callback).__qualname__
        number = sum(name.rpartition("/")[0] == kind for name in found)
        found[f"{kind}/{number}"] = callback
    return found


def _remembered(callback: Any) -> dict[str, Any]:
    names: set[str] = set(getattr(callback, "backup_attributes", ()))
    for kind in compat.library_classes(callback):
        names.update(compat.REMEMBERED.get(kind, ()))
    return {name: getattr(callback, name) for name in sorted(names) if hasattr(callback, name)}


def _callback_entries(callbacks: Sequence[Any]) -> dict[str, bytes]:
    """The serialized state of each callback that has state, by name."""
    found = {}
    for name, callback in _named(callbacks).items():
        values = _remembered(callback)
        if values:
            try:
                found[_CALLBACK + name] = plain_values.dumps(values)
            except TypeError as error:
                which = f"{'one of ' * (len(values) > 1)}{', '.join(values)}"
                raise TypeError(
                    f"{type(callback).__name__}: cannot back up {which} ({error}). Store numbers, "
                    "strings, arrays, or lists, tuples, sets and dicts of these."
                ) from error
    return found


def _restore_callbacks(callbacks: Sequence[Any], entries: Mapping[str, Any]) -> None:
    for name, callback in _named(callbacks).items():
        if _CALLBACK + name in entries:
            for key, value in plain_values.loads(entries[_CALLBACK + name]).items():
                setattr(callback, key, value)


def _variables(model: Any) -> dict[str, Any]:
    """All variables that affect further training, by names that are the same in a new process."""
    optimizer = getattr(model, "optimizer", None)
    groups = {
        "weight": model.weights,
        "seed": filter(is_seed, model.variables),
        "optimizer": [] if optimizer is None else compat.variables_of(optimizer),
    }
    return {
        f"{_VARIABLE}{group}/{index}": variable
        for group, variables in groups.items()
        for index, variable in enumerate(map(tf_variable, variables))
        if variable.dtype != tf.string
    }


def _fingerprints(model: Any) -> dict[str, int]:
    variables = _variables(model)
    bits = agreement.fingerprints(list(variables.values())).numpy().tolist()
    return dict(zip(variables, bits, strict=True))


def _variable_entries(model: Any, others: Mapping[str, int]) -> Entries:
    """The values of all seeds, and of variables with fingerprints that differ from `others`.

    The seeds are always included, because Keras' backup does not contain them.
    """
    variables, mine = _variables(model), _fingerprints(model)
    return {
        name: variables[name].numpy()
        for name in mine
        if name.startswith(_SEED) or mine[name] != others.get(name, mine[name])
    }


def _updates(model: Any) -> int:
    """The optimizer's update count, which shows whether rank states match Keras' backup."""
    optimizer = getattr(model, "optimizer", None)
    return 0 if optimizer is None else compat.updates_of(next(compat.leaves(optimizer))) or 0


class RankStates:
    """The entries of all ranks in one `fit`; the first rank stores them next to Keras' backup.

    Create this object after `on_train_begin` has run in all of the program's callbacks.

    Args:
      callbacks: the program's callbacks.
      model: the model being trained.
      place: the position of `fit` in its data.
      process_set: the ranks in the `fit`; None if this rank saves and restores on its own.
    """

    def __init__(
        self,
        callbacks: Sequence[Any],
        model: Any,
        place: Place,
        process_set: ProcessSet | None,
    ) -> None:
        self._callbacks = callbacks
        self._model = model
        self._epoch = 0
        optimizer = getattr(model, "optimizer", None)
        # Ranks that have not agreed may find different files. If their pass counts differed, they
        # would reduce gradients at different batches.
        agreed = process_set is not None or not basics.is_initialized() or basics.size() == 1
        self._snapshot = Snapshot(
            lambda: compat.random_states(model),
            None if optimizer is None or not agreed else lambda: compat.aggregations_of(optimizer),
        )
        self._snapshot.follow(
            _PLACE, lambda: {**place.collect(model), "epoch": self._epoch}, place.take_up
        )
        self._process_set = process_set
        self._ranks = [0] if process_set is None else list(process_set.ranks or ())
        self._place: int = 0 if process_set is None else process_set.rank() or 0
        self._own: Entries = {}
        self._others: list[bytes] = []

    def _of(self, place: int, value: Any) -> Any:
        """Broadcast a value within the process set, from the rank at index `place` in it."""
        if self._process_set is None:
            return value
        return broadcast_object(
            value,
            self._ranks[place],
            name=Title("BackupAndRestore: state of the ranks"),
            process_set=self._process_set,
        )

    def collect(self, epoch: int) -> None:
        """Send the state of all ranks to the first rank.

        All ranks must call this function, between epochs or between batches.

        Args:
          epoch: the next epoch if called between epochs, otherwise the current epoch.
        """
        states = _callback_entries(self._callbacks)
        mine = {name: hashlib.sha256(each).digest() for name, each in states.items()}
        digests, bits = self._of(0, (mine, _fingerprints(self._model)))
        self._epoch = epoch
        self._own = {
            **self._snapshot.random_numbers(),
            **_variable_entries(self._model, bits),
            **self._snapshot.collect(),
        }
        differing = {name: states[name] for name in states if mine[name] != digests.get(name)}
        sent = plain_values.dumps(self._own | differing)
        places = range(1, len(self._ranks))
        received = [self._of(place, sent if place == self._place else None) for place in places]
        self._others = received if self._place == 0 else []

    def write(self, path: str) -> None:
        """Write the file with rank states; called on the first rank after Keras' own backup."""
        mine = plain_values.dumps(self._own | _callback_entries(self._callbacks))
        contents = {"updates": _updates(self._model), "ranks": [mine, *self._others]}
        new = f"{path}.{os.urandom(8).hex()}"  # random, so that no link can exist there
        try:
            with tf.io.gfile.GFile(new, "wb") as file:
                file.write(plain_values.dumps(contents))
            tf.io.gfile.rename(new, path, overwrite=True)
        except tf.errors.OpError:
            if tf.io.gfile.exists(new):
                tf.io.gfile.remove(new)
            raise

    def restore(self, path: str) -> int | None:
        """Restore the state on all ranks, after Keras has restored its backup.

        If the number of ranks has changed, each rank gets new random numbers, as at the beginning
        of training. All other state then comes from the first rank, and the epoch restarts.

        Args:
          path: path of the file with rank states; used only on the first rank.

        Returns:
          The epoch to begin with; None if the epoch is unknown.
        """
        encoded = self._read(path) if self._place == 0 else []
        first, others = plain_values.loads(encoded[0]) if encoded else {}, encoded[1:]
        shared = {name: value for name, value in first.items() if name.startswith(_CALLBACK)}
        mine = first.get(_PLACE, {}).get("epoch")
        count, shared, epoch = self._of(0, (len(encoded), shared, mine))
        own: Entries = {}
        if count == len(self._ranks):
            own = first
            for place in range(1, count):
                sent = self._of(0, others[place - 1] if others else None)
                if place == self._place:
                    own = plain_values.loads(sent)
        _restore_callbacks(self._callbacks, {**shared, **own})
        variables = _variables(self._model)
        for name in variables.keys() & own.keys():
            variables[name].assign(own[name])
        self._snapshot.restore_random_numbers(own)
        # Otherwise the snapshot would keep the whole state for later callbacks.
        self._snapshot.restore({name: own[name] for name in self._snapshot.names & own.keys()})
        return None if epoch is None else int(epoch)

    def _read(self, path: str) -> list[bytes]:
        if not tf.io.gfile.exists(path):
            return []
        with tf.io.gfile.GFile(path, "rb") as file:
            contents = plain_values.loads(file.read())
        if contents["updates"] != _updates(self._model):
            log.warning(
                "the state of callbacks and random numbers is not restored, because %s does not "
                "match the model next to it. The earlier job ended while it wrote a backup.",
                path,
            )
            return []
        found: list[bytes] = contents["ranks"]
        return found
