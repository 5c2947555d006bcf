"""The private names of Keras 3 that only the distribution API needs; see tf_hvd.keras.compat."""

import importlib
from collections.abc import Callable, Iterator
from typing import Any

# Modules of Keras 3, and the functions in them that depend on the whole batch.
_OF_WHOLE_BATCHES = {
    "keras.src.trainers.data_adapters": ("get_data_adapter",),
    "keras.src.losses.loss": ("apply_mask", "reduce_values"),
    "keras.src.metrics.reduction_metrics": ("reduce_to_samplewise_values",),
    "keras.src.backend.tensorflow.random": (
        *("dropout", "categorical", "normal", "truncated_normal", "uniform", "randint"),
        *("gamma", "beta", "binomial"),
    ),
}
_TRAINER = "keras.src.backend.tensorflow.trainer"


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def distribution_backend() -> Any:
    """The module of Keras' TensorFlow backend that `keras.distribution` calls; None if missing."""
    return _module("keras.src.backend.tensorflow.distribution_lib")


def functions_of_whole_batches() -> Iterator[tuple[Any, str]]:
    """The modules and names of Keras' functions that depend on the whole batch."""
    for module, names in _OF_WHOLE_BATCHES.items():
        yield from ((_module(module), name) for name in names)


def missing_for_distribution() -> list[str]:
    """The names that tf_hvd.keras.distribution needs and that this Keras lacks."""
    found = [
        f"{module}.{name}"
        for module, names in _OF_WHOLE_BATCHES.items()
        for name in names
        if not hasattr(_module(module), name)
    ]
    trainer = getattr(_module(_TRAINER), "TensorFlowTrainer", None)
    names = ("distribute_strategy", "_get_metrics_result_or_logs")
    return found + [f"TensorFlowTrainer.{name}" for name in names if not hasattr(trainer, name)]


def processes_of(distribution: Any) -> int:
    """The number of processes when the distribution was created."""
    # The second name is that of Keras 3.14 and older.
    names = ("num_processes", "_num_process")
    return int(next(getattr(distribution, name) for name in names if hasattr(distribution, name)))


def replace_strategy(strategy_of: Callable[[Any, Any], Any]) -> None:
    """Makes `model.distribute_strategy` return `strategy_of(model, Keras' strategy)`."""
    trainer: Any = getattr(_module(_TRAINER), "TensorFlowTrainer", None)
    original = getattr(trainer, "distribute_strategy", None)
    if original is not None:
        trainer.distribute_strategy = property(lambda self: strategy_of(self, original.fget(self)))


def seed_of_program() -> int | None:
    """The seed that the program has passed to `keras.utils.set_random_seed`; None without one."""
    module = _module("keras.src.utils.rng_utils")
    get = getattr(module, "get_random_seed", lambda: None)
    found = get()
    return None if found is None else int(found)
