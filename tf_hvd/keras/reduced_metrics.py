"""Compute metrics across all ranks, for the logs of `fit` and `evaluate`.

The variables in Keras' metrics are sums over samples. Added up across the ranks, these sums equal
the variables in one process with all samples, even if the ranks' shares are uneven. The metric
computes its result from these totals. `compat.adds_up` returns whether a metric has such variables.
All other numbers are averaged across the ranks with equal weight.

All ranks treat a number in the logs in the same way. Each rank reports which metric results are
equal to the number. If all ranks that have the number report the same result, the number is
computed from totals. The sums are sent in float64, in one allreduce for training and validation.

If a user-defined class computes results, the first rank's results are used, because its `result`
method may depend on values that are not sums.
"""

import contextlib
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_hvd.collectives import collectives, reduce_ops
from tf_hvd.collectives.objects import Title, allgather_object, broadcast_object
from tf_hvd.core import basics, config, log
from tf_hvd.core.process_sets import ProcessSet, global_process_set
from tf_hvd.core.tensorflow_hooks import on_host, tf_variable
from tf_hvd.keras import compat
from tf_hvd.training import agreement

VALIDATION = "val_"
"""Keras' prefix for names of validation metrics."""
_SUMS = "sums of metrics (fit, or hvd.evaluate)"
_RESULTS = Title("results of metrics (fit, or hvd.evaluate)")


def process_set_of(model: Any) -> ProcessSet:
    """The ranks that train the model together: the optimizer's process set, or all ranks."""
    synchronizer = compat.synchronizer_of(getattr(model, "optimizer", None))
    return global_process_set if synchronizer is None else synchronizer.process_set


def is_root(model: Any) -> bool:
    """Whether this rank writes files because it is the first rank that trains the model."""
    process_set = process_set_of(model)
    return not process_set.included() or process_set.rank() == 0


def shows_progress(model: Any) -> bool:
    """Whether this rank shows training progress.

    The first rank that trains the model shows it. With TF_HVD_VERBOSE_RANKS=all, all ranks do.
    """
    if not basics.is_initialized() or config.VERBOSE_RANKS.read() == "all":
        return True
    ranks = process_set_of(model).ranks
    return basics.rank() == (ranks[0] if ranks else 0)


def _number(value: Any) -> Any:
    """Convert a numeric value to a float if scalar, otherwise to an array; None if not numeric."""
    array = np.asarray(value)
    if not np.issubdtype(array.dtype, np.number):
        return None
    return array if array.ndim else float(array)


def numbers_of(logs: Mapping[str, Any]) -> dict[str, Any]:
    numbers = {name: _number(logs[name]) for name in sorted(logs)}
    return {name: value for name, value in numbers.items() if value is not None}


def flat(results: Mapping[str, Any]) -> dict[str, Any]:
    """Convert metric results to the form used in Keras' logs, without nested dictionaries."""
    found = {}
    for name, value in results.items():
        found.update(flat(value) if isinstance(value, Mapping) else {name: value})
    return found


def mean(values: Sequence[Any], weights: Sequence[float] | None = None) -> Any:
    """The average of the values; if all values are equal, this value without rounding."""
    if weights is not None and any(weights):
        pairs = [pair for pair in zip(values, weights, strict=True) if pair[1]]
        values, weights = [value for value, _ in pairs], [weight for _, weight in pairs]
    else:
        weights = [1] * len(values)
    if all(np.array_equal(value, values[0]) for value in values):
        return values[0]
    return sum(map(operator.mul, values, weights)) / sum(weights)


def means(
    everyone: Sequence[Mapping[str, Any]], weights: Sequence[float] | None = None
) -> dict[str, Any]:
    """The average of each number across the ranks that have it, by name."""
    weights = [1] * len(everyone) if weights is None else weights
    found: dict[str, tuple[list[Any], list[float]]] = {}
    for numbers, weight in zip(everyone, weights, strict=True):
        for name, value in numbers.items():
            values, of_ranks = found.setdefault(name, ([], []))
            values.append(value)
            of_ranks.append(weight)
    return {name: mean(*found[name]) for name in sorted(found)}


