"""State classes with Horovod's names. A restarted job continues from the data in a state."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np
import tensorflow as tf

from tf_hvd.collectives.objects import Title, broadcast_object
from tf_hvd.collectives.variables import broadcast_variables, is_seed
from tf_hvd.core import contract, error_text
from tf_hvd.core.exceptions import HostsUpdatedInterrupt
from tf_hvd.core.tensorflow_hooks import tf_variable
from tf_hvd.elastic.commits import Contents
from tf_hvd.elastic.engine import Engine, Restored
from tf_hvd.elastic.sampler import ElasticSampler
from tf_hvd.elastic.variables import Reader, assign, named
from tf_hvd.keras import compat
from tf_hvd.keras.distribution import active
from tf_hvd.training.snapshot import Snapshot

# The type of Horovod's arguments that tf_hvd does not use.
Unused = Any


class State:
    """The base class of the states that `run` passes to a training function.

    A class derived directly from State must implement `save`, `restore` and `sync`. Its data is
    lost at a restart. To keep the data, derive from ObjectState.

    Args:
        bcast_object: accepted for compatibility with Horovod; unused.
        get_rank: accepted for compatibility with Horovod; unused.
    """

    def __init__(self, bcast_object: Unused = None, get_rank: Unused = None) -> None:
        self._reset_callbacks: list[Callable[[], Any]] = []
        self._engine: Engine | None = None
        self._updates = 0  # changes of hosts announced by `on_hosts_updated`

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], Any]]) -> None:
        """Register functions to be called on all ranks after a restart.

        The functions are called after the state is restored and before training continues. They
        may, for example, adapt the learning rate to a new number of ranks.

        Args:
            callbacks: functions without arguments.
        """
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Call `reset` and then the reset callbacks; `run` calls this function after a restart."""
        self._updates = 0
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: Unused, update_res: int) -> None:
        """Announce a change of hosts, which the next `check_host_updates` on all ranks reports.

        Args:
            timestamp: accepted for compatibility with Horovod; unused.
            update_res: 1 for removed hosts, 2 for added hosts, 3 for both.
        """
        self._updates |= int(update_res)

    def commit(self) -> None:
        """Save the state, and check whether hosts were added or removed.

        All ranks must call this function. Under `tf_hvd run --min-np` the state is written in the
        background. A rank blocks only until its previous commit is written and all ranks have
        reached the previous commit.

        Raises:
            HostsUpdatedInterrupt: the hosts have changed. All ranks raise it at the same commit,
                and `run` handles it.
        """
        # All ranks have written every commit but their last one, so an older one can be replaced.
        self._meet(self.save)

    def check_host_updates(self) -> None:
        """Check whether hosts were added or removed. All ranks must call this function.

        Raises:
            HostsUpdatedInterrupt: the hosts have changed. All ranks raise it at the same call,
                and `run` handles it.
        """
        self._meet(lambda: None)

    def _meet(self, save: Callable[[], None]) -> None:
        mine, self._updates = self._updates, 0
        said = mine if self._engine is None else self._engine.heard()
        save()
        if said:
            raise HostsUpdatedInterrupt(skip_sync=said == contract.REMOVED)
        if self._engine is not None:
            self._engine.say(mine)

    def save(self) -> None:
        """Save the state for `restore`."""
        raise NotImplementedError

    def restore(self) -> None:
        """Restore the state that was saved last."""
        raise NotImplementedError

    def sync(self) -> None:
        """Copy the state of rank 0 to all ranks, and save it."""
        raise NotImplementedError

    def reset(self) -> None:
        """Do nothing; subclasses may override it. `on_reset` calls it before the callbacks."""

    def start(self, engine: Engine | None) -> None:
        """Prepare the state for training on all ranks. `run` calls this function.

        Args:
            engine: the elastic engine; None in a job that is not elastic.
        """
        self._engine = engine
        self.sync()


