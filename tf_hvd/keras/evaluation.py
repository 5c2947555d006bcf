"""`evaluate` and `predict` across all ranks, with the same results as in one process.

In `evaluate`, each rank has its own share of the data, of any size. Keras evaluates the share
without any collective. The metrics' variables are then summed across the ranks
(tf_hvd.keras.reduced_metrics).

In `predict`, all ranks have the same data. Each rank predicts consecutive whole batches, so that
each batch has the same rows as in one process. All ranks get all predictions.

The moving statistics of BatchNormalization may differ between ranks. During either call, all ranks
use the first rank's values, so that they evaluate the same model.

If one rank fails, all ranks raise an error once every rank has finished or failed.
"""

import contextlib
import itertools
import operator
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_hvd.collectives.objects import Title, allgather_object, broadcast_object
from tf_hvd.core import basics, error_text
from tf_hvd.core.process_sets import ProcessSet
from tf_hvd.core.tensorflow_hooks import tf_variable
from tf_hvd.keras import compat, reduced_metrics
from tf_hvd.keras.fit_config import by_rank
from tf_hvd.training import agreement, guard

_EVALUATE, _PREDICT = Title("hvd.evaluate on all ranks"), Title("hvd.predict on all ranks")
_COMPARED = Title("hvd.evaluate or hvd.predict: comparison of untrained weights")
_STATISTICS = Title("hvd.evaluate or hvd.predict: untrained weights of the first rank")
_ROWS = 32  # rows per batch if the caller does not pass batch_size


def _gather(title: Title, process_set: ProcessSet, compute: Callable[[], Any]) -> list[Any]:
    """Return the results of `compute` on all ranks, in the order of the ranks.

    Raises:
      RuntimeError: `compute` failed on another rank.
      Exception: `compute` raised it on this rank.
    """
    mine: Any = None
    failure: Exception | None = None
    try:
        mine = compute()
    except Exception as error:  # the other ranks wait for this rank's answer
        failure = error
    told = None if failure is None else error_text.of(failure)
    everyone = allgather_object((told, mine), name=title, process_set=process_set)
    if failure is not None:
        raise failure
    for (text, _), rank in zip(everyone, process_set.ranks or (), strict=True):
        if text is not None:
            raise RuntimeError(f"{title.partition(' ')[0]} failed on rank {rank}: {text}")
    return [value for _, value in everyone]


def _untrained(model: Any) -> list[Any]:
    """The model's variables that may differ between ranks, except intentionally local variables."""
    weights = compat.untrained_weights_of(model)
    synchronizer = compat.synchronizer_of(getattr(model, "optimizer", None))
    if synchronizer is not None:
        weights = [weight for weight in weights if weight not in synchronizer.local]
    variables = [variable for variable in map(tf_variable, weights) if hasattr(variable, "dtype")]
    return [variable for variable in variables if variable.dtype != tf.string]


@contextlib.contextmanager
def _first_ranks_statistics(model: Any, process_set: ProcessSet) -> Iterator[None]:
    """Use the first rank's non-trainable weights on all ranks within the block.

    After the block, each rank has its own values again. Trainable weights are not compared, because
    `fit` and `check_weights` report differences between them. Nothing is changed in a v1 graph, or
    if the ranks' models do not have the same weights.
    """
    if not tf.executing_eagerly():
        yield
        return
    variables: list[Any] = []

    def shapes_and_bits() -> tuple[list[Any], list[int]]:
        variables.extend(_untrained(model))
        shapes = [(variable.dtype.name, tuple(variable.shape)) for variable in variables]
        return shapes, agreement.fingerprints(variables).numpy().tolist()

    everyone = _gather(_COMPARED, process_set, shapes_and_bits)
    own: list[tuple[Any, Any]] = []
    if all(shapes == everyone[0][0] for shapes, _ in everyone):
        columns = zip(*(bits for _, bits in everyone), strict=True)
        differ = [v for v, column in zip(variables, columns, strict=True) if len(set(column)) > 1]
        own = [(variable, variable.numpy()) for variable in differ]
    try:
        if own:
            root = (process_set.ranks or [0])[0]
            values = broadcast_object(
                [value for _, value in own], root, name=_STATISTICS, process_set=process_set
            )
            for (variable, _), value in zip(own, values, strict=True):
                variable.assign(value)
        yield
    finally:
        for variable, value in own:
            variable.assign(value)


