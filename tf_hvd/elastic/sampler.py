"""ElasticSampler, which uses each sample of an epoch once even if the number of ranks changes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tf_hvd.core import basics
from tf_hvd.training import guard


class ElasticSampler:
    """A sampler that distributes the samples of an epoch across the ranks, batch by batch.

    All ranks use the same order of samples. The sampler counts the samples that all ranks together
    have trained on. Pass the sampler as a value of an ObjectState, which commits it with the
    weights. A restarted job continues with the next sample, even with another number of ranks.
    Horovod has such a sampler for PyTorch, but not for TensorFlow.

        sampler = hvd.elastic.ElasticSampler(len(images), batch_size=32)
        state = hvd.elastic.TensorFlowKerasState(model, optimizer, sampler=sampler)
        ...
        for epoch in range(sampler.epoch, 10):
            for indices in sampler.dataset():
                train_step(tf.gather(images, indices), tf.gather(labels, indices))
                sampler.record_batch()
                state.commit()
            sampler.set_epoch(epoch + 1)

    The global batch, the batch of all ranks together, has `batch_size` samples per rank. The last
    global batch of an epoch has the remaining samples, but at least one per rank. With
    `keep_global_batch`, the global batch keeps the size that it had at the first start of the job.
    An update then takes `passes` passes.

    If an epoch has fewer remaining samples than ranks, some ranks get a repeated sample, which has
    the weight 0 in `weighted_dataset`.

    Args:
        size: int, number of samples.
        batch_size: int, number of samples per rank and pass. The last batch of an epoch may have
            more samples, so that no rank is left without a sample.
        shuffle: whether to shuffle each epoch differently (default: True).
        seed: int, seed for shuffling, the same on all ranks (default: 0).
        keep_global_batch: whether to keep the number of samples per update if the number of ranks
            changes (default: False).

    Raises:
        ValueError: there are fewer samples than ranks, or a number is not positive.
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
            raise ValueError(
                f"ElasticSampler(size={size}, batch_size={batch_size}) is not valid: "
                "pass at least 1 for both"
            )
        if size < basics.size():
            raise ValueError(
                f"{size} samples are too few for {basics.size()} ranks: start at most {size} ranks"
            )
        self.size = size
        self.batch_size = batch_size
        self.epoch = 0
        """The number of the current epoch, from 0."""
        self.position = 0
        """The number of samples of the epoch that all ranks together have trained on."""
        self.global_batch = batch_size * basics.size()
        """The number of samples in one update, for all ranks together."""
        self._shuffle, self._seed = shuffle, seed
        self._keeps = keep_global_batch
        self._passed = 0  # completed passes of the current update
        self._order = (-1, np.empty(0, np.int64))

    @property
    def passes(self) -> int:
        """The number of forward and backward passes per update, for `backward_passes_per_step`."""
        ranks = basics.size()
        # Prefer a part with an additional sample to an empty one.
        most = max(1, self.global_batch // ranks)
        return min(math.ceil(self.global_batch / (self.batch_size * ranks)), most)

    @property
    def remaining(self) -> int:
        """The number of samples that remain in the epoch, for all ranks together."""
        return self.size - self.position

    def __len__(self) -> int:
        """Return how many batches remain in the epoch for a rank, one per pass."""
        position, batches = self.position, -self._passed
        while position < self.size:
            position = self._end(position)
            batches += self.passes
        return batches

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch. Has no effect if it is already the current epoch.

        Args:
            epoch: int, number of the epoch, from 0.
        """
        if epoch != self.epoch:
            self.epoch, self.position, self._passed = epoch, 0, 0

    def record_batch(self) -> None:
        """Record that all ranks have trained on the next batch. Call it once per pass."""
        self._passed += 1
        if self._passed >= self.passes:
            self._passed = 0
            self.position = self._end(self.position)

    def dataset(self) -> Any:
        """Return a tf.data.Dataset of this rank's remaining batches in the epoch.

        Each element is an int64 tensor of shape [n] with the indices of a batch's samples. Each
        iteration starts at the sampler's current position in the epoch.

        Raises:
          ValueError: a Keras distribution divides the batches.
        """
        guard.check_combination("ElasticSampler")
        spec = tf.TensorSpec([None], tf.int64)
        parts = self._parts
        return tf.data.Dataset.from_generator(
            lambda: (part for part, _ in parts()), output_signature=spec
        )

    def weighted_dataset(self) -> Any:
        """Return a dataset of pairs: an element of `dataset`, and a float32 weight for the batch.

        Multiply a batch's mean loss by the weight. The average of these products over ranks and
        passes is then the mean over all samples of the update, even if batches differ in size.

        Raises:
          ValueError: a Keras distribution divides the batches.
        """
        guard.check_combination("ElasticSampler")
        specs = (tf.TensorSpec([None], tf.int64), tf.TensorSpec([], tf.float32))
        return tf.data.Dataset.from_generator(self._parts, output_signature=specs)

    def state_dict(self) -> dict[str, Any]:
        """Return the sampler's progress, for a commit."""
        return {
            "epoch": self.epoch,
            "position": self.position,
            "passed": self._passed,
            "ranks": basics.size(),
            "global_batch": self.global_batch,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the progress. If the number of ranks changed, an incomplete update restarts."""
        self.epoch, self.position = state["epoch"], state["position"]
        if self._keeps:
            self.global_batch = state["global_batch"]
            if self.global_batch < basics.size():
                raise ValueError(
                    f"keep_global_batch: {basics.size()} ranks cannot share {self.global_batch} "
                    f"samples; limit the ranks with --max-np {self.global_batch}"
                )
        self._passed = state["passed"] if state["ranks"] == basics.size() else 0

    def _end(self, position: int) -> int:
        """Return the end of the update that begins at a position."""
        end = position + self.global_batch
        # If fewer samples remain than one per rank and pass, this update takes them too.
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