class ObjectState(State):
    """A state of Python values; each value becomes an attribute of the state.

    Only the values of rank 0 are saved. cloudpickle must be able to pickle them. If a value has the
    methods `state_dict` and `load_state_dict`, like an ElasticSampler, its `state_dict` is saved.

    Args:
        bcast_object: accepted for compatibility with Horovod; unused.
        get_rank: accepted for compatibility with Horovod; unused.
        **kwargs: the names and initial values.

    Raises:
        ValueError: a name is already an attribute of the class.
    """

    _session: Any = None
    """The session that has the variables; None in eager mode."""

    def __init__(self, bcast_object: Unused = None, get_rank: Unused = None, **kwargs: Any) -> None:
        super().__init__(bcast_object, get_rank)
        for name, value in kwargs.items():
            if hasattr(self, name):
                raise ValueError(
                    f"{type(self).__name__} already has an attribute {name!r}; choose another name"
                )
            setattr(self, name, value)
        self._names = list(kwargs)
        self._local: list[Any] = []
        self._rank_own = self._snapshot()
        self._was_resized = False
        self._had: frozenset[str] = frozenset()  # `maybe_own` variables restored as the rank's own
        self._saved: tuple[bytes, dict[str, np.ndarray]] | None = None
        self._read = Reader(self._session)

    def register_local_var(self, var: Any) -> None:
        """Save a separate value of a variable for each rank.

        Use this function for each variable that you passed to `register_local_var` of a tape or an
        optimizer, because gradients of these variables are not reduced. A TensorFlowKerasState
        saves separate moving statistics and seeds without this call.

        Args:
            var: a variable of this state.
        """
        self._local.append(tf_variable(var))

    def follow(
        self,
        name: str,
        collect: Callable[[], Any],
        restore: Callable[[Any], None],
        merge: Callable[[Sequence[Any]], Any] | None = None,
    ) -> None:
        """Save an additional value of each rank with the state.

        Args:
            name: any name; a later call with the same name replaces the earlier call.
            collect: function that returns the value to save, which must be picklable.
            restore: function that is called with the value after a restart with the same number of
                ranks.
            merge: function that is called after a restart with another number of ranks. Its
                argument is a list of the values of all ranks before the restart. Its result is
                passed to `restore`, unless it is None. Without `merge`, such a restart does not
                restore the value.
        """
        self._rank_own.follow(name, collect, restore, merge)

    def samplers(self) -> list[ElasticSampler]:
        """Return the ElasticSamplers among the values."""
        values = [getattr(self, name) for name in self._names]
        return [value for value in values if isinstance(value, ElasticSampler)]

    def was_resized(self) -> bool:
        """Return whether the state is from a commit by a job with a different number of ranks."""
        return self._was_resized

    def save(self) -> None:
        """Save the state for `restore`."""
        if self._engine is None:
            self._saved = self._pickled(), self._read(self._variables().all)
        else:
            self._engine.commit(self._contents(self._engine.writer.writes_file))

    def restore(self) -> None:
        """Restore the state that was saved last.

        Under `tf_hvd run --min-np`, this method does nothing. A restart restores the state.
        """
        if self._saved is not None:
            objects, values = self._saved
            self._unpickle(objects)
            assign(self._session, self._variables().all, values)

    def sync(self) -> None:
        """Copy the state of rank 0 to all ranks, and save it."""
        self._unpickle(
            broadcast_object(self._pickled(), 0, name=Title("elastic: objects of the state"))
        )
        self._broadcast()
        self._begin()
        self.save()

    def start(self, engine: Engine | None) -> None:
        """Prepare the state for training on all ranks. `run` calls this function."""
        self._engine = engine
        restored = None if engine is None else engine.restore()
        if restored is None:
            self.sync()
            return
        self._take(restored)
        self.on_reset()
        self._begin()

    def _variables(self) -> _Variables:
        return _Variables({}, frozenset())

    def _broadcast(self) -> None:
        """Copy the values of variables from rank 0 to all ranks."""

    def _snapshot(self) -> Snapshot:
        """Return this rank's own values that are not variables."""
        return Snapshot()

    def _begin(self) -> None:
        """Record the current values of the variables, to detect later assignments."""
        if self._engine is not None:
            found = self._variables()
            self._engine.writer.begin(self._read(found.chosen(found.maybe_own - self._had)))

    def _pickled(self) -> bytes:
        values = {}
        for name in self._names:
            value = getattr(self, name)
            has_own = hasattr(value, "state_dict") and hasattr(value, "load_state_dict")
            values[name] = (has_own, value.state_dict() if has_own else value)
        try:
            data: bytes = cloudpickle.dumps(values)
        except Exception as error:
            for name, value in values.items():
                try:
                    cloudpickle.dumps(value)
                except Exception:
                    raise TypeError(
                        f"the value {name!r} of the state cannot be saved, because pickling fails: "
                        f"{error_text.of(error)}"
                    ) from error
            raise
        return data

    def _unpickle(self, data: bytes) -> None:
        for name, (has_own, value) in pickle.loads(data).items():
            if has_own:
                getattr(self, name).load_state_dict(value)
            else:
                setattr(self, name, value)

    def _contents(self, whole: bool) -> Contents:
        found = self._variables()
        chosen = found.all if whole else found.chosen(found.own | found.maybe_own)
        values = self._read(chosen)
        own: dict[str, Any] = {"random": self._rank_own.random_numbers()}
        own["variables"] = {name: np.array(values[name]) for name in found.own}
        own["followed"] = self._rank_own.collect()
        return Contents(self._pickled(), values, own, found.maybe_own)

    def _take(self, restored: Restored) -> None:
        found = self._variables()
        _check(found.all, restored)
        own = restored.own or {}
        self._had = frozenset(own.get("arrays", {}))
        values = {**restored.arrays, **own.get("arrays", {}), **own.get("variables", {})}
        if restored.own is None:  # this rank did not exist before
            values = {name: value for name, value in values.items() if name not in found.own}
        self._was_resized = not restored.same_size
        if self._was_resized:  # the incomplete update restarts
            values |= {name: np.zeros_like(restored.arrays[name]) for name in found.sums}
        assign(self._session, found.all, values)
        self._unpickle(restored.objects)
        numbers = own.get("random", {})
        if restored.own is None and active.divides_batches():
            numbers = restored.everyone[0]["random"]  # all ranks must read the same batches
        self._rank_own.restore_random_numbers(numbers)
        self._rank_own.restore(own.get("followed", {}) if restored.same_size else {})
        self._rank_own.restore_resized([each["followed"] for each in restored.everyone])


