"""Totals of time and bytes of this rank's collectives, for the running program."""

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
    """The totals of one rank since counting began, with times in seconds and sizes in bytes.

    A step is the interval between two calls with the same name. The figures for steps cover
    complete steps only. A step is complete once the next step has begun.
    """

    counted_seconds: float
    """Time since counting began."""
    calls: int
    """Number of collectives that have ended."""
    failed_calls: int
    """Number of collectives that have ended with an error."""
    bytes: int
    """Size of this rank's tensors in the collectives that have ended."""
    calls_in_flight: int
    """Number of collectives in progress."""
    dropped_calls: int
    """Number of collectives that came too fast to be analysed; all other figures omit them."""
    steps: int
    """Number of complete steps."""
    step_bytes: int
    """Size of this rank's tensors in the collectives of complete steps."""
    step_seconds: float
    """Duration of complete steps."""
    collective_seconds: float
    """Part of `step_seconds` during which a collective was in progress."""
    transfer_seconds: float
    """Part of `collective_seconds` during which data moved and nothing was left to compute."""
    waiting_seconds: Mapping[int, float]
    """Part of `collective_seconds` spent waiting for each rank's calls, by rank number."""

    @property
    def exposed_seconds(self) -> float:
        """Time that steps would have saved if collectives had needed no transfers or waiting."""
        return self.transfer_seconds + sum(self.waiting_seconds.values())

    def per_step(self, earlier: Metrics) -> dict[str, float]:
        """Return the averages per step since the totals `earlier`.

        Returns:
          A dict with `bytes`, `step_ms`, `collective_ms`, `exposed_ms`, `exposed_share` (fraction
          of the step, 0 to 1), and `waiting_ms/rank_K` for each rank K that this rank ever waited
          for. Empty if no step was completed since `earlier`.
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
    """Return the totals of time and bytes of this rank's collectives since counting began.

    Counting begins at the first call of this function, or at `init` if `TF_HVD_METRICS` is set.
    From then on, a thread reads the calls from the flight recorder. No collective waits for it.

    Returns:
      A `Metrics` object with times in seconds and sizes in bytes.

    Raises:
      ValueError: `init` was not called, or the flight recorder is off.

    Example:
      hvd.allreduce(tf.ones([1000]))
      print(hvd.metrics())
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
    """A writer of averages per step for TensorBoard, each over the steps since the previous write.

    Args:
      log_dir: folder for all ranks; each rank creates its own folder in it.
      every: int, number of steps between two writes; 0 to write only when `write` is called.
    """

    def __init__(self, log_dir: str, every: int) -> None:
        self._folder = str(pathlib.Path(log_dir) / f"rank-{basics.rank()}")
        self._every = every
        self._steps = self._written = 0
        self._taken: Metrics | None = None
        self._writer: Any = None

    def begin(self) -> None:
        if self._writer is not None:  # a writer from an interrupted training
            self._writer.close()
        # Two writers created in the same second would otherwise write to the same file.
        suffix = f".{os.getpid()}.{next(_files)}"
        with tf.Graph().as_default():  # TensorFlow cannot make this writer in eager mode
            self._writer = tf.compat.v1.summary.FileWriter(self._folder, filename_suffix=suffix)
        self._taken = metrics()

    def step(self) -> None:
        self._steps += 1
        if self._every and self._steps % self._every == 0:
            self.write()

    def write(self) -> None:
        assert self._taken is not None  # begin comes first
        now = metrics()
        # Calls between steps, as at an epoch's end, do not count as steps.
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
