"""The hooks of Keras' distribution API: backend functions, trainers, losses and random numbers."""

import functools
import importlib
import inspect
import sys
import weakref
from typing import Any

import tensorflow as tf

from tf_hvd.collectives.objects import Title, broadcast_object
from tf_hvd.collectives.variables import is_seed
from tf_hvd.core.tensorflow_hooks import tf_variable, verbatim
from tf_hvd.keras import compat, data_order, hooks
from tf_hvd.keras.distribution import (
    active,
    backend,
    losses,
    private,
    random,
    results,
    rows,
    step,
)
from tf_hvd.keras.optimizer import DistributedOptimizer
from tf_hvd.training import guard

_SEEDS = Title("keras.distribution: seeds of the first rank")


def install() -> None:
    """Fills in Keras' backend functions and replaces its functions, once.

    If Keras' TensorFlow backend has these functions, nothing is replaced.
    """
    library = private.distribution_backend()
    if library is None or hasattr(library, "initialize"):
        return
    for name, function in backend.FUNCTIONS.items():
        setattr(library, name, function)
    for module, name in private.functions_of_whole_batches():
        if hasattr(module, name):
            setattr(module, name, _around(name, getattr(module, name)))
    private.replace_strategy(_strategy_of)
    guard.refusals.append(_refuse)


def _around(name: str, original: Any) -> Any:
    def replaced(*args: Any, **kwargs: Any) -> Any:
        return _AROUND[name](original, *args, **kwargs)

    return verbatim(functools.wraps(original)(replaced))


def _whole_batches(original: Any, *args: Any, **kwargs: Any) -> Any:
    """Keras' data adapter for the global batches, which `_Ranks` divides."""
    if active.setup() is None:
        return original(*args, **kwargs)
    with active.without_distribution():
        return original(*args, **kwargs)


_AROUND: dict[str, Any] = {
    "get_data_adapter": _whole_batches,
    "apply_mask": losses.apply_mask,
    "reduce_values": losses.reduce_values,
    "reduce_to_samplewise_values": losses.samplewise,
    "dropout": random.dropout,
    "categorical": random.categorical,
    **{name: functools.partial(random.of_shape, name) for name in random.OF_SHAPES},
}


_OF_SHARES = ("hvd.shard", "ElasticSampler")
_REFUSED = {
    "hvd.shard": "each global batch is divided across the ranks, so a share of the data would be "
    "divided again. Pass the whole dataset, or use DataParallel(auto_shard_dataset=False).",
    "ElasticSampler": "each global batch is divided across the ranks, so a share of the data would "
    "be divided again. Pass the whole dataset to fit, which continues it exactly after a restart, "
    "or use DataParallel(auto_shard_dataset=False).",
    "hvd.evaluate": "model.evaluate covers all ranks. Call it instead of hvd.evaluate.",
    "hvd.predict": "model.predict covers all ranks. Call it instead of hvd.predict.",
    "DistributedGradientTape": "the gradients of this train_step are averaged when they are "
    "applied. Use tf.GradientTape instead of DistributedGradientTape.",
}


def _refuse(name: str) -> None:
    """Raises if a function of tf_hvd does again what the distribution does."""
    if name == "DistributedGradientTape" and step.current() is None:
        return
    setup = active.setup()
    if setup is None or (name in _OF_SHARES and not setup.shards):
        return
    raise ValueError(f"A Keras distribution is set: {_REFUSED[name]}")


class Used:
    distribution = False
    """Whether a model was used under a distribution. Read at each update, so it calls nothing."""


def _strategy_of(model: Any, strategy: Any) -> Any:
    """The object that Keras' trainer uses as its tf.distribute strategy."""
    setup = active.setup()
    if setup is None:
        return strategy
    Used.distribution = True
    return _Ranks(setup, model, strategy)


class _Ranks:
    """Takes the place of the default tf.distribute strategy in Keras' trainer.

    The trainer asks it to divide the data and to run each step.
    """

    def __init__(self, setup: active.Setup, model: Any, strategy: Any) -> None:
        self._setup = setup
        self._model = model
        self._strategy = strategy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._strategy, name)

    def experimental_distribute_dataset(self, dataset: Any) -> Any:
        if not self._setup.shards:
            return dataset
        divided = rows.distributed(dataset, self._setup.rank, self._setup.ranks)
        return data_order.derived(dataset, divided)

    @verbatim
    def run(self, function: Any, args: Any) -> Any:
        (data,) = args
        training = function in (self._model.train_step, self._model.test_step)
        now, mine, digest = step.begun(self._setup, data)
        if training:
            results.read_by(self._model).add(now, digest)
        with step.entered(now):
            outputs = function(mine)
        return outputs if training else results.predictions(digest, outputs)


class _Prepared:
    """The preparations of a model."""

    def __init__(self) -> None:
        self.setups: dict[str, active.Setup | None] = {}
        self.wrapped: Any = None


