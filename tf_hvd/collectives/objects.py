"""Collectives on Python objects, which are pickled with cloudpickle.

The ranks of a job trust each other, so they unpickle the data that they receive.

Large objects are sent in pieces. Large buffers in an object, such as arrays, are sent separately
from the pickle, directly from and into their own memory (PEP 574). A rank therefore needs memory
only for the received object and one or two pieces. The size of an object is not limited.

In v1 graph mode the transfers run in a small separate graph and session. The
program's graph therefore does not grow with each call, and may be finalized.
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
"""Size of a piece of an object, in bytes; copies of a piece fit in the CPU's caches."""

OUT_OF_BAND_BYTES = 1 << 20
"""Smallest size, in bytes, of a buffer that is sent separately from the pickle."""


class Title(str):
    """A plain-language name for an internal request, used in errors and stall reports."""

    __slots__ = ()


# Texts that replace the suffixes of request names in errors and reports.
_IN_WORDS = {".sz": " (sizes)"}


def _graph_runner(collective: Callable[[Any], Any], dtype: tf.DType) -> Any:
    """Return a function that runs one collective on a vector in a private v1 graph and session."""
    with tf.Graph().as_default() as graph:
        given = tf.compat.v1.placeholder(dtype, [None])
        output = collective(given)
    return tf.compat.v1.Session(graph=graph).make_callable(output, [given])


class Channel:
    """Collectives on NumPy vectors under one name in one process set, in eager and graph mode."""

    def __init__(self, name: str, process_set: ProcessSet) -> None:
        self._name = name
        self._process_set = process_set
        self._runners: dict[tuple[Any, ...], Any] = {}

    def allgather(self, value: np.ndarray, suffix: str) -> np.ndarray:
        return self._run(None, suffix, value)

    def broadcast(self, value: np.ndarray, root: int, suffix: str) -> np.ndarray:
        """Return the root's vector; other ranks pass any vector of the same length."""
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
            # A graph's node name cannot contain words with spaces.
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
    """A pickled object: its parts are the pickle and then the buffers that it refers to.

    If the object could not be pickled, the only part is the text of the error. It is sent instead
    of the object, because the other ranks wait for data.
    """

    parts: list[np.ndarray]
    error: Exception | None = None

    @property
    def header(self) -> np.ndarray:
        """The state (_GOOD or _FAILED), the number of parts, and the size of the first in bytes."""
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
    """Unpickle an object; the parts after the first become the memory of its buffers.

    Raises:
      RuntimeError: the sender could not pickle the object.
    """
    if state == _FAILED:
        text = parts[0].tobytes().decode()
        raise RuntimeError(f"rank {rank} could not pickle its object: {text}")
    return pickle.loads(parts[0].data, buffers=parts[1:])


def _spread(channel: Channel, root: int, part: np.ndarray | None, size: int) -> np.ndarray:
    """Send one part from the root to all ranks, in pieces; `part` is None on other ranks."""
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
    """Send all parts of an object from the root to all ranks, which already have its header."""
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
    """Send one rank's Python object to all ranks. The size of the object is not limited.

    Args:
      obj: on the root, any object that cloudpickle can pickle; ignored on other ranks.
      root_rank: int, the rank that sends its object, 0 by default. With a process set, this is
        the rank in the job, not the index in the set.
      session: accepted for compatibility with Horovod; unused.
      name: name of the call, the same on all ranks; "broadcast_object" by default. Its
        collectives are named `<name>.sz` and `<name>.t`.
      process_set: the participating ranks; all by default.

    Returns:
      `obj` itself on the root; a copy on other ranks. Arrays in the copy are writable.

    Raises:
      RuntimeError: on the other ranks, if the root could not pickle its object; the
        text gives the reason.
      Exception: on the root, the error from pickling; on another rank, the error from
        unpickling, such as ModuleNotFoundError.
      TypeError: `root_rank` is not an integer, or `name` is not a string.
      ValueError: `init` was not called, or `process_set` is not registered.
      tf.errors.InvalidArgumentError: `root_rank` is not a rank of the set.

    Example:
      settings = hvd.broadcast_object({"rate": 0.1} if hvd.is_root() else None)
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
    """Return a function that sends the root's object to all ranks, for repeated calls.

    In v1 graph mode all calls use one graph, which the first call creates.

    Args:
      root_rank: see `broadcast_object`.
      session: see `broadcast_object`.
      name: see `broadcast_object`.
      process_set: see `broadcast_object`.

    Returns:
      A function that takes this rank's object and returns the root's object.

    Example:
      from_root = hvd.broadcast_object_fn(root_rank=0)
      assert from_root(hvd.rank()) == 0
    """
    root = _calls.checked_root(root_rank)
    channel = Channel(_calls.checked_name(name) or "broadcast_object", process_set)

    def broadcast(obj: Any) -> Any:
        """Return the root's object on all ranks."""
        return _broadcast(channel, obj, root)

    return broadcast


def _gather(
    channel: Channel, mine: _Pickled, headers: np.ndarray, process_set: ProcessSet
) -> Iterator[list[np.ndarray]]:
    """Yield the parts of each rank's object, in rank order.

    Small objects are sent in one allgather. Large objects are broadcast by one rank after
    another, so only one object at a time is held as bytes.
    """
    if headers[:, 1].max() == 1 and headers[:, 2].sum() <= PIECE_BYTES:
        everything = channel.allgather(mine.parts[0], ".t")
        yield from ([part] for part in np.split(everything, np.cumsum(headers[:-1, 2])))
        return
    me = process_set.rank()
    for place, root in enumerate(process_set.ranks or ()):
        parts = _spread_object(channel, root, mine if place == me else None, headers[place])
        # The copy of this rank's own object must not share its memory.
        yield [part.copy() for part in parts] if place == me else parts


@verbatim
def allgather_object(
    obj: Any,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Gather all ranks' Python objects in a list. The size of the objects is not limited.

    Args:
      obj: any object that cloudpickle can pickle.
      session: accepted for compatibility with Horovod; unused.
      name: see `broadcast_object`; "allgather_object" by default.
      process_set: the participating ranks; all by default.

    Returns:
      A list with a copy of each rank's object, in rank order, including this rank's own.

    Raises:
      RuntimeError: a rank has called `join` and therefore contributes no object. Or another rank
        could not pickle its object; the text gives the reason.
      Exception: the error from pickling, on a rank that cannot pickle its object; the error from
        unpickling, on a rank that cannot unpickle a received object.
      ValueError: `process_set` is not registered.
      tf.errors.FailedPreconditionError: `init` was not called.

    Example:
      assert hvd.allgather_object({"rank": hvd.rank()})[1:] == [
          {"rank": rank} for rank in range(1, hvd.size())
      ]
    """
    channel = channel_of(_calls.checked_name(name) or "allgather_object", process_set)
    mine = _pickle(obj)
    headers = channel.allgather(mine.header, ".sz").reshape(-1, 3).copy()
    roots = process_set.ranks or []
    if len(headers) != len(roots):
        raise RuntimeError(
            f"allgather_object: {len(roots) - len(headers)} of the {len(roots)} ranks have called "
            "join() and contribute no object. Call allgather_object() on all ranks before join(), "
            "or after join() has returned."
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
