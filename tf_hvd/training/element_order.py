"""Whether the ranks' datasets give one and the same order of elements.

A share of a dataset is right only if all ranks count the same elements. So the dataset
must not be sharded already, and a shuffle before it must be the same on all ranks, which
its two seeds decide: the one of the call, and the global one of `tf.random.set_seed`.
Both enter into every shuffle, also into one with a seed of its own.

tf.data has no public way to ask for this. A walk over its Python objects finds most, and
copies no data. What they do not show is read from tf.data's own graph of the dataset:
sources that hide what they were made of, datasets in functions and captured by them.
"""

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import tensorflow as tf

from tf_hvd.collectives.objects import allgather_object
from tf_hvd.core import tensorflow_hooks as hooks
from tf_hvd.core.process_sets import ProcessSet


class Shuffle(NamedTuple):
    """A part of a dataset that changes the order of elements at random.

    Attributes:
      what: why its order is random if `seeds` is None.
      seeds: what decides its order; None if nothing does, () if they are not known.
    """

    what: str
    seeds: tuple[int, ...] | None


class Part(NamedTuple):
    """A part of a dataset that leaves elements out by their number.

    Attributes:
      what: its name in tf.data.
      numbers: its arguments; None if not known before the dataset is read.
    """

    what: str
    numbers: tuple[int | None, ...]


Found: TypeAlias = Shuffle | Part


class Order(NamedTuple):
    """What one rank gives to `shard`, as the others see it."""

    total: int
    uneven: str
    found: tuple[Found, ...]


# Its arguments, by the op, which are attributes of the Python class too.
_PARTS = {"ShardDataset": ("num_shards", "index"), "SkipDataset": ("count",)}
_SEEDS = ("seed", "seed2")

# A graph of 200 MB takes two seconds and six times the memory; 2 GB are an error.
_MOST_DATA = 256 << 20


def _name(kind: str) -> str:
    """Of a class or an op: as users write it."""
    return re.sub(r"^Parallel|Dataset(V\d+)?$", "", kind.strip("_")).lower() or kind


def _shuffle(kind: str, values: Sequence[int | None]) -> Shuffle:
    """From its seeds; tf.data takes two zeros for "as it happens"."""
    what = f"its {_name(kind)} has no seed"
    known = tuple(value for value in values if value is not None)
    if len(known) < len(values):
        return Shuffle(what, ())
    return Shuffle(what, known if any(known) else None)


def _any_order(kind: str) -> Shuffle:
    return Shuffle(f"its {_name(kind)} has deterministic=False", None)


def _static(tensor: Any) -> int | None:
    """The number in a tensor, if it is known."""
    if tensor.dtype in (tf.resource, tf.variant):
        return None
    value = tf.get_static_value(tensor)
    if value is None and tensor.op.type.startswith("Select"):
        # In a graph tf.data writes: both seeds zero ? another : this one.
        value = tf.get_static_value(tensor.op.inputs[2])
    return None if value is None else int(value)


def _number(name: str, nodes: Mapping[str, Any], captured: Mapping[str, Any]) -> int | None:
    """What an input of a node is, if it is known."""
    name = name.partition(":")[0]
    if name in captured:
        return _static(captured[name])
    node = nodes.get(name)
    if node is None:  # an argument of the function
        return None
    if node.op == "Const":
        return int(tf.make_ndarray(node.attr["value"].tensor))
    if node.op.startswith("Select"):  # as in _static
        return _number(node.input[2], nodes, captured)
    if node.op in ("Cast", "Identity"):
        return _number(node.input[0], nodes, captured)
    return None


def _of_node(node: Any, nodes: Mapping[str, Any], captured: Mapping[str, Any]) -> Iterator[Found]:
    operation = getattr(tf.raw_ops, node.op, None) if "Dataset" in node.op else None
    if operation is None:
        return
    names = list(inspect.signature(operation).parameters)

    def numbers(wanted: Iterable[str]) -> tuple[int | None, ...]:
        return tuple(_number(node.input[names.index(each)], nodes, captured) for each in wanted)

    if node.op in _PARTS:
        yield Part(_name(node.op), numbers(_PARTS[node.op]))
    if set(_SEEDS) <= set(names):
        yield _shuffle(node.op, numbers(_SEEDS))
    if node.attr["deterministic"].s == b"false" or node.attr["sloppy"].b:
        yield _any_order(node.op)
    if node.op.startswith("DataServiceDataset"):
        yield Shuffle("it comes from a tf.data service", None)


