"""The two ways in which tf_hvd gets into the methods of Keras: for one object, and for all.

- `put_around`: one object's, such as those of a wrapped optimizer. A function in an instance's
  `__dict__` goes along with `copy.copy`, `copy.deepcopy` and pickle, and still acts on the object
  that it was made for. Here the class has the function, and a table outside of all objects says
  for which of them it does something: a copy is not in the table, so it is as plain as if it had
  just been made.
- `put_around_all`: those of every object of a class, also of objects that were not given to tf_hvd:
  an optimizer that should have been wrapped, a `fit`, a layer (tf_hvd.keras.patches). Copies need
  not be plain there.

Either calls one function with the object, the method, and its arguments. Callbacks of ours need
neither: they are subclasses (tf_hvd.keras.keras_variants).
"""

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from tf_hvd.core.tensorflow_hooks import SAVED_CHILDREN, around_a_method, verbatim

# What a class' function has that calls `Around` for all.
_FOR_ALL = "_tf_hvd_watched"
# What a class' function has that looks into the table: whether the class had one of its own.
_MARK = "_tf_hvd_looks_up"
LIBRARIES = ("keras", "tf_keras", "tf_hvd")
# Called with the object, the method as the object has it without us, and then its arguments.
Around = Callable[..., Any]


class _Own:
    def __init__(self) -> None:
        self.around: dict[str, list[Around]] = {}
        self.attributes: dict[str, Any] = {}
        self.note: Any = None


# By identity: objects that are equal are not the same, and some have no hash.
_owned: dict[int, tuple[weakref.ref[Any], _Own]] = {}


def _own(target: Any) -> _Own:
    own, key = _of(target), id(target)
    if own is None:
        own = _Own()
        _owned[key] = weakref.ref(target, lambda _: _owned.pop(key, None)), own
    return own


def _of(target: Any) -> _Own | None:
    reference, own = _owned.get(id(target), (None, None))
    return own if reference is not None and reference() is target else None


def _inherited(kind: type, name: str) -> Callable[[Any], Any]:
    """What gives an object's method as `kind` has it without us."""
    if name in vars(kind):
        original = vars(kind)[name]
        return lambda target: original.__get__(target, kind)
    return lambda target: getattr(super(kind, target), name)


def _look_up(kind: type, name: str) -> None:
    """Makes the method of a class look into the table, for objects of exactly that class."""
    if hasattr(vars(kind).get(name), _MARK):
        return
    inherited, own = _inherited(kind, name), name in vars(kind)

    @functools.wraps(getattr(kind, name))
    def method(converted: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        call = converted(inherited(self))
        mine = _of(self) if type(self) is kind else None
        for around in mine.around.get(name, ()) if mine else ():
            call = functools.partial(around, self, call)
        return call(*args, **kwargs)

    looked_up = around_a_method(method)
    setattr(looked_up, _MARK, own)
    setattr(kind, name, looked_up)


def put_around_all(kind: type, name: str, around: Around) -> None:
    """From now on the class' method is `around(object, method, ...)`, for all objects; once."""
    original = vars(kind)[name]
    if hasattr(original, _FOR_ALL):
        return

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return around(self, original.__get__(self, type(self)), *args, **kwargs)

    setattr(method, _FOR_ALL, True)
    setattr(kind, name, verbatim(method))


def defines(kind: type, name: str) -> bool:
    """Whether the class itself has the method, and not for us alone."""
    return name in vars(kind) and bool(getattr(vars(kind)[name], _MARK, True))


def put_around(target: Any, name: str, around: Around) -> None:
    """From now on `target.name(...)` is `around(target, method, ...)`.

    The last one that is put there is the outermost.
    """
    if name in getattr(target, "__dict__", {}):
        raise ValueError(
            f"{name}() of this {type(target).__name__} was replaced on the instance: wrap the "
            "optimizer first, or override the method in a subclass."
        )
    _look_up(type(target), name)
    _own(target).around.setdefault(name, []).append(around)


class _OwnAttribute:
    """In a class: an attribute of those objects that the table gives one."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, target: Any, kind: Any = None) -> Any:
        if target is None:
            return self
        own = _of(target)
        if own is None or self._name not in own.attributes:
            raise AttributeError(f"{type(target).__name__!r} object has no attribute {self._name}")
        return own.attributes[self._name]


def add(target: Any, name: str, value: Any) -> None:
    """Gives the object a method, or another attribute, that its class has not."""
    if not isinstance(vars(type(target)).get(name), _OwnAttribute):
        setattr(type(target), name, _OwnAttribute(name))
    _own(target).attributes[name] = value


def note(target: Any, value: Any) -> None:
    """From now on `noted(target)` gives `value`."""
    _own(target).note = value


def noted(target: Any) -> Any:
    """What was noted of this very object; None for nothing."""
    own = _of(target)
    return None if own is None else own.note


def forget(target: Any) -> None:
    """Makes the object as plain as a copy of it."""
    if _of(target) is not None:
        del _owned[id(target)]


def overrides(target: Any, name: str) -> bool:
    """Whether a class of the user's has the method: one that is neither Keras' nor ours."""
    return any(
        defines(kind, name) and kind.__module__.partition(".")[0] not in LIBRARIES
        for kind in type(target).__mro__
    )


def track_when_saved(optimizer: Any, state: Callable[[], Sequence[Any]]) -> None:
    """Has a SavedModel keep variables with the optimizer, for functions that update by it.

    TensorFlow saves no function that uses a variable which no object has. Keras' own formats and
    checkpoints do not get them.
    """

    def children(
        target: Any, tracked: Any, save_type: str = "checkpoint", **kwargs: Any
    ) -> dict[str, Any]:
        found: dict[str, Any] = tracked(save_type, **kwargs)
        if save_type != "savedmodel":
            return found
        return {**found, **{f"tf_hvd_{i}": each for i, each in enumerate(state())}}

    put_around(optimizer, SAVED_CHILDREN, children)
