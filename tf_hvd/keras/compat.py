"""All that tf_hvd knows of the inside of Keras; nothing else in it does.

Two Kerases are served: Keras 3 (`keras`) and Keras 2 (`tf_keras`), the latter with
its present optimizers and the older `optimizers.legacy`. What is hooked:

- Keras 3: `_clip_gradients` of the optimizer. Keras calls it exactly once in each
  update, after unscaling and accumulation, before clipping and weight decay. It is
  given no variables; `_backend_apply_gradients`, which calls it, is, and `apply` sees
  which gradients are None. What is put around each is in tf_hvd.keras.update_hooks.
- tf_keras: `aggregate_gradients` (`_aggregate_gradients` of a legacy optimizer), made
  for this purpose: after unscaling, before clipping and before LossScaleOptimizer
  looks whether they are finite.
- Classes: LossScaleOptimizer.check_finite, Trainer._resolve_auto_jit_compile,
  and what is public: the `apply` of all optimizers, CallbackList, `fit` and
  `train_on_batch`, BatchNormalization's `call`, ModelCheckpoint's `on_` methods,
  ProgbarLogger's `set_params` (tf_hvd.keras.patches, .callbacks).

`missing_hooks` names what a later Keras no longer has, when it is imported.
"""

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_hvd.core.tensorflow_hooks import enclosing_graphs, global_generator, tf_variable
from tf_hvd.keras import hooks

# What these callbacks remember of the epochs, and must not forget in a resume.
REMEMBERED = {
    "EarlyStopping": ("best", "best_epoch", "best_weights", "stopped_epoch", "wait"),
    "ModelCheckpoint": (
        "best",
        "epochs_since_last_save",
        "_batches_seen_since_last_saving",
        "_last_batch_seen",
    ),
    "ReduceLROnPlateau": ("best", "cooldown_counter", "wait"),
    # Whether weights and averages have changed places when the backup is made.
    "SwapEMAWeights": ("_ema_weights_in_model",),
}
KERAS, TF_KERAS, LEGACY = "keras", "tf_keras", "tf_keras legacy"
# What an optimizer of each kind must have, to be hooked.
HOOKS = {
    KERAS: ("apply", "_backend_apply_gradients", "_clip_gradients"),
    TF_KERAS: ("apply_gradients", "aggregate_gradients"),
    LEGACY: ("apply_gradients", "_aggregate_gradients"),
}
# Names of the graph's requests must not hold Keras' names of optimizers ("adam_1"),
# which a process counts for itself. The slash makes it a scope of its own.
SCOPE = "tf_hvd/"
# What Keras asks of callbacks that are not its own; without it tf_keras converts the logs.
CALLBACK_TRAITS = {"_supports_tf_logs": True}
# What tf_keras asks each callback of a `fit`; Keras 3's do not have it.
ASKED_BY_TF_KERAS = "_implements_train_batch_hooks"
# Methods that make an update, the outermost first.
UPDATING = {
    KERAS: ("apply_gradients", "apply", "_backend_apply_gradients"),
    TF_KERAS: ("apply_gradients",),
    LEGACY: ("apply_gradients",),
}
# Methods that take gradients and variables as two lists; the others take pairs.
OF_LISTS = ("apply", "_backend_apply_gradients")
# By these a program says that it has reduced the gradients, as do Keras' wrappers.
REDUCED = {"experimental_aggregate_gradients": False, "skip_gradients_aggregation": True}
# What of tf_keras returns pairs of gradients and variables: of the present optimizers, of the
# older ones.
COMPUTING = ("compute_gradients", "_compute_gradients")


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
    inner = inner_optimizers(optimizer)
    if inner is None:
        yield optimizer
    for each in inner or ():
        yield from leaves(each)


def variables_of(optimizer: Any) -> list[Any]:
    """All variables of a Keras optimizer; a method, a property or both, by its version."""
    variables = optimizer.variables
    found = list(variables() if callable(variables) else variables)
    # tf_keras does not list it.
    rate = tf_variable(getattr(optimizer, "learning_rate", None))
    if isinstance(rate, tf.Variable) and all(tf_variable(v) is not rate for v in found):
        found.append(rate)
    return found


def innermost(optimizer: Any) -> Any:
    while getattr(optimizer, "inner_optimizer", None) is not None:
        optimizer = optimizer.inner_optimizer
    return optimizer


def own_sums(optimizer: Any) -> list[Any]:
    """Keras 3's sums of gradients of an update that is not complete: each rank's own."""
    sums = (getattr(leaf, "_accumulated_gradients", None) for leaf in leaves(optimizer))
    return [variable for found in sums for variable in found or ()]


