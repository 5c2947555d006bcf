"""Jobs for the simulation in benchmarks/scale/, and fits of parameters to measurements."""

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

_BINARY = flags.DEFINE_string(
    "binary", None, "the simulation program (default: the one in bazel-bin/)"
)
FOLDER = pathlib.Path(__file__).resolve().parent / "scale"
_BUILT = FOLDER.parents[1] / "bazel-bin/benchmarks/scale/simulate"
_BUILD = "./dev test //tests/scale/... //benchmarks/scale:simulate"

# Gradients that are summed together: name, time when they are ready, and elements of the tensors.
Gradients = tuple[str, float, Sequence[int]]
Fit = TypeVar("Fit")


def simulate(
    settings: Mapping[str, object], gradients: Sequence[Gradients], jitter: Sequence[float] = ()
) -> dict:
    """Run the simulation.

    Args:
      settings: settings by their names in scale/job_text.h.
      gradients: their times are nanoseconds from the start of a step; no tensors: a barrier.
      jitter: times of a step divided by their mean.

    Returns:
      "steps_ns" and counts: see ToJson in scale/job_text.h.
    """
    binary = pathlib.Path(_BINARY.value or _BUILT).absolute()
    if not os.access(binary, os.X_OK) or binary.is_dir():
        sys.exit(f"the simulation {binary} does not exist: run {_BUILD}")
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
        sys.exit(f"{binary} cannot be run as the simulation: {error}")
    sys.exit(f"the simulation failed: {done.stderr.strip() or done.returncode}")


def each_alone(model: str) -> list[Gradients]:
    """A model's gradients one by one; times are fractions of a step's computation."""
    return [(each.name, each.ready, [each.elements]) for each in scale_models.gradients(model)]


def in_buckets(
    model: str,
    at_least: int = buckets._LEAST_BUCKETS,
    halves: bool = True,
    most_bytes: int | None = None,
) -> tuple[Gradients, ...]:
    """A model's gradients in this project's buckets. A bucket is ready with its last gradient.

    Args:
      model: name of a model in keras.applications.
      at_least: minimum number of buckets; `most_bytes` or a large tensor may require more.
      halves: whether the last bucket is cut in halves, as in this project.
      most_bytes: size limit of a bucket; None: TF_HVD_BUCKET_BYTES.
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
    """Find the values of a dataclass's fields that minimise an error.

    Each field in turn is increased and decreased by a fraction, which is halved if no change helps.

    Args:
      start: initial values; all are positive.
      error: the function to minimise.
      least: the smallest fraction.
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
