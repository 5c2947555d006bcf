"""Whether the ranks' datasets give one and the same order of elements.

A share of a dataset is right only if all ranks count the same elements. So the dataset
must not be sharded already, and a shuffle before it must be the same on all ranks, which
its two seeds decide: the one of the call, and the global one of `tf.random.set_seed`.
Both enter into every shuffle, also into one with a seed of its own.

Compared are the arguments of the dataset and of those that it reads, from Python's objects.
Datasets in functions (`interleave`, `flat_map`) and inside sources (`load`) are not looked at.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_hvd.collectives.objects import Title, allgather_object
from tf_hvd.core import tensorflow_hooks as hooks
from tf_hvd.core.process_sets import ProcessSet


class Order(NamedTuple):
    """What one rank gives to `shard`, as the others see it."""

    total: int
    uneven: str
    parts: str
    """Calls that leave elements out by their number, as users write them."""
    seeds: str
    """Of each shuffle, the global seed and its own."""
    random: str
    """Why nothing decides on the order; empty if something does."""


_PARTS = {"shard": ("num_shards", "index"), "skip": ("count",)}


def _static(tensor: Any) -> int | None:
    """The number in a tensor; None if it is known only when the dataset is read."""
    value = tf.get_static_value(tensor)
    if value is None and tensor.op.type.startswith("Select"):
        # In a graph tf.data writes: both seeds zero ? another : this one.
        value = tf.get_static_value(tensor.op.inputs[2])
    return None if value is None else int(value)


def _numbers(dataset: Any, names: Sequence[str]) -> list[int | None]:
    """Arguments of a dataset; empty if it has not all of them."""
    arguments = [hooks.dataset_argument(dataset, name) for name in names]
    return [] if any(each is None for each in arguments) else list(map(_static, arguments))


def order_of(dataset: tf.data.Dataset, total: int, uneven: str) -> Order:
    """What decides on the order of elements, from the dataset back to its sources.

    `total`: its number of elements, or what tf.data says instead.
    """
    parts, seeds, random = [], [], []
    if tf.executing_eagerly() and dataset.options().deterministic is False:
        random.append("its options have deterministic=False")
    waiting: list[Any] = [dataset]
    while waiting:
        each = hooks.dataset_inside(waiting.pop())
        waiting.extend(reversed(hooks.dataset_inputs(each)))
        kind = type(each).__name__
        name = re.sub(r"^Parallel|Dataset(V\d+)?$", "", kind.strip("_")).lower()
        numbers = _numbers(each, _PARTS.get(name, ()))
        if numbers:
            texts = ("?" if number is None else str(number) for number in numbers)
            parts.append(f"{name}({', '.join(texts)})")
        pair = _numbers(each, ("seed", "seed2"))
        if pair and not any(number != 0 for number in pair):  # tf.data's "as it happens"
            random.append(f"its {name} has no seed")
        elif pair:
            seeds.append(str(tuple(pair)))
        if hooks.dataset_argument(each, "deterministic") == "false":
            random.append(f"its {name} has deterministic=False")
    return Order(total, uneven, _text(parts), _text(seeds), next(iter(random), ""))


def _text(values: Sequence[str]) -> str:
    return " and ".join(values) or "none"


def _listed(values: Sequence[Any], ranks: Sequence[int]) -> str:
    """Each value with the first rank that has it; empty if all ranks have the same."""
    firsts = {value: rank for rank, value in reversed(list(zip(ranks, values, strict=True)))}
    if len(firsts) == 1:
        return ""
    return ", ".join(f"{value} on rank {rank}" for value, rank in reversed(firsts.items()))


_REMEDY = (
    "The ranks' shares would overlap, and miss elements. Shard first, then shuffle the shard: "
    "hvd.shard(dataset).shuffle(...)."
)


def compare(dataset: tf.data.Dataset, total: int, uneven: str, process_set: ProcessSet) -> None:
    """One collective: all ranks of the set must give the same arguments, see `order_of`.

    Raises on all ranks, with the same text.
    """
    orders = allgather_object(
        order_of(dataset, total, uneven),
        name=Title("shard: order of the datasets"),
        process_set=process_set,
    )
    ranks = list(process_set.ranks or ())
    if words := _listed([repr(order.uneven) for order in orders], ranks):
        raise ValueError(f"shard: uneven= must be equal on all ranks: {words}.")
    if parts := _listed([order.parts for order in orders], ranks):
        raise ValueError(
            f"shard: the dataset is already sharded: it contains {parts}. Shard once: give "
            "hvd.shard the whole dataset on all ranks."
        )
    if lengths := _listed([_length(order.total) for order in orders], ranks):
        raise ValueError(
            f"shard: the ranks' datasets have different lengths: {lengths}. Each rank must give "
            "the whole dataset; one that is already sharded must not be sharded again."
        )
    for order, rank in zip(orders, ranks, strict=True):
        if order.random:
            raise ValueError(
                f"shard: the order of the dataset is random on rank {rank} ({order.random}). "
                f"{_REMEDY}"
            )
    if seeds := _listed([order.seeds for order in orders], ranks):
        raise ValueError(
            "shard: the dataset is shuffled differently on the ranks before hvd.shard: its seeds "
            f"(global, own) are {seeds}. "
            "tf.random.set_seed and keras.utils.set_random_seed affect every shuffle. "
            f"{_REMEDY}"
        )


def _length(total: int) -> str:
    known = {
        int(tf.data.INFINITE_CARDINALITY): "no end",
        int(tf.data.UNKNOWN_CARDINALITY): "a length that is not known",
    }
    return known.get(total, f"{total} elements")
