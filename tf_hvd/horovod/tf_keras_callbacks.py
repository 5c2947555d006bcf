"""horovod.tensorflow.keras.callbacks: Horovod's callbacks for the Keras that `tf.keras` is."""

from typing import Any

from tf_hvd.keras import callbacks

NAMES = (
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
)
"""Horovod's callbacks: what `from ... import *` imports, and not those that only tf_hvd has."""

__all__ = [*NAMES]


def __getattr__(name: str) -> Any:
    return getattr(callbacks, name)
