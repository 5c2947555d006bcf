"""horovod.tensorflow.keras.callbacks: Horovod's callbacks for the Keras behind `tf.keras`."""

from typing import Any

from tf_hvd.keras import callbacks

NAMES = (
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
)
"""The callbacks that Horovod also has, for `from ... import *`."""

__all__ = [*NAMES]


def __getattr__(name: str) -> Any:
    return getattr(callbacks, name)
