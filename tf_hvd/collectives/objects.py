"""Python objects from rank to rank, pickled (cloudpickle).

The ranks of a job trust each other: what is received is unpickled.

Large objects travel in pieces, and large buffers in them (arrays) from and to
where they lie, beside the pickle (PEP 574): a rank needs the room for what it
receives and for a piece or two more, and no length is limited.

In v1 graph mode the transfers run in a small graph and session of their own:
the program's graph does not grow with each call and may be finalized.
"""

import dataclasses
import functools
import pickle
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import cloudpickle
import numpy as np
import tensorflow as tf

from tf_hvd.collectives import _calls, collectives
from tf_hvd.core import basics, error_text
from tf_hvd.core.process_sets import ProcessSet, global_process_set, registration_of
from tf_hvd.core.tensorflow_hooks import on_host, verbatim

_GOOD, _FAILED = 0, 1

PIECE_BYTES = 2 << 20
"""How much of an object is sent at once: so little that its copies stay in the caches."""

OUT_OF_BAND_BYTES = 1 << 20
"""Buffers from this length on are sent by themselves, shorter ones in the pickle."""


class Title(str):
    """The name of requests of tf_hvd's own, in words, as errors and stall reports show it."""

    __slots__ = ()


# What the second of an object's requests is about, in the name that users see.
_IN_WORDS = {".sz": " (sizes)"}


def _graph_runner(collective: Callable[[Any], Any], dtype: tf.DType) -> Any:
    """Runs one collective on a NumPy vector in a private v1 graph and session."""
    with tf.Graph().as_default() as graph:
        given = tf.compat.v1.placeholder(dtype, [None])
        output = collective(given)
    return tf.compat.v1.Session(graph=graph).make_callable(output, [given])


class Channel:
    """Sends vectors under one name in one process set, at once, in any mode."""

    def __init__(self, name: str, process_set: ProcessSet) -> None:
        self._name = name
        self._process_set = process_set
        self._runners: dict[tuple[Any, ...], Any] = {}

    def allgather(self, value: np.ndarray, suffix: str) -> np.ndarray:
        return self._run(None, suffix, value)

    def broadcast(self, value: np.ndarray, root: int, suffix: str) -> np.ndarray:
        """The root's vector; the others give one of the same length."""
        return self._run(root, suffix, value)

    def _run(self, root: int | None, suffix: str, value: np.ndarray) -> np.ndarray:
        with tf.init_scope():
            if tf.executing_eagerly():
                result = self._collective(root, suffix, value)
                return np.asarray(memoryview(result))  # numpy() would copy
            key = (root, suffix, value.dtype, registration_of(self._process_set))
            if key not in self._runners:
                self._runners[key] = _graph_runner(
                    functools.partial(self._collective, root, suffix), tf.as_dtype(value.dtype)
                )
            return np.asarray(self._runners[key](value))

    def _collective(self, root: int | None, suffix: str, tensor: Any) -> Any:
        name = f"{self._name}{suffix}"
        if isinstance(self._name, Title):
            name = f"{self._name}{_IN_WORDS.get(suffix, '')}"
            # A node of a graph has no words.
            name = name if tf.executing_eagerly() else re.sub(r"[^A-Za-z0-9_.]+", "_", name)
        with on_host():
            if root is None:
                return collectives.allgather(tensor, name=name, process_set=self._process_set)
            return collectives.broadcast(tensor, root, name=name, process_set=self._process_set)


@functools.lru_cache(maxsize=64, typed=True)
def channel_of(name: str, process_set: ProcessSet) -> Channel:
    return Channel(name, process_set)


@dataclasses.dataclass(frozen=True)
class _Pickled:
    """An object as bytes: the pickle, then the buffers that it refers to.

    If it could not be pickled, the only part is the text of the error: the other
    ranks wait for something.
    """

    parts: list[np.ndarray]
    error: Exception | None = None

    @property
    def header(self) -> np.ndarray:
        """Whether it worked, the number of parts, and the length of the first."""
        state = _GOOD if self.error is None else _FAILED
        return np.array([state, len(self.parts), len(self.parts[0])], np.int64)


def _as_bytes(data: Any) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


def _pickle(obj: Any) -> _Pickled:
    buffers: list[np.ndarray] = []

    def stays_in_the_pickle(buffer: pickle.PickleBuffer) -> bool:
        data = buffer.raw()
        if data.nbytes < OUT_OF_BAND_BYTES:
            return True
        buffers.append(_as_bytes(data))
        return False

    try:
        data = cloudpickle.dumps(obj, protocol=5, buffer_callback=stays_in_the_pickle)
    except Exception as error:  # __reduce__ may raise anything
        return _Pickled([_as_bytes(error_text.of(error).encode())], error)
    return _Pickled([_as_bytes(data), *buffers])


def _unpickle(state: int, parts: Sequence[np.ndarray], rank: int) -> Any:
    """The object; the parts after the first become its memory."""
    if state == _FAILED:
        text = parts[0].tobytes().decode()
        raise RuntimeError(f"rank {rank} could not pickle its object: {text}")
    return pickle.loads(parts[0].data, buffers=parts[1:])


def _spread(channel: Channel, root: int, part: np.ndarray | None, size: int) -> np.ndarray:
    """Sends one part from the root to all, in pieces; elsewhere `part` is None."""
    result = np.empty(size, np.uint8) if part is None else part
    source = np.zeros(min(size, PIECE_BYTES), np.uint8) if part is None else part
    for begin in range(0, size, PIECE_BYTES):
        end = min(begin + PIECE_BYTES, size)
        piece = source[: end - begin] if part is None else source[begin:end]
        received = channel.broadcast(piece, root, ".t")
        if part is None:
            result[begin:end] = received
    return result


