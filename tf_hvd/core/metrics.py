"""What this rank's collectives have taken so far, while a program runs (docs/metrics.md)."""

from __future__ import annotations

import dataclasses
import itertools
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tf_hvd.core import _native, basics

_NS = 1e-9


@dataclasses.dataclass(frozen=True)
class Metrics:
    """Sums of one rank since it began to count; times in seconds.

    A step goes from a call to the next one of the same name. What is said of steps is of
    whole ones: the last one counts when the next one has begun.
    """

    counted_seconds: float
    """For how long."""
    calls: int
    """Collectives that have ended."""
    failed_calls: int
    """Those of them that failed."""
    bytes: int
    """Of this rank's tensors in them."""
    calls_in_flight: int
    """Collectives under way now."""
    dropped_calls: int
    """Collectives that came too fast to be counted; nothing else here knows of them."""
    steps: int
    """Whole steps."""
    step_bytes: int
    """Of this rank's tensors in the collectives of those."""
    step_seconds: float
    """What they took."""
    collective_seconds: float
    """Of that, with a collective under way."""
    transfer_seconds: float
    """Of that, when data moved with nothing left to compute."""
    waiting_seconds: Mapping[int, float]
    """Of that, when nothing moved before some rank had made its call, by rank."""

    @property
    def exposed_seconds(self) -> float:
        """What steps would not have taken without collectives: transfer and waiting."""
        return self.transfer_seconds + sum(self.waiting_seconds.values())

    def per_step(self, earlier: Metrics) -> dict[str, float]:
        """What a step took since `earlier`, on average; empty without a whole step.

        Returns:
          `bytes`, `step_ms`, `collective_ms`, `exposed_ms`, `exposed_share` (0 to 1, of the step)
          and `waiting_ms/rank_K` for each rank that was ever waited for.
        """
        steps = self.steps - earlier.steps
        if steps <= 0:
            return {}
        ms = 1e3 / steps
        length = self.step_seconds - earlier.step_seconds
        exposed = self.exposed_seconds - earlier.exposed_seconds
        waiting = {
            f"waiting_ms/rank_{rank}": (seconds - earlier.waiting_seconds.get(rank, 0)) * ms
            for rank, seconds in self.waiting_seconds.items()
        }
        return {
            "bytes": (self.step_bytes - earlier.step_bytes) / steps,
            "step_ms": length * ms,
            "collective_ms": (self.collective_seconds - earlier.collective_seconds) * ms,
            "exposed_ms": exposed * ms,
            "exposed_share": exposed / length if length else 0.0,
            **waiting,
        }


def metrics() -> Metrics:
    """What this rank's collectives have taken since they began to be counted.

    That is at the first call of this, or at `init` where `TF_HVD_METRICS` is set. From then on a
    thread follows the flight recorder; no call waits for it.

    Raises:
      ValueError: before `init`; or without the flight recorder.
    """
    size = basics.size()
    count = len(dataclasses.fields(Metrics)) - 1
    code, values, text = _native.metrics(count + size)
    if code:
        raise ValueError(text)
    counted, calls, failed, total, flying, dropped, steps, moved, *times = values
    step, collective, transfer, *waiting = (time * _NS for time in times)
    by_rank = {rank: seconds for rank, seconds in enumerate(waiting) if seconds}
    return Metrics(
        counted * _NS, calls, failed, total, flying, dropped, steps, moved, step, collective,
        transfer, by_rank,
    )  # fmt: skip


_files = itertools.count()


class StepSummaries:
    """Writes what steps take for TensorBoard, averaged since it was last written.

    Args:
      log_dir: of all ranks, each of which has a folder in it.
      every: write after this number of steps; 0: only when `write` is called.
    """

    def __init__(self, log_dir: str, every: int) -> None:
        self._folder = str(pathlib.Path(log_dir) / f"rank-{basics.rank()}")
        self._every = every
        self._steps = self._written = 0
        self._taken: Metrics | None = None
        self._writer: Any = None

    def begin(self) -> None:
        if self._writer is not None:  # of a training that was interrupted
            self._writer.close()
        # Two writers of the same second would write to one file, the second over the first.
        suffix = f".{os.getpid()}.{next(_files)}"
        with tf.Graph().as_default():  # eagerly TensorFlow makes no such writer
            self._writer = tf.compat.v1.summary.FileWriter(self._folder, filename_suffix=suffix)
        self._taken = metrics()

    def step(self) -> None:
        self._steps += 1
        if self._every and self._steps % self._every == 0:
            self.write()

    def write(self) -> None:
        assert self._taken is not None  # begin comes first
        now = metrics()
        # Calls between steps, as at an epoch's end, are none.
        values = now.per_step(self._taken) if self._steps > self._written else {}
        if not values:
            return
        self._taken, self._written = now, self._steps
        summary = tf.compat.v1.Summary()
        for name, value in values.items():
            summary.value.add(tag=f"tf_hvd/{name}", simple_value=value)
        self._writer.add_summary(summary, self._steps)
        self._writer.flush()

    def end(self) -> None:
        self.write()
        self._writer.close()
