"""Lists of variables, by which ranks see that they mean the same ones.

Two variables of one shape and name would otherwise be taken for each other. The native
library keeps what is known of each variable (runtime/request/sources.h); here a list of them
gets the number under which ops and kernels find it there. Lists live in the process and not in
graphs: a tf.function that is saved names a list that no other process has, and captures nothing.
"""

import secrets
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_hvd.core import _native
from tf_hvd.core.tensorflow_hooks import on_host, path_of, tf_variable

# Lists of a process, and parts of a list. A program that draws the variables of each step makes
# more: the first are forgotten then, and a call whose list is not known is not compared.
_MOST = 1000


def _new_number() -> int:
    """From 1 to 2^62. Random: a graph that another process has saved must not name ours."""
    return secrets.randbelow(2**62) + 1


class SourceList:
    """What some gradients are gradients of, or what is broadcast, in one order.

    Args:
      variables: tf.Variables; None for anything else, which is known by its place.
      names: what errors call them.
    """

    def __init__(self, variables: Sequence[Any], names: Sequence[str]) -> None:
        self._variables = [0 if each is None else _number_of(each) for each in variables]
        self._names = names
        self._all = tuple(range(len(variables)))
        self._parts: dict[tuple[int, ...], int] = {}
        self._tensors: dict[tuple[int, ...], Any] = {}
        self.has_variables = any(self._variables)
        """Whether there is a variable among them."""
        self.kept: dict[Any, Any] = {}
        """What others keep for as long as the list lives."""

    def tensor(self, places: tuple[int, ...] | None = None) -> Any:
        """`number` for an op that takes the number of a list: an int64 scalar."""
        wanted = self._all if places is None else places
        if not tf.executing_eagerly():
            return tf.constant(self.number(wanted), tf.int64)
        known = self._tensors.get(wanted)
        if known is None:
            with on_host():
                known = self._tensors[wanted] = tf.constant(self.number(wanted), tf.int64)
        return known

    def number(self, places: tuple[int, ...] | None = None) -> int:
        """The number of the list, or of the part of it at these places."""
        wanted = self._all if places is None else places
        known = self._parts.get(wanted)
        if known is None:
            if len(self._parts) >= _MOST:
                self.forget()
            number = _new_number()
            _native.note_sources(
                number,
                [self._variables[place] for place in wanted],
                wanted,
                [self._names[place] for place in wanted],
            )
            known = self._parts.setdefault(wanted, number)
            if known != number:  # another thread was faster
                _native.library.tf_hvd_forget_sources(number)
        return known

    def forget(self) -> None:
        """One of the variables is gone, or there are too many lists."""
        for number in self._parts.values():
            _native.library.tf_hvd_forget_sources(number)
        self._parts.clear()
        self._tensors.clear()


class _Known:
    """All of this process; the lock is for what is made, and not held by what is forgotten."""

    lock = threading.Lock()
    # By id, for as long as the variable lives.
    numbers: dict[int, tuple[Any, int]] = {}  # noqa: RUF012
    # By the ids of the variables, 0 for other sources.
    lists: dict[tuple[int, ...], tuple[list[Any], SourceList]] = {}  # noqa: RUF012
    # The same lists, by the ids of what a caller has, as Keras' variables; asked at each step.
    given: dict[tuple[int, ...], tuple[list[Any], SourceList]] = {}  # noqa: RUF012


def _number_of(variable: Any) -> int:
    known = _Known.numbers.get(id(variable))
    if known is None:
        key, number = id(variable), _new_number()

        def forget(_: Any) -> None:
            _Known.numbers.pop(key, None)
            _native.library.tf_hvd_forget_variable(number)

        known = _Known.numbers[key] = weakref.ref(variable, forget), number
    return known[1]


def list_of(sources: Sequence[Any]) -> SourceList:
    """The list of these sources; the same object as long as all variables in it live."""
    key = tuple(map(id, sources))
    known = _Known.given.get(key)
    if known is None:
        with _Known.lock:
            found = _list_of(sources)
        try:
            watched = _watch(sources, lambda: _Known.given.pop(key, None))
        except TypeError:  # something that nobody can watch
            return found
        if len(_Known.given) >= _MOST:
            _Known.given.pop(next(iter(_Known.given)), None)
        known = _Known.given[key] = watched, found
    return known[1]


def _list_of(sources: Sequence[Any]) -> SourceList:
    plain = [tf_variable(source) for source in sources]
    variables = [each if isinstance(each, tf.Variable) else None for each in plain]
    key = tuple(0 if each is None else id(each) for each in variables)
    if key not in _Known.lists:
        if len(_Known.lists) >= _MOST:
            _Known.lists.pop(next(iter(_Known.lists)))[1].forget()
        made = SourceList(variables, [path_of(source) for source in sources])

        def forget() -> None:
            _Known.lists.pop(key, None)
            made.forget()

        _Known.lists[key] = _watch([v for v in variables if v is not None], forget), made
    return _Known.lists[key][1]


def _watch(things: Sequence[Any], forget: Callable[[], Any]) -> list[Any]:
    """Weak references that call `forget` when the first of the things is gone."""
    return [weakref.ref(thing, lambda _: forget()) for thing in things]