def evaluate(
    model: Any, x: Any, y: Any = None, *, return_dict: bool = False, **options: Any
) -> Any:
    """Evaluate a model on the data of all ranks.

    Each rank passes its own share of the data, as in `model.fit`. Shares may differ in size. An
    empty share consists of arrays without rows, or is a dataset, generator, PyDataset or Sequence
    without batches.

    The results are the same on all ranks. They equal the results of `model.evaluate` in one process
    with the data of all ranks. If every rank passes all of the data, means and ratios stay the
    same, but counts (`FalsePositives`, `Sum`) are multiplied by the number of ranks.

    All ranks evaluate the same model. During the call they use the first rank's non-trainable
    weights, such as the moving statistics of BatchNormalization. Random layers keep their own
    seeds.

    All ranks in the process set of the model's optimizer must call this function. On other ranks,
    this function behaves like `model.evaluate`. Callbacks see the rank's own results. Only the
    first rank shows a progress bar.

    Keras' metrics are exact, and so are custom metrics with variables that are known to be sums
    over samples. Other metrics are averaged with equal weight across the ranks that have data. A
    warning lists these metrics.

    Args:
      model: compiled model from Keras 3 or tf_keras.
      x: this rank's share, as for `model.evaluate`: arrays, or a dataset or generator of batches.
      y: targets as for `model.evaluate`. Default None: `x` contains the targets.
      return_dict: True to return a dictionary with metric names as keys (default: False).
      **options: other arguments for `model.evaluate`, such as `batch_size`, `sample_weight`,
        `steps`, `verbose` and `callbacks`.

    Returns:
      The result in the same form as from `model.evaluate`. This is a list in the order of the
      model's metrics, a single number if the model has only a loss, or a dictionary. Each value is
      a float, or an array if the metric has one result per class.

    Raises:
      ValueError: no rank has data, or the ranks have different metrics.
      RuntimeError: `model.evaluate` failed on another rank.

    Example:
      model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
      model.compile(loss="mse", metrics=[keras.metrics.R2Score()])
      hvd.broadcast_variables(model.variables, root_rank=0)
      x = np.random.rand(10 + hvd.rank(), 4)
      loss, r2 = hvd.evaluate(model, x, x[:, :1], batch_size=8, verbose=0)
    """
    guard.check_combination("hvd.evaluate")
    process_set = reduced_metrics.process_set_of(model)
    if not agreement.takes_part(process_set):
        return model.evaluate(x, y, return_dict=return_dict, **options)
    mine = reduced_metrics.Epoch()

    def report() -> tuple[reduced_metrics.Report, list[str]]:
        logs = _logs(model, x, y, options)
        if not logs:  # the metrics may be missing too
            return reduced_metrics.Report({}, None, {}), []
        mine.collect(model)
        return mine.report(logs), compat.result_names(model)

    with _first_ranks_statistics(model, process_set):
        everyone = _gather(_EVALUATE, process_set, report)
    reports = [report for report, _ in everyone]
    having = [place for place, report in enumerate(reports) if report.layouts is not None]
    if not having:
        raise ValueError("hvd.evaluate: no rank has data. Pass data on at least one rank.")
    ranks = process_set.ranks or ()
    reduced_metrics.check_names([reports[n] for n in having], [ranks[n] for n in having])
    logs = mine.reduce(reports, process_set)
    return logs if return_dict else _in_order(logs, everyone[having[0]][1])


def _logs(model: Any, x: Any, y: Any, options: Any) -> dict[str, Any]:
    """The rank's own results by name; empty if the rank has no data."""
    if isinstance(x, Generator):  # check first, because evaluation exhausts a generator
        first = list(itertools.islice(x, 1))
        if not first:
            return {}
        x = (batch for batch in itertools.chain(first, x))
    try:
        return dict(model.evaluate(x, y, return_dict=True, **options))
    except Exception:
        if _is_empty(x):
            return {}
        raise


def _is_empty(x: Any) -> bool:
    """Whether arrays have no rows, or a dataset, PyDataset or Sequence has no batches."""
    if isinstance(x, tf.data.Dataset):
        return next(iter(x), None) is None
    return all(_length_of(each) == 0 for each in tf.nest.flatten(x))


def _length_of(data: Any) -> int:
    rows = _rows_of(data)
    batches = getattr(data, "num_batches", None)
    return next((n for n in (rows, batches) if n is not None), operator.length_hint(data, 1))


def _in_order(logs: dict[str, Any], names: Sequence[str]) -> Any:
    """The results as Keras returns them without `return_dict`: a single number or a list."""
    rest = sorted(set(logs) - set(names))
    values = [logs[name] for name in [*names, *rest] if name in logs]
    return values[0] if len(values) == 1 else values


