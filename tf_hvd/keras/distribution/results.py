"""Metrics and logs across all ranks, and whether the ranks have read the same batches."""

import weakref
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_hvd.collectives import collectives
from tf_hvd.collectives.objects import Title, allgather_object
from tf_hvd.core.process_sets import global_process_set
from tf_hvd.core.ranks_text import ranks_text
from tf_hvd.core.tensorflow_hooks import waits_for
from tf_hvd.keras import reduced_metrics
from tf_hvd.keras.distribution.active import Setup
from tf_hvd.keras.distribution.step import Step
from tf_hvd.keras.fit_config import by_rank

_TITLE = Title("keras.distribution: results of fit or evaluate")
_PREDICTED = "predictions"
_OTHER_DATA = (
    "keras.distribution: the ranks read different global batches in predict. Each rank must read "
    "the same data in the same order."
)


class _Read:
    """Counts of the data that a model has read since the last comparison, in one variable."""

    def __init__(self) -> None:
        with tf.init_scope():
            # Digests of batches, steps, rows, rows of all ranks.
            self._sums = tf.Variable(np.zeros(4, np.int64), trainable=False, name="tf_hvd_read")
            self._last = tf.Variable(1, trainable=False, dtype=tf.int64, name="tf_hvd_rows")

    def add(self, step: Step, digest: Any) -> None:
        mark = tf.constant(0, tf.int64) if digest is None else digest
        rows = tf.cast(step.rows, tf.int64)
        total = rows if step.needs_others else tf.cast(step.total, tf.int64)
        self._sums.assign_add(tf.stack([mark, tf.constant(1, tf.int64), rows, total]))
        if step.needs_others or not step.is_even:
            self._last.assign(rows)

    def take(self) -> tuple[list[int], int]:
        """The sums since the last call, and the weight of this rank in the last batch."""
        found = [int(each) for each in self._sums.numpy()]
        self._sums.assign(np.zeros(4, np.int64))
        return found, int(self._last.numpy())


_read: "weakref.WeakKeyDictionary[Any, _Read]" = weakref.WeakKeyDictionary()


def read_by(model: Any) -> _Read:
    if model not in _read:
        _read[model] = _Read()
    return _read[model]


def _check(everyone: Sequence[list[int]]) -> None:
    """Raises on all ranks if they have read other batches, or other numbers of batches."""
    steps = [counts[1] for counts in everyone]
    if len(set(steps)) > 1:
        raise ValueError(
            "keras.distribution: the ranks made different numbers of steps: "
            f"{by_rank(steps, range(len(steps)))}. "
            "Give every rank the same number of batches."
        )
    digests = [counts[0] for counts in everyone]
    if len(set(digests)) > 1:
        raise ValueError(
            "keras.distribution: the ranks read different global batches: the rows differ on "
            f"{_others(digests)}. Each rank must read the same data in the same order, and tf_hvd "
            "gives each its rows. Use the same seeds on all ranks (keras.utils.set_random_seed), "
            "and do not shard the data. If each rank reads its own data on purpose, use "
            "DataParallel(auto_shard_dataset=False)."
        )
    totals = {counts[3] for counts in everyone}
    if totals != {sum(counts[2] for counts in everyone)}:
        raise ValueError(
            "keras.distribution: the ranks' rows do not add up to the rows of the batches: "
            f"{[counts[2] for counts in everyone]} of {sorted(totals)}."
        )


def _others(values: Sequence[int]) -> str:
    return ranks_text([rank for rank, each in enumerate(values) if each != values[0]], 8)


def _state_of_layers(model: Any) -> list[tuple[str, int]]:
    """The path and a checksum of each variable that layers assign themselves."""
    weights = model.non_trainable_weights
    return [(each.path, zlib.crc32(np.array(each).tobytes())) for each in weights]


def _check_state(everyone: Sequence[list[tuple[str, int]]]) -> None:
    """Raises on all ranks if a layer has assigned values that differ between the ranks."""
    # Keras numbers layers in each process, so the paths may differ.
    of_variables = list(zip(*everyone, strict=False))
    different = [each[0][0] for each in of_variables if len({sum_ for _, sum_ in each}) > 1]
    if different:
        raise ValueError(
            f"keras.distribution: the ranks have different values of {', '.join(different[:3])}"
            f"{f' and {len(different) - 3} more' if len(different) > 3 else ''}, because a layer "
            "has assigned them on each rank from its own rows. Assign values of all ranks: for "
            "a mean, divide tf_hvd.allreduce(sum, op=tf_hvd.Sum) by the number of all rows, which "
            "is an allreduce, too."
        )


def over_all_ranks(
    setup: Setup, model: Any, method: Callable[[Any], Any], logs: Any, layers: bool = False
) -> Any:
    """The logs of an epoch or of an evaluation.

    With `layers`, the values that layers have assigned are compared as well.

    Metrics are computed from the sums of all ranks. Other numbers are those of the last batch; they
    are averaged across the ranks, weighted by the rows.

    Raises:
      ValueError: on all ranks, if they have read different data or have different layers.
    """
    found = dict(method(logs))
    state = _state_of_layers(model) if layers else []
    mine = reduced_metrics.Epoch(as_declared=True)
    mine.collect(model)
    sums, rows = read_by(model).take()
    everyone = allgather_object((sums, state, mine.report(found, rows)), name=_TITLE)
    if setup.shards:
        _check([each for each, _, _ in everyone])
    _check_state([each for _, each, _ in everyone])
    reports = [report for _, _, report in everyone]
    reduced_metrics.check_names(reports, range(setup.ranks))
    found.update(mine.reduce(reports, global_process_set))
    return found


def predictions(digest: Any, outputs: Any) -> Any:
    """The outputs for the rows of all ranks, in order."""
    checks = []
    if digest is not None:
        everyone = collectives.allgather(tf.reshape(digest, [1]), name=f"{_PREDICTED}_data")
        same = tf.reduce_all(tf.equal(everyone, everyone[0]))
        checks.append(tf.debugging.Assert(same, [_OTHER_DATA]))
    with tf.control_dependencies(waits_for(checks)):
        return tf.nest.map_structure(_gathered, outputs)


def _gathered(output: Any) -> Any:
    if isinstance(output, tf.RaggedTensor):
        lengths = [
            collectives.allgather(each, name=f"{_PREDICTED}_lengths")
            for each in output.nested_row_lengths()
        ]
        values = collectives.allgather(output.flat_values, name=f"{_PREDICTED}_values")
        return tf.RaggedTensor.from_nested_row_lengths(values, lengths)
    if isinstance(output, tf.SparseTensor):
        raise NotImplementedError(
            "keras.distribution: predict cannot gather a SparseTensor from the ranks. Convert the "
            "model's output with keras.ops.convert_to_tensor or tf.sparse.to_dense."
        )
    if not tf.is_tensor(output) or output.shape.rank == 0:
        return output
    return collectives.allgather(output, name=_PREDICTED)