def average(logs: Mapping[str, Any], process_set: ProcessSet) -> dict[str, Any]:
    """Average the numbers in `logs` across the ranks, with one collective."""
    mine = numbers_of(logs)
    if not agreement.takes_part(process_set):
        return mine
    return means(allgather_object(mine, name="metric_average", process_set=process_set))


class Collected:
    """A copy of the sums in a model's metrics on this rank, and the results of the metrics.

    Args:
      model: a Keras model.
      as_declared: whether to add up the variables of a user-defined metric if its class declares
        them as sums to Keras 3.
    """

    def __init__(self, model: Any, as_declared: bool = False) -> None:
        self._model = model
        self._added: list[Any] = []
        self._declared: list[Any] = []
        self._others: list[Any] = []
        for metric in compat.metrics_of(model):
            if compat.adds_up(metric):
                self._added.append(metric)
            elif as_declared and compat.declares_sums(metric):
                self._added.append(metric)
                self._declared.append(metric)
            else:
                self._others.append(metric)
        self._variables = [tf_variable(v) for metric in self._added for v in metric.variables]
        self._values = self._read()
        self.layout = tuple(
            (type(metric).__name__, tuple(tuple(v.shape) for v in metric.variables))
            for metric in self._added
        )
        self.results = self._results()
        """Results of the metrics that can be added up, by their names in the logs."""
        self.means = {metric.name for metric in self._added if compat.is_mean(metric)}
        """The names of results that are means of the metric's inputs."""
        self.others = {metric.name for metric in self._others}
        """The names of metrics that cannot be added up."""
        self.by_user = compat.users_results(model, self._added)
        """Whether a user's class computes results."""

    def _read(self) -> list[np.ndarray]:
        return [np.array(variable) for variable in self._variables]

    @contextlib.contextmanager
    def _without_others(self) -> Iterator[None]:
        """Within the block, hide the results of metrics that cannot be added up."""
        own = [vars(metric).get("result") for metric in self._others]
        for metric in self._others:
            metric.result = lambda: None
        try:
            yield
        finally:
            for metric, result in zip(self._others, own, strict=True):
                if result is None:
                    del metric.result
                else:  # tf_keras has a wrapper
                    metric.result = result

    def _results(self) -> dict[str, Any]:
        with self._without_others():
            results = flat(compat.results_of_metrics(self._model))
        return numbers_of({k: value for k, value in results.items() if value is not None})

    def sums(self) -> np.ndarray:
        return np.concatenate([np.zeros(0), *(np.ravel(v).astype(float) for v in self._values)])

    def results_of(self, sums: np.ndarray) -> dict[str, Any]:
        """Return the metric results for the given sums; the variables keep their values."""
        present, begin = self._read(), 0
        try:
            for variable in self._variables:
                part = sums[begin : begin + int(np.prod(variable.shape))]
                begin += len(part)
                variable.assign(tf.cast(part.reshape(variable.shape), variable.dtype))
            return self._results()
        finally:
            for variable, value in zip(self._variables, present, strict=True):
                variable.assign(value)

    def warn_of_others(self) -> None:
        """Warn once about each metric of a user's class that does not declare `hvd_sums`."""
        for metric in self._declared:
            log.warn_once(
                "the variables of metric %r (%s) are added across the ranks, because they have "
                "Keras' default aggregation='sum'. If they are not sums, the result is wrong: set "
                "hvd_sums = False in the metric's class. If they are, set hvd_sums = True to "
                "silence this warning.",
                metric.name,
                type(metric).__name__,
            )
        for metric in self._others:
            if compat.says_of_sums(metric) is None:
                log.warn_once(
                    "metric %r (%s) is averaged across the ranks with equal weight, because its "
                    "variables are not known to be sums. If they are sums, set hvd_sums = True in "
                    "the metric's class for exact results. To silence this warning, set hvd_sums = "
                    "False.",
                    metric.name,
                    type(metric).__name__,
                )

    def warn_of_averages(self, names: Iterable[str]) -> None:
        """Warn once about each averaged number with the same name as a summable metric."""
        known = self.results.keys() | {metric.name for metric in self._added}
        for name in sorted(known.intersection(names)):
            log.warn_once(
                "metric %r is averaged across the ranks with equal weight, because on some rank "
                "its value in the logs is not the result of the metric.",
                name,
            )


