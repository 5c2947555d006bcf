"""Times a training step with and without the reduction of its gradients."""

import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tf_hvd import basics, collectives, gradient_tape, variables
from tf_hvd.bench.measure import slowest
from tf_hvd.bench.peers.base import Job
from tf_hvd.bench.settings import Plan
from tf_hvd.keras import DistributedOptimizer, unguarded

_BATCH = 32
_PIXELS, _CLASSES = 32, 10
_RATE = 0.001
_FILTERS = (32, 64, 128)


@dataclasses.dataclass(frozen=True)
class StepTimes:
    """Medians in seconds, of the slowest rank each."""

    kind: str
    tensors: int
    size_bytes: int
    with_reduction: float
    without: float
    reduction: float
    """Of the same gradients, alone."""

    @property
    def exposed(self) -> float:
        """The share of the reduction that the step waits for: 0 is hidden, 1 is not.

        A step of which a reduction disturbs the computing beside it may pass 1.
        """
        return (self.with_reduction - self.without) / self.reduction

    def text(self) -> str:
        """For people."""
        return (
            f"{self.kind}: a step with the reduction {self.with_reduction * 1e3:.2f} ms, without "
            f"{self.without * 1e3:.2f} ms; the reduction alone ({self.tensors} tensors, "
            f"{self.size_bytes / 2**20:.1f} MiB) {self.reduction * 1e3:.2f} ms; "
            f"exposed {self.exposed:.0%} of it{self._doubt()}"
        )

    def _doubt(self) -> str:
        if self.exposed >= 0.0:
            return ""
        return " (noise: the machine is busy, or more repetitions are needed)"

    def as_json(self) -> dict[str, Any]:
        """Times in seconds."""
        return {**dataclasses.asdict(self), "exposed": self.exposed}


def measure_steps(kind: str, plan: Plan, job: Job) -> StepTimes:
    """Times the three in turns, the same number of times.

    Args:
      kind: `keras` (train_on_batch) or `tape` (a tf.function of one's own).
      plan: how often; its calls do not count.
      job: the ranks.
    """
    makers = {"keras": _keras_step, "tape": _tape_step}
    model = _model()
    weights = model.trainable_variables
    with_reduction = makers[kind](model, True)
    with unguarded():
        without = makers[kind](_model(), False)
    gradients = [tf.zeros(each.shape, each.dtype) for each in weights]
    calls: dict[str, Callable[[], Any]] = {
        "with": with_reduction,
        "without": without,
        "alone": lambda: _reduce(gradients),
    }
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    with unguarded():
        for repetition in range(plan.warmup + plan.repetitions):
            for name, call in calls.items():
                job.barrier()
                begin = time.perf_counter()
                call()
                if repetition >= plan.warmup:
                    seconds[name].append(time.perf_counter() - begin)
    ranks = job.gather(seconds)
    medians = [statistics.median(slowest([rank[name] for rank in ranks])) for name in calls]
    size = sum(int(np.prod(each.shape)) * each.dtype.size for each in gradients)
    return StepTimes(kind, len(weights), size, *medians)


@tf.function(autograph=False)  # type: ignore[untyped-decorator]
def _reduce(gradients: list[Any]) -> Any:
    return collectives.grouped_allreduce(gradients, op=basics.Average)


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