def grows(optimizer: Any) -> bool:
    """Whether it is a MultiOptimizer, which may get inner ones when it is built."""
    return isinstance(getattr(optimizer, "optimizers", None), (list, tuple))


def synchronizer_of(optimizer: Any) -> Any:
    """What was hooked into `optimizer`, or into what it hands on to; None if nothing."""
    mine = hooks.noted(optimizer)
    if mine is not None:
        return mine
    found = [synchronizer_of(inner) for inner in inner_optimizers(optimizer) or ()]
    return found[0] if found and all(each is not None for each in found) else None


def aggregations_of(optimizer: Any) -> list[Any]:
    """What adds up the passes of each optimizer that makes updates itself; may be none."""
    those = [optimizer, *leaves(optimizer)]
    found = [getattr(synchronizer_of(each), "aggregation", None) for each in those]
    return [each for each in dict.fromkeys(found) if each is not None]


def iterations_of(optimizer: Any) -> Any:
    """How many updates an optimizer has applied, an integer scalar, now or when the graph runs."""
    with tf.init_scope():  # a legacy one makes its variable when it is asked
        optimizer.iterations  # noqa: B018
    return tf.convert_to_tensor(tf_variable(optimizer.iterations))


def has_mesh(optimizer: Any) -> bool:
    """Whether an optimizer of tf_keras trains over a DTensor mesh."""
    return bool(getattr(optimizer, "_mesh", None) or getattr(optimizer, "_run_with_dtensor", False))


