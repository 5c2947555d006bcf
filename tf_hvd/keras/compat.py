"""The only tf_hvd module that uses private names in Keras.

It supports two versions of Keras: Keras 3 (`keras`) and Keras 2 (`tf_keras`). In tf_keras, it
supports both current optimizers and those in `optimizers.legacy`. tf_hvd hooks into these methods:

- Keras 3 optimizers: `_clip_gradients`. Keras calls this method exactly once per update, after
  unscaling and accumulation, and before clipping and weight decay. Its arguments do not include the
  variables, so tf_hvd.keras.update_hooks also wraps the caller, `_backend_apply_gradients`. The
  method `apply` is wrapped too, because only `apply` sees which gradients are None.
- tf_keras optimizers: `aggregate_gradients` (`_aggregate_gradients` in a legacy optimizer), which
  exists for this purpose. This method runs after unscaling, before clipping, and before
  LossScaleOptimizer checks whether gradients are finite.
- Other classes: LossScaleOptimizer.check_finite, Trainer._resolve_auto_jit_compile, and public
  methods. These are `apply` in all optimizers, CallbackList, `fit`, `train_on_batch`,
  `test_on_batch`, `save`, `save_weights`, BatchNormalization's `call`, ModelCheckpoint's `on_`
  methods, and ProgbarLogger's `set_params`. See tf_hvd.keras.patches and tf_hvd.keras.callbacks.

`missing_hooks` lists the methods that the imported Keras version does not have.
"""

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_hvd.core.tensorflow_hooks import enclosing_graphs, global_generator, tf_variable
from tf_hvd.keras import hooks

# The attributes of these callbacks to restore when training resumes.
REMEMBERED = {
    "EarlyStopping": ("best", "best_epoch", "best_weights", "stopped_epoch", "wait"),
    "ModelCheckpoint": (
        "best",
        "epochs_since_last_save",
        "_batches_seen_since_last_saving",
        "_last_batch_seen",
    ),
    "ReduceLROnPlateau": ("best", "cooldown_counter", "wait"),
    # Whether weights and averages are swapped when the backup is made.
    "SwapEMAWeights": ("_ema_weights_in_model",),
}
KERAS, TF_KERAS, LEGACY = "keras", "tf_keras", "tf_keras legacy"
# The attributes that an optimizer of each kind needs for the hooks.
HOOKS = {
    KERAS: ("apply", "_backend_apply_gradients", "_clip_gradients"),
    TF_KERAS: ("apply_gradients", "aggregate_gradients"),
    LEGACY: ("apply_gradients", "_aggregate_gradients"),
}
# Request names in a graph must not contain Keras' optimizer names ("adam_1"), because each process
# numbers optimizers separately. The slash creates a separate scope.
SCOPE = "tf_hvd/"
# Keras reads this attribute of callbacks from other libraries; without it tf_keras converts logs.
CALLBACK_TRAITS = {"_supports_tf_logs": True}
# tf_keras reads this attribute of every callback in a `fit`; Keras 3 callbacks do not have it.
ASKED_BY_TF_KERAS = "_implements_train_batch_hooks"
# Methods that make an update, outermost first.
UPDATING = {
    KERAS: ("apply_gradients", "apply", "_backend_apply_gradients"),
    TF_KERAS: ("apply_gradients",),
    LEGACY: ("apply_gradients",),
}
# Methods that take gradients and variables as two lists; the other methods take pairs.
OF_LISTS = ("apply", "_backend_apply_gradients")
# Arguments with which a program, or a wrapper in Keras, declares the gradients already reduced.
REDUCED = {"experimental_aggregate_gradients": False, "skip_gradients_aggregation": True}
# Methods in tf_keras that return pairs of gradients and variables: first the method of current
# optimizers, then that of legacy optimizers.
COMPUTING = ("compute_gradients", "_compute_gradients")


def kind_of(optimizer: Any) -> str | None:
    """The key in HOOKS for the optimizer's kind; None if it is not a Keras optimizer."""
    if isinstance(optimizer, type):
        return None  # a class, not an instance
    for kind, names in HOOKS.items():
        if all(callable(getattr(optimizer, name, None)) for name in names):
            return kind
    return None


