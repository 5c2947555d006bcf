"""hvd.allreduce for `import tf_hvd.keras as hvd`, with a check of the argument order.

horovod.keras has a different argument order.
"""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from tf_hvd.collectives import collectives

P = ParamSpec("P")
Result = TypeVar("Result")


def _by_keyword(function: Callable[P, Result]) -> Callable[P, Result]:
    """Make a collective raise TypeError if its second positional argument is a string or a bool."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Result:
        second: Any = args[1] if len(args) > 1 else None
        if isinstance(second, str | bool):
            raise TypeError(
                f"allreduce(tensor, {second!r}): the second argument is ambiguous: it is `name` in "
                "horovod.keras, and `average` in horovod.tensorflow. Pass name=, average= or op= "
                "by keyword."
            )
        return function(*args, **kwargs)

    return call


allreduce = _by_keyword(collectives.allreduce)
"""`tf_hvd.allreduce`, but raises TypeError if the second argument is a string or a bool."""
