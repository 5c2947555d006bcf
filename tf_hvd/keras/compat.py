"""All that tf_hvd knows of the inside of Keras; nothing else in it does.

Two Kerases are served: Keras 3 (`keras`) and Keras 2 (`tf_keras`), the latter with
its present optimizers and the older `optimizers.legacy`. What is hooked:

- Keras 3: `_clip_gradients` of the optimizer instance. Keras calls it exactly
  once in each update, after unscaling and accumulation, before clipping and
  weight decay. It is given no variables; `_backend_apply_gradients`, which calls
  it, is, and `apply` sees which gradients are None.
- tf_keras: `aggregate_gradients` of the instance (`_aggregate_gradients` of a
  legacy one), made for this purpose: after unscaling, before clipping and before
  LossScaleOptimizer looks whether they are finite.
- Classes: LossScaleOptimizer.check_finite, Trainer._resolve_auto_jit_compile,
  the `apply` of all optimizers and CallbackList, for what has no instance of ours.

`missing_hooks` names what a later Keras no longer has; a test holds it empty.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from tf_hvd._tensorflow import verbatim

KERAS, TF_KERAS, LEGACY = "keras", "tf_keras", "tf_keras legacy"
# What an optimizer of each kind must have, to be hooked.
HOOKS = {
    KERAS: ("apply", "_backend_apply_gradients", "_clip_gradients"),
    TF_KERAS: ("apply_gradients", "aggregate_gradients"),
    LEGACY: ("apply_gradients", "_aggregate_gradients"),
}
# Under this name an optimizer instance holds what was made for it here.
_MARK = "_tf_hvd_distribution"
# Names of the graph's requests must not hold Keras' names of optimizers ("adam_1"),
# which a process counts for itself. The slash makes it a scope of its own.
SCOPE = "tf_hvd/"


class Distribution(Protocol):
    """What is hooked into an optimizer; tf_hvd.keras.optimizer makes it."""

    def begin(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """An update with these gradients, None among them, is about to be made."""

    def applied(self, variables: Sequence[Any]) -> None:
        """What an update has changed."""

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The gradients, reduced; called once in each update."""

    def all_finite(self, finite: Any) -> Any:
        """Whether the gradients of all ranks are finite, if this rank's are `finite`."""


class Guard(Protocol):
    """What looks on from outside; tf_hvd.keras.guard makes it."""

    def before_update(self, optimizer: Any) -> None:
        """Any optimizer is about to apply gradients."""

    def watches(self) -> bool:
        """Whether training is to be watched."""

    def train_begin(self, model: Any) -> Any:
        """`fit` begins; `epoch_end()` of the result is called after each epoch."""

    def no_jit(self, model: Any) -> bool:
        """Whether jit_compile="auto" must mean False for this model, which would compile."""


def kind_of(optimizer: Any) -> str | None:
    """Which of HOOKS the optimizer has; None if it is not one of Keras' at all."""
    if isinstance(optimizer, type):
        return None  # a class that was not called
    for kind, names in HOOKS.items():
        if all(callable(getattr(optimizer, name, None)) for name in names):
            return kind
    return None


def inner_optimizers(optimizer: Any) -> list[Any] | None:
    """Those that a LossScaleOptimizer or MultiOptimizer hands on to; None: it is neither.

    Those of a MultiOptimizer with a function for a map come when it is built.
    """
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None:
        return [inner]
    several = getattr(optimizer, "optimizers", None)
    return list(several) if isinstance(several, (list, tuple)) else None


def leaves(optimizer: Any) -> Iterator[Any]:
    """The optimizers that make the updates: `optimizer`, or those inside of it."""
    inner = inner_optimizers(optimizer)
    if inner is None:
        yield optimizer
    for each in inner or ():
        yield from leaves(each)


def grows(optimizer: Any) -> bool:
    """Whether it is a MultiOptimizer, which may get inner ones when it is built."""
    return isinstance(getattr(optimizer, "optimizers", None), (list, tuple))


def distribution_of(optimizer: Any) -> Any:
    """What was hooked into `optimizer`, or into what it hands on to; None if nothing."""
    mine = vars(optimizer).get(_MARK) if hasattr(optimizer, "__dict__") else None
    if mine is not None:
        return mine
    found = [distribution_of(inner) for inner in inner_optimizers(optimizer) or ()]
    return found[0] if found and all(each is not None for each in found) else None


