"""Jobs for the simulation in benchmarks/scale/, and what is fitted to what was measured."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar
from unittest import mock

import scale_models
from absl import flags

from tf_hvd.core import config
from tf_hvd.training import buckets

_BINARY = flags.DEFINE_string("binary", None, "the simulation, if not that in bazel-bin/")
FOLDER = pathlib.Path(__file__).resolve().parent / "scale"
_BUILT = FOLDER.parents[1] / "bazel-bin/benchmarks/scale/simulate"
_BUILD = "./dev test //tests/scale/... //benchmarks/scale:simulate"

# What is summed together: name, when it is there, and the elements of its tensors.
Gradients = tuple[str, float, Sequence[int]]
Fit = TypeVar("Fit")


def simulate(
    settings: Mapping[str, object], gradients: Sequence[Gradients], jitter: Sequence[float] = ()
) -> dict:
    """Runs the simulation.

    Args:
      settings: as scale/job_text.h names them.
      gradients: with nanoseconds from the beginning of a step; no tensors: a barrier.
      jitter: times of a step by their mean.

    Returns:
      "steps_ns", and counts: ToJson of scale/job_text.h.
    """
    binary = pathlib.Path(_BINARY.value or _BUILT).absolute()
    if not os.access(binary, os.X_OK) or binary.is_dir():
        sys.exit(f"there is no simulation at {binary}: {_BUILD} builds it")
    lines = [f"{name} {value}" for name, value in settings.items()]
    for name, ready_ns, tensors in gradients:
        lines.append(" ".join(map(str, ["gradients", name, round(ready_ns), *tensors])))
    if jitter:
        lines.append("jitter " + " ".join(f"{each:.6f}" for each in jitter))
    try:
        done = subprocess.run(
            [binary], input="\n".join(lines), capture_output=True, text=True, check=False
        )
        if done.returncode == 0:
            return json.loads(done.stdout)
    except (OSError, ValueError) as error:
        sys.exit(f"{binary} is no simulation: {error}")
    sys.exit(f"the simulation has failed: {done.stderr.strip() or done.returncode}")


def each_alone(model: str) -> list[Gradients]:
    """A model's gradients as they come, in parts of a step's computation."""
    return [(each.name, each.ready, [each.elements]) for each in scale_models.gradients(model)]


def in_buckets(
    model: str,
    at_least: int = buckets._LEAST_BUCKETS,
    halves: bool = True,
    most_bytes: int | None = None,
) -> tuple[Gradients, ...]:
    """In this project's buckets: one is there with its last gradient.

    Args:
      model: of keras.applications.
      at_least: how many there are; more where `most_bytes` is less, or a tensor is large.
      halves: whether the last of them is cut in halves, as this project does.
      most_bytes: of a bucket; None: TF_HVD_BUCKET_BYTES.
    """
    gradients = scale_models.gradients(model)
    specs = [("float32", 4 * each.elements) for each in gradients]
    changed = {"_LEAST_BUCKETS": at_least}
    if not halves:
        changed["_halves"] = lambda bucket, _: [bucket]
    with mock.patch.multiple(buckets, **changed):
        plan = buckets.plan_buckets(specs, most_bytes or config.BUCKET_BYTES.read())
    return tuple(
        (
            f"bucket{number}",
            max(gradients[i].ready for i in bucket),
            tuple(gradients[i].elements for i in bucket),
        )
        for number, bucket in enumerate(plan)
    )


def fitted(start: Fit, error: Callable[[Fit], float], least: float = 0.01) -> Fit:
    """The numbers of a dataclass with which an error is smallest.

    One after the other is made larger and smaller by a part of it, which is halved when none helps.

    Args:
      start: where it begins; all are positive.
      error: what is to be small.
      least: the smallest part.
    """
    best, smallest, part = start, error(start), 0.3
    while part > least:
        found = False
        for field in dataclasses.fields(start):
            for factor in (1 + part, 1 / (1 + part)):
                other = dataclasses.replace(
                    best, **{field.name: getattr(best, field.name) * factor}
                )
                its = error(other)
                if its < smallest:
                    best, smallest, found = other, its, True
        part = part if found else part / 2
    return best