class TensorFlowState(ObjectState):
    """A state of TensorFlow variables and Python values.

    Args:
        variables: sequence of tf.Variables (default: all global variables of the v1 graph).
        session: the session that has the variables of a v1 graph (default: the default session).
        **kwargs: Python values, as for ObjectState.
    """

    def __init__(self, variables: Sequence[Any] | None = None, session: Any = None, **kwargs: Any):
        self._given = variables
        if not tf.executing_eagerly():
            self._session = session or tf.compat.v1.get_default_session()
        super().__init__(**kwargs)

    def _variables(self) -> _Variables:
        given = self._given
        found = named(tf.compat.v1.global_variables() if given is None else given)
        return _Variables(found, _names(found, [*self._local, *filter(is_seed, found.values())]))

    def _broadcast(self) -> None:
        done = broadcast_variables(list(self._variables().all.values()), 0)
        if self._session is not None:
            self._session.run(done)


class TensorFlowKerasState(ObjectState):
    """A state of a Keras model, its optimizer and Python values, for Keras 3 and tf_keras.

    Moving statistics, the states of random-number generators, and the gradient sums of an
    incomplete update are saved for each rank. They are restored if the number of ranks is
    unchanged.

    Args:
        model: a built model. Missing variables of the optimizer are created.
        optimizer: the optimizer (default: the optimizer of the model).
        backend: accepted for compatibility with Horovod; unused.
        **kwargs: Python values, as for ObjectState.

    Raises:
        ValueError: the model is not built.
    """

    def __init__(
        self, model: Any, optimizer: Any = None, backend: Unused = None, **kwargs: Any
    ) -> None:
        if not model.built:
            raise ValueError(
                "the model is not built: call the model on data, or add an Input to it, before you "
                "create its state"
            )
        self.model = model
        self.optimizer = optimizer or getattr(model, "optimizer", None)
        if self.optimizer is not None:
            compat.build_optimizer(self.optimizer, model.trainable_variables)
        super().__init__(**kwargs)

    def _snapshot(self) -> Snapshot:
        return Snapshot(
            lambda: compat.random_states(self.model),
            None if self.optimizer is None else lambda: compat.aggregations_of(self.optimizer),
        )

    def _variables(self) -> _Variables:
        optimizer = self.optimizer
        of_optimizer = [] if optimizer is None else compat.variables_of(optimizer)
        sums = [] if optimizer is None else compat.own_sums(optimizer)
        found = named([*self.model.variables, *of_optimizer, *sums])
        own = _names(found, [*self._local, *sums, *filter(is_seed, found.values())])
        maybe_own = _names(found, self.model.non_trainable_variables) - own
        return _Variables(found, own, maybe_own, _names(found, sums))

    def _broadcast(self) -> None:
        found = self._variables()
        broadcast_variables([each for name, each in found.all.items() if name not in found.own], 0)


@dataclass(frozen=True)
class _Variables:
    """The variables of a state, by name. All ranks have the same names."""

    all: Mapping[str, Any]
    own: frozenset[str]
    """The variables with a separate value on each rank."""
    maybe_own: frozenset[str] = frozenset()
    """The variables that get separate values when assigned to, such as moving statistics."""
    sums: frozenset[str] = frozenset()
    """The variables in `own` that are gradient sums of an incomplete update."""

    def chosen(self, names: frozenset[str]) -> dict[str, Any]:
        return {name: variable for name, variable in self.all.items() if name in names}


def _names(found: Mapping[str, Any], variables: Iterable[Any]) -> frozenset[str]:
    """Return the names of `variables` in `found`."""
    ids = {id(tf_variable(each)) for each in variables}
    return frozenset(name for name, each in found.items() if id(each) in ids)


def _check(variables: Mapping[str, Any], restored: Restored) -> None:
    """Raise if a commit was made by another program.

    Raises:
        ValueError: the commit's variables differ from this program's.
    """
    for name in [*variables, *restored.arrays]:
        if name not in restored.arrays or name not in variables:
            raise ValueError(
                f"the last commit and this program differ: {name!r} is only in "
                f"{'the commit' if name not in variables else 'the program'}"
            )
    for name, data in restored.arrays.items():
        size = variables[name].shape.num_elements() * variables[name].dtype.size
        if data.nbytes != size:
            raise ValueError(
                f"the last commit and this program differ: {name!r} has {data.nbytes} bytes in "
                f"the commit and {size} here"
            )
