"""tf_hvd itself, and the minimum cost of a call into TensorFlow."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tf_hvd.bench.peers.base import Peer
from tf_hvd.bench.workloads import Workload
from tf_hvd.collectives import collectives, reduce_ops


class TensorFlowPeer(Peer):
    """A peer that calls a function on tensors, eagerly or in one tf.function."""

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
        kind, options = workload.kind, dict[str, int]()
        if kind.reduces:
            options["op"] = reduce_ops.Sum
        if kind.has_root:
            options["root_rank"] = 0
        if workload.mode == "grouped":
            grouped = getattr(collectives, f"grouped_{kind.name}")
            return lambda tensors: list(grouped(tensors, **options))
        single = getattr(collectives, kind.name)
        return lambda tensors: [single(tensor, **options) for tensor in tensors]


class Identity(TensorFlowPeer):
    """tf.identity: the minimum cost of any TensorFlow op."""

    name = "tf.identity"
    is_collective = False

    def body(self, workload: Workload) -> Callable[[list[Any]], list[Any]]:
        return lambda tensors: [tf.identity(tensor) for tensor in tensors]