class Report(NamedTuple):
    """A rank's metrics, in the form sent to the other ranks."""

    numbers: dict[str, Any]
    """The numbers in the rank's logs, by name."""
    layouts: dict[str, Any] | None
    """The layouts of the collected values that are not added up yet; None: the rank had no data."""
    sources: dict[str, list[str]]
    """For each number, the names of results that are equal to it."""
    empty: tuple[str, ...] = ()
    """The prefix `val_` if the rank validated without data; otherwise empty."""
    by_user: bool = False
    """Whether a user's class computes results."""
    weight: float = 1
    """The weight of the numbers that are averaged."""

    @classmethod
    def without_metrics(cls, logs: Mapping[str, Any]) -> "Report":
        return cls(numbers_of(logs), {}, {})


def check_names(reports: Sequence[Report], ranks: Sequence[int]) -> None:
    """Raise the same error on all ranks unless all ranks have numbers with the same names.

    A rank without validation data may have no validation numbers.
    """
    place = next((n for n, report in enumerate(reports) if not report.empty), 0)
    first = reports[place]
    for report, rank in zip(reports, ranks, strict=True):
        other = {
            name
            for name in set(report.numbers) ^ set(first.numbers)
            if not name.startswith(report.empty)
        }
        if other:
            raise ValueError(
                f"the ranks have different metrics: only one of rank {ranks[place]} and rank "
                f"{rank} has {', '.join(sorted(other))}. Averages need the numbers of all ranks. "
                "Use the same metrics, and pass validation data, on all of them."
            )


def _close(a: Any, b: Any) -> bool:
    # Keras may convert a one-element array to a float.
    a, b = np.ravel(a), np.ravel(b)
    return a.size == b.size and np.allclose(a, b, rtol=1e-5, atol=0, equal_nan=True)


def _agreed_sources(reports: Sequence[Report]) -> dict[str, set[str]]:
    """The metric results that equal each number on all ranks with this number."""
    found: dict[str, set[str]] = {}
    for report in reports:
        for name in report.numbers:
            sources = set(report.sources.get(name, ()))
            found[name] = found.get(name, sources) & sources
    return {name: sources for name, sources in found.items() if sources}


