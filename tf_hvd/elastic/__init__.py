"""Elastic training, which continues after ranks fail and when hosts are added or removed.

This module only exports names. They are documented where they are defined.
"""

import sys
import typing

from tf_hvd import keras
from tf_hvd.core.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from tf_hvd.elastic import fit
from tf_hvd.elastic.fit import KerasState, of
from tf_hvd.elastic.running import init, run
from tf_hvd.elastic.sampler import ElasticSampler
from tf_hvd.elastic.state import ObjectState, State, TensorFlowKerasState, TensorFlowState
from tf_hvd.training.preemption import Preemption, on_preemption

if typing.TYPE_CHECKING:
    from tf_hvd.elastic.fit import (
        CommitStateCallback,
        UpdateBatchStateCallback,
        UpdateEpochStateCallback,
    )
else:
    # The classes depend on the Keras behind `tf.keras`, which is known only at the first access.
    __getattr__ = fit.__getattr__

__all__ = [
    "CommitStateCallback",
    "ElasticSampler",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "KerasState",
    "ObjectState",
    "Preemption",
    "State",
    "TensorFlowKerasState",
    "TensorFlowState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "init",
    "of",
    "on_preemption",
    "run",
]


def __dir__() -> list[str]:
    return sorted(__all__)


# Horovod's programs import this module from there. tf_hvd.keras itself does not import it.
vars(keras)["elastic"] = sys.modules["tf_hvd.keras.elastic"] = sys.modules[__name__]
