"""States: what a job goes on from when it was started again. Horovod's classes."""

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
from tf_hvd.training.snapshot import Snapshot

# Where Horovod calls something of no use here.
Unused = Any


class State:
    """What `run` hands to a training, and what it goes on from; the base of all states.

    A class of one's own that is derived from this one implements `save`, `restore` and `sync`, and
    is not kept when a rank has ended: derive it from ObjectState for that.

    Args:
        bcast_object: Horovod's; not used.
        get_rank: Horovod's; not used.
    """

    def __init__(self, bcast_object: Unused = None, get_rank: Unused = None) -> None:
        self._reset_callbacks: list[Callable[[], Any]] = []
        self._engine: Engine | None = None
        self._updates = 0  # of what the program was told by `on_hosts_updated`

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], Any]]) -> None:
        """Functions without arguments, called on all ranks when the job has been started again.

        After the state has what was committed, and before the training goes on: to give the
        learning rate its value for another number of ranks, for one.
        """
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """The job was started again: calls `reset`, and the callbacks."""
        self._updates = 0
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: Unused, update_res: int) -> None:
        """Hosts have come or gone: the next `check_host_updates` of all ranks will say so.

        Args:
            timestamp: Horovod's; not used.
            update_res: 1: hosts have gone; 2: have come; 3: both.
        """
        self._updates |= int(update_res)

    def commit(self) -> None:
        """Saves the state, and looks whether hosts have come or gone.

        To be called by all ranks. Under `tf_hvd run --min-np` it is written beside the next steps;
        no rank waits for more than that the others have come to the commit before.

        Raises:
            HostsUpdatedInterrupt: they have; on all ranks at the same commit. `run` handles it.
        """
        # All have written all but their last one by now: this takes the place of an older one.
        self._meet(self.save)

    def check_host_updates(self) -> None:
        """Looks whether hosts have come or gone; on all ranks.

        Raises:
            HostsUpdatedInterrupt: they have; on all ranks at the same call. `run` handles it.
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
        """Saves the state; `restore` takes it back."""
        raise NotImplementedError

    def restore(self) -> None:
        """Takes back what was saved last."""
        raise NotImplementedError

    def sync(self) -> None:
        """Gives all ranks the state of rank 0, and saves it."""
        raise NotImplementedError

    def reset(self) -> None:
        """Called by `on_reset`, before the callbacks."""

    def start(self, engine: Engine | None) -> None:
        """The training begins; on all ranks. Called by `run`.

        Args:
            engine: None where nobody would start the job again.
        """
        self._engine = engine
        self.sync()


class ObjectState(State):
    """Values of the program: each becomes an attribute, which is saved.

    They must be picklable (cloudpickle), and are those of rank 0. Of what has `state_dict` and
    `load_state_dict`, as ElasticSampler has, that is saved.

    Args:
        bcast_object: Horovod's; not used.
        get_rank: Horovod's; not used.
        **kwargs: names and values.

    Raises:
        ValueError: a name is that of an attribute of the class.
    """

    _session: Any = None
    """That in which the variables are; None where TensorFlow runs eagerly."""

    def __init__(self, bcast_object: Unused = None, get_rank: Unused = None, **kwargs: Any) -> None:
        super().__init__(bcast_object, get_rank)
        for name, value in kwargs.items():
            if hasattr(self, name):
                raise ValueError(
                    f"{type(self).__name__} has a {name!r} of its own; give the value another name"
                )
            setattr(self, name, value)
        self._names = list(kwargs)
        self._local: list[Any] = []
        self._rank_own = self._snapshot()
        self._was_resized = False
        self._had: frozenset[str] = frozenset()  # its own, of a commit, among what may be its own
        self._saved: tuple[bytes, dict[str, np.ndarray]] | None = None
        self._read = Reader(self._session)

    def register_local_variables(self, variables: Iterable[Any]) -> None:
        """Variables of which each rank has its own value, beside moving statistics and seeds.

        Those of layers that are not reduced (`register_local_source` of a tape or an optimizer).
        """
        self._local.extend(map(tf_variable, variables))

    def follow(self, name: str, collect: Callable[[], Any], restore: Callable[[Any], None]) -> None:
        """Has something saved of which each rank has its own.

        Args:
            name: of one's choice; a later registration under the same name
                replaces it.
            collect: gives what is saved, a picklable value.
            restore: gets it after a restart, if the job has as many ranks as before.
        """
        self._rank_own.follow(name, collect, restore)

    def samplers(self) -> list[ElasticSampler]:
        """Those among the values."""
        values = [getattr(self, name) for name in self._names]
        return [value for value in values if isinstance(value, ElasticSampler)]

    def was_resized(self) -> bool:
        """Whether it goes on from a commit that another number of ranks has made."""
        return self._was_resized

    def save(self) -> None:
        """Saves the state; `restore` takes it back."""
        if self._engine is None:
            self._saved = self._pickled(), self._read(self._variables().all)
        else:
            self._engine.commit(self._contents(self._engine.writer.writes_file))

    def restore(self) -> None:
        """Takes back what was saved last. Under `tf_hvd run --min-np` a restart does that."""
        if self._saved is not None:
            objects, values = self._saved
            self._unpickle(objects)
            assign(self._session, self._variables().all, values)

    def sync(self) -> None:
        """Gives all ranks the state of rank 0, and saves it."""
        self._unpickle(
            broadcast_object(self._pickled(), 0, name=Title("elastic: objects of the state"))
        )
        self._broadcast()
        self._begin()
        self.save()

    def start(self, engine: Engine | None) -> None:
        """The training begins; on all ranks. Called by `run`."""
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
        """Gives all ranks the variables of rank 0."""

    def _snapshot(self) -> Snapshot:
        """What is each rank's own, besides variables."""
        return Snapshot()

    def _begin(self) -> None:
        """From now on it counts whether somebody assigns to a variable."""
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
                        f"{name!r} of the state cannot be saved, since it cannot be pickled: "
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
        if restored.own is None:  # it is no rank's that there was
            values = {name: value for name, value in values.items() if name not in found.own}
        self._was_resized = not restored.same_size
        if self._was_resized:  # the update begins anew
            values |= {name: np.zeros_like(restored.arrays[name]) for name in found.sums}
        assign(self._session, found.all, values)
        self._unpickle(restored.objects)
        self._rank_own.restore_random_numbers(own.get("random", {}))
        self._rank_own.restore(own.get("followed", {}) if restored.same_size else {})


