"""The decorator `run`, which lets training continue after ranks fail or hosts change."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

from tf_hvd.core import _native, basics, config
from tf_hvd.core.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from tf_hvd.elastic import engine as engines
from tf_hvd.elastic.state import State
from tf_hvd.elastic.store import Store
from tf_hvd.training import guard

F = TypeVar("F", bound=Callable[..., Any])


def run(func: F) -> F:
    """Make a training function elastic. Use `run` as a decorator.

    Under `tf_hvd run --min-np`, all ranks restart after a rank fails or hosts are added or removed.
    Each rank runs the program from its first line. `run` then restores the state from the last
    commit, calls the state's reset callbacks, and calls `func`.

    In other jobs, a failed rank is an error. A program may raise `HostsUpdatedInterrupt`; `run`
    then calls the reset callbacks and `func` again.

    Args:
        func: the training function. Its first argument is a State, which the function commits
            regularly. All ranks must call it.

    Returns:
        A function with the arguments and the result of `func`. Under `tf_hvd run --min-np`, a
        program may call only one such function, and only once; a second call raises RuntimeError.
    """

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Any:
        store = open_store()
        if store is None:
            return _run_once(func, state, args, kwargs)
        _begin_only_one()
        engine = engines.Engine(store)
        try:
            state.start(engine)
            guard.elastic_training_begins()
            result = func(state, *args, **kwargs)
        except HostsUpdatedInterrupt:
            engine.leave_in_order()
        except Exception as error:
            if isinstance(error, HorovodInternalError) or _is_end_of_job(error):
                engine.leave_for(error)
            engine.stop_listening()
            raise
        engine.finish()
        return result

    return wrapper  # type: ignore[return-value]


def open_store() -> Store | None:
    """Return the store of this rank's elastic job; None if the job is not elastic.

    Raises:
        RuntimeError: the store cannot be reached.
    """
    number = config.elastic_start()
    if number is None:
        return None
    try:
        return Store(config.launcher_job(), number)
    except OSError as error:
        raise RuntimeError(
            f"cannot reach the agent on this machine: {error.strerror or error}; "
            "check that the tf_hvd run that started this rank is still running"
        ) from error


def _is_end_of_job(error: Exception) -> bool:
    """Return whether an error means that a rank has ended or stalled."""
    return isinstance(error, (tf.errors.OpError, RuntimeError)) and bool(_native.end_text())


_has_trained = False


def _begin_only_one() -> None:
    """Raise at a second training, because a restart could not know which training made a commit."""
    global _has_trained
    if _has_trained:
        raise RuntimeError(
            "an elastic job can have only one elastic training: put all its phases into one "
            "function with hvd.elastic.run, and keep the current phase in the state"
        )
    _has_trained = True


def _run_once(func: Callable[..., Any], state: State, args: Any, kwargs: Any) -> Any:
    """Run the training in a job that is not elastic, so its ranks are never restarted."""
    state.start(None)
    guard.elastic_training_begins()
    while True:
        try:
            return func(state, *args, **kwargs)
        except HostsUpdatedInterrupt as interrupt:
            state.on_reset()
            if not interrupt.skip_sync:
                state.sync()


def init(*args: Any, **kwargs: Any) -> None:
    """Call `tf_hvd.init`. Horovod's elastic module has a function with this name."""
    basics.init(*args, **kwargs)
