"""Jobs for the simulation in benchmarks/scale/, and what is fitted to what was measured."""

import dataclasses
import json
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

_BINARY = flags.DEFINE_string("binary", None, "the simulation, if it is built")
FOLDER = pathlib.Path(__file__).resolve().parent / "scale"
_LABEL = "//benchmarks/scale:simulate"

# What is summed together: name, when it is there, and the elements of its tensors.
Gradients = tuple[str, float, Sequence[int]]
Fit = TypeVar("Fit")


def simulate(
    settings: Mapping[str, object], gradients: Sequence[Gradients], jitter: Sequence[float] = ()
) -> dict:
    """Runs the simulation, which Bazel builds at first.

    Args:
      settings: as scale/simulate.cc names them.
      gradients: with nanoseconds from the beginning of a step; no tensors: a barrier.
      jitter: times of a step by their mean.

    Returns:
      What scale/simulate.cc writes: "steps_ns" and counts.
    """
    if _BINARY.value is None:
        root = FOLDER.parent.parent
        subprocess.run(["bazel", "build", _LABEL], cwd=root, check=True)
        _BINARY.value = str(root / "bazel-bin/benchmarks/scale/simulate")
    lines = [f"{name} {value}" for name, value in settings.items()]
    for name, ready_ns, tensors in gradients:
        lines.append(" ".join(map(str, ["gradients", name, round(ready_ns), *tensors])))
    if jitter:
        lines.append("jitter " + " ".join(f"{each:.6f}" for each in jitter))
    done = subprocess.run(
        [_BINARY.value], input="\n".join(lines), capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"the simulation has failed: {done.stderr.strip() or done.returncode}")
    return json.loads(done.stdout)


def each_alone(model: str) -> list[Gradients]:
    """A model's gradients as they come, in parts of a step's computation."""
    return [(each.name, each.ready, [each.elements]) for each in scale_models.gradients(model)]


def in_buckets(
    model: str, at_least: int = buckets._LEAST_BUCKETS, halves: bool = True
) -> list[Gradients]:
    """In this project's buckets: one is there with its last gradient.

    Args:
      model: of keras.applications.
      at_least: how many there are.
      halves: whether the last of them is cut in halves, as this project does.
    """
    gradients = scale_models.gradients(model)
    specs = [("float32", 4 * each.elements) for each in gradients]
    changed = {"_LEAST_BUCKETS": at_least}
    if not halves:
        changed["_halves"] = lambda bucket, _: [bucket]
    with mock.patch.multiple(buckets, **changed):
        plan = buckets.plan_buckets(specs, config.bucket_bytes())
    return [
        (
            f"bucket{number}",
            max(gradients[i].ready for i in bucket),
            [gradients[i].elements for i in bucket],
        )
        for number, bucket in enumerate(plan)
    ]


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
