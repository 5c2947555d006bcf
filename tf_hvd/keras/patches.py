"""The methods of Keras' classes that call the guard, for what has no instance of ours."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import tensorflow as tf

from tf_hvd.core.tensorflow_hooks import verbatim
from tf_hvd.keras import compat

# A class' method has this attribute if it was replaced.
_MARK = "_tf_hvd_watched"
# What the methods that make updates call their first argument.
_GRADIENTS = {"apply": "grads", "apply_gradients": "grads_and_vars"}


class Guard(Protocol):
    """What looks on from outside; tf_hvd.keras.guard makes it."""

    def before_update(self, optimizer: Any, gradients: Sequence[Any]) -> Any:
        """Any optimizer is about to apply gradients; an op to run before it, or None."""

    def before_batch_norm(self, layer: Any) -> None:
        """A layer with Keras' synchronized=True is about to normalize in training."""

    def failed(self, error: Exception) -> None:
        """Training has failed: raises the guard's own error if it was by the guard."""

    def watches(self) -> bool:
        """Whether training is to be watched."""

    def train_begin(self, model: Any, params: Any) -> Any:
        """`fit` begins; `epoch_end()` and `train_end()` of the result are called in it."""

    def surround(self, base: Any, callbacks: Sequence[Any]) -> list[Any]:
        """The callbacks of a `fit`, between those that make the ranks act as one."""

    def last(self, base: Any, callbacks: Sequence[Any]) -> list[Any]:
        """What comes after the callbacks of a `fit` of one rank."""

    def follow_data(self, fit: Any, model: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments with which Keras' `fit` is to be called."""

    def shows_progress(self, model: Any) -> bool:
        """Whether this rank shows Keras' progress bar."""

    def no_jit(self, model: Any) -> bool:
        """Whether jit_compile="auto" must mean False for this model, which would compile."""


def patch(module: Any, guard: Guard) -> None:
    """Replaces the methods of classes in `keras` or `tf_keras`, once.

    Keras 3 on another backend than TensorFlow is left alone.

    Raises:
      ImportError: a method is not there.
    """
    if module.__name__ == "keras" and module.backend.backend() != "tensorflow":
        return
    missing = compat.missing_hooks(module)
    if missing:
        raise ImportError(
            f"{module.__name__} {module.__version__} has not what tf_hvd hooks into: "
            f"{', '.join(missing)}. Install a newer tf_hvd, or an older {module.__name__}."
        )
    replacements: dict[str, Callable[[Any, Any], Any]] = {
        "update": functools.partial(_watched_update, guard),
        "callbacks": functools.partial(_watched_callbacks, guard, module.callbacks.Callback),
        "batch norm": functools.partial(_watched_batch_norm, guard),
        "finite": _common_finite,
        "progress": functools.partial(_shown_progress, guard),
        "jit": functools.partial(_uncompiled, guard),
        "training": functools.partial(_watched_training, guard),
    }
    for purpose, kind, name in compat.roots(module):
        owner = compat.owner_of(kind, name)
        original = vars(owner)[name]
        if not hasattr(original, _MARK):
            replacement = functools.wraps(original)(replacements[purpose](original, name))
            setattr(replacement, _MARK, True)
            setattr(owner, name, verbatim(replacement))


def _watched_update(guard: Guard, original: Any, name: str) -> Any:
    argument = _GRADIENTS[name]

    def update(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not args and argument not in kwargs:
            return original(self, **kwargs)  # which says what is missing
        # A generator is read once: what was read is handed on.
        given = list(kwargs.pop(argument) if argument in kwargs else args[0])
        gradients = given if name == "apply" else [gradient for gradient, _ in given]
        check = guard.before_update(self, gradients)
        with tf.control_dependencies([] if check is None else [check]):
            return original(self, given, *args[1:], **kwargs)

    return update


def _watched_batch_norm(guard: Guard, original: Any, name: str) -> Any:
    del name

    def call(self: Any, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        known = tf.get_static_value(training) if tf.is_tensor(training) else bool(training)
        if self.synchronized and self.trainable and (known is None or known):
            guard.before_batch_norm(self)
        return original(self, inputs, training=training, mask=mask)

    return call


def _watched_training(guard: Guard, original: Any, name: str) -> Any:
    def train(self: Any, *args: Any, **kwargs: Any) -> Any:
        if name == "fit":
            args, kwargs = guard.follow_data(original, self, args, kwargs)
        try:
            return original(self, *args, **kwargs)
        except Exception as error:
            guard.failed(error)
            raise

    return train


def _watched_callbacks(guard: Guard, base: Any, original: Any, name: str) -> Any:
    del name

    class GuardCallback(base):  # type: ignore[misc]
        """Calls the guard; Keras gives it the model."""

        def on_train_begin(self, logs: Any = None) -> None:
            del logs
            self.watch = guard.train_begin(self.model, self.params)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            del batch, logs
            self.watch.has_trained = True

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            del epoch, logs
            self.watch.epoch_end()

        def on_train_end(self, logs: Any = None) -> None:
            del logs
            self.watch.train_end()

    for trait, value in compat.CALLBACK_TRAITS.items():
        setattr(GuardCallback, trait, value)

    def init(
        self: Any, callbacks: Any = None, add_history: bool = False, *args: Any, **kwargs: Any
    ) -> None:
        # `fit` wants a history, `evaluate` and `predict` do not.
        if add_history:
            callbacks = tf.nest.flatten(callbacks or [])
            if guard.watches():
                callbacks = guard.surround(base, [*callbacks, GuardCallback()])
            else:
                callbacks += guard.last(base, callbacks)
        original(self, callbacks, add_history, *args, **kwargs)

    return init


def _shown_progress(guard: Guard, original: Any, name: str) -> Any:
    del name

    def set_params(self: Any, params: Any) -> None:
        if guard.shows_progress(self.model):
            original(self, params)
        else:
            original(self, {**params, "verbose": 0})

    return set_params


def _common_finite(original: Any, name: str) -> Any:
    del name

    def check_finite(self: Any, grads: Any) -> Any:
        finite = original(self, grads)
        distribution = compat.distribution_of(self)
        return finite if distribution is None else distribution.all_finite(finite)

    return check_finite


def _uncompiled(guard: Guard, original: Any, name: str) -> Any:
    del name

    def resolve_auto_jit_compile(self: Any) -> Any:
        return not guard.no_jit(self) and bool(original(self))

    return resolve_auto_jit_compile
