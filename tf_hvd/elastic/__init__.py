"""Elastic jobs: a training goes on when ranks end, and when hosts come or go (docs/elastic.md).

Names only; each is documented where it is defined.
"""

import sys

from tf_hvd import keras
from tf_hvd.core.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from tf_hvd.elastic import fit
from tf_hvd.elastic.running import init, run
from tf_hvd.elastic.sampler import ElasticSampler
from tf_hvd.elastic.state import ObjectState, State, TensorFlowKerasState, TensorFlowState
from tf_hvd.training.preemption import Preemption, on_preemption

__all__ = [
    "ElasticSampler",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "Preemption",
    "State",
    "TensorFlowKerasState",
    "TensorFlowState",
    "init",
    "on_preemption",
    "run",
]

# Horovod's place for it, of which tf_hvd.keras itself knows nothing.
vars(keras)["elastic"] = sys.modules["tf_hvd.keras.elastic"] = fit
