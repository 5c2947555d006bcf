"""Check that the ranks' datasets yield the same elements in the same order.

Shares of a dataset are correct only if all ranks number its elements in the same way. Therefore the
dataset must not be sharded already, and any shuffle before `shard` must be the same on all ranks. A
shuffle depends on two seeds: its own, and the global seed of `tf.random.set_seed`. The global seed
affects every shuffle, even if the shuffle has its own seed.

The ranks compare the arguments of the dataset and of all datasets that it reads. This module gets
the arguments from the Python objects of the datasets. Datasets in functions (`interleave`,
`flat_map`) and in sources (`load`) are ignored.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_hvd.collectives.objects import Title, allgather_object
from tf_hvd.core import tensorflow_hooks as hooks
from tf_hvd.core.process_sets import ProcessSet


class Order(NamedTuple):
    """The properties of one rank's argument of `shard` that the ranks compare."""

    total: int
    uneven: str
    parts: str = "none"
    """Calls to `shard` and `skip` in the dataset, as in the program."""
    seeds: str = "none"
    """The global seed, and each shuffle's own seed."""
    random: str = ""
    """The reason why the order is random; empty if it is deterministic."""
    given: str = "a dataset"
    """The kind of data: a dataset, or arrays with their types and shapes."""
    service: bool = False
    """Whether a tf.data service, which divides the elements itself, provides the dataset."""


_PARTS = {"shard": ("num_shards", "index"), "skip": ("count",)}


def _static(tensor: Any) -> int | None:
    """Return the number in a tensor; None if it is known only when the dataset is read."""
    value = tf.get_static_value(tensor)
    if value is None and tensor.op.type.startswith("Select"):
        # In a graph, tf.data selects a constant if both seeds are zero, and this seed otherwise.
        value = tf.get_static_value(tensor.op.inputs[2])
    return None if value is None else int(value)


def _numbers(dataset: Any, names: Sequence[str]) -> list[int | None]:
    """Return the values of a dataset's arguments by name; empty if any argument is missing."""
    arguments = [hooks.dataset_argument(dataset, name) for name in names]
    return [] if any(each is None for each in arguments) else list(map(_static, arguments))


def order_of(dataset: tf.data.Dataset, total: int, uneven: str) -> Order:
    """Return the properties of a dataset and of those that it reads that determine the order.

    Args:
      dataset: the dataset.
      total: number of its elements, or tf.data's code for an infinite or unknown number.
      uneven: the argument of `shard`.
    """
    parts, seeds, random, service = [], [], [], False
    if tf.executing_eagerly() and dataset.options().deterministic is False:
        random.append("its options have deterministic=False")
    waiting: list[Any] = [dataset]
    while waiting:
        each = hooks.dataset_inside(waiting.pop())
        waiting.extend(reversed(hooks.dataset_inputs(each)))
        kind = type(each).__name__
        name = re.sub(r"^Parallel|Dataset(V\d+)?$", "", kind.strip("_")).lower()
        service |= name == "dataservice"
        numbers = _numbers(each, _PARTS.get(name, ()))
        if numbers:
            texts = ("?" if number is None else str(number) for number in numbers)
            parts.append(f"{name}({', '.join(texts)})")
        pair = _numbers(each, ("seed", "seed2"))
        if pair and not any(number != 0 for number in pair):  # tf.data's code for random
            random.append(f"its {name} has no seed")
        elif pair:
            seeds.append(str(tuple(pair)))
        if hooks.dataset_argument(each, "deterministic") == "false":
            random.append(f"its {name} has deterministic=False")
    reason = next(iter(random), "")
    return Order(total, uneven, _text(parts), _text(seeds), reason, service=service)


def _text(values: Sequence[str]) -> str:
    return " and ".join(values) or "none"


def _listed(values: Sequence[Any], ranks: Sequence[int]) -> str:
    """Return each value with the first rank that has it; empty if all ranks have the same value."""
    firsts = {value: rank for rank, value in reversed(list(zip(ranks, values, strict=True)))}
    if len(firsts) == 1:
        return ""
    return ", ".join(f"{value} on rank {rank}" for value, rank in reversed(firsts.items()))


_REMEDY = (
    "The ranks' shares would overlap and miss elements. Shard first, then shuffle the shard: "
    "hvd.shard(dataset).shuffle(...)."
)


def _refuse_service(orders: Sequence[Order], ranks: Sequence[int]) -> None:
    if served := [rank for order, rank in zip(orders, ranks, strict=True) if order.service]:
        raise ValueError(
            f"shard: the dataset of rank {served[0]} comes from a tf.data service, which already "
            "divides the elements among the ranks. Do not shard this dataset. Instead, distribute "
            'it with processing_mode="distributed_epoch" and the same job_name on all ranks. Ranks '
            "may then get different numbers of batches. Either call repeat() before distributing "
            "and run the same number of steps on every rank, or end each epoch with hvd.join()."
        )


def compare(order: Order, process_set: ProcessSet) -> None:
    """Check with one collective that all ranks of the set pass the same data to `shard`.

    Raises:
      ValueError: the ranks' data differ; raised on all ranks, with the same text.
    """
    orders = allgather_object(
        order, name=Title("shard: order of the data"), process_set=process_set
    )
    ranks = list(process_set.ranks or ())
    _refuse_service(orders, ranks)
    if given := _listed([order.given for order in orders], ranks):
        raise ValueError(
            f"shard: the ranks passed different kinds of data: {given}. Pass the same data on all "
            "ranks."
        )
    if words := _listed([repr(order.uneven) for order in orders], ranks):
        raise ValueError(
            f"shard: uneven= differs between ranks: {words}. Pass the same value on all ranks."
        )
    if parts := _listed([order.parts for order in orders], ranks):
        raise ValueError(
            f"shard: the dataset is already sharded, because it contains {parts}. Pass the whole "
            "dataset to hvd.shard on all ranks."
        )
    if lengths := _listed([_length(order.total) for order in orders], ranks):
        raise ValueError(
            f"shard: the ranks' data have different lengths: {lengths}. Pass the whole data on all "
            "ranks, and do not shard a share again."
        )
    for order, rank in zip(orders, ranks, strict=True):
        if order.random:
            raise ValueError(
                f"shard: the order of the dataset is random on rank {rank} ({order.random}). "
                f"{_REMEDY} For tf.data.Dataset.list_files, pass shuffle=False."
            )
    if seeds := _listed([order.seeds for order in orders], ranks):
        raise ValueError(
            "shard: the dataset is shuffled before hvd.shard, with different seeds on the ranks. "
            f"The seeds (global, own) are {seeds}. "
            "tf.random.set_seed, keras.utils.set_random_seed and hvd.set_random_seed affect every "
            "shuffle. "
            f"{_REMEDY}"
        )


def _length(total: int) -> str:
    known = {
        int(tf.data.INFINITE_CARDINALITY): "infinite",
        int(tf.data.UNKNOWN_CARDINALITY): "unknown length",
    }
    return known.get(total, f"{total} elements")