def _called(node: Any) -> Iterator[str]:
    """The functions of a node, in an order that all ranks have."""
    for _, value in sorted(node.attr.items()):
        yield from (each.name for each in (value.func, *value.list.func) if each.name)


def _in_nodes(
    nodes: Sequence[Any], library: Sequence[Any], captured: Mapping[str, Any]
) -> Iterator[Found]:
    """What the nodes of a graph show, and of the functions that they call."""
    functions = {function.signature.name: function for function in library}
    waiting = [nodes]
    while waiting:
        nodes = waiting.pop()
        by_name = {node.name: node for node in nodes}
        for node in nodes:
            yield from _of_node(node, by_name, captured)
            called = (functions.pop(name, None) for name in _called(node))
            waiting.extend(function.node_def for function in called if function is not None)
        captured = {}  # by the first of them alone


def _upstream(op: Any) -> list[Any]:
    """The op and all that it is made of."""
    found, waiting = {op.name: op}, [op]
    while waiting:
        inputs = [tensor.op for tensor in waiting.pop().inputs]
        new = {each.name: each for each in inputs if each.name not in found}
        found.update(new)
        waiting.extend(new.values())
    return list(found.values())


def _of_variant(variant: Any) -> list[Found] | None:
    """What the graph of a dataset shows; None if tf.data cannot give it."""
    if tf.is_symbolic_tensor(variant):
        return list(_in_ops(variant.graph, _upstream(variant.op), {}))
    try:
        with tf.init_scope():  # 1: what the graph cannot hold is left out
            text = tf.raw_ops.DatasetToGraphV2(input_dataset=variant, external_state_policy=1)
        graph = tf.compat.v1.GraphDef.FromString(text.numpy())
    except (tf.errors.OpError, ValueError):  # another variant than a dataset, or too large
        return None
    return list(_in_nodes(graph.node, graph.library.function, {}))


def _in_ops(graph: Any, operations: Sequence[Any], captured: Mapping[str, Any]) -> Iterator[Found]:
    """As `_in_nodes`; large constants are not copied."""
    nodes = [
        op.node_def for op in operations if op.type != "Const" or op.outputs[0].shape.rank == 0
    ]
    calls = any(True for node in nodes for _ in _called(node))
    library = graph.as_graph_def().library.function if calls else ()
    return _in_nodes(nodes, library, captured)


def _in_function(function: Any) -> Iterator[Found]:
    """Of datasets that are made for each element, as interleave does, or captured."""
    graph = getattr(getattr(function, "function", None), "graph", None)
    if graph is None:
        return
    captures = list(graph.captures)
    captured = {inside.op.name: outside for outside, inside in captures}
    yield from _in_ops(graph, graph.get_operations(), captured)
    for outside, _ in captures:
        if outside.dtype == tf.variant:
            yield from _of_variant(outside) or ()


def _of_object(dataset: Any) -> Iterator[Found]:
    """What tf.data's Python object itself shows."""
    kind = type(dataset).__name__
    names = _PARTS.get(kind.strip("_"), ())
    arguments = [hooks.dataset_argument(dataset, name) for name in names]
    if names and all(each is not None for each in arguments):
        yield Part(_name(kind), tuple(map(_static, arguments)))
    seeds = [hooks.dataset_argument(dataset, name) for name in ("seed", "seed2")]
    if all(each is not None for each in seeds):
        yield _shuffle(kind, list(map(_static, seeds)))
    if hooks.dataset_argument(dataset, "deterministic") == "false":
        yield _any_order(kind)
    for function in hooks.dataset_functions(dataset):
        yield from _in_function(function)


def _bytes(dataset: Any) -> int:
    """Of the data that a graph of the dataset would copy, as far as Python shows it."""
    found, waiting = 0, [dataset]
    while waiting:
        each = waiting.pop()
        waiting.extend(hooks.dataset_inputs(each))
        for tensor in hooks.dataset_argument(each, "tensors", ()):
            found += (tensor.shape.num_elements() or 0) * tensor.dtype.size
    return found