def says_reduced(optimizer: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether arguments of `apply_gradients`, after the pairs, say that these are reduced."""
    # The second one, without its name: skip it, or of the older ones, do it.
    unnamed = args[1:2] == (kind_of(optimizer) == TF_KERAS,)
    return unnamed or any(kwargs.get(name) is value for name, value in REDUCED.items())


def fixed_scale(optimizer: Any) -> Any:
    """The fixed factor of the loss, by which Keras 3 divides gradients within `apply`, or None."""
    return getattr(optimizer, "loss_scale_factor", None)


def overridden(optimizer: Any) -> list[str]:
    """The methods by which a class of the user's makes updates itself, the outermost first."""
    names = UPDATING.get(kind_of(optimizer) or "", ())
    return [name for name in names if hooks.overrides(optimizer, name)]


def computed_by_legacy(optimizer: Any, loss: Any, var_list: Any, tape: Any) -> list[Any]:
    return list(optimizer._compute_gradients(loss, var_list, None, tape))


def trained_by(optimizer: Any) -> Any:
    return optimizer._trainable_variables


def updates_of(optimizer: Any) -> int | None:
    """How many updates the optimizer has counted; None where TensorFlow does not run eagerly."""
    with tf.init_scope():
        if not tf.executing_eagerly():
            return None
        return int(iterations_of(optimizer))


def learning_rate_of(optimizer: Any) -> float:
    """The learning rate of the next update, also of a schedule; 0 if it has none."""
    rate = tf_variable(getattr(optimizer, "learning_rate", 0.0))
    return float(tf.convert_to_tensor(rate(optimizer.iterations) if callable(rate) else rate))


def enclosing_functions() -> list[Any]:
    """Graphs of the functions being traced, the innermost first; empty in eager mode."""
    return [graph for graph in enclosing_graphs() if hasattr(graph, "outer_graph")]


def has_own_values(variable: Any) -> bool:
    """Whether each rank has its own by design: fp8 scales, which are no weights."""
    return bool(getattr(variable, "overwrite_with_gradient", False))


def build_optimizer(optimizer: Any, variables: Any) -> None:
    """Makes the optimizer's variables, if it has not made them yet."""
    # The optimizers of Keras 3 and tf_keras, then tf_keras' legacy ones.
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
    # The legacy optimizers of tf_keras make slots when they are asked for them.
    return [optimizer.get_slot(variable, "momentum") for variable in variables]


_TRAINING = ("fit", "train_on_batch")
# Of these the class counts that objects of the public class have them from.
_NEAREST = (*_TRAINING, "call", "set_params")


def library_classes(callback: Any) -> list[str]:
    """The names of those classes of a callback that are Keras' or ours, the nearest first."""
    ours = hooks.LIBRARIES
    return [k.__name__ for k in type(callback).__mro__ if k.__module__.partition(".")[0] in ours]


def layers_of(model: Any) -> list[Any]:
    return list(model._flatten_layers())


def weights_of(model: Any) -> list[Any]:
    """The weights that a model has by now; tf_keras' does not say while a part of it has none."""
    try:
        return list(model.weights)
    except ValueError:
        found: dict[int, Any] = {}
    for layer in layers_of(model):
        with contextlib.suppress(ValueError):
            found.update((id(weight), weight) for weight in layer.weights)
    return list(found.values())


def random_states(model: Any) -> dict[str, Any]:
    """The variables of random numbers that are not among the model's, by a name for each.

    Those that programs share, if they are there, and those of tf_keras' random layers.
    """
    keras = sys.modules.get("keras.src.backend.common.global_state")
    found = {
        "tensorflow": global_generator(),
        "keras": keras and keras.get_global_attribute("global_seed_generator"),
    }
    for number, layer in enumerate(layers_of(model)):
        own = getattr(layer, "_random_generator", None)
        found[f"layer {number}"] = getattr(own, "_generator", None)
    return {name: each.state for name, each in found.items() if hasattr(each, "state")}


def owner_of(kind: Any, name: str) -> Any:
    """The class to which the method belongs: of several, the one they all call in the end."""
    if name in vars(kind) and name.startswith("__"):
        return kind
    order = kind.__mro__ if name in _NEAREST else reversed(kind.__mro__)
    return next((base for base in order if name in vars(base)), None)


# By these Keras 3 and tf_keras go through the batches of an epoch.
_STEPS = ("_enumerate_iterator", "enumerate_epochs")


def _epochs(module: str, name: str, method: str) -> list[tuple[str, Any, str]]:
    """What goes through an epoch's batches; nothing where Keras has it elsewhere.

    Then a `fit` cannot go on in the middle of one (tf_hvd.elastic.fit says so).
    """
    try:
        kind = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        return []
    return [("epoch", kind, method)] if method in vars(kind) else []


def begin_within(
    epoch: Any, name: str, go_through: Any, batches: Callable[[], int], anew: Callable[[], bool]
) -> Any:
    """Goes through an epoch's batches without the first ones, whose data it reads and drops.

    Batches keep their numbers. When the epoch begins, `batches` says how many are left out, in
    whole executions, and `anew` whether Keras is to find out again how many there are.
    """
    found = go_through()
    if name == _STEPS[0]:
        if anew():
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
        if anew():
            epoch._inferred_steps = None
        yield number, iterator


# The layers that `adapt` gives a state.
_ADAPTED = (
    "Normalization", "Discretization", "StringLookup", "IntegerLookup", "TextVectorization",
)  # fmt: skip
_MAKE_FUNCTION = ("make_train_function", "make_test_function", "make_predict_function")


def lookup_of(layer: Any) -> Any:
    """The layer that has the vocabulary: of a TextVectorization, the one inside."""
    return getattr(layer, "_lookup_layer", layer)


def forget_vocabulary_size(lookup: Any) -> None:
    """Lets a lookup layer have a vocabulary of another size than it had."""
    lookup._frozen_vocab_size = None


def _adapted(module: Any) -> list[tuple[str, Any, str]]:
    layers = [getattr(module.layers, name) for name in _ADAPTED if hasattr(module.layers, name)]
    return [
        *(("adapted", layer, "__init__") for layer in layers),
        *(("compiled", module.Model, name) for name in _MAKE_FUNCTION),
    ]


def roots(module: Any) -> list[tuple[str, Any, str]]:
    """What is replaced in classes: what for, the class to begin at, the method."""
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
            ("jit", module.Model, "_resolve_auto_jit_compile"),
            *_epochs("keras.src.trainers.epoch_iterator", "EpochIterator", _STEPS[0]),
        ]
    return [
        *found,
        ("update", module.optimizers.Optimizer, "apply_gradients"),
        ("update", module.optimizers.legacy.Optimizer, "apply_gradients"),
        *_epochs("tf_keras.src.engine.data_adapter", "DataHandler", _STEPS[1]),
    ]


# By these Keras has ModelCheckpoint write, and by one of those its BackupAndRestore writes.
_CHECKPOINT, SAVES = ("on_train_batch_end", "on_epoch_end"), ("_save_model", "_backup")


def save_backup(backup: Any) -> None:
    if hasattr(backup, SAVES[0]):
        getattr(backup, SAVES[0])()
    else:
        getattr(backup, SAVES[1])(epoch=backup._current_epoch)


def begin_with(model: Any, epoch: int) -> None:
    """Has a `fit` whose BackupAndRestore has restored begin with an epoch, and its first batch."""
    state = getattr(model, "_training_state", None)  # tf_keras'
    if state is None:
        model._initial_epoch = epoch
    else:
        state.maybe_load_initial_counters_from_ckpt = lambda *_, **__: (epoch, 0)


def missing_hooks(module: Any) -> list[str]:
    """What tf_hvd needs in `keras` or `tf_keras` and does not find there."""
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
