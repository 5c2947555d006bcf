"""Hook Keras methods, for one object or for all objects of a class.

- `put_around` hooks a method of one object, such as a wrapped optimizer. A function in the
  instance's `__dict__` would be copied with the instance, and would still act on the original.
  Therefore the function is added to the class, and a separate table lists the objects it acts on. A
  copy is not in the table, so it behaves like a new object.
- `put_around_all` hooks a method of all objects of a class, including copies, because some objects
  are never passed to tf_hvd. Examples are an optimizer that should have been wrapped, a model in
  `fit`, and a layer (tf_hvd.keras.patches).

In both cases the hook is called with the object, the method and the method's arguments.

tf_hvd's own callbacks do not need hooks, because they are subclasses of Keras' callbacks
(tf_hvd.keras.keras_variants).
"""

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from tf_hvd.core.tensorflow_hooks import SAVED_CHILDREN, around_a_method, verbatim

# Marks a function in a class that calls `Around` for all objects.
_FOR_ALL = "_tf_hvd_watched"
# Marks a function in a class that reads the table. Value: whether the class defined the method.
_MARK = "_tf_hvd_looks_up"
LIBRARIES = ("keras", "tf_keras", "tf_hvd")
# Called with the object, the object's original method, and the arguments.
Around = Callable[..., Any]


class _Own:
    def __init__(self) -> None:
        self.around: dict[str, list[Around]] = {}
        self.attributes: dict[str, Any] = {}
        self.note: Any = None


# The keys are identities, because equal objects must be distinguished, and some are not hashable.
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
    """Return a function that maps an object to its original method, without the hook in `kind`."""
    if name in vars(kind):
        original = vars(kind)[name]
        return lambda target: original.__get__(target, kind)
    return lambda target: getattr(super(kind, target), name)


def _look_up(kind: type, name: str) -> None:
    """Make a method read the table, for objects of exactly the class `kind`."""
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
    """Replace a method with `around(object, method, ...)` for all objects of a class, once."""
    original = vars(kind)[name]
    if hasattr(original, _FOR_ALL):
        return

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return around(self, original.__get__(self, type(self)), *args, **kwargs)

    setattr(method, _FOR_ALL, True)
    setattr(kind, name, verbatim(method))


def defines(kind: type, name: str) -> bool:
    """Whether the class itself defines the method; hooks of tf_hvd are ignored."""
    return name in vars(kind) and bool(getattr(vars(kind)[name], _MARK, True))


def put_around(target: Any, name: str, around: Around) -> None:
    """Replace `target.name(...)` with `around(target, method, ...)`.

    If several functions are added, the last function is the outermost.
    """
    if name in getattr(target, "__dict__", {}):
        raise ValueError(
            f"{name}() of this {type(target).__name__} was replaced on the instance, so tf_hvd "
            "cannot hook into it. Wrap the optimizer before you replace the method, or override "
            "the method in a subclass."
        )
    _look_up(type(target), name)
    _own(target).around.setdefault(name, []).append(around)


class _OwnAttribute:
    """A class attribute that exists only for objects with an entry in the table."""

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
    """Add a method or other attribute to one object, if its class does not define it."""
    if not isinstance(vars(type(target)).get(name), _OwnAttribute):
        setattr(type(target), name, _OwnAttribute(name))
    _own(target).attributes[name] = value


def note(target: Any, value: Any) -> None:
    """Store a value for this object; `noted(target)` returns the value."""
    _own(target).note = value


def noted(target: Any) -> Any:
    """The value that `note` stored for this very object; None without a value or for a copy."""
    own = _of(target)
    return None if own is None else own.note


def forget(target: Any) -> None:
    """Remove the object's hooks and its note."""
    if _of(target) is not None:
        del _owned[id(target)]


def overrides(target: Any, name: str) -> bool:
    """Whether the object's method is defined in a class outside Keras and tf_hvd."""
    return any(
        defines(kind, name) and kind.__module__.partition(".")[0] not in LIBRARIES
        for kind in type(target).__mro__
    )


def track_when_saved(optimizer: Any, state: Callable[[], Sequence[Any]]) -> None:
    """Make a SavedModel track the variables that `state` returns, as part of the optimizer.

    TensorFlow cannot save a function, such as a training step, that uses an untracked variable.
    Keras' own formats and checkpoints do not contain these variables.
    """

    def children(
        target: Any, tracked: Any, save_type: str = "checkpoint", **kwargs: Any
    ) -> dict[str, Any]:
        found: dict[str, Any] = tracked(save_type, **kwargs)
        if save_type != "savedmodel":
            return found
        return {**found, **{f"tf_hvd_{i}": each for i, each in enumerate(state())}}

    put_around(optimizer, SAVED_CHILDREN, children)