def inner_optimizers(optimizer: Any) -> list[Any] | None:
    """The optimizers inside a LossScaleOptimizer or MultiOptimizer; None for other optimizers.

    A MultiOptimizer that maps variables by a function has no inner optimizers until it is built.
    """
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None:
        return [inner]
    several = getattr(optimizer, "optimizers", None)
    return list(several) if isinstance(several, (list, tuple)) else None


def leaves(optimizer: Any) -> Iterator[Any]:
    inner = inner_optimizers(optimizer)
    if inner is None:
        yield optimizer
    for each in inner or ():
        yield from leaves(each)


def variables_of(optimizer: Any) -> list[Any]:
    """All variables of an optimizer from Keras 3 or tf_keras."""
    variables = optimizer.variables
    found = list(variables() if callable(variables) else variables)
    # tf_keras does not list the learning rate.
    rate = tf_variable(getattr(optimizer, "learning_rate", None))
    if isinstance(rate, tf.Variable) and all(tf_variable(v) is not rate for v in found):
        found.append(rate)
    return found


def innermost(optimizer: Any) -> Any:
    while getattr(optimizer, "inner_optimizer", None) is not None:
        optimizer = optimizer.inner_optimizer
    return optimizer


def own_sums(optimizer: Any) -> list[Any]:
    """Keras 3's partial gradient sums for an incomplete update, which are local to each rank."""
    sums = (getattr(leaf, "_accumulated_gradients", None) for leaf in leaves(optimizer))
    return [variable for found in sums for variable in found or ()]


def grows(optimizer: Any) -> bool:
    """Whether the optimizer is a MultiOptimizer, which may get inner optimizers when built."""
    return isinstance(getattr(optimizer, "optimizers", None), (list, tuple))


def synchronizer_of(optimizer: Any) -> Any:
    """The synchronizer of a distributed optimizer or its inner optimizers; None for others."""
    mine = hooks.noted(optimizer)
    if mine is not None:
        return mine
    found = [synchronizer_of(inner) for inner in inner_optimizers(optimizer) or ()]
    return found[0] if found and all(each is not None for each in found) else None


def aggregations_of(optimizer: Any) -> list[Any]:
    """The objects that sum backward passes for an optimizer and its inner optimizers, if any."""
    those = [optimizer, *leaves(optimizer)]
    found = [getattr(synchronizer_of(each), "aggregation", None) for each in those]
    return [each for each in dict.fromkeys(found) if each is not None]


def iterations_of(optimizer: Any) -> Any:
    """The number of applied updates as an integer scalar tensor, read when its graph runs."""
    with tf.init_scope():  # a legacy optimizer creates its variable on access
        optimizer.iterations  # noqa: B018
    return tf.convert_to_tensor(tf_variable(optimizer.iterations))


def has_mesh(optimizer: Any) -> bool:
    """Whether a tf_keras optimizer trains on a DTensor mesh."""
    return bool(getattr(optimizer, "_mesh", None) or getattr(optimizer, "_run_with_dtensor", False))


