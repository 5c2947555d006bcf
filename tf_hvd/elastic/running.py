"""`run`: a training that goes on when ranks have ended, or hosts have come or gone."""

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
    """Makes a training elastic: its first argument is a State, which it commits now and then.

    Under `tf_hvd run --min-np` (docs/elastic.md) all ranks are started again, from the program's
    first line, when one has ended or hosts have come or gone. Then the state takes what was
    committed last, its reset callbacks are called, and `func` is called again. Elsewhere an end of
    the job is an error, and upon `HostsUpdatedInterrupt`, which a program may raise, the callbacks
    and `func` are called again.

    Args:
        func: called with the state and all other arguments; on all ranks.

    Returns:
        A function with the arguments and the result of `func`. Under `tf_hvd run --min-np` a
        program calls one such function, once; a second call is a RuntimeError.
    """

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Any:
        store = open_store()
        if store is None:
            return _alone(func, state, args, kwargs)
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
    """The store of the elastic job that this process is a rank of; None if it is of none.

    Raises:
        RuntimeError: it cannot be reached.
    """
    number = config.elastic_start()
    if number is None:
        return None
    try:
        return Store(config.launcher_job(), number)
    except OSError as error:
        raise RuntimeError(
            f"the agent of this machine cannot be reached: {error.strerror or error}; "
            "elastic jobs need the tf_hvd run that started this rank"
        ) from error


def _is_end_of_job(error: Exception) -> bool:
    """Whether a rank is gone, or has stalled."""
    return isinstance(error, (tf.errors.OpError, RuntimeError)) and bool(_native.end_text())


_has_trained = False


def _begin_only_one() -> None:
    """Refuses a second training: a restart could not tell whose the last commit is."""
    global _has_trained
    if _has_trained:
        raise RuntimeError(
            "an elastic job has one elastic training: put all of its phases into one function "
            "with hvd.elastic.run, and keep in the state which phase it is in"
        )
    _has_trained = True


def _alone(func: Callable[..., Any], state: State, args: Any, kwargs: Any) -> Any:
    """Where nobody would start the ranks again."""
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
    """`tf_hvd.init`, under the name that Horovod's elastic module has."""
    basics.init(*args, **kwargs)