def mark(optimizer: Any, distribution: Any) -> None:
    """From now on `distribution_of` gives `distribution`."""
    _set(optimizer, _MARK, distribution)


def _set(optimizer: Any, name: str, value: Any) -> None:
    # Past Keras' __setattr__, which would track it, save it, or take it for a
    # hyperparameter.
    vars(optimizer)[name] = value


def add_method(optimizer: Any, name: str, function: Callable[..., Any]) -> None:
    """Gives the instance a method, for the user."""
    _set(optimizer, name, function)


def hook_updates(optimizer: Any, kind: str, distribution: Distribution) -> None:
    """Puts `distribution` into one optimizer that makes updates itself.

    Raises:
      ValueError: it trains over a DTensor mesh, which reduces gradients itself.
    """
    if kind == KERAS:
        _hook_keras(optimizer, distribution)
        return
    if getattr(optimizer, "_mesh", None) or getattr(optimizer, "_run_with_dtensor", False):
        raise ValueError("an optimizer with a DTensor mesh reduces its gradients itself.")
    _hook_aggregation(optimizer, HOOKS[kind][1], distribution)


def _hook_keras(optimizer: Any, distribution: Distribution) -> None:
    apply = optimizer.apply
    apply_filtered = optimizer._backend_apply_gradients
    clip = optimizer._clip_gradients
    current: list[Any] = []

    @verbatim
    def hooked_apply(grads: Any, trainable_variables: Any = None) -> Any:
        grads = list(grads)
        known = trainable_variables
        known = optimizer._trainable_variables if known is None else list(known)
        distribution.begin(grads, known)
        return apply(grads, trainable_variables if trainable_variables is None else known)

    @verbatim
    def hooked_apply_filtered(grads: Any, trainable_variables: Any) -> Any:
        current[:] = trainable_variables
        with tf.name_scope(SCOPE):
            result = apply_filtered(grads, trainable_variables)
        distribution.applied(trainable_variables)
        return result

    @verbatim
    def hooked_clip(grads: Any) -> Any:
        return clip(distribution.reduce(grads, current))

    _set(optimizer, "apply", hooked_apply)
    _set(optimizer, "_backend_apply_gradients", hooked_apply_filtered)
    _set(optimizer, "_clip_gradients", hooked_clip)


