"""BatchNormalization in a step, over the rows of all ranks."""

import functools
import sys
from collections.abc import Callable
from typing import Any

from tf_hvd.keras.distribution.step import current
from tf_hvd.keras.sync_batch_norm import train_keras_3


def batch_norm(layer: Any, call: Callable[..., Any], inputs: Any, training: Any, mask: Any) -> Any:
    """Calls a BatchNormalization layer; in a step it uses moments across all ranks."""
    step = current()
    if step is None or not training or not layer.trainable:
        return call(inputs, training=training, mask=mask)
    total = functools.partial(step.sum, name="moments")
    return train_keras_3(sys.modules["keras"], layer, inputs, mask, total_of=total)