def _spread_object(
    channel: Channel, root: int, mine: _Pickled | None, header: np.ndarray
) -> list[np.ndarray]:
    """All parts of an object, from the root to all, after its header."""
    sizes = header[2:]
    if header[1] > 1:
        sizes = np.zeros(header[1], np.int64)
        if mine is not None:
            sizes = np.array([len(part) for part in mine.parts], np.int64)
        sizes = channel.broadcast(sizes, root, ".sz")
    parts = mine.parts if mine is not None else [None] * len(sizes)
    return [
        _spread(channel, root, part, int(size)) for part, size in zip(parts, sizes, strict=True)
    ]


def _broadcast(channel: Channel, obj: Any, root_rank: int) -> Any:
    mine = _pickle(obj) if basics.rank() == root_rank else None
    header = np.zeros(3, np.int64) if mine is None else mine.header
    header = channel.broadcast(header, root_rank, ".sz").copy()
    parts = _spread_object(channel, root_rank, mine, header)
    if mine is None:
        return _unpickle(int(header[0]), parts, root_rank)
    if mine.error is not None:
        raise mine.error
    return obj


@verbatim
def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The object of one rank, on all of them. Of any size.

    Args:
      obj: anything that cloudpickle can pickle; ignored on the other ranks.
      root_rank: whose object it is: a rank of the job, also with a process set.
      session: accepted for Horovod's scripts; none is needed.
      name: name of the requests, `<name>.sz` and `<name>.t`; the same on all
        ranks. "broadcast_object" if not given.
      process_set: who takes part.

    Returns:
      `obj` itself at the root, a copy elsewhere. Arrays in it can be written to.

    Raises:
      RuntimeError: on all ranks but the root: the root could not pickle its object; the
        text says why.
      Exception: on the root, what pickling has raised; on another rank, what unpickling has
        raised, such as ModuleNotFoundError.
      TypeError: `root_rank` is no integer, or `name` no string.
      ValueError: `init` was not called, or `process_set` is not registered.
      tf.errors.InvalidArgumentError: there is no such root rank.
    """
    root = _calls.checked_root(root_rank)
    channel = channel_of(_calls.checked_name(name) or "broadcast_object", process_set)
    return _broadcast(channel, obj, root)


@verbatim
def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """`broadcast_object` as a function of the object alone, to be called many times.

    In v1 graph mode all calls use one graph, made in the first.

    Args:
      root_rank: see `broadcast_object`, as are the others.
      session: see there.
      name: see there.
      process_set: see there.
    """
    root = _calls.checked_root(root_rank)
    channel = Channel(_calls.checked_name(name) or "broadcast_object", process_set)

    def broadcast(obj: Any) -> Any:
        """The root's object, on all ranks."""
        return _broadcast(channel, obj, root)

    return broadcast


def _gather(
    channel: Channel, mine: _Pickled, headers: np.ndarray, process_set: ProcessSet
) -> Iterator[list[np.ndarray]]:
    """The parts of each rank's object, one rank after the other.

    What is small comes by one allgather. What is not is broadcast by each rank in
    turn, so that no more than one object is here as bytes.
    """
    if headers[:, 1].max() == 1 and headers[:, 2].sum() <= PIECE_BYTES:
        everything = channel.allgather(mine.parts[0], ".t")
        yield from ([part] for part in np.split(everything, np.cumsum(headers[:-1, 2])))
        return
    me = process_set.rank()
    for place, root in enumerate(process_set.ranks or ()):
        parts = _spread_object(channel, root, mine if place == me else None, headers[place])
        # The copy of one's own object must not be made of its memory.
        yield [part.copy() for part in parts] if place == me else parts


@verbatim
def allgather_object(
    obj: Any,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """All ranks' objects, as a list in the order of the ranks. Of any size.

    Args:
      obj: anything that cloudpickle can pickle.
      session: accepted for Horovod's scripts; none is needed.
      name: see `broadcast_object`; "allgather_object" if not given.
      process_set: who takes part.

    Returns:
      A list of copies, including one of this rank's own object.

    Raises:
      RuntimeError: on all ranks: a rank has called `join`, and so has no object to give. On
        ranks whose own object could be pickled: another rank's could not; the text says why.
      Exception: on a rank that could not pickle its object, what pickling has raised; on one
        that cannot unpickle another's, what unpickling has raised.
      ValueError: `process_set` is not registered.
      tf.errors.FailedPreconditionError: `init` was not called.
    """
    channel = channel_of(_calls.checked_name(name) or "allgather_object", process_set)
    mine = _pickle(obj)
    headers = channel.allgather(mine.header, ".sz").reshape(-1, 3).copy()
    roots = process_set.ranks or []
    if len(headers) != len(roots):
        raise RuntimeError(
            f"allgather_object: {len(roots) - len(headers)} of the {len(roots)} ranks have called "
            "join() and have no object to give. Call it before join(), or when join() has returned."
        )
    for place in np.flatnonzero(headers[:, 0] == _FAILED)[:1]:
        root = roots[place]
        own = mine if place == process_set.rank() else None
        parts = _spread_object(channel, root, own, headers[place])
        if mine.error is not None:
            raise mine.error
        _unpickle(_FAILED, parts, root)
    gathered = _gather(channel, mine, headers, process_set)
    return [_unpickle(_GOOD, parts, root) for parts, root in zip(gathered, roots, strict=True)]