class Epoch:
    """The training and validation metrics for one epoch, or the metrics for one evaluation.

    Values are collected by the prefix of their names in the logs: "" for training, "val_" for
    validation. For `as_declared`, see `Collected`.
    """

    def __init__(self, as_declared: bool = False) -> None:
        self._as_declared = as_declared
        self._collected: dict[str, Collected] = {}
        self._totals: dict[str, dict[str, Any]] = {}

    def begin(self) -> None:
        self._collected.clear()
        self._totals.clear()

    def collect(self, model: Any, prefix: str = "") -> None:
        """Collect the metrics' sums, unless they were already collected in this epoch."""
        if prefix not in self._collected and tf.executing_eagerly():
            self._collected[prefix] = Collected(model, self._as_declared)

    def report(self, logs: Mapping[str, Any], weight: float = 1) -> Report:
        numbers = numbers_of(logs)
        layouts = {
            prefix: part.layout
            for prefix, part in self._collected.items()
            if prefix not in self._totals
        }
        validated = any(name.startswith(VALIDATION) for name in numbers)
        empty = (VALIDATION,) if VALIDATION in self._collected and not validated else ()
        by_user = any(part.by_user for part in self._collected.values())
        return Report(numbers, layouts, self._sources(numbers), empty, by_user, weight)

    def _sources(self, numbers: Mapping[str, Any]) -> dict[str, list[str]]:
        """The names of the metric results that are equal to each number."""
        known, means, others = {}, [], set()
        totals = self._results_of_all()
        for prefix, part in self._collected.items():
            known.update({prefix + name: value for name, value in part.results.items()})
            means += [prefix + name for name in part.means if name in part.results]
            others |= {prefix + name for name in part.others}
        sources = {}
        for name, value in numbers.items():
            # In tf_keras, the epoch's logs already contain validation results across all ranks.
            if any(name in each and _close(value, each[name]) for each in (known, totals)):
                sources[name] = [name]
            elif name not in others:  # a train_step may rename a mean's result
                sources[name] = [each for each in means if _close(value, known[each])]
        return sources

    def _results_of_all(self) -> dict[str, Any]:
        return {p + k: value for p, part in self._totals.items() for k, value in part.items()}

    def reduce(self, everyone: Sequence[Report], process_set: ProcessSet) -> dict[str, Any]:
        """Return the numbers across all ranks; all ranks must pass the same reports.

        Numbers that are not computed from sums are averaged with the reports' weights.

        If reports from some ranks in the process set are missing, the numbers in the existing
        reports are averaged without a collective.
        """
        reports = [report for report in everyone if report.layouts is not None]
        numbers = means([report.numbers for report in reports], [r.weight for r in reports])
        if len(everyone) < len(process_set.ranks or ()):
            return numbers
        exact = self._added_up(reports, process_set)
        for name, value in exact.items():
            numbers[name] = _number(np.reshape(value, np.shape(numbers[name])))
        first = next(n for n, report in enumerate(everyone) if report is reports[0])
        if process_set.rank() == first:  # one warning for all ranks
            self._warn(numbers.keys() - exact.keys(), reports)
        if len(reports) < len(everyone) or any(report.by_user for report in reports):
            root = (process_set.ranks or ())[first]
            numbers = broadcast_object(numbers, root, name=_RESULTS, process_set=process_set)
        return numbers

    def _added_up(self, reports: Sequence[Report], process_set: ProcessSet) -> dict[str, Any]:
        """The numbers that can be computed from sums across all ranks, by name."""
        agreed = _agreed_sources(reports)
        if agreed:
            self._add_up(reports, process_set)
        totals = self._results_of_all()
        found = {name: sorted(sources & totals.keys()) for name, sources in agreed.items()}
        return {name: totals[sources[0]] for name, sources in found.items() if sources}

    def _warn(self, averaged: Iterable[str], reports: Sequence[Report]) -> None:
        several = [n for n in averaged if sum(n in report.numbers for report in reports) > 1]
        for prefix, part in self._collected.items():
            part.warn_of_others()
            part.warn_of_averages(n.removeprefix(prefix) for n in several if n.startswith(prefix))

    def _add_up(self, reports: Sequence[Report], process_set: ProcessSet) -> None:
        """Add up the values that all reporting ranks have collected but not yet added up."""
        first = reports[0].layouts or {}
        alike = [
            prefix
            for prefix in sorted(first)
            if all((report.layouts or {}).get(prefix) == first[prefix] for report in reports)
        ]
        if not alike:
            return
        sizes = [_size(first[prefix]) for prefix in alike]
        mine = [
            self._collected[prefix].sums() if prefix in self._collected else np.zeros(size)
            for prefix, size in zip(alike, sizes, strict=True)
        ]
        with on_host():
            sums = collectives.allreduce(
                tf.constant(np.concatenate(mine)),
                op=reduce_ops.Sum,
                name=_SUMS,
                process_set=process_set,
            ).numpy()
        for prefix, part in zip(alike, np.split(sums, np.cumsum(sizes)[:-1]), strict=True):
            if prefix in self._collected:
                self._totals[prefix] = self._collected[prefix].results_of(part)


def _size(layout: Any) -> int:
    return sum(int(np.prod(shape)) for _, shapes in layout for shape in shapes)


def reduce(epoch: Epoch, logs: Mapping[str, Any], process_set: ProcessSet) -> dict[str, Any]:
    """Return the numbers in `logs` across all ranks; the names must be the same on all ranks."""
    if not agreement.takes_part(process_set):
        return numbers_of(logs)
    everyone = allgather_object(epoch.report(logs), name="metric_average", process_set=process_set)
    check_names(everyone, process_set.ranks or ())
    return epoch.reduce(everyone, process_set)