_prepared: "weakref.WeakKeyDictionary[Any, _Prepared]" = weakref.WeakKeyDictionary()
_weighed: "weakref.WeakSet[Any]" = weakref.WeakSet()


def make_function(model: Any, make: Any, force: bool = False) -> Any:
    """Calls `make_train_function` and the like, for the current distribution.

    The model's optimizer averages gradients from now on. A function for another distribution is
    made again.
    """
    setup = active.setup()
    known = _prepared.get(model)
    if setup is None and known is None:
        return make(force)
    known = _prepared.setdefault(model, _Prepared())
    if setup is not None:
        _refuse_missing()
        active.check_model(model, model.distribute_strategy)
    if make.__name__ == "make_train_function":
        _wrap(model, known, setup)
    changed = known.setups.get(make.__name__) != setup
    known.setups[make.__name__] = setup
    if changed and setup is not None and make.__name__ == "make_train_function":
        _share_seeds(model)
    return make(force or changed)


def _refuse_missing() -> None:
    missing = private.missing_for_distribution()
    if missing:
        keras = sys.modules["keras"]
        raise NotImplementedError(
            f"keras.distribution: Keras {keras.__version__} does not have "
            f"{', '.join(missing)}, which tf_hvd needs. Use Keras 3.12 or newer, a newer "
            "tf_hvd, or hvd.DistributedOptimizer."
        )


def makes_distributed(optimizer: Any) -> bool:
    """Makes an optimizer distributed that is used in a step and was not passed to `compile`."""
    if (
        step.current() is None
        or compat.inner_optimizers(optimizer) is not None
        or compat.synchronizer_of(optimizer) is not None
    ):
        return False
    _distribute(optimizer)
    return True


def _distribute(optimizer: Any) -> None:
    if compat.synchronizer_of(optimizer) is None:
        DistributedOptimizer(optimizer, name="keras.distribution")
    for leaf in compat.leaves(optimizer):
        if leaf not in _weighed:
            _weighed.add(leaf)
            hooks.put_around(leaf, "apply", _weigh)


def scaled_loss(optimizer: Any, scale_loss: Any, loss: Any) -> Any:
    now = step.current()
    return scale_loss(loss if now is None else now.weigh_loss(loss))


def _wrap(model: Any, known: _Prepared, setup: active.Setup | None) -> None:
    """Makes the optimizer distributed under a distribution, and plain again without one."""
    optimizer = getattr(model, "optimizer", None)
    if setup is None:
        if known.wrapped is not None and known.wrapped is optimizer:
            for each in (optimizer, *compat.leaves(optimizer)):
                hooks.forget(each)
                _weighed.discard(each)
        known.wrapped = None
        return
    if optimizer is None:
        return
    if compat.synchronizer_of(optimizer) is None:
        known.wrapped = optimizer
    _distribute(optimizer)


def _weigh(optimizer: Any, apply: Any, grads: Any, *args: Any, **kwargs: Any) -> Any:
    """Weights this rank's gradients by its rows, before anything adds up or reduces them."""
    now = step.current()
    return apply(grads if now is None else now.weigh(list(grads)), *args, **kwargs)


def _share_seeds(model: Any) -> None:
    """Gives all ranks rank 0's seeds of random layers, which broadcast_variables leaves out."""
    seeds = [tf_variable(variable) for variable in model.variables if is_seed(variable)]
    shared = compat.global_seed()
    seeds += [] if shared is None else [tf_variable(shared)]
    values = broadcast_object([seed.numpy() for seed in seeds], 0, name=_SEEDS)
    for seed, value in zip(seeds, values, strict=True):
        seed.assign(value)


def callbacks(base: Any) -> list[Any]:
    """The callbacks of a `fit` under a distribution, before the user's; none without one."""
    if not is_on() or base.__module__.partition(".")[0] != "keras":
        return []
    of_keras = importlib.import_module("tf_hvd.keras.callbacks").of(sys.modules["keras"])
    return [of_keras.BroadcastGlobalVariablesCallback(0)]


def results_of(model: Any, method: Any, logs: Any) -> Any:
    setup = active.setup()
    if setup is None or not tf.executing_eagerly():
        return method(logs)
    return results.over_all_ranks(setup, model, method, logs, layers=True)


def on_batch(model: Any, method: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Calls `train_on_batch` or `test_on_batch`; the metrics are those of all ranks."""
    setup = active.setup()
    if setup is None or not isinstance(model, sys.modules["keras"].Model):
        return method(*args, **kwargs)
    signature = inspect.signature(method)
    if "return_dict" not in signature.parameters:
        return method(*args, **kwargs)
    given = signature.bind(*args, **kwargs)
    as_dict = given.arguments.get("return_dict", False)
    given.arguments["return_dict"] = True
    logs = results.over_all_ranks(setup, model, dict, method(*given.args, **given.kwargs))
    return logs if as_dict else compat.flat_logs(model, logs)


def is_on() -> bool:
    return active.setup() is not None
