"""Python objects from rank to rank, pickled (cloudpickle).

The ranks of a job trust each other: what is received is unpickled.

In v1 graph mode the transfer runs in a small graph and session of its own: the
program's graph does not grow with each call and may be finalized.
"""

import functools
from collections.abc import Callable
from typing import Any

import cloudpickle
import numpy as np
import tensorflow as tf

from tf_hvd import basics, collectives
from tf_hvd._autograph import verbatim
from tf_hvd.process_sets import ProcessSet, global_process_set

_GOOD, _FAILED = 0, 1


class _GraphRunner:
    """Runs one collective on a NumPy vector in a private v1 graph and session."""

    def __init__(self, collective: Callable[[Any], Any], dtype: tf.DType) -> None:
        graph = tf.Graph()
        with graph.as_default():
            self._input = tf.compat.v1.placeholder(dtype, [None])
            self._output = collective(self._input)
        self._session = tf.compat.v1.Session(graph=graph)

    def __call__(self, value: np.ndarray) -> np.ndarray:
        result: np.ndarray = self._session.run(self._output, {self._input: value})
        return result


@functools.lru_cache(maxsize=64)
def _graph_runner(kind: str, name: str, dtype: tf.DType, process_set: ProcessSet) -> _GraphRunner:
    return _GraphRunner(_collective(kind, name, process_set), dtype)


def _collective(kind: str, name: str, process_set: ProcessSet) -> Callable[[Any], Any]:
    """`kind` is "allgather" or "broadcast:<root rank>"."""
    if kind == "allgather":
        return lambda tensor: collectives.allgather(tensor, name=name, process_set=process_set)
    root = int(kind.removeprefix("broadcast:"))
    return lambda tensor: collectives.broadcast(tensor, root, name=name, process_set=process_set)


def _transfer(kind: str, name: str, process_set: ProcessSet, value: np.ndarray) -> np.ndarray:
    """Runs the collective on a vector, at once, in whatever mode the program is."""
    with tf.init_scope():
        if tf.executing_eagerly():
            result: np.ndarray = _collective(kind, name, process_set)(tf.constant(value)).numpy()
            return result
        return _graph_runner(kind, name, tf.as_dtype(value.dtype), process_set)(value)


def _pickle(obj: Any) -> tuple[int, bytes, Exception | None]:
    """Pickles; a failure is passed on to the other ranks, which wait for the bytes."""
    try:
        return _GOOD, cloudpickle.dumps(obj), None
    except Exception as error:  # __reduce__ may raise anything
        return _FAILED, f"{type(error).__name__}: {error}".encode(), error


def _unpickle(state: int, payload: np.ndarray, rank: int) -> Any:
    data = payload.tobytes()
    if state == _FAILED:
        raise RuntimeError(f"rank {rank} could not pickle its object: {data.decode()}")
    return cloudpickle.loads(data)


@verbatim
def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The object of one rank, on all of them.

    Args:
      obj: anything that cloudpickle can pickle; ignored on the other ranks.
      root_rank: whose object it is.
      session: accepted for Horovod's scripts; none is needed.
      name: name of the two requests, `<name>.sz` and `<name>.t`; the same on all
        ranks. "broadcast_object" if not given.
      process_set: `global_process_set`.

    Returns:
      `obj` itself at the root, a copy elsewhere.

    Raises:
      RuntimeError: the root could not pickle it (there: what pickling raised).
    """
    del session
    name = name or "broadcast_object"
    kind = f"broadcast:{root_rank}"
    am_root = basics.rank() == root_rank
    state, data, error = _pickle(obj) if am_root else (_GOOD, b"", None)
    header = _transfer(
        kind, f"{name}.sz", process_set, np.array([state, len(data)], dtype=np.int64)
    )
    payload = np.frombuffer(data, np.uint8) if am_root else np.zeros(header[1], np.uint8)
    payload = _transfer(kind, f"{name}.t", process_set, payload)
    if error is not None:
        raise error
    return obj if am_root else _unpickle(int(header[0]), payload, root_rank)


@verbatim
def allgather_object(
    obj: Any,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """All ranks' objects, as a list in the order of the ranks.

    Args:
      obj: anything that cloudpickle can pickle.
      session: accepted for Horovod's scripts; none is needed.
      name: see `broadcast_object`; "allgather_object" if not given.
      process_set: `global_process_set`.

    Raises:
      RuntimeError: a rank could not pickle its object (there: what pickling
        raised).
    """
    del session
    name = name or "allgather_object"
    state, data, error = _pickle(obj)
    headers = _transfer(
        "allgather", f"{name}.sz", process_set, np.array([state, len(data)], dtype=np.int64)
    ).reshape(-1, 2)
    payloads = _transfer("allgather", f"{name}.t", process_set, np.frombuffer(data, np.uint8))
    if error is not None:
        raise error
    parts = np.split(payloads, np.cumsum(headers[:-1, 1]))
    return [
        _unpickle(int(header[0]), part, rank)
        for rank, (header, part) in enumerate(zip(headers, parts, strict=True))
    ]
