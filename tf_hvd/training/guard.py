"""What the guards of Keras (tf_hvd.keras.guard) and of v1 (tf_hvd.training.v1_guard) share.

Both stop training whose gradients nothing has reduced, in a job of more than one rank, by one
exception and one switch.
"""

import contextlib
import inspect
import threading
import types
from collections.abc import Iterator
from typing import ClassVar

from tf_hvd.core import basics, config

OFF = "To train each rank by itself, use `with tf_hvd.keras.unguarded():` or set TF_HVD_GUARD=off."


class GuardError(Exception):
    """Training was stopped: the ranks did not train one model.

    Its text has four lines at most, the first of which says what to do.

    Not a RuntimeError, for AutoGraph passes on the type of direct subclasses only.
    """


class _Off(threading.local):
    depth = 0


_off = _Off()


@contextlib.contextmanager
def unguarded() -> Iterator[None]:
    """Within it this thread's training is not watched: each rank may train what it likes."""
    _off.depth += 1
    try:
        yield
    finally:
        _off.depth -= 1


def is_unguarded() -> bool:
    return _off.depth > 0


class _Elastic:
    begun = False
    # Of each code, by its id, itself and whether it names `elastic`: asked at each eager step.
    known: ClassVar[dict[int, tuple[types.CodeType, bool]]] = {}


# A program that makes code all the time, as by exec, has no more of it known.
_MOST = 10_000


def elastic_training_begins() -> None:
    """`elastic.run` has given all ranks the same state."""
    _Elastic.begun = True


def _makes_elastic_state() -> bool:
    """Whether a program for elastic training trains before that begins, to make its variables.

    As Horovod's examples do: a step without a broadcast, or without a reduction.
    """
    frame = None if _Elastic.begun else inspect.currentframe()
    while frame is not None:
        code = frame.f_code
        known = _Elastic.known.get(id(code)) or _look_into(code)
        if known[1]:
            return True
        frame = frame.f_back
    return False


def _look_into(code: types.CodeType) -> tuple[types.CodeType, bool]:
    found = code, "elastic" in code.co_names
    if len(_Elastic.known) < _MOST:
        _Elastic.known[id(code)] = found
    return found


def watches() -> bool:
    """Whether training is watched: more than one rank, and not turned off."""
    return (
        not is_unguarded()
        and basics.is_initialized()
        and basics.size() > 1
        and config.GUARD.read() == "on"
        and not _makes_elastic_state()
    )


def not_reduced(cure: str, subject: str) -> str:
    """The text of the error for gradients that nothing has reduced.

    `cure` has two lines at most; `subject`: "Adam would apply gradients that were".
    """
    return (
        f"{cure}\nEach of the {basics.size()} ranks would train its own model: {subject} not "
        f"reduced.\n{OFF}"
    )
