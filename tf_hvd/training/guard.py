"""Common parts of the guards for Keras (tf_hvd.keras.guard) and v1 (tf_hvd.training.v1_guard).

In a job of more than one rank, both guards stop training with gradients that were not reduced. They
share their exceptions and the switch that turns them off.
"""

import contextlib
import inspect
import threading
import types
from collections.abc import Callable, Iterator
from typing import ClassVar

from tf_hvd.core import basics, config

OFF = "To train each rank by itself, use `with tf_hvd.unguarded():` or set TF_HVD_GUARD=off."


class GuardError(Exception):
    """Training was stopped because the ranks did not train the same model.

    The text has at most four lines, and the first line is the fix.

    This class is not a RuntimeError, because AutoGraph preserves only types with the constructor of
    Exception.
    """


class NotDistributedError(GuardError):
    """An optimizer would apply gradients that were not reduced across the ranks."""


class RanksDifferError(GuardError):
    """The ranks have different weights, learning rates, update counts or adapted layers."""


refusals: list[Callable[[str], None]] = []
"""Called with the name of a tf_hvd function; they raise if another API already does the work."""


def check_combination(name: str) -> None:
    """Raise if the function `name` cannot be combined with what the program uses."""
    for refuse in refusals:
        refuse(name)


class _Off(threading.local):
    depth = 0


_off = _Off()


@contextlib.contextmanager
def unguarded() -> Iterator[None]:
    """Turn off the checks of this thread's training within the block, so that ranks may differ.

    Example:
      with hvd.unguarded():
          model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
          model.compile("sgd", "mse")
          model.fit(np.ones([2, 1]), np.ones([2, 1]), verbose=0)  # each rank separately
    """
    _off.depth += 1
    try:
        yield
    finally:
        _off.depth -= 1


def is_unguarded() -> bool:
    return _off.depth > 0


class _Elastic:
    begun = False
    # By the id of a code object: the code, and whether it names `elastic`. Read at each eager step.
    known: ClassVar[dict[int, tuple[types.CodeType, bool]]] = {}


# Maximum number of known code objects. Programs that keep creating code by exec may exceed it.
_MOST = 10_000


def elastic_training_begins() -> None:
    """Record that `elastic.run` has given all ranks the same state."""
    _Elastic.begun = True


def _makes_elastic_state() -> bool:
    """Return whether an elastic program is training before `elastic.run`, to create its variables.

    Horovod's examples make a step without a broadcast, or without a reduction, for this purpose.
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
    """Return whether the guard checks training now.

    It checks training in a job of several ranks, unless the guard is off or an elastic program is
    creating its variables.
    """
    return (
        not is_unguarded()
        and basics.is_initialized()
        and basics.size() > 1
        and config.GUARD.read() == "on"
        and not _makes_elastic_state()
    )


def not_reduced(cure: str, subject: str) -> str:
    """Return the text of the error for gradients that were not reduced.

    Args:
      cure: the fix, in at most two lines.
      subject: start of a sentence, such as "Adam would apply gradients that were".
    """
    return (
        f"{cure}\nEach of the {basics.size()} ranks would train its own model: {subject} not "
        f"reduced.\n{OFF}"
    )