def _hook_aggregation(optimizer: Any, name: str, distribution: Distribution) -> None:
    aggregate = getattr(optimizer, name)
    apply_gradients = optimizer.apply_gradients

    @verbatim
    def hooked_aggregate(grads_and_vars: Any) -> Any:
        pairs = list(grads_and_vars)
        gradients = [gradient for gradient, _ in pairs]
        variables = [variable for _, variable in pairs]
        with tf.name_scope(SCOPE):
            distribution.begin(gradients, variables)
            reduced = distribution.reduce(gradients, variables)
        return aggregate(list(zip(reduced, variables, strict=True)))

    @verbatim
    def hooked_apply_gradients(grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        pairs = list(grads_and_vars)
        result = apply_gradients(pairs, *args, **kwargs)
        distribution.applied([variable for _, variable in pairs])
        return result

    _set(optimizer, name, hooked_aggregate)
    _set(optimizer, "apply_gradients", hooked_apply_gradients)


def hook_build(optimizer: Any, after: Callable[[], None]) -> None:
    """Calls `after` each time a MultiOptimizer has been built, when it has all its own."""
    build = optimizer.build

    def hooked_build(var_list: Any) -> None:
        build(var_list)
        after()

    _set(optimizer, "build", hooked_build)


def in_xla() -> bool:
    """Whether the function being traced is to be compiled by XLA (jit_compile=True)."""
    graph = tf.compat.v1.get_default_graph()
    return bool(control_flow_util.GraphOrParentsInXlaContext(graph))


def enclosing_graphs() -> list[Any]:
    """Graphs of the functions being traced, the innermost first; empty in eager mode."""
    graphs = []
    graph: Any = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    while hasattr(graph, "outer_graph"):
        graphs.append(graph)
        graph = graph.outer_graph
    return graphs


def has_own_values(variable: Any) -> bool:
    """Whether each rank has its own by design: fp8 scales, which are no weights."""
    return bool(getattr(variable, "overwrite_with_gradient", False))


def _owner(kind: Any, name: str) -> Any:
    """The class to which the method belongs: of several, the one they all call in the end."""
    if name in vars(kind) and name.startswith("__"):
        return kind
    return next((base for base in reversed(kind.__mro__) if name in vars(base)), None)


def _roots(module: Any) -> list[tuple[str, Any, str]]:
    """What is replaced in classes: what for, the class to begin at, the method."""
    if module.__name__ == "keras":
        return [
            ("update", module.optimizers.Optimizer, "apply"),
            ("callbacks", module.callbacks.CallbackList, "__init__"),
            ("finite", module.optimizers.LossScaleOptimizer, "check_finite"),
            ("jit", module.Model, "_resolve_auto_jit_compile"),
        ]
    return [
        ("update", module.optimizers.Optimizer, "apply_gradients"),
        ("update", module.optimizers.legacy.Optimizer, "apply_gradients"),
        ("callbacks", module.callbacks.CallbackList, "__init__"),
    ]


def missing_hooks(module: Any) -> list[str]:
    """What tf_hvd needs in `keras` or `tf_keras` and does not find there."""
    found = []
    for _, kind, name in _roots(module):
        if _owner(kind, name) is None:
            found.append(f"{module.__name__}: {kind.__name__}.{name}")
    kinds = [(KERAS, module.optimizers.SGD)]
    if module.__name__ == "tf_keras":
        kinds = [(TF_KERAS, module.optimizers.SGD), (LEGACY, module.optimizers.legacy.SGD)]
    for kind, sample in kinds:
        for name in HOOKS[kind]:
            if not callable(getattr(sample, name, None)):
                found.append(f"{module.__name__}: {sample.__name__}.{name}")
    return found


def patch(module: Any, guard: Guard) -> None:
    """Replaces the methods of classes in `keras` or `tf_keras`, once.

    Keras 3 on another backend than TensorFlow is left alone.

    Raises:
      ImportError: a method is not there.
    """
    if module.__name__ == "keras" and module.backend.backend() != "tensorflow":
        return
    missing = missing_hooks(module)
    if missing:
        raise ImportError(
            f"{module.__name__} {module.__version__} has not what tf_hvd hooks into: "
            f"{', '.join(missing)}. Install a newer tf_hvd, or an older {module.__name__}."
        )
    replacements: dict[str, Callable[[Any, Any], Any]] = {
        "update": functools.partial(_watched_update, guard),
        "callbacks": functools.partial(_watched_callbacks, guard, module.callbacks.Callback),
        "finite": _common_finite,
        "jit": functools.partial(_uncompiled, guard),
    }
    for purpose, kind, name in _roots(module):
        owner = _owner(kind, name)
        original = vars(owner)[name]
        if not hasattr(original, _MARK):
            replacement = functools.wraps(original)(replacements[purpose](original, name))
            setattr(replacement, _MARK, True)
            setattr(owner, name, verbatim(replacement))


def _watched_update(guard: Guard, original: Any, name: str) -> Any:
    del name

    def update(self: Any, *args: Any, **kwargs: Any) -> Any:
        guard.before_update(self)
        return original(self, *args, **kwargs)

    return update


def _watched_callbacks(guard: Guard, base: Any, original: Any, name: str) -> Any:
    del name

    class GuardCallback(base):  # type: ignore[misc]
        """Calls the guard; Keras gives it the model."""

        _supports_tf_logs = True  # tf_keras would convert the logs for it

        def on_train_begin(self, logs: Any = None) -> None:
            del logs
            self.watch = guard.train_begin(self.model)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            del epoch, logs
            self.watch.epoch_end()

    def init(
        self: Any, callbacks: Any = None, add_history: bool = False, *args: Any, **kwargs: Any
    ) -> None:
        # `fit` wants a history, `evaluate` and `predict` do not.
        if add_history and guard.watches():
            callbacks = [*tf.nest.flatten(callbacks or []), GuardCallback()]
        original(self, callbacks, add_history, *args, **kwargs)

    return init


def _common_finite(original: Any, name: str) -> Any:
    del name

    def check_finite(self: Any, grads: Any) -> Any:
        finite = original(self, grads)
        distribution = distribution_of(self)
        return finite if distribution is None else distribution.all_finite(finite)

    return check_finite


def _uncompiled(guard: Guard, original: Any, name: str) -> Any:
    del name

    def resolve_auto_jit_compile(self: Any) -> Any:
        return bool(original(self)) and not guard.no_jit(self)

    return resolve_auto_jit_compile