def predict(
    model: Any,
    x: Any,
    *,
    batch_size: int | None = None,
    steps: int | None = None,
    **options: Any,
) -> Any:
    """Divide the data among the ranks for prediction, and return all predictions on every rank.

    Each rank predicts some of the batches. The result equals the result of `model.predict(x)` on
    the first rank. There may be fewer batches than ranks. During the call, all ranks use the first
    rank's non-trainable weights, as in `evaluate`.

    All ranks in the process set of the model's optimizer must call this function. They must pass
    the same data in the same order, and the same `batch_size` and `steps`. A dataset must not be
    shuffled with a different seed on each rank.

    Each rank reads and skips the batches before its own. If the length of a dataset is unknown, the
    dataset is first read once to count its batches. To avoid this, set the length with
    `tf.data.experimental.assert_cardinality`.

    On a rank outside the process set, this function behaves like `model.predict`. Only the first
    rank shows a progress bar, for its own part of the data.

    Args:
      model: model from Keras 3 or tf_keras.
      x: an array, tensor or data frame; a list, tuple or dictionary of these with the same number
        of rows; or a `tf.data.Dataset` of batches.
      batch_size: number of rows per batch (default: 32). Ignored for a dataset, which is already
        batched.
      steps: number of batches to predict, beginning with the first batch. Default None: all.
      **options: other arguments for `model.predict`, such as `verbose` and `callbacks`.

    Returns:
      The predictions in the same form as from `model.predict`. This is an array with one row for
      each row in the data, or a structure of such arrays that matches the model's outputs.

    Raises:
      TypeError: the type of `x` is not supported, for example because `x` is a generator.
      ValueError: the arrays in `x` have different numbers of rows; or the ranks have different
        numbers of rows or batches, or different batch sizes.
      RuntimeError: `model.predict` failed on another rank.

    Example:
      model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
      hvd.broadcast_variables(model.variables, root_rank=0)
      rows = np.ones([100, 4])  # the same on all ranks
      predictions = hvd.predict(model, rows, batch_size=8, verbose=0)  # of shape [100, 1]
    """
    guard.check_combination("hvd.predict")
    process_set = reduced_metrics.process_set_of(model)
    if not agreement.takes_part(process_set):
        return model.predict(x, batch_size=batch_size, steps=steps, **options)
    ranks = process_set.ranks or ()
    place = ranks.index(basics.rank())

    def part() -> tuple[str, Any]:
        data = _Batches(x, batch_size, steps)
        begin, end = (edge * data.count // len(ranks) for edge in (place, place + 1))
        if begin == end:
            return data.length, None
        size = None if data.is_dataset else data.rows
        return data.length, model.predict(data.between(begin, end), size, **options)

    with _first_ranks_statistics(model, process_set):
        everyone = _gather(_PREDICT, process_set, part)
    lengths = [length for length, _ in everyone]
    if len(set(lengths)) > 1:
        raise ValueError(
            f"hvd.predict: the ranks have different data: {by_rank(lengths, ranks)}. Pass the same "
            "data on all ranks."
        )
    parts = [predictions for _, predictions in everyone if predictions is not None]
    if not parts:
        raise ValueError("hvd.predict: the data is empty. Pass at least one row.")
    return tf.nest.map_structure(_concatenated, *parts)


class _Batches:
    """Data that is divided into a known number of batches."""

    def __init__(self, x: Any, batch_size: int | None, steps: int | None) -> None:
        self.is_dataset = isinstance(x, tf.data.Dataset)
        self.rows = batch_size or _ROWS
        if self.is_dataset:
            self._data = x if steps is None else x.take(steps)
            self.count = _length(self._data)
            self.length = f"{self.count} batches"
            return
        self._data = x
        lengths = set()
        for each in tf.nest.flatten(x):
            rows = _rows_of(each)
            if rows is None:
                raise TypeError(
                    "hvd.predict accepts arrays with rows, structures of such arrays, or a "
                    f"tf.data.Dataset of batches, not {type(each).__name__}."
                )
            lengths.add(rows)
        if len(lengths) != 1:
            raise ValueError(
                f"hvd.predict: the arrays have different numbers of rows: {sorted(lengths)}. Pass "
                "arrays with the same number of rows."
            )
        count = lengths.pop()
        if steps is not None:
            count = min(count, steps * self.rows)
        self.length = f"{count} rows in batches of {self.rows}"
        self.count = -(-count // self.rows)

    def between(self, begin: int, end: int) -> Any:
        """The batches with numbers from `begin` to `end - 1`, in a form that Keras accepts."""
        if self.is_dataset:
            return self._data.skip(begin).take(end - begin)
        begin, end = begin * self.rows, end * self.rows
        return tf.nest.map_structure(lambda each: each[begin:end], self._data)


def _rows_of(array: Any) -> int | None:
    """The number of rows of an array; None if it is not an array with rows."""
    shape = getattr(array, "shape", None)
    return int(shape[0]) if shape and hasattr(array, "__getitem__") else None


def _length(dataset: tf.data.Dataset) -> int:
    """Return the number of batches in a dataset; read the dataset if its length is unknown."""
    count = int(dataset.cardinality())
    if count == tf.data.INFINITE_CARDINALITY:
        raise ValueError(
            "hvd.predict: the dataset is infinite. Set steps to the number of batches."
        )
    if count == tf.data.UNKNOWN_CARDINALITY:
        count = int(dataset.reduce(np.int64(0), lambda number, *_: number + 1))
    return count


def _concatenated(*parts: Any) -> Any:
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    return tf.concat(parts, axis=0)  # ragged tensors
