"""The methods of Keras' classes that call the guard, for what has no instance of ours."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf
import wrapt

from tf_hvd.core.tensorflow_hooks import verbatim
from tf_hvd.keras import adapted, compat, data_order, fit_config, fit_sync, guard, resume
from tf_hvd.keras.keras_variants import internal_callback
from tf_hvd.training.guard import watches

# A class' method has this attribute if it was replaced.
_MARK = "_tf_hvd_watched"
# What the methods that make updates call their first argument.
_GRADIENTS = {"apply": "grads", "apply_gradients": "grads_and_vars"}


class _Installed:
    done = False


def install() -> None:
    """Makes Keras and tf_keras, imported or not yet, call the guard. Once."""
    if _Installed.done:
        return
    _Installed.done = True
    for name in ("keras", "tf_keras"):
        wrapt.register_post_import_hook(patch, name)


def patch(module: Any) -> None:
    """Replaces the methods of classes in `keras` or `tf_keras`, once.

    Keras 3 on another backend than TensorFlow is left alone.

    Raises:
      ImportError: a method is not there.
    """
    if module.__name__ == "keras" and module.backend.backend() != "tensorflow":
        return
    missing = compat.missing_hooks(module)
    if missing:
        names = ", ".join(name.removeprefix(f"{module.__name__}: ") for name in missing)
        raise ImportError(
            f"{module.__name__} {module.__version__} lacks {names}, which tf_hvd "
            f"hooks into. Install a newer tf_hvd, or an older {module.__name__}."
        )
    replacements: dict[str, Callable[[Any, Any], Any]] = {
        "update": _watched_update,
        "callbacks": functools.partial(_watched_callbacks, module.callbacks.Callback),
        "batch norm": _watched_batch_norm,
        "finite": _common_finite,
        "progress": _shown_progress,
        "jit": _uncompiled,
        "training": _watched_training,
        "epoch": _resumed_epoch,
        "adapted": _noted_layer,
        "compiled": _noted_model,
    }
    for purpose, kind, name in compat.roots(module):
        owner = compat.owner_of(kind, name)
        original = vars(owner)[name]
        if not hasattr(original, _MARK):
            replacement = functools.wraps(original)(replacements[purpose](original, name))
            setattr(replacement, _MARK, True)
            setattr(owner, name, verbatim(replacement))


def _watched_update(original: Any, name: str) -> Any:
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


def _watched_batch_norm(original: Any, name: str) -> Any:
    def call(self: Any, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        known = tf.get_static_value(training) if tf.is_tensor(training) else bool(training)
        if self.synchronized and self.trainable and (known is None or known):
            guard.before_batch_norm(self)
        return original(self, inputs, training=training, mask=mask)

    return call


def _watched_training(original: Any, name: str) -> Any:
    def train(self: Any, *args: Any, **kwargs: Any) -> Any:
        if name == "fit":
            guard.before_fit(self)
            args, kwargs = resume.follow_data(original, self, args, kwargs)
        try:
            return original(self, *args, **kwargs)
        except Exception as error:
            guard.failed(error)
            raise
        finally:
            if name == "fit":
                guard.fit_ended(self)

    return train


def _resumed_epoch(original: Any, name: str) -> Any:
    def go_through(self: Any) -> Any:
        return compat.begin_within(
            self, name, original, data_order.take_done, data_order.epochs_differ
        )

    return go_through


def _watched_callbacks(base: Any, original: Any, name: str) -> Any:
    def init(
        self: Any, callbacks: Any = None, add_history: bool = False, *args: Any, **kwargs: Any
    ) -> None:
        # `fit` wants a history, `evaluate` and `predict` do not.
        if add_history:
            callbacks = tf.nest.flatten(callbacks or [])
            if watches():
                callbacks = fit_sync.surround(
                    base, [*callbacks, internal_callback(guard.Watch, base)]
                )
            else:
                fit_config.release_writers(callbacks)
                callbacks += resume.last(base, callbacks)
        original(self, callbacks, add_history, *args, **kwargs)

    return init


def _shown_progress(original: Any, name: str) -> Any:
    def set_params(self: Any, params: Any) -> None:
        if guard.shows_progress(self.model):
            original(self, params)
        else:
            original(self, {**params, "verbose": 0})

    return set_params


def _common_finite(original: Any, name: str) -> Any:
    def check_finite(self: Any, grads: Any) -> Any:
        finite = original(self, grads)
        synchronizer = compat.synchronizer_of(self)
        return finite if synchronizer is None else synchronizer.all_finite(finite)

    return check_finite


def _uncompiled(original: Any, name: str) -> Any:
    def resolve_auto_jit_compile(self: Any) -> Any:
        return bool(original(self)) and not guard.no_jit(self)

    return resolve_auto_jit_compile


def _noted_layer(original: Any, name: str) -> Any:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        adapted.note_layer(self)

    # Keras makes a layer's config of this.
    init.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
    return init


def _noted_model(original: Any, name: str) -> Any:
    def make_function(self: Any, *args: Any, **kwargs: Any) -> Any:
        adapted.note_model(self)
        return original(self, *args, **kwargs)

    return make_function