def says_reduced(optimizer: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether arguments to `apply_gradients` declare that the gradients are already reduced.

    `args` and `kwargs` are the arguments after the pairs of gradients and variables.
    """
    # The second positional argument: whether to skip the reduction. For legacy optimizers, the
    # argument is whether to reduce.
    unnamed = args[1:2] == (kind_of(optimizer) == TF_KERAS,)
    return unnamed or any(kwargs.get(name) is value for name, value in REDUCED.items())


def fixed_scale(optimizer: Any) -> Any:
    """The fixed loss scale that Keras 3 divides gradients by in `apply`; None without a scale."""
    return getattr(optimizer, "loss_scale_factor", None)


def overridden(optimizer: Any) -> list[str]:
    """The updating methods that a user's optimizer class overrides, outermost first."""
    names = UPDATING.get(kind_of(optimizer) or "", ())
    return [name for name in names if hooks.overrides(optimizer, name)]


def computed_by_legacy(optimizer: Any, loss: Any, var_list: Any, tape: Any) -> list[Any]:
    return list(optimizer._compute_gradients(loss, var_list, None, tape))


def trained_by(optimizer: Any) -> Any:
    return optimizer._trainable_variables


def updates_of(optimizer: Any) -> int | None:
    """The number of updates that the optimizer has counted; None in a v1 graph."""
    with tf.init_scope():
        if not tf.executing_eagerly():
            return None
        return int(iterations_of(optimizer))


def learning_rate_of(optimizer: Any) -> float:
    """The learning rate of the next update, constant or scheduled; 0 without a learning rate."""
    rate = tf_variable(getattr(optimizer, "learning_rate", 0.0))
    return float(tf.convert_to_tensor(rate(optimizer.iterations) if callable(rate) else rate))


def enclosing_functions() -> list[Any]:
    """The graphs of the functions being traced, innermost first; empty in eager mode."""
    return [graph for graph in enclosing_graphs() if hasattr(graph, "outer_graph")]


def has_own_values(variable: Any) -> bool:
    """Whether a variable is meant to differ between ranks, such as an fp8 scale."""
    return bool(getattr(variable, "overwrite_with_gradient", False))


def build_optimizer(optimizer: Any, variables: Any) -> None:
    """Create the optimizer's variables for `variables`, unless they exist."""
    # `build` is for Keras 3 and tf_keras optimizers, `_create_all_weights` for legacy optimizers.
    for method in ("build", "_create_all_weights"):
        if hasattr(optimizer, method):
            if not getattr(optimizer, "built", getattr(optimizer, "_built", False)):
                with tf.init_scope():
                    getattr(optimizer, method)(variables)
            return


def velocities_of(optimizer: Any, variables: Any) -> list[Any]:
    """The optimizer's variables that contain the learning rate; empty without momentum."""
    momentum = getattr(optimizer, "momentum", None)
    if momentum is None or not float(momentum) > 0.0:
        return []
    for attribute in ("momentums", "_momentums"):
        if hasattr(optimizer, attribute):
            return list(getattr(optimizer, attribute))
    if not hasattr(optimizer, "get_slot"):
        return []  # not built yet
    # Legacy tf_keras optimizers create slots on access.
    return [optimizer.get_slot(variable, "momentum") for variable in variables]


# The metric classes in Keras 3 or tf_keras with an `update_state` that only adds to variables.
# tests/python/single/keras_metrics_test.py tries all metrics in both libraries.
ADDING = frozenset((
    "_ConfusionMatrixConditionCount", "_IoUBase", "AUC", "BinaryIoU", "FBetaScore", "Mean",
    "MeanMetricWrapper", "MeanRelativeError", "MeanTensor", "Precision", "R2Score", "Recall",
    "Reduce", "RootMeanSquaredError", "SensitivitySpecificityBase", "Sum",
    "SumOverBatchSizeMetricWrapper",
))  # fmt: skip


def metrics_of(model: Any) -> list[Any]:
    """All metrics of a model, each once, including those passed to `compile`."""
    found: dict[int, Any] = {}
    for metric in model.metrics:
        compiled = type(metric).__name__ == "CompileMetrics"  # holds compiled metrics in Keras 3
        found.update((id(m), m) for m in (metric.metrics if compiled else [metric]))
    return list(found.values())


def result_names(model: Any) -> list[str]:
    """The metric names in the order in which `evaluate` returns them, before all other names."""
    return [metric.name for metric in metrics_of(model)]


def results_of_metrics(model: Any) -> dict[str, Any]:
    """The results of the model's `get_metrics_result`, or of Keras' method if the model's fails."""
    keras: Any = next(
        kind
        for kind in type(model).__mro__
        if "get_metrics_result" in vars(kind)
        and kind.__module__.partition(".")[0] in hooks.LIBRARIES
    )
    for method in (model.get_metrics_result, lambda: keras.get_metrics_result(model)):
        # A metric's `result` may require arguments. tf_keras skips such a metric, too.
        with contextlib.suppress(Exception):
            return dict(method())
    return {}


def users_results(model: Any, metrics: Iterable[Any]) -> bool:
    """Whether a user-defined model or metric class computes a result."""
    return hooks.overrides(model, "get_metrics_result") or any(
        hooks.overrides(metric, "result") for metric in metrics
    )


def says_of_sums(metric: Any) -> bool | None:
    """The attribute `hvd_sums`: whether a metric declares its variables as sums; None if unset."""
    said = getattr(metric, "hvd_sums", None)
    return None if said is None else bool(said)


def is_mean(metric: Any) -> bool:
    return "Mean" in library_classes(metric)


def adds_up(metric: Any) -> bool:
    """Whether a metric's variables are sums over its samples that determine its result.

    This is true for the metrics in `ADDING`, and for a user's class that only changes the inputs to
    Keras' Mean or Sum. It is also true for a class that consists of such metrics, or that declares
    `hvd_sums = True`.
    """
    said = says_of_sums(metric)
    if said is not None:
        return said
    owner = next(k for k in type(metric).__mro__ if "update_state" in vars(k))
    if owner.__module__.partition(".")[0] in hooks.LIBRARIES:
        return owner.__name__ in ADDING
    parts = _metrics_inside(metric)
    inside = {id(variable) for part in parts for variable in part.variables}
    own = sum(id(variable) not in inside for variable in metric.variables)
    kinds = () if hooks.overrides(metric, "result") else library_classes(metric)
    known = 2 if "Mean" in kinds else 1 if "Sum" in kinds else 0
    return bool(own or inside) and own <= known and all(map(adds_up, parts))


def declares_sums(metric: Any) -> bool:
    """Whether the metric's class lets Keras 3 add up all of its variables across replicas.

    That is the default of Keras 3's `Metric.add_variable`.
    """
    kinds = {getattr(variable, "aggregation", "") for variable in metric.variables}
    return says_of_sums(metric) is None and kinds == {"sum"}


def _metrics_inside(metric: Any) -> list[Any]:
    return list(getattr(metric, "_metrics", ()))


_TRAINING = ("fit", "train_on_batch")
# Methods that are hooked in the nearest class that defines them; see `owner_of`.
_NEAREST = (*_TRAINING, "test_on_batch", "call", "scale_loss", "set_params")


def library_classes(callback: Any) -> list[str]:
    """The names of an object's base classes in Keras or tf_hvd, the most derived class first."""
    ours = hooks.LIBRARIES
    return [k.__name__ for k in type(callback).__mro__ if k.__module__.partition(".")[0] in ours]


def layers_of(model: Any) -> list[Any]:
    return list(model._flatten_layers())


def weights_of(model: Any) -> list[Any]:
    """The weights that a model has so far, even if a tf_keras model is only partly built."""
    try:
        return list(model.weights)
    except ValueError:
        found: dict[int, Any] = {}
    for layer in layers_of(model):
        with contextlib.suppress(ValueError):
            found.update((id(weight), weight) for weight in layer.weights)
    return list(found.values())


def untrained_weights_of(model: Any) -> list[Any]:
    """A model's moving statistics, frozen weights and fp8 scales.

    These weights may differ between ranks even if gradients are reduced. Seeds of random layers and
    variables of metrics are not included. The list is empty if a tf_keras model is not built.
    """
    try:
        weights, trainable = list(model.weights), {id(each) for each in model.trainable_weights}
    except ValueError:
        return []
    counted = {id(variable) for metric in metrics_of(model) for variable in metric.variables}
    found = [w for w in weights if id(w) not in trainable or has_own_values(w)]
    return [w for w in found if id(w) not in counted]


def _global_seed_generator() -> Any:
    keras = sys.modules.get("keras.src.backend.common.global_state")
    return keras and keras.get_global_attribute("global_seed_generator")


def global_seed() -> Any:
    """The state of Keras' global seed generator; None before its first use."""
    return getattr(_global_seed_generator(), "state", None)


def random_states(model: Any) -> dict[str, Any]:
    """The states of random generators that are not among the model's variables, by name.

    These are the global generators, if they exist, and the generators in tf_keras' random layers.
    """
    found = {"tensorflow": global_generator(), "keras": _global_seed_generator()}
    for number, layer in enumerate(layers_of(model)):
        own = getattr(layer, "_random_generator", None)
        found[f"layer {number}"] = getattr(own, "_generator", None)
    return {name: each.state for name, each in found.items() if hasattr(each, "state")}


def owner_of(kind: Any, name: str) -> Any:
    """The class, among `kind` and its bases, in which to hook the method `name`.

    If several classes define the method, this is the last class that `super()` reaches. Methods in
    `_NEAREST` and special methods of `kind` are hooked in the first class instead. None if no class
    defines the method.
    """
    if name in vars(kind) and name.startswith("__"):
        return kind
    order = kind.__mro__ if name in _NEAREST else reversed(kind.__mro__)
    return next((base for base in order if name in vars(base)), None)


# The methods that iterate over the batches of an epoch in Keras 3 and tf_keras.
_STEPS = ("_enumerate_iterator", "enumerate_epochs")


def _epochs(module: str, name: str, method: str) -> list[tuple[str, Any, str]]:
    """The method that iterates over an epoch's batches; empty if this Keras version has none.

    Without this method, `fit` cannot resume within an epoch, and tf_hvd.elastic.fit reports this.
    """
    try:
        kind = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        return []
    return [("epoch", kind, method)] if method in vars(kind) else []


def begin_within(
    epoch: Any, name: str, go_through: Any, batches: Callable[[], int], recount: Callable[[], bool]
) -> Any:
    """Iterate over an epoch's batches, but read and drop the first batches.

    The remaining batches keep their numbers.

    Args:
      epoch: Keras' object for the batches of an epoch.
      name: name of the method that iterates over the batches.
      go_through: that method.
      batches: returns the number of batches to skip, a multiple of steps_per_execution; called when
        the epoch begins.
      recount: returns whether Keras must count the batches again.
    """
    found = go_through()
    if name == _STEPS[0]:
        if recount():
            epoch._num_batches = epoch.data_adapter.num_batches
        first = batches()
        for begin, end, iterator in found:
            if begin >= first:
                yield begin, end, iterator
                break
            for _ in range(end + 1 - begin):
                next(iterator)
        yield from found
        return
    for number, iterator in found:
        first = batches()
        for _ in range(first):
            next(iterator)
        if first:
            epoch._initial_step = first
        if recount():
            epoch._inferred_steps = None
        yield number, iterator


# The layers that have an `adapt` method.
_ADAPTED = (
    "Normalization", "Discretization", "StringLookup", "IntegerLookup", "TextVectorization",
)  # fmt: skip
_MAKE_FUNCTION = ("make_train_function", "make_test_function", "make_predict_function")


def lookup_of(layer: Any) -> Any:
    """The layer with the vocabulary: the inner lookup layer of a TextVectorization, or `layer`."""
    return getattr(layer, "_lookup_layer", layer)


def forget_vocabulary_size(lookup: Any) -> None:
    """Allow a lookup layer to get a vocabulary of a different size."""
    lookup._frozen_vocab_size = None


def _adapted(module: Any) -> list[tuple[str, Any, str]]:
    layers = [getattr(module.layers, name) for name in _ADAPTED if hasattr(module.layers, name)]
    return [
        *(("adapted", layer, "__init__") for layer in layers),
        *(("compiled", module.Model, name) for name in _MAKE_FUNCTION),
    ]


def _existing(purpose: str, kind: Any, name: str) -> list[tuple[str, Any, str]]:
    """A method that only keras.distribution needs; empty if this Keras does not have it."""
    return [(purpose, kind, name)] if hasattr(kind, name) else []


def roots(module: Any) -> list[tuple[str, Any, str]]:
    """The methods to replace in Keras' classes: a purpose, a base class and a name for each."""
    found = [
        ("callbacks", module.callbacks.CallbackList, "__init__"),
        ("batch norm", module.layers.BatchNormalization, "call"),
        ("progress", module.callbacks.ProgbarLogger, "set_params"),
        *(("training", module.Model, name) for name in _TRAINING),
        *_adapted(module),
    ]
    if module.__name__ == "keras":
        return [
            *found,
            ("update", module.optimizers.Optimizer, "apply"),
            ("finite", module.optimizers.LossScaleOptimizer, "check_finite"),
            *_existing("scale", module.optimizers.LossScaleOptimizer, "scale_loss"),
            ("jit", module.Model, "_resolve_auto_jit_compile"),
            *_existing("saved", module.Model, "save"),
            *_existing("saved", module.Model, "save_weights"),
            *_existing("tested", module.Model, "test_on_batch"),
            *_existing("results", module.Model, "_get_metrics_result_or_logs"),
            *_epochs("keras.src.trainers.epoch_iterator", "EpochIterator", _STEPS[0]),
        ]
    return [
        *found,
        ("update", module.optimizers.Optimizer, "apply_gradients"),
        ("update", module.optimizers.legacy.Optimizer, "apply_gradients"),
        *_epochs("tf_keras.src.engine.data_adapter", "DataHandler", _STEPS[1]),
    ]


def seed_of_generator(tf_keras: Any) -> tuple[type, str]:
    """The class that draws random numbers in tf_keras layers, and its method for seeds."""
    backend = importlib.import_module(f"{tf_keras.__name__}.src.backend")
    return backend.RandomGenerator, "_create_seed"


def has_state(generator: Any) -> bool:
    """Whether a tf_keras random generator draws from its own tf.random.Generator."""
    return bool(generator._rng_type == generator.RNG_STATEFUL)


# The methods in which Keras' ModelCheckpoint writes, and the possible names of the method that
# writes a backup in BackupAndRestore.
_CHECKPOINT, SAVES = ("on_train_batch_end", "on_epoch_end"), ("_save_model", "_backup")


def save_backup(backup: Any) -> None:
    if hasattr(backup, SAVES[0]):
        getattr(backup, SAVES[0])()
    else:
        getattr(backup, SAVES[1])(epoch=backup._current_epoch)


def flat_logs(model: Any, logs: dict[str, Any]) -> Any:
    """The result of Keras 3's `train_on_batch` for some logs: a number or a list of numbers."""
    return model._flatten_metrics_in_order(logs)


def begin_with(model: Any, epoch: int) -> None:
    """Make a `fit` that BackupAndRestore has restored begin at the first batch of `epoch`."""
    state = getattr(model, "_training_state", None)  # tf_keras only
    if state is None:
        model._initial_epoch = epoch
    else:
        state.maybe_load_initial_counters_from_ckpt = lambda *_, **__: (epoch, 0)


def missing_hooks(module: Any) -> list[str]:
    """The names of methods to hook that `module`, either `keras` or `tf_keras`, does not have."""
    checkpoint = module.callbacks.ModelCheckpoint
    found = [
        f"{module.__name__}: ModelCheckpoint.{name}"
        for name in _CHECKPOINT
        if name not in vars(checkpoint)
    ]
    if not any(hasattr(module.callbacks.BackupAndRestore, name) for name in SAVES):
        found.append(f"{module.__name__}: BackupAndRestore.{SAVES[0]}")
    if not callable(getattr(module.Model, "_flatten_layers", None)):
        found.append(f"{module.__name__}: Model._flatten_layers")
    for _, kind, name in roots(module):
        if owner_of(kind, name) is None:
            found.append(f"{module.__name__}: {kind.__name__}.{name}")
    kinds = [(KERAS, module.optimizers.SGD)]
    if module.__name__ == "tf_keras":
        kinds = [(TF_KERAS, module.optimizers.SGD), (LEGACY, module.optimizers.legacy.SGD)]
    for kind, sample in kinds:
        for name in HOOKS[kind]:
            if not callable(getattr(sample, name, None)):
                found.append(f"{module.__name__}: {sample.__name__}.{name}")
    return found
