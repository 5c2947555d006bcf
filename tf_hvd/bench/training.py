"""Timing of a training step with and without the reduction of its gradients."""

import dataclasses
import functools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_hvd.bench.job import RunningJob
from tf_hvd.bench.measure import interleaved
from tf_hvd.bench.peers.base import timed
from tf_hvd.bench.settings import Plan
from tf_hvd.collectives import collectives, reduce_ops, variables
from tf_hvd.core import basics
from tf_hvd.keras.any_optimizer import DistributedOptimizer
from tf_hvd.training import gradient_tape
from tf_hvd.training.guard import unguarded

_BATCH = 32
_PIXELS, _CLASSES = 32, 10
_RATE = 0.001
_FILTERS = (32, 64, 128)
# The 95 % interval of a normal distribution, in standard deviations on each side.
_DEVIATIONS = 1.96
_MOST_ROUNDS = 5


@dataclasses.dataclass(frozen=True)
class StepTimes:
    """The times of interleaved repetitions on the slowest rank, in seconds."""

    kind: str
    tensors: int
    size_bytes: int
    with_reduction: tuple[float, ...] = ()
    without: tuple[float, ...] = ()
    reduction: tuple[float, ...] = ()
    """The times for reducing the same gradients without a training step."""

    def extended(self, seconds: Mapping[str, Sequence[float]]) -> "StepTimes":
        more: dict[str, Any] = {
            name: (*getattr(self, name), *each) for name, each in seconds.items()
        }
        return dataclasses.replace(self, **more)

    def _waited(self) -> list[float]:
        """Return the times that the reduction adds to the step, in seconds, sorted."""
        pairs = zip(self.with_reduction, self.without, strict=True)
        return sorted(slow - fast for slow, fast in pairs)

    @property
    def exposed(self) -> float:
        """The fraction of the reduction time that the step waits for: 0 if all of it is hidden.

        The fraction may exceed 1 if the reduction slows down the concurrent computation.
        """
        return statistics.median(self._waited()) / statistics.median(self.reduction)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of the exposed fraction.

        Its ends are two of the sorted differences, chosen with the binomial distribution for a
        median. The interval does not depend on the distribution of the times.
        """
        waited = self._waited()
        place = max(0, int((len(waited) - _DEVIATIONS * math.sqrt(len(waited))) / 2))
        total = statistics.median(self.reduction)
        return waited[place] / total, waited[-1 - place] / total

    @property
    def is_known(self) -> bool:
        """Whether the exposed fraction is larger than its uncertainty."""
        low, high = self.interval
        return high - low < self.exposed

    def text(self) -> str:
        with_reduction, without, reduction = (
            f"{statistics.median(each) * 1e3:.2f} ms"
            for each in (self.with_reduction, self.without, self.reduction)
        )
        return (
            f"{self.kind}: a step with the reduction {with_reduction}, without {without}; the "
            f"reduction on its own ({self.tensors} tensors, {self.size_bytes / 2**20:.1f} MiB) "
            f"{reduction}; exposed {self._share()} ({len(self.reduction)} repetitions)"
        )

    def _share(self) -> str:
        low, high = self.interval
        if self.is_known:
            return f"{self.exposed:.0%} of it, 95% interval {low:.0%} to {high:.0%}"
        if high <= 0:
            return "0% of it: steps with the reduction were no slower"
        share = f"at most {high:.0%}" if low <= 0 else f"{low:.0%} to {high:.0%}"
        return f"{share} of it"

    def as_json(self) -> dict[str, Any]:
        medians = {
            name: statistics.median(getattr(self, name))
            for name in ("with_reduction", "without", "reduction")
        }
        return {
            "kind": self.kind,
            "tensors": self.tensors,
            "size_bytes": self.size_bytes,
            **medians,
            "exposed": self.exposed,
            "exposed_interval": list(self.interval),
            "repetitions": len(self.reduction),
        }


def measure_steps(kind: str, plan: Plan, job: RunningJob) -> StepTimes:
    """Time the step with the reduction, the step without it, and the reduction on its own.

    The timings are interleaved and equally frequent. The plan's number of calls is not used.
    """
    makers = {"keras": _keras_step, "tape": _tape_step}
    model = _model()
    weights = model.trainable_variables
    with_reduction = makers[kind](model, True)
    with unguarded():
        without = makers[kind](_model(), False)
    gradients = [tf.zeros(each.shape, each.dtype) for each in weights]
    calls: dict[str, Callable[[], Any]] = {
        "with_reduction": with_reduction,
        "without": without,
        "reduction": lambda: _reduce(gradients),
    }
    steps = {name: functools.partial(timed, call, 1, job.barrier) for name, call in calls.items()}
    size = sum(int(np.prod(each.shape)) * each.dtype.size for each in gradients)
    with unguarded():
        interleaved(steps, plan.warmup, job)
        return repeated(
            StepTimes(kind, len(weights), size), lambda: interleaved(steps, plan.repetitions, job)
        )


def repeated(times: StepTimes, measured: Callable[[], Mapping[str, Sequence[float]]]) -> StepTimes:
    """Add repetitions until the exposed fraction is known or a limit is reached.

    All ranks add the same number of repetitions.
    """
    for _ in range(_MOST_ROUNDS):
        times = times.extended(measured())
        if times.is_known:
            break
    return times


@tf.function(autograph=False)  # type: ignore[untyped-decorator]
def _reduce(gradients: list[Any]) -> Any:
    return collectives.grouped_allreduce(gradients, op=reduce_ops.Average)


def _model() -> Any:
    """Return a small convolutional network with rank 0's initial weights on all ranks."""
    layers = tf.keras.layers
    model = tf.keras.Sequential([tf.keras.Input((_PIXELS, _PIXELS, 3))])
    for filters in _FILTERS:
        model.add(layers.Conv2D(filters, 3, padding="same", activation="relu"))
        model.add(layers.MaxPooling2D())
    for layer in (layers.Flatten(), layers.Dense(512, "relu"), layers.Dense(_CLASSES)):
        model.add(layer)
    variables.broadcast_variables(model.variables, root_rank=0)
    return model


def _batch() -> tuple[Any, Any]:
    draw = np.random.default_rng(basics.rank())
    images = draw.random((_BATCH, _PIXELS, _PIXELS, 3), np.float32)
    return tf.constant(images), tf.constant(draw.integers(0, _CLASSES, _BATCH))


def _loss() -> Any:
    return tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _keras_step(model: Any, reduces: bool) -> Callable[[], Any]:
    optimizer = tf.keras.optimizers.SGD(_RATE)
    if reduces:
        optimizer = DistributedOptimizer(optimizer)
    model.compile(optimizer=optimizer, loss=_loss(), jit_compile=False)
    images, labels = _batch()
    return lambda: model.train_on_batch(images, labels)


def _tape_step(model: Any, reduces: bool) -> Callable[[], Any]:
    optimizer, loss = tf.keras.optimizers.SGD(_RATE), _loss()
    optimizer.build(model.trainable_variables)
    images, labels = _batch()

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            value = loss(labels, model(images, training=True))
        if reduces:
            tape = gradient_tape.DistributedGradientTape(tape)
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return value

    return lambda: step(images, labels)
