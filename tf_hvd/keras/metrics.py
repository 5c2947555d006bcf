"""Averages of the numbers that Keras puts into its logs."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tf_hvd.collectives.objects import allgather_object
from tf_hvd.core import basics, config
from tf_hvd.core.process_sets import ProcessSet, global_process_set
from tf_hvd.keras import compat
from tf_hvd.training import agreement


def process_set_of(model: Any) -> ProcessSet:
    """The ranks that train the model together: its optimizer's, or all."""
    synchronizer = compat.synchronizer_of(getattr(model, "optimizer", None))
    return global_process_set if synchronizer is None else synchronizer.process_set


def is_root(model: Any) -> bool:
    """Whether this rank is the first of those, which alone writes files."""
    process_set = process_set_of(model)
    return not process_set.included() or process_set.rank() == 0


def shows_progress(model: Any) -> bool:
    """Whether this rank shows how training goes: the first of those that train the model.

    Or each, if TF_HVD_VERBOSE_RANKS says so.
    """
    if not basics.is_initialized() or config.VERBOSE_RANKS.read() == "all":
        return True
    ranks = process_set_of(model).ranks
    return basics.rank() == (ranks[0] if ranks else 0)


def numbers_of(logs: Mapping[str, Any]) -> dict[str, float]:
    numbers = {}
    for name in sorted(logs):
        value = np.asarray(logs[name])
        if value.ndim == 0 and np.issubdtype(value.dtype, np.number):
            numbers[name] = float(value)
    return numbers


def mean(values: Sequence[float]) -> float:
    """The average; of equal values the value itself, without rounding."""
    return values[0] if len(set(values)) == 1 else sum(values) / len(values)


def means(everyone: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The average of each number over the ranks that have it."""
    names = sorted({name for numbers in everyone for name in numbers})
    return {
        name: mean([numbers[name] for numbers in everyone if name in numbers]) for name in names
    }


def check_names(everyone: Sequence[Mapping[str, float]], ranks: Sequence[int]) -> None:
    """Raises unless all ranks have the same numbers; on all ranks, with the same text."""
    for numbers, rank in zip(everyone, ranks, strict=True):
        other = set(numbers) ^ set(everyone[0])
        if other:
            raise ValueError(
                f"the ranks have different metrics: only one of rank {ranks[0]} and rank {rank} "
                f"has {', '.join(sorted(other))}. MetricAverageCallback averages over all ranks: "
                "give all of them validation data and the same metrics."
            )


def average(logs: Mapping[str, Any], process_set: ProcessSet, strict: bool) -> dict[str, float]:
    """The averages over ranks of the numbers in `logs`, by one collective.

    With `strict` all ranks must have the same names.
    """
    mine = numbers_of(logs)
    if not agreement.takes_part(process_set):
        return mine
    everyone = allgather_object(mine, name="metric_average", process_set=process_set)
    if strict:
        check_names(everyone, process_set.ranks or ())
    return means(everyone)
