"""Times a training step with and without the reduction of its gradients."""

import dataclasses
import functools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_hvd.bench.job import RunningJob
from tf_hvd.bench.measure import turns
from tf_hvd.bench.peers.base import timed
from tf_hvd.bench.settings import Plan
from tf_hvd.collectives import collectives, reduce_ops, variables
from tf_hvd.core import basics
from tf_hvd.keras import DistributedOptimizer, unguarded
from tf_hvd.training import gradient_tape

_BATCH = 32
_PIXELS, _CLASSES = 32, 10
_RATE = 0.001
_FILTERS = (32, 64, 128)
# Of a normal distribution, on both sides of 95 % of it.
_DEVIATIONS = 1.96
_MOST_ROUNDS = 5


@dataclasses.dataclass(frozen=True)
class StepTimes:
    """Seconds, those of the slowest rank, of repetitions that took turns."""

    kind: str
    tensors: int
    size_bytes: int
    with_reduction: tuple[float, ...] = ()
    without: tuple[float, ...] = ()
    reduction: tuple[float, ...] = ()
    """Of the same gradients, alone."""

    def extended(self, seconds: Mapping[str, Sequence[float]]) -> "StepTimes":
        more: dict[str, Any] = {
            name: (*getattr(self, name), *each) for name, each in seconds.items()
        }
        return dataclasses.replace(self, **more)

    def _waited(self) -> list[float]:
        """What each repetition's step took longer with the reduction, in order of size."""
        pairs = zip(self.with_reduction, self.without, strict=True)
        return sorted(slow - fast for slow, fast in pairs)

    @property
    def exposed(self) -> float:
        """The share of the reduction that the step waits for: 0 is hidden, 1 is not.

        A step of which a reduction disturbs the computing beside it may pass 1.
        """
        return statistics.median(self._waited()) / statistics.median(self.reduction)

    @property
    def interval(self) -> tuple[float, float]:
        """Where that share lies by the repetitions: 95 of 100 such intervals hold it.

        Two of the differences in order of size, as many places from either end as the binomial
        distribution has it for a median. It asks nothing of how the times are distributed.
        """
        waited = self._waited()
        place = max(0, int((len(waited) - _DEVIATIONS * math.sqrt(len(waited))) / 2))
        alone = statistics.median(self.reduction)
        return waited[place] / alone, waited[-1 - place] / alone

    @property
    def is_told(self) -> bool:
        """Whether the share is larger than what is not known of it."""
        low, high = self.interval
        return high - low < self.exposed

    def text(self) -> str:
        with_reduction, without, alone = (
            f"{statistics.median(each) * 1e3:.2f} ms"
            for each in (self.with_reduction, self.without, self.reduction)
        )
        return (
            f"{self.kind}: a step with the reduction {with_reduction}, without {without}; the "
            f"reduction alone ({self.tensors} tensors, {self.size_bytes / 2**20:.1f} MiB) {alone}; "
            f"exposed {self._share()} ({len(self.reduction)} repetitions)"
        )

    def _share(self) -> str:
        low, high = self.interval
        if self.is_told:
            return f"{self.exposed:.0%} of it, {low:.0%} to {high:.0%} by their spread"
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
    """Times the three in turns, equally often. The plan's number of calls is not used."""
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
        turns(steps, plan.warmup, job)
        return repeated(
            StepTimes(kind, len(weights), size), lambda: turns(steps, plan.repetitions, job)
        )


def repeated(times: StepTimes, measured: Callable[[], Mapping[str, Sequence[float]]]) -> StepTimes:
    """Adds repetitions, the same on all ranks, until they tell the share or are too many."""
    for _ in range(_MOST_ROUNDS):
        times = times.extended(measured())
        if times.is_told:
            break
    return times


@tf.function(autograph=False)  # type: ignore[untyped-decorator]
def _reduce(gradients: list[Any]) -> Any:
    return collectives.grouped_allreduce(gradients, op=reduce_ops.Average)


def _model() -> Any:
    """A small convolutional network; the first weights are those of rank 0 on all ranks."""
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
