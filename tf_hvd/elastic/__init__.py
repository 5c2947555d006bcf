"""Elastic jobs: a training goes on when ranks end, and when hosts come or go (docs/elastic.md).

Names only; each is documented where it is defined.
"""

from tf_hvd.core.exceptions import HorovodInternalError, HostsUpdatedInterrupt
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
