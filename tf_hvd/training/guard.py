"""What the guards of Keras (tf_hvd.keras.guard) and of v1 (tf_hvd.training.v1_guard) share.

Both stop training whose gradients nothing has reduced, in a job of more than one rank, by one
exception and one switch.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator

from tf_hvd.core import basics, config

OFF = "To train each rank by itself, use `with tf_hvd.keras.unguarded():` or set TF_HVD_GUARD=off."


class GuardError(Exception):
    """Training was stopped: the ranks did not train one model.

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


def watches() -> bool:
    """Whether training is watched: more than one rank, and not turned off."""
    return (
        _off.depth == 0 and basics.is_initialized() and basics.size() > 1 and config.guard() == "on"
    )


def not_reduced(subject: str, cure: str) -> str:
    """The text of the error for gradients that nothing has reduced.

    Args:
      subject: what would train, and how: "Adam would apply gradients that were".
      cure: what to do, as sentences.
    """
    return (
        f"this job has {basics.size()} ranks, and {subject} not reduced over them, so that each "
        f"rank would train a model of its own. {cure} {OFF}"
    )


_explanations: list[Callable[[], str]] = []


def explain_first(explanation: Callable[[], str]) -> None:
    """Has a function asked, when training is stopped, whether there is a better reason.

    Args:
      explanation: called on the stack of the training; gives one or more sentences, or an empty
        text. Once is enough for each.
    """
    if explanation not in _explanations:
        _explanations.append(explanation)


def better_reason() -> str:
    """What one of those functions says; empty if none has anything to say."""
    return next(filter(None, (explanation() for explanation in _explanations)), "")
