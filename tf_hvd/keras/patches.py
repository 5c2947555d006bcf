"""Hook tf_hvd into Keras' classes, for objects that a program does not pass to tf_hvd."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
import wrapt

from tf_hvd.keras import adapted, compat, data_order, fit_config, fit_sync, guard, hooks, resume
from tf_hvd.keras.distribution import installed as distributed
from tf_hvd.keras.distribution import moments, saving
from tf_hvd.keras.keras_variants import internal_callback
from tf_hvd.keras.learning_rate import warmup_schedule_of
from tf_hvd.training.guard import watches

# The name of the first argument of each method that makes updates.
_GRADIENTS = {"apply": "grads", "apply_gradients": "grads_and_vars"}


@functools.cache
def install() -> None:
    """Hook tf_hvd into Keras 3 and tf_keras, immediately or when the program imports them."""
    for name in ("keras", "tf_keras"):
        wrapt.register_post_import_hook(patch, name)


def patch(module: Any) -> None:
    """Replace methods in the classes of `keras` or `tf_keras`.

    Keras 3 is not changed if its backend is not TensorFlow.

    Raises:
      ImportError: a method that tf_hvd hooks into does not exist.
    """
    if module.__name__ == "keras" and module.backend.backend() != "tensorflow":
        return
    missing = compat.missing_hooks(module)
    if missing:
        names = ", ".join(name.removeprefix(f"{module.__name__}: ") for name in missing)
        raise ImportError(
            f"tf_hvd cannot hook into {module.__name__} {module.__version__}, which does not have "
            f"{names}. Install a newer tf_hvd, or an older {module.__name__}."
        )
    warmup_schedule_of(module)  # registers the class, so that models compiled with it load
    if module.__name__ == "keras":
        distributed.install()
    arounds: dict[str, hooks.Around] = {
        "callbacks": functools.partial(_watched_callbacks, module.callbacks.Callback),
        "batch norm": _watched_batch_norm,
        "finite": _common_finite,
        "progress": _shown_progress,
        "jit": _uncompiled,
        "adapted": _noted_layer,
        "compiled": _noted_model,
        "results": distributed.results_of,
        "scale": distributed.scaled_loss,
        "saved": saving.saved,
        "tested": distributed.on_batch,
    }
    by_name: dict[str, Callable[..., Any]] = {
        "update": _watched_update,
        "training": _watched_training,
        "epoch": _resumed_epoch,
    }
    for purpose, kind, name in compat.roots(module):
        around = arounds.get(purpose) or functools.partial(by_name[purpose], name)
        hooks.put_around_all(compat.owner_of(kind, name), name, around)


def _watched_update(name: str, optimizer: Any, update: Any, /, *args: Any, **kwargs: Any) -> Any:
    argument = _GRADIENTS[name]
    if not args and argument not in kwargs:
        return update(**kwargs)  # raises: an argument is missing
    # A generator can be read only once, so its contents are passed on.
    given = list(kwargs.pop(argument) if argument in kwargs else args[0])
    gradients = given if name == "apply" else [gradient for gradient, _ in given]
    used = distributed.Used.distribution and name == "apply"
    if used and distributed.makes_distributed(optimizer):
        return optimizer.apply(given, *args[1:], **kwargs)
    check = guard.before_update(optimizer, gradients)
    with tf.control_dependencies([] if check is None else [check]):
        return update(given, *args[1:], **kwargs)


def _watched_batch_norm(
    layer: Any, call: Any, /, inputs: Any, training: Any = None, mask: Any = None
) -> Any:
    if distributed.is_on():
        return moments.batch_norm(layer, call, inputs, training, mask)
    known = tf.get_static_value(training) if tf.is_tensor(training) else bool(training)
    if layer.synchronized and layer.trainable and (known is None or known):
        guard.before_batch_norm(layer)
    return call(inputs, training=training, mask=mask)


def _watched_training(name: str, model: Any, train: Any, /, *args: Any, **kwargs: Any) -> Any:
    if name == "fit":
        guard.before_fit(model)
        args, kwargs = resume.follow_data(train.__func__, model, args, kwargs)
    try:
        if name == "train_on_batch":
            return distributed.on_batch(model, train, *args, **kwargs)
        return train(*args, **kwargs)
    except Exception as error:
        guard.failed(error)
        raise
    finally:
        if name == "fit":
            guard.fit_ended(model)


def _resumed_epoch(name: str, epoch: Any, go_through: Any) -> Any:
    return compat.begin_within(
        epoch, name, go_through, data_order.take_done, lambda: data_order.done.uneven
    )


def _watched_callbacks(
    base: Any,
    listed: Any,
    init: Any,
    /,
    callbacks: Any = None,
    add_history: bool = False,
    *args: Any,
    **kwargs: Any,
) -> None:
    # Only `fit` requests a history; `evaluate` and `predict` do not.
    if add_history:
        callbacks = [*distributed.callbacks(base), *tf.nest.flatten(callbacks or [])]
        if watches():
            callbacks = fit_sync.surround(base, [*callbacks, internal_callback(guard.Watch, base)])
        else:
            fit_config.release_writers(callbacks)
            callbacks = resume.last(callbacks)
    init(callbacks, add_history, *args, **kwargs)


def _shown_progress(bar: Any, set_params: Any, params: Any) -> None:
    set_params(params if guard.shows_progress(bar.model) else {**params, "verbose": 0})


def _common_finite(optimizer: Any, check_finite: Any, grads: Any) -> Any:
    finite = check_finite(grads)
    synchronizer = compat.synchronizer_of(optimizer)
    return finite if synchronizer is None else synchronizer.all_finite(finite)


def _uncompiled(model: Any, resolve_auto_jit_compile: Any) -> bool:
    return bool(resolve_auto_jit_compile()) and not guard.no_jit(model)


def _noted_layer(layer: Any, init: Any, /, *args: Any, **kwargs: Any) -> None:
    init(*args, **kwargs)
    adapted.note_layer(layer)


def _noted_model(model: Any, make_function: Any, /, *args: Any, **kwargs: Any) -> Any:
    adapted.note_model(model)
    return distributed.make_function(model, make_function, *args, **kwargs)
