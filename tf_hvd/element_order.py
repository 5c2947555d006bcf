"""Whether the ranks' datasets give one and the same order of elements.

A share of a dataset is right only if all ranks count the same elements. A shuffle
before it must be the same on all of them, which its two seeds decide: the one of the
call, and the global one of `tf.random.set_seed`. Both enter into every shuffle, also
into one with a seed of its own.

tf.data has no public way to ask for this. What is read here are attributes of its
Python objects and ops of its functions; what is not there is taken for no shuffle.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_hvd.objects import allgather_object
from tf_hvd.process_sets import ProcessSet


class Shuffle(NamedTuple):
    """A part of a dataset that changes the order of elements at random.

    Attributes:
      what: its name in tf.data.
      seeds: what decides its order; None if nothing does, () if they are not known.
    """

    what: str
    seeds: tuple[int, ...] | None


class Order(NamedTuple):
    """What one rank gives to `shard`, as the others see it."""

    total: int
    uneven: str
    shuffles: tuple[Shuffle, ...]


def _seeds(first: Any, second: Any) -> tuple[int, ...] | None:
    """From tensors; tf.data takes two zeros for "as it happens"."""
    values = [_static(each) for each in (first, second)]
    if any(value is None for value in values):
        return ()
    found = tuple(int(value) for value in values)
    return found if any(found) else None


def _static(seed: Any) -> Any:
    value = tf.get_static_value(seed)
    if value is None and seed.op.type.startswith("Select"):
        # In a graph tf.data writes: both seeds zero ? another : this one.
        value = tf.get_static_value(seed.op.inputs[2])
    return value


def _name(dataset: Any) -> str:
    kind = type(dataset).__name__.strip("_")
    return kind.removesuffix("Dataset").lower() or kind


def _in_function(function: Any) -> Iterator[Shuffle]:
    """The shuffles of datasets that are made for each element, as interleave does."""
    graph = getattr(getattr(function, "function", None), "graph", None)
    for op in graph.get_operations() if graph is not None else ():
        names = [argument.name for argument in op.op_def.input_arg]
        if "Dataset" in op.type and {"seed", "seed2"} <= set(names):
            seeds = (op.inputs[names.index(name)] for name in ("seed", "seed2"))
            yield Shuffle(op.type, _seeds(*seeds))


def _any_order(dataset: Any) -> bool:
    """Whether it was made with deterministic=False."""
    said = getattr(dataset, "_deterministic", None)
    if said is not None or "ParallelInterleave" not in type(dataset).__name__:
        return bool(said == "false")
    if not tf.executing_eagerly():
        return False
    # interleave keeps it in its op alone. What it reads from are names of files, mostly.
    graph = tf.compat.v1.GraphDef.FromString(
        tf.raw_ops.DatasetToGraphV2(
            input_dataset=tf.data.experimental.to_variant(dataset), external_state_policy=1
        ).numpy()
    )
    return any(
        "ParallelInterleave" in node.op and node.attr["deterministic"].s == b"false"
        for node in graph.node
    )


def shuffles_of(dataset: tf.data.Dataset) -> list[Shuffle]:
    """All that changes the order of elements, from the dataset back to its sources."""
    found = []
    if tf.executing_eagerly() and dataset.options().deterministic is False:
        found.append(Shuffle("options().deterministic=False", None))
    waiting = [dataset]
    while waiting:
        each = waiting.pop()
        each = getattr(each, "_dataset", each)  # inside of a v1 dataset
        if hasattr(each, "_seed") and hasattr(each, "_seed2"):
            found.append(Shuffle(_name(each), _seeds(each._seed, each._seed2)))
        if _any_order(each):
            found.append(Shuffle(f"{_name(each)}(deterministic=False)", None))
        for function in each._functions():
            found.extend(_in_function(function))
        waiting.extend(reversed(each._inputs()))
    return found


def _listed(values: Sequence[Any], ranks: Sequence[int]) -> str:
    """Each value with the first rank that has it."""
    firsts = {value: rank for rank, value in reversed(list(zip(ranks, values, strict=True)))}
    return ", ".join(f"{value} on rank {rank}" for value, rank in reversed(firsts.items()))


_CURE = (
    "The ranks' shares would overlap, and miss elements. Share out first and shuffle the share: "
    "hvd.shard(dataset).shuffle(...)."
)


def _check_shuffles(orders: Sequence[Order], ranks: Sequence[int]) -> None:
    by_chance = [
        (shuffle.what, rank)
        for order, rank in zip(orders, ranks, strict=True)
        for shuffle in order.shuffles
        if shuffle.seeds is None
    ]
    if by_chance:
        what, rank = by_chance[0]
        raise ValueError(
            f"shard: the order of the dataset depends on chance on rank {rank} ({what} has no "
            f"seed, or cannot have one). {_CURE}"
        )
    seeds = [tuple(shuffle.seeds for shuffle in order.shuffles) for order in orders]
    if len(set(seeds)) > 1:
        raise ValueError(
            "shard: the dataset is shuffled before it, and not alike on all ranks: its seeds "
            f"(global, own) are {_listed([_text(each) for each in seeds], ranks)}. "
            "tf.random.set_seed and keras.utils.set_random_seed enter into each shuffle. "
            f"{_CURE}"
        )


def _text(seeds: Sequence[Any]) -> str:
    return " and ".join(str(each) for each in seeds) or "none"


def compare(dataset: tf.data.Dataset, total: int, uneven: str, process_set: ProcessSet) -> None:
    """One collective: all ranks of the set must give the same dataset.

    Args:
      dataset: this rank's.
      total: its number of elements, or what tf.data says instead.
      uneven: the argument of `shard`.
      process_set: who shares the dataset.

    Raises:
      ValueError: on all ranks, with the same text.
    """
    mine = Order(total, uneven, tuple(shuffles_of(dataset)))
    orders = allgather_object(mine, name="tf_hvd_shard", process_set=process_set)
    ranks = list(process_set.ranks or ())
    if len({order.uneven for order in orders}) > 1:
        words = _listed([repr(order.uneven) for order in orders], ranks)
        raise ValueError(f"shard: uneven= must be equal on all ranks: {words}.")
    if len({order.total for order in orders}) > 1:
        lengths = _listed([_length(order.total) for order in orders], ranks)
        raise ValueError(
            f"shard: the ranks' datasets have different lengths: {lengths}. Each rank must give "
            "the whole dataset; what is a share already must not be shared out again."
        )
    _check_shuffles(orders, ranks)


def _length(total: int) -> str:
    known = {
        int(tf.data.INFINITE_CARDINALITY): "no end",
        int(tf.data.UNKNOWN_CARDINALITY): "a length that is not known",
    }
    return known.get(total, f"{total} elements")
