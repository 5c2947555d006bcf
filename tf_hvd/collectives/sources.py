"""Lists of gradient sources, to check that all ranks reduce gradients of the same variables.

Without this check, ranks could mix up two variables with the same shape and name. The native
library keeps data about each variable (runtime/request/sources.h). This module assigns each list
of variables a number. Ops and kernels use the number to find the list in the library. The lists
exist per process, not per graph. A saved tf.function contains only a number, which no other
process knows.
"""

import secrets
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_hvd.core import _native
from tf_hvd.core.tensorflow_hooks import on_host, path_of, tf_variable

# Maximum number of lists in a process, and of parts in a list. A program that selects different
# variables in each step may exceed it. The oldest lists are then dropped, and calls with an unknown
# list are not compared.
_MOST = 1000


def _new_number() -> int:
    """Return a random number from 1 to 2^62, so graphs saved by other processes find no list."""
    return secrets.randbelow(2**62) + 1


class SourceList:
    """An ordered list of gradient sources, or of variables to broadcast.

    Args:
      variables: list of tf.Variables, with None for each source that is not a variable. Such
        sources are identified by their position.
      names: the sources' names, for errors.
    """

    def __init__(self, variables: Sequence[Any], names: Sequence[str]) -> None:
        self._variables = [0 if each is None else _number_of(each) for each in variables]
        self._names = names
        self._all = tuple(range(len(variables)))
        self._parts: dict[tuple[int, ...], int] = {}
        self._tensors: dict[tuple[int, ...], Any] = {}
        self.has_variables = any(self._variables)
        """bool, whether any source is a variable."""
        self.kept: dict[Any, Any] = {}
        """Data that other modules keep as long as the list exists."""

    def tensor(self, places: tuple[int, ...] | None = None) -> Any:
        """Return `number(places)` as an int64 scalar tensor, for an op's input."""
        wanted = self._all if places is None else places
        if not tf.executing_eagerly():
            return tf.constant(self.number(wanted), tf.int64)
        known = self._tensors.get(wanted)
        if known is None:
            with on_host():
                known = self._tensors[wanted] = tf.constant(self.number(wanted), tf.int64)
        return known

    def number(self, places: tuple[int, ...] | None = None) -> int:
        """Return the number of the list, or of the part at these positions.

        The first call registers the list or part with the native library.
        """
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
            if known != number:  # another thread registered the part first
                _native.library.tf_hvd_forget_sources(number)
        return known

    def forget(self) -> None:
        """Drop the numbers of the list and its parts, here and in the native library."""
        for number in self._parts.values():
            _native.library.tf_hvd_forget_sources(number)
        self._parts.clear()
        self._tensors.clear()


class _Known:
    """All lists of this process. Creating a list takes the lock; removing one does not."""

    lock = threading.Lock()
    # Each variable's number, by the variable's id, as long as the variable exists.
    numbers: dict[int, tuple[Any, int]] = {}  # noqa: RUF012
    # By the ids of the variables; 0 for a source that is not a variable.
    lists: dict[tuple[int, ...], tuple[list[Any], SourceList]] = {}  # noqa: RUF012
    # The same lists, by the ids of the caller's objects, such as Keras variables; read each step.
    given: dict[tuple[int, ...], tuple[list[Any], SourceList]] = {}  # noqa: RUF012


def _number_of(variable: Any) -> int:
    known = _Known.numbers.get(id(variable))
    if known is None:
        key, number = id(variable), _new_number()

        def forget() -> None:
            _Known.numbers.pop(key, None)
            _native.library.tf_hvd_forget_variable(number)

        known = _Known.numbers[key] = _watch([variable], forget)[0], number
    return known[1]


def list_of(sources: Sequence[Any]) -> SourceList:
    """Return the SourceList of these sources: the same object while all their variables exist."""
    key = tuple(map(id, sources))
    known = _Known.given.get(key)
    if known is None:
        with _Known.lock:
            found = _list_of(sources)
        try:
            watched = _watch(sources, lambda: _Known.given.pop(key, None))
        except TypeError:  # an object that does not support weak references
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
    """Return weak references that call `forget` when any of the objects is deleted."""

    def deleted(_: Any) -> None:
        if _Known is not None:  # at its exit the interpreter sets the module's names to None
            forget()

    return [weakref.ref(thing, deleted) for thing in things]