def _only_in_graph(dataset: Any) -> bool:
    kind = type(dataset).__name__
    source = not hooks.dataset_inputs(dataset) and kind not in hooks.DATA_SOURCES
    return source or (kind in hooks.KEPT_BY_THE_OP and _bytes(dataset) <= _MOST_DATA)


def found_in(dataset: tf.data.Dataset) -> list[Found]:
    """All that decides on the order of elements, from the dataset back to its sources."""
    found: list[Found] = []
    if tf.executing_eagerly() and dataset.options().deterministic is False:
        found.append(Shuffle("its options have deterministic=False", None))
    waiting = [dataset]
    while waiting:
        each = waiting.pop()
        each = hooks.dataset_inside(each)
        seen = _of_variant(hooks.dataset_variant(each)) if _only_in_graph(each) else None
        if seen is not None:  # with all its inputs
            found.extend(seen)
            continue
        found.extend(_of_object(each))
        waiting.extend(reversed(hooks.dataset_inputs(each)))
    return found


def _listed(values: Sequence[Any], ranks: Sequence[int]) -> str:
    """Each value with the first rank that has it."""
    firsts = {value: rank for rank, value in reversed(list(zip(ranks, values, strict=True)))}
    return ", ".join(f"{value} on rank {rank}" for value, rank in reversed(firsts.items()))


_REMEDY = (
    "The ranks' shares would overlap, and miss elements. Shard first, then shuffle the shard: "
    "hvd.shard(dataset).shuffle(...)."
)


def _check_parts(orders: Sequence[Order], ranks: Sequence[int]) -> None:
    parts = [[each for each in order.found if isinstance(each, Part)] for order in orders]
    if any(each != parts[0] for each in parts):
        raise ValueError(
            "shard: the dataset is already sharded: it contains "
            f"{_listed([_text(map(_call, each)) for each in parts], ranks)}. Shard once: give "
            "hvd.shard the whole dataset on all ranks."
        )


def _call(part: Part) -> str:
    numbers = ("?" if number is None else str(number) for number in part.numbers)
    return f"{part.what}({', '.join(numbers)})"


def _check_shuffles(orders: Sequence[Order], ranks: Sequence[int]) -> None:
    shuffles = [[each for each in order.found if isinstance(each, Shuffle)] for order in orders]
    random = [
        (shuffle.what, rank)
        for each, rank in zip(shuffles, ranks, strict=True)
        for shuffle in each
        if shuffle.seeds is None
    ]
    if random:
        what, rank = random[0]
        raise ValueError(
            f"shard: the order of the dataset is random on rank {rank} ({what}). {_REMEDY}"
        )
    seeds = [tuple(shuffle.seeds for shuffle in each) for each in shuffles]
    if len(set(seeds)) > 1:
        raise ValueError(
            "shard: the dataset is shuffled differently on the ranks before hvd.shard: its seeds "
            f"(global, own) are {_listed([_text(each) for each in seeds], ranks)}. "
            "tf.random.set_seed and keras.utils.set_random_seed affect every shuffle. "
            f"{_REMEDY}"
        )


def _text(values: Iterable[Any]) -> str:
    return " and ".join(str(each) for each in values) or "none"


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
    mine = Order(total, uneven, tuple(found_in(dataset)))
    orders = allgather_object(mine, name="tf_hvd_shard", process_set=process_set)
    ranks = list(process_set.ranks or ())
    if len({order.uneven for order in orders}) > 1:
        words = _listed([repr(order.uneven) for order in orders], ranks)
        raise ValueError(f"shard: uneven= must be equal on all ranks: {words}.")
    _check_parts(orders, ranks)
    if len({order.total for order in orders}) > 1:
        lengths = _listed([_length(order.total) for order in orders], ranks)
        raise ValueError(
            f"shard: the ranks' datasets have different lengths: {lengths}. Each rank must give "
            "the whole dataset; one that is already sharded must not be sharded again."
        )
    _check_shuffles(orders, ranks)


def _length(total: int) -> str:
    known = {
        int(tf.data.INFINITE_CARDINALITY): "no end",
        int(tf.data.UNKNOWN_CARDINALITY): "a length that is not known",
    }
    return known.get(total, f"{total} elements")
