"""Input data: a share for each rank, and the same number of steps on all of them.

docs/data.md compares this with `tf_hvd.join`, which needs no agreement.
"""

from typing import Any

import numpy as np
import tensorflow as tf

from tf_hvd.collectives.objects import channel_of
from tf_hvd.core import basics
from tf_hvd.core.process_sets import ProcessSet, global_process_set, id_of
from tf_hvd.core.tensorflow_hooks import verbatim
from tf_hvd.training import element_order

UNEVEN = ("keep", "drop", "repeat")
AGREE = ("min", "max")


def _check(argument: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{argument}={value!r} is not one of {', '.join(map(repr, known))}.")


def _place(process_set: ProcessSet) -> tuple[int, int]:
    """Number of ranks, and which of them this one is."""
    me = basics.rank()
    id_of(process_set)
    if not process_set.included():
        raise ValueError(f"rank {me} is not in {process_set}; only its members share its data.")
    count, place = process_set.size(), process_set.rank()
    assert count is not None
    assert place is not None
    return count, place


def _cardinality(dataset: tf.data.Dataset) -> int:
    value = tf.get_static_value(dataset.cardinality())
    return int(tf.data.UNKNOWN_CARDINALITY) if value is None else int(value)


def _whole_rounds(dataset: tf.data.Dataset, count: int) -> tf.data.Dataset:
    """Without what is left when each rank has taken equally many; the length is not known."""

    def elements(*window: Any) -> tf.data.Dataset:
        flat = window[0] if len(window) == 1 else window
        # A structure of datasets, one for each component, becomes one dataset again.
        return flat if isinstance(flat, tf.data.Dataset) else tf.data.Dataset.zip(flat)

    return dataset.window(count, drop_remainder=True).flat_map(elements)


def _filled_up(dataset: tf.data.Dataset, count: int) -> tf.data.Dataset:
    """Then its first elements again, up to a multiple of `count`; the length is not known."""
    several = isinstance(dataset.element_spec, tuple)

    def marked(own: bool) -> Any:
        return lambda *parts: (own, parts if several else parts[0])

    def number(place: Any, element: Any) -> Any:
        own, value = element
        return place + 1, (tf.logical_or(own, place % count != 0), value)

    more = dataset.repeat().take(count - 1).map(marked(False))
    both = dataset.map(marked(True)).concatenate(more)
    numbered = both.scan(tf.constant(0, tf.int64), number)
    return numbered.take_while(lambda wanted, _: wanted).map(lambda _, value: value)


@verbatim
def shard(
    dataset: tf.data.Dataset,
    uneven: str = "repeat",
    process_set: ProcessSet = global_process_set,
) -> tf.data.Dataset:
    """Shards a dataset: of n ranks, rank r gets elements r, r + n, r + 2n, ...

    All ranks get the same number, so that none waits for the others at the end of an
    epoch. The elements of a dataset that is batched already are its batches.

    All ranks of the set call it, and give the same dataset, which one small
    collective compares. Shuffle what it returns, not what it is given; a shuffle
    before it must have the same seeds on all ranks, and no rank may look at the
    dataset more often than the others.

    Args:
      dataset: the same on all ranks.
      uneven: what happens if the elements cannot be divided equally. "repeat": the
        missing few, fewer than there are ranks, are taken from the beginning again.
        "drop": the last few are left out. "keep": the first ranks get one more, and
        all ranks together have each element exactly once; for tests, and for loops
        that end with `join`.
      process_set: who shares the data; this rank must be a member.

    Returns:
      A tf.data.Dataset. Empty if there are fewer elements than ranks and `uneven`
      is "drop", or on the last ranks if it is "keep".

    Raises:
      ValueError: on all ranks: the datasets differ in length or in order, as far as
        can be seen: one that is already sharded, a shuffle without seed, or with seeds that
        differ between ranks, or an order that is not deterministic.
      ValueError: on this rank: `uneven` is none of its words; `init` was not called; or
        this rank is not in the set.
      TypeError: `dataset` is not a tf.data.Dataset.
    """
    _check("uneven", uneven, UNEVEN)
    if not isinstance(dataset, tf.data.Dataset):
        raise TypeError(
            f"shard takes a tf.data.Dataset, not {type(dataset).__name__}; make one by "
            "tf.data.Dataset.from_tensor_slices."
        )
    count, place = _place(process_set)
    total = _cardinality(dataset)
    if count > 1:
        element_order.compare(dataset, total, uneven, process_set)
    if total == tf.data.INFINITE_CARDINALITY or uneven == "keep" or count == 1:
        return dataset.shard(count, place)
    if uneven == "drop":
        if total == tf.data.UNKNOWN_CARDINALITY:
            return _whole_rounds(dataset, count).shard(count, place)
        return dataset.take(total // count * count).shard(count, place)
    if total == tf.data.UNKNOWN_CARDINALITY:
        return _filled_up(dataset, count).shard(count, place)
    if total == 0:  # would be repeated for ever
        return dataset
    return dataset.repeat().take(-(-total // count) * count).shard(count, place)


def _local_steps(data: Any, batch_size: int, drop_remainder: bool) -> int:
    count = _cardinality(data) if isinstance(data, tf.data.Dataset) else int(data)
    if count < 0:
        return count
    return count // batch_size if drop_remainder else -(-count // batch_size)


def _agreed(steps: np.ndarray, ranks: list[int], agree: str) -> int:
    """The number of steps for all, from each rank's."""

    def those(mask: np.ndarray) -> str:
        *others, last = [str(rank) for rank, wanted in zip(ranks, mask, strict=True) if wanted]
        return f"ranks {', '.join(others)} and {last}" if others else f"rank {last}"

    unknown = steps == tf.data.UNKNOWN_CARDINALITY
    if unknown.any():
        raise ValueError(
            f"the number of batches is not known on {those(unknown)}: declare it with "
            "dataset.apply(tf.data.experimental.assert_cardinality(n)), or pass a number."
        )
    endless = steps == tf.data.INFINITE_CARDINALITY
    if endless.all() or (agree == "max" and endless.any()):
        raise ValueError(
            f"the dataset is infinite on {those(endless)}: limit it with dataset.take(steps)."
        )
    if (steps == 0).any():
        raise ValueError(
            f"there is no batch on {those(steps == 0)}: use fewer ranks, smaller batches, or "
            "shard(..., uneven='repeat')."
        )
    finite = steps[~endless]
    return int(finite.min() if agree == "min" else finite.max())


@verbatim
def steps_per_epoch(
    data: Any,
    batch_size: int = 1,
    drop_remainder: bool = False,
    agree: str = "min",
    process_set: ProcessSet = global_process_set,
) -> int:
    """A number of steps that all ranks make alike; one allgather of a number.

    Then loop over `dataset.take(steps)` with agree="min", and over
    `dataset.repeat().take(steps)` with agree="max".

    Args:
      data: this rank's dataset, or the number of its elements.
      batch_size: how many elements make a step; 1 for a dataset of batches.
      drop_remainder: whether a last, shorter batch is left out.
      agree: "min" or "max": the smallest or the largest of the ranks' numbers.
      process_set: who agrees; this rank must be a member.

    Returns:
      The number of steps: at least 1, and the same on all ranks.

    Raises:
      ValueError: on all ranks, with the same text: the number of batches on some rank is
        not known, infinite (with agree="min": on all ranks), or 0.
      ValueError: on this rank: `agree` is neither word, `batch_size` is less than 1, or
        `data` is a negative number; `init` was not called, or this rank is not in the set.
    """
    _check("agree", agree, AGREE)
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size} must be at least 1.")
    if not isinstance(data, tf.data.Dataset) and int(data) < 0:
        raise ValueError(f"data={data!r} is not a number of elements.")
    _place(process_set)
    mine = np.array([_local_steps(data, batch_size, drop_remainder)], np.int64)
    everybody = channel_of("steps_per_epoch", process_set).allgather(mine, "")
    return _agreed(everybody, list(process_set.ranks or ()), agree)