class TensorFlowState(ObjectState):
    """Variables of TensorFlow, and values of the program.

    Args:
        variables: tf.Variables; None: all global variables of the v1 graph.
        session: in which they are, of a v1 graph; None: the default session there.
        **kwargs: as for ObjectState.
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
    """A Keras model, its optimizer, and values of the program; Keras 3 or tf_keras.

    Each rank keeps its own moving statistics, random numbers and sums of gradients of an update
    that is not complete, if the job has as many ranks as before.

    Args:
        model: built; its optimizer's variables are made if they are not there.
        optimizer: None: the model's.
        backend: Horovod's; not used.
        **kwargs: as for ObjectState.

    Raises:
        ValueError: the model is not built.
    """

    def __init__(
        self, model: Any, optimizer: Any = None, backend: Unused = None, **kwargs: Any
    ) -> None:
        if not model.built:
            raise ValueError(
                "the model is not built: call it on data, or give its layers an input, before "
                "its state is made"
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
    """The variables of a state, by name; equal on all ranks but for their values."""

    all: Mapping[str, Any]
    own: frozenset[str]
    """Of which each rank has its own value,"""
    maybe_own: frozenset[str] = frozenset()
    """and those of which it has if somebody has assigned to them."""
    sums: frozenset[str] = frozenset()
    """Of its own: sums of gradients, of an update that is not complete."""

    def chosen(self, names: frozenset[str]) -> dict[str, Any]:
        return {name: variable for name, variable in self.all.items() if name in names}


def _names(found: Mapping[str, Any], variables: Iterable[Any]) -> frozenset[str]:
    """The names of these variables, among all that were found."""
    ids = {id(tf_variable(each)) for each in variables}
    return frozenset(name for name, each in found.items() if id(each) in ids)


def _check(variables: Mapping[str, Any], restored: Restored) -> None:
    """Refuses a commit of another program.

    Raises:
        ValueError: its variables are not those that are here.
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
