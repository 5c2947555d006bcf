"""Divide input data among ranks, and agree on the number of steps.

With `tf_hvd.join`, ranks need not agree on the number of steps.
"""

import hashlib
import os
import re
from collections.abc import Iterable
from typing import Any, TypeVar, cast

import numpy as np
import tensorflow as tf

from tf_hvd.collectives.objects import Title, allgather_object, broadcast_object, channel_of
from tf_hvd.core import basics
from tf_hvd.core.process_sets import ProcessSet, global_process_set, id_of
from tf_hvd.core.tensorflow_hooks import verbatim
from tf_hvd.training import data_arrays, element_order, guard

Data = TypeVar("Data")
UNEVEN = ("keep", "drop", "repeat")
AGREE = ("min", "max")


def _check(argument: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(
            f"{argument}={value!r} is not valid. Pass one of {', '.join(map(repr, known))}."
        )


def _place(process_set: ProcessSet) -> tuple[int, int]:
    """Return the number of ranks, and this rank's index among them."""
    me = basics.rank()
    id_of(process_set)
    if not process_set.included():
        raise ValueError(
            f"rank {me} is not in {process_set}, and therefore has no share of its data. Call this "
            "function on the ranks of the set only."
        )
    count, place = process_set.size(), process_set.rank()
    assert count is not None
    assert place is not None
    return count, place


def _cardinality(dataset: tf.data.Dataset) -> int:
    value = tf.get_static_value(dataset.cardinality())
    return int(tf.data.UNKNOWN_CARDINALITY) if value is None else int(value)


def _whole_rounds(dataset: tf.data.Dataset, count: int) -> tf.data.Dataset:
    """Drop the last elements, up to a multiple of `count`, from a dataset of unknown length."""

    def elements(*window: Any) -> tf.data.Dataset:
        flat = window[0] if len(window) == 1 else window
        # A structure of datasets, one for each component, becomes a single dataset again.
        return flat if isinstance(flat, tf.data.Dataset) else tf.data.Dataset.zip(flat)

    return dataset.window(count, drop_remainder=True).flat_map(elements)


def _filled_up(dataset: tf.data.Dataset, count: int) -> tf.data.Dataset:
    """Repeat the first elements at the end of a dataset of unknown length.

    The result has a multiple of `count` elements.
    """
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


def _share(
    dataset: tf.data.Dataset, total: int, count: int, place: int, uneven: str
) -> tf.data.Dataset:
    if total == tf.data.INFINITE_CARDINALITY or uneven == "keep" or count == 1:
        return dataset.shard(count, place)
    if uneven == "drop":
        if total == tf.data.UNKNOWN_CARDINALITY:
            return _whole_rounds(dataset, count).shard(count, place)
        return dataset.take(total // count * count).shard(count, place)
    if total == tf.data.UNKNOWN_CARDINALITY:
        return _filled_up(dataset, count).shard(count, place)
    if total == 0:  # it would be repeated indefinitely
        return dataset
    return dataset.repeat().take(-(-total // count) * count).shard(count, place)


@verbatim
def shard(
    dataset: Data,
    *,
    uneven: str = "repeat",
    process_set: ProcessSet = global_process_set,
) -> Data:
    """Return this rank's share of a dataset or of NumPy arrays.

    All shares have the same size by default. With n ranks, rank r gets the elements r, r + n,
    r + 2n, ... of a dataset. The elements of a batched dataset are its batches.

    From arrays, each rank gets a block of neighbouring rows as a view, without reading or copying
    rows. A rank therefore reads only its own rows of a memory-mapped file. If an array is sorted,
    for example by label, each rank gets only some labels. Shuffle such an array once when you write
    it, or convert it to a dataset.

    All ranks of the set must call this function with the same data. One small collective compares
    the data. Shuffle the result, not the argument. A shuffle before `shard` needs the same seeds on
    all ranks. Every rank must then iterate over the dataset the same number of times.

    Args:
      dataset: a tf.data.Dataset or arrays (np.ndarray, np.memmap), the same on all ranks. Arrays
        may have any dtype, may be in tuples, lists and dicts, and must have equal first dimensions.
      uneven: how to divide a number of elements or rows that is not a multiple of the number of
        ranks. With "repeat" (default), fewer elements than ranks are used twice. These are the
        first elements of a dataset, or rows at the borders of blocks. With "drop", the last
        elements are omitted. With "keep", the first ranks get one more element, and each element is
        used exactly once. Use "keep" for tests, and for loops that end with `join`.
      process_set: the ranks that share the data; this rank must be a member.

    Returns:
      A tf.data.Dataset, or arrays in the structure of `dataset`. If there are fewer elements than
      ranks, shares may be empty: with "drop" on all ranks, with "keep" on the last ranks.

    Raises:
      ValueError: on all ranks, the ranks' data differ in length, order, types or shapes, as far as
        `shard` can determine this. Examples are data that are already sharded, and shuffles without
        seeds or with different seeds. Also on all ranks, the order of a dataset is not
        deterministic, or a tf.data service already divides its elements.
      ValueError: on this rank, `uneven` is invalid, arrays have different numbers of rows, `init`
        was not called, or this rank is not in the set.
      TypeError: `dataset` is neither a tf.data.Dataset nor NumPy arrays.

    Example:
      dataset = hvd.shard(tf.data.Dataset.range(4))  # 0, 2 on rank 0 of 2; 1, 3 on rank 1
      images, labels = hvd.shard((np.zeros([10, 28, 28]), np.arange(10)))  # 5 rows each
    """
    guard.check_combination("hvd.shard")
    _check("uneven", uneven, UNEVEN)
    arrays = data_arrays.leaves_of(dataset)
    if not arrays and not isinstance(dataset, tf.data.Dataset):
        raise TypeError(
            f"shard takes a tf.data.Dataset or NumPy arrays, not {data_arrays.other_in(dataset)}. "
            "Make a dataset with tf.data.Dataset.from_tensor_slices."
        )
    count, place = _place(process_set)
    if arrays:
        order = data_arrays.order_of(dataset, uneven)
        if count > 1:
            element_order.compare(order, process_set)
        rows = data_arrays.block(order.total, count, place, uneven)
        return cast(Data, data_arrays.part(dataset, rows))
    total = _cardinality(dataset)
    if count > 1:
        element_order.compare(element_order.order_of(dataset, total, uneven), process_set)
    return cast(Data, _share(dataset, total, count, place, uneven))


def _listing(files: Any) -> list[str]:
    """Return all paths in `files` and all paths that its patterns match, sorted."""
    found: set[str] = set()
    several = isinstance(files, Iterable) and not isinstance(files, str | bytes)
    for each in files if several else [files]:
        if not isinstance(each, str | bytes | os.PathLike):
            raise TypeError(
                f"shard_files takes patterns and paths, not {each!r}. Pass str or os.PathLike."
            )
        path = os.fsdecode(each)
        # Paths are not checked for existence: on a network each check is a request.
        is_pattern = re.search(r"[*?\[]", path) and not (
            isinstance(each, os.PathLike) and tf.io.gfile.exists(path)
        )
        matching = tf.io.gfile.glob(path) if is_pattern else [path]
        if not matching:
            raise ValueError(f"no file matches the pattern {path!r}")
        found.update(matching)
    if not found:
        raise ValueError("the list of files is empty; pass at least one path")
    return sorted(found)


def _first_difference(mine: list[str], theirs: list[str]) -> int:
    pairs = zip(mine, theirs, strict=False)
    return next(
        (i for i, (one, other) in enumerate(pairs) if one != other), min(len(mine), len(theirs))
    )


def _compare_listings(paths: list[str], problem: str, process_set: ProcessSet) -> None:
    """Raise on all ranks, with the same text, unless all have the same list of files.

    `problem` is this rank's error from reading its list; empty if the rank has a list.
    """
    ranks = list(process_set.ranks or ())
    digest = hashlib.sha256("\0".join(paths).encode(errors="surrogateescape")).hexdigest()
    title = Title("shard_files: the list of files")
    states = allgather_object((problem, digest), name=title, process_set=process_set)
    for (each, _), rank in zip(states, ranks, strict=True):
        if each:
            raise ValueError(f"shard_files: {each} (on rank {rank}).")
    if len({each for _, each in states}) == 1:
        return
    # Whole lists are sent only in this case.
    first = broadcast_object(paths, ranks[0], name=title, process_set=process_set)
    place = _first_difference(paths, first)
    shown = [repr(each[place]) if place < len(each) else "missing" for each in (first, paths)]
    found = (place, *shown, len(paths))
    each_rank = allgather_object(found, name=title, process_set=process_set)
    other = next(i for i, (_, one, its, _) in enumerate(each_rank) if one != its)
    place, one, its, number = each_rank[other]
    raise ValueError(
        f"shard_files: the ranks see different files. Rank {ranks[0]} has {len(first)} files, and "
        f"rank {ranks[other]} has {number}. In sorted order, file number {place} is {one} on rank "
        f"{ranks[0]} and {its} on rank {ranks[other]}. Wait until all machines see the same files, "
        "or pass the same list of paths on all ranks."
    )


@verbatim
def shard_files(files: Any, *, process_set: ProcessSet = global_process_set) -> list[str]:
    """Return this rank's share of a list of files.

    The files are sorted by name. With n ranks, rank r gets the files r, r + n, r + 2n, ... If the
    number of files is not a multiple of the number of ranks, the first ranks get one more file.

    All ranks of the set must call this function and find the same files. One small collective
    compares the files.

    Files usually contain different numbers of records, so the ranks get different numbers of
    batches. Make the same number of steps on all ranks (`steps_per_epoch`), or end each epoch
    with `join`.

    Args:
      files: a glob pattern, a path, or an iterable of patterns and paths (str or os.PathLike). They
        may be on any file system that tf.io.gfile reads, such as gs://. Paths without *, ? and [
        are not checked for existence. An os.PathLike that exists is a path, even if it has these
        characters. Duplicates are removed.
      process_set: the ranks that share the files; this rank must be a member.

    Returns:
      A sorted list of at least one path.

    Raises:
      ValueError: on all ranks, a pattern matches no file or cannot be listed, the ranks find
        different files, or there are fewer files than ranks.
      ValueError: on this rank, `init` was not called, or this rank is not in the set.
      TypeError: `files` contains an object that is not a path.

    Example:
      for number in range(4):
          pathlib.Path(f"part-{number}.txt").touch()
      hvd.barrier()  # all files exist after this
      mine = hvd.shard_files("part-*.txt")
      lines = tf.data.TextLineDataset(mine)
    """
    count, place = _place(process_set)
    paths: list[str] = []
    problem = ""
    try:
        paths = _listing(files)
    except (ValueError, tf.errors.OpError) as error:
        problem = str(error)
    _compare_listings(paths, problem, process_set)
    if len(paths) < count:
        raise ValueError(
            f"shard_files: {count} ranks cannot share {len(paths)} files. Write the data into more "
            "files, or shard the records: hvd.shard(tf.data.TFRecordDataset(files))."
        )
    return paths[place::count]


def _local_steps(data: Any, batch_size: int, drop_remainder: bool) -> int:
    count = _cardinality(data) if isinstance(data, tf.data.Dataset) else int(data)
    if count < 0:
        return count
    return count // batch_size if drop_remainder else -(-count // batch_size)


def _agreed(steps: np.ndarray, ranks: list[int], agree: str) -> int:
    """Return the number of steps for all ranks, computed from each rank's number."""

    def those(mask: np.ndarray) -> str:
        *others, last = [str(rank) for rank, wanted in zip(ranks, mask, strict=True) if wanted]
        return f"ranks {', '.join(others)} and {last}" if others else f"rank {last}"

    unknown = steps == tf.data.UNKNOWN_CARDINALITY
    if unknown.any():
        raise ValueError(
            f"the number of batches is unknown on {those(unknown)}. Set it with "
            "dataset.apply(tf.data.experimental.assert_cardinality(n)), or pass a number."
        )
    endless = steps == tf.data.INFINITE_CARDINALITY
    if endless.all() or (agree == "max" and endless.any()):
        raise ValueError(
            f"the dataset is infinite on {those(endless)}. Limit it with dataset.take(steps)."
        )
    if (steps == 0).any():
        raise ValueError(
            f"there is no batch on {those(steps == 0)}. Use fewer ranks, smaller batches, or "
            "shard(..., uneven='repeat')."
        )
    finite = steps[~endless]
    return int(finite.min() if agree == "min" else finite.max())


@verbatim
def steps_per_epoch(
    data: Any,
    batch_size: int = 1,
    *,
    drop_remainder: bool = False,
    agree: str = "min",
    process_set: ProcessSet = global_process_set,
) -> int:
    """Return the number of steps that all ranks should make in an epoch.

    All ranks of the set must call this function, which runs one small collective. With
    agree="min", loop over `dataset.take(steps)`. With agree="max", loop over
    `dataset.repeat().take(steps)`.

    Args:
      data: this rank's dataset, or the number of its elements.
      batch_size: number of elements in a step (default: 1, for a dataset of batches).
      drop_remainder: whether to drop the last batch if it is shorter (default: False).
      agree: "min" (default) or "max", for the smallest or the largest of the ranks' numbers.
      process_set: the ranks that agree; this rank must be a member.

    Returns:
      The number of steps, an int of at least 1, the same on all ranks.

    Raises:
      ValueError: on all ranks, with the same text, a rank has no batches, or an unknown number
        of batches. Also if a rank (with agree="min", every rank) has infinitely many batches.
      ValueError: on this rank, `agree` is invalid, `batch_size` is less than 1, or `data` is a
        negative number. Also on this rank, `init` was not called, or the rank is not in the set.

    Example:
      mine = tf.data.Dataset.range(6 + hvd.rank())
      steps = hvd.steps_per_epoch(mine.batch(2))
      for batch in mine.batch(2).take(steps):
          hvd.allreduce(tf.reduce_sum(batch), name="sum")
    """
    _check("agree", agree, AGREE)
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size} is less than 1. Pass a positive number.")
    if not isinstance(data, tf.data.Dataset) and int(data) < 0:
        raise ValueError(
            f"data={data!r} is negative. Pass a dataset, or the number of this rank's elements."
        )
    _place(process_set)
    mine = np.array([_local_steps(data, batch_size, drop_remainder)], np.int64)
    everybody = channel_of("steps_per_epoch", process_set).allgather(mine, "")
    return _agreed(everybody, list(process_set.ranks or ()), agree)
