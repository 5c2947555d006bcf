"""horovod.keras.callbacks: Horovod's callbacks for the Keras that `import keras` imports."""

import functools
import importlib
from typing import Any

from tf_hvd.horovod.tf_keras_callbacks import NAMES
from tf_hvd.keras import callbacks

__all__ = [*NAMES]


@functools.cache
def _best_model_checkpoint(base: type) -> type:
    """Return a subclass of `base` with the argument order of horovod.keras."""

    def __init__(  # noqa: N807 - of the class below
        self: Any,
        monitor: str = "val_loss",
        verbose: int = 0,
        mode: str = "auto",
        save_freq: Any = "epoch",
        **options: Any,
    ) -> None:
        base.__init__(  # type: ignore[misc]
            self, monitor=monitor, verbose=verbose, mode=mode, save_freq=save_freq, **options
        )

    return type(base.__name__, (base,), {"__doc__": base.__doc__, "__init__": __init__})


def __getattr__(name: str) -> Any:
    found = getattr(callbacks.of(importlib.import_module("keras")), name)
    return _best_model_checkpoint(found) if name == "BestModelCheckpoint" else found
