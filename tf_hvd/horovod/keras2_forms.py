"""Support in Keras 3 for some Keras 2 forms that Horovod scripts use.

Keras 3 then accepts `optimizer.variables()`, `optimizer.lr`, and
`compile(..., experimental_run_tf_function=False)`, as in Horovod's tutorials and examples. Only
programs that use Horovod's module names get this support.
"""

import functools
from typing import Any

import wrapt

from tf_hvd.collectives import gradients
from tf_hvd.core import basics, log
from tf_hvd.core.tensorflow_hooks import tf_variable, verbatim

_DROPPED = "experimental_run_tf_function"
_MARK = "_tf_hvd_keras2"


class CallableList(list[Any]):
    """A list that returns itself when called, so that `variables()` works as in tf_keras."""

    def __call__(self) -> "CallableList":
        """Return the list."""
        return self


def accept() -> None:
    """Patch Keras 3 now or, if it is not imported yet, on import. Further calls do nothing."""
    wrapt.register_post_import_hook(_patch, "keras")


def _patch(keras: Any) -> None:
    _replace(keras.Model, "compile", _compile)
    for name in ("Optimizer", "LossScaleOptimizer", "MultiOptimizer"):
        if hasattr(keras.optimizers, name):  # early Keras 3 has no MultiOptimizer
            _replace(getattr(keras.optimizers, name), "variables", _variables)
    if not hasattr(keras.optimizers.Optimizer, "lr"):
        keras.optimizers.Optimizer.lr = property(_rate, _set_rate)


def _replace(kind: Any, name: str, replacement: Any) -> None:
    owner = next(base for base in kind.__mro__ if name in vars(base))
    original = vars(owner)[name]
    if not hasattr(getattr(original, "fget", original), _MARK):
        setattr(owner, name, replacement(original))


def _compile(original: Any) -> Any:
    @functools.wraps(original)
    def compile_without(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _DROPPED in kwargs and gradients.convention() == "horovod":
            del kwargs[_DROPPED]
            if not basics.is_initialized() or basics.rank() == 0:
                log.warn_once("compile(%s=...) is ignored: Keras 3 has no such argument.", _DROPPED)
        return original(self, *args, **kwargs)

    setattr(compile_without, _MARK, True)
    return verbatim(compile_without)


def _variables(original: Any) -> Any:
    @functools.wraps(original.fget)
    def variables(self: Any) -> list[Any]:
        found = list(original.fget(self))
        return CallableList(found) if gradients.convention() == "horovod" else found

    setattr(variables, _MARK, True)
    return property(variables, doc=original.__doc__)


def _rate(optimizer: Any) -> Any:
    if gradients.convention() != "horovod":
        raise AttributeError(f"{type(optimizer).__name__!r} object has no attribute 'lr'")
    return tf_variable(optimizer.learning_rate)  # keras.backend.set_value accepts it


def _set_rate(optimizer: Any, value: Any) -> None:
    if gradients.convention() != "horovod":
        raise AttributeError(f"{type(optimizer).__name__!r} object has no attribute 'lr'")
    optimizer.learning_rate = value
