"""Which samples each rank trains on: each of an epoch once, whatever ranks come or go."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tf_hvd.core import basics


class ElasticSampler:
    """Hands out the samples of an epoch, in an order that all ranks know, batch by batch.

    What is done is a number: the samples of the epoch, in its order, that all ranks together have
    trained on. As a value of an ObjectState it is committed with the weights, and a job that
    was started again goes on right behind it, with as many ranks as it has then. Horovod
    has such a sampler for PyTorch, but not for TensorFlow.

        sampler = hvd.elastic.ElasticSampler(len(images), batch_size=32)
        state = hvd.elastic.TensorFlowKerasState(model, optimizer, sampler=sampler)
        ...
        for epoch in range(sampler.epoch, 10):
            for indices in sampler.dataset():
                train_step(tf.gather(images, indices), tf.gather(labels, indices))
                sampler.record_batch()
                state.commit()
            sampler.set_epoch(epoch + 1)

    A batch of all ranks together has `batch_size` samples for each of them; the last one of an
    epoch has what is left, at least one for each rank. With `keep_global_batch` it stays as large
    as it was in the first start, and `passes` says in how many passes the ranks make it.

    If more ranks go on with an epoch than it has samples left, some of them get one again,
    with the weight 0 in `weighted_dataset`.

    Args:
        size: how many samples there are.
        batch_size: how many a rank takes at once; the last batch of an epoch may have more, so that
            no rank is without.
        shuffle: whether each epoch has an order of its own.
        seed: of that; the same on all ranks.
        keep_global_batch: keep the samples of an update the same when the ranks do not.

    Raises:
        ValueError: there are fewer samples than ranks, or numbers are not positive.
    """

    def __init__(
        self,
        size: int,
        batch_size: int,
        shuffle: bool = True,
        seed: int = 0,
        keep_global_batch: bool = False,
    ) -> None:
        if size < 1 or batch_size < 1:
            raise ValueError(f"size {size} and batch_size {batch_size} must be at least 1")
        if size < basics.size():
            raise ValueError(f"there are {size} samples for {basics.size()} ranks")
        self.size = size
        self.batch_size = batch_size
        self.epoch = 0
        """The number of the epoch, from 0."""
        self.position = 0
        """How many of its samples all ranks have trained on."""
        self.global_batch = batch_size * basics.size()
        """How many samples all ranks take for one update."""
        self._shuffle, self._seed = shuffle, seed
        self._keeps = keep_global_batch
        self._passed = 0  # passes of the update that is not complete
        self._order = (-1, np.empty(0, np.int64))

    @property
    def passes(self) -> int:
        """In how many passes a rank takes its part of an update: `backward_passes_per_step`."""
        ranks = basics.size()
        # Rather a part with a sample more than one without any.
        most = max(1, self.global_batch // ranks)
        return min(math.ceil(self.global_batch / (self.batch_size * ranks)), most)

    @property
    def remaining(self) -> int:
        """How many samples of the epoch are left."""
        return self.size - self.position

    def __len__(self) -> int:
        """How many batches of a rank, one for each pass, are left in the epoch."""
        position, batches = self.position, -self._passed
        while position < self.size:
            position = self._end(position)
            batches += self.passes
        return batches

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch; one that has begun goes on."""
        if epoch != self.epoch:
            self.epoch, self.position, self._passed = epoch, 0, 0

    def record_batch(self) -> None:
        """All ranks have trained on the next batch; call it once for each pass."""
        self._passed += 1
        if self._passed >= self.passes:
            self._passed = 0
            self.position = self._end(self.position)

    def dataset(self) -> Any:
        """Batches of indices for this rank, int64 of shape [n], from where the epoch is to its end.

        Each time that it is gone through it begins where the epoch is by then.
        """
        spec = tf.TensorSpec([None], tf.int64)
        parts = self._parts
        return tf.data.Dataset.from_generator(
            lambda: (part for part, _ in parts()), output_signature=spec
        )

    def weighted_dataset(self) -> Any:
        """The same with a weight for each batch, float32: pairs.

        Where ranks or passes have parts of different sizes, the mean over a part, times its weight,
        averaged over ranks and passes, is the mean over all samples of the update.
        """
        specs = (tf.TensorSpec([None], tf.int64), tf.TensorSpec([], tf.float32))
        return tf.data.Dataset.from_generator(self._parts, output_signature=specs)

    def state_dict(self) -> dict[str, Any]:
        """What a commit keeps."""
        return {
            "epoch": self.epoch,
            "position": self.position,
            "passed": self._passed,
            "ranks": basics.size(),
            "global_batch": self.global_batch,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes it back; with other ranks an update that is not complete begins anew."""
        self.epoch, self.position = state["epoch"], state["position"]
        if self._keeps:
            self.global_batch = state["global_batch"]
            if self.global_batch < basics.size():
                raise ValueError(
                    f"keep_global_batch: {basics.size()} ranks cannot share {self.global_batch} "
                    "samples; give --max-np"
                )
        self._passed = state["passed"] if state["ranks"] == basics.size() else 0

    def _end(self, position: int) -> int:
        """Where the update that begins at a position ends."""
        end = position + self.global_batch
        # What is left would not have one for each rank and pass.
        few = basics.size() * self.passes
        return self.size if self.size - end < few else end

    def _parts(self) -> Iterator[tuple[np.ndarray, float]]:
        order, position, skipped = self._epoch_order(), self.position, self._passed
        ranks, rank, passes = basics.size(), basics.rank(), self.passes
        while position < self.size:
            end = self._end(position)
            pieces = np.array_split(order[position:end], ranks * passes)
            for number in range(skipped, passes):
                part = pieces[number * ranks + rank]
                weight = len(part) * ranks * passes / (end - position)
                yield (part, weight) if weight else (order[end - 1 : end], 0.0)
            position, skipped = end, 0

    def _epoch_order(self) -> np.ndarray:
        if not self._shuffle:
            return np.arange(self.size, dtype=np.int64)
        if self._order[0] != self.epoch:
            chance = np.random.Generator(np.random.Philox(key=[self._seed, self.epoch]))
            self._order = (self.epoch, chance.permutation(self.size))
        return self._order[1]
