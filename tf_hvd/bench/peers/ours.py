"""tf_hvd itself, and the least that a call into TensorFlow costs."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tf_hvd.bench.peers.base import Peer
from tf_hvd.bench.workloads import Workload
from tf_hvd.collectives import collectives, reduce_ops

_SINGLE: dict[str, Callable[[Any], Any]] = {
    "allreduce": lambda tensor: collectives.allreduce(tensor, op=reduce_ops.Sum),
    "allgather": lambda tensor: collectives.allgather(tensor),
    "broadcast": lambda tensor: collectives.broadcast(tensor, root_rank=0),
    "alltoall": lambda tensor: collectives.alltoall(tensor),
    "reducescatter": lambda tensor: collectives.reducescatter(tensor, op=reduce_ops.Sum),
}
_GROUPED: dict[str, Callable[[Any], Any]] = {
    "allreduce": lambda tensors: collectives.grouped_allreduce(tensors, op=reduce_ops.Sum),
    "allgather": lambda tensors: collectives.grouped_allgather(tensors),
    "reducescatter": lambda tensors: collectives.grouped_reducescatter(tensors, op=reduce_ops.Sum),
}


class TensorFlowPeer(Peer):
    """Calls a function on tensors: eagerly, or in one tf.function."""

    def __init__(self) -> None:
        self._call: Callable[[list[Any]], list[Any]] = list
        self._tensors: list[Any] = []

    def body(self, workload: Workload) -> Callable[[list[Any]], list[Any]]:
        raise NotImplementedError

    def prepare(self, workload: Workload, inputs: list[np.ndarray]) -> str | None:
        self._tensors = [tf.constant(value) for value in inputs]
        self._call = self.body(workload)
        if workload.mode != "eager":
            self._call = tf.function(self._call, autograph=False)
        return None

    def run(self) -> Any:
        return self._call(self._tensors)

    def results(self) -> list[np.ndarray]:
        return [tensor.numpy() for tensor in self.run()]

    def release(self) -> None:
        self._call, self._tensors = list, []


class Ours(TensorFlowPeer):
    name = "tf_hvd"

    def body(self, workload: Workload) -> Callable[[list[Any]], list[Any]]:
        if workload.mode == "grouped":
            grouped = _GROUPED[workload.operation]
            return lambda tensors: list(grouped(tensors))
        single = _SINGLE[workload.operation]
        return lambda tensors: [single(tensor) for tensor in tensors]


class Identity(TensorFlowPeer):
    """tf.identity, below which no op of TensorFlow can be."""

    name = "tf.identity"
    is_collective = False

    def body(self, workload: Workload) -> Callable[[list[Any]], list[Any]]:
        return lambda tensors: [tf.identity(tensor) for tensor in tensors]
