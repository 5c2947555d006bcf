"""Random programs of collectives: their parts, and how they are drawn.

A Program is a list of batches that all ranks run one after the other. The calls
of a batch run one by one, or concurrently, in a different order on each rank.
"""

import dataclasses

import numpy_collectives as reference
import tensorflow as tf
from hypothesis import strategies as st

import tf_hvd as hvd
from tf_hvd.core import _native

ONE_BY_ONE, THREADS, FUNCTION, COMPILED, SESSION = (
    "one by one", "threads", "function", "compiled", "session",
)  # fmt: skip

REDUCING = ("allreduce", "grouped_allreduce", "reducescatter", "grouped_reducescatter")
ROOTED = ("broadcast", "broadcast_")
# The first dimension may differ between ranks.
UNEVEN = ("allgather", "grouped_allgather", "alltoall")
# A scalar has no rows to gather or to scatter.
WITH_ROWS = (*UNEVEN, "reducescatter", "grouped_reducescatter")
# TensorFlow runs them in program order, which differs between ranks.
ORDERED = ("broadcast_", "barrier")
OPERATIONS = (*REDUCING, *UNEVEN, *ROOTED, "barrier")
# With shapes that XLA knows.
FIXED = (*REDUCING, "broadcast")
DTYPES = [
    "uint8", "int8", "uint16", "int16", "int32", "int64", "uint32", "uint64",
    "float16", "bfloat16", "float32", "float64", "bool", "complex64", "complex128",
]  # fmt: skip
EXACT = [1.0, 1.0, 0.5, 2.0, -1.5]
SCALES = [*EXACT, 0.1, 1 / 3]

# Mistakes of one rank, and the operations where they are possible.
MISTAKES = {
    "dtype": (*REDUCING, *UNEVEN, *ROOTED),
    "shape": (*REDUCING, *UNEVEN, *ROOTED),
    "operation": (*REDUCING, *UNEVEN, "broadcast", "barrier"),
    "op": REDUCING,
    "scale": REDUCING,
    "root": ROOTED,
    "members": ("grouped_allreduce", "grouped_allgather", "grouped_reducescatter"),
    "scalar": WITH_ROWS,
    "splits": ("alltoall",),
}
# Wrong by themselves, even if all ranks agree.
REFUSED = ("scalar", "splits")


@dataclasses.dataclass(frozen=True, repr=False)
class Call:
    """One collective."""

    operation: str
    name: str
    ranks: tuple[int, ...]
    """The participating ranks: those of process set `process_set`, where 0 is all ranks."""
    process_set: int = 0
    dtype: str = "float32"
    shapes: tuple[tuple[int, ...], ...] = ()
    """Of each tensor; without the first dimension where it may differ."""
    rows: tuple[tuple[int, ...], ...] = ()
    """The first dimension of each tensor on each rank of the set."""
    op: str = "Sum"
    prescale: float = 1.0
    postscale: float = 1.0
    root: int = 0
    splits: tuple[tuple[int, ...], ...] | None = None
    """For alltoall: the rows from each rank of the set to each."""
    salt: int = 0
    special: bool = False
    """Whether the numbers include infinities and NaN."""
    mistake: str = ""
    odd: int = 0
    """The rank that makes the mistake."""

    def __repr__(self):
        """Without default values."""
        fields = [(f.name, getattr(self, f.name), f.default) for f in dataclasses.fields(self)]
        said = [f"{name}={value!r}" for name, value, default in fields if value != default]
        return f"Call({', '.join(said)})"


@dataclasses.dataclass(frozen=True)
class Batch:
    """Calls that may overlap."""

    how: str
    calls: tuple[Call, ...]
    orders: tuple[tuple[int, ...], ...]
    """For each rank, the order in which it makes the calls."""
    delays_ms: tuple[int, ...]
    """The delay of each rank before the batch."""


def inputs(call, place):
    """The input arrays of the rank with index `place` in the set."""
    result = []
    for i, shape in enumerate(call.shapes):
        full = (call.rows[i][place], *shape) if call.rows else shape
        array = reference.numbers(call.dtype, full, call.salt + 2 * i + call.ranks[place])
        if call.special and array.size:
            array.reshape(-1)[0] = [float("inf"), -1.0, float("nan"), float("-inf")][
                (call.salt + place) % 4
            ]
        result.append(array)
    return result


def expected(call, place):
    """Its result arrays."""
    everybody = [inputs(call, p) for p in range(len(call.ranks))]
    if call.operation in ROOTED:
        return everybody[call.ranks.index(call.root)]
    columns = list(zip(*everybody, strict=True))  # for each tensor, all ranks' arrays
    scales = (call.prescale, call.postscale)
    if call.operation in ("allreduce", "grouped_allreduce"):
        return [reference.allreduce(column, call.op, *scales) for column in columns]
    if call.operation in ("reducescatter", "grouped_reducescatter"):
        return [reference.reducescatter(column, call.op, place, *scales) for column in columns]
    if call.operation == "alltoall":
        results = reference.alltoall(columns[0], split_table(call), place)
        return list(results)[: 1 if call.splits is None else 2]
    return [reference.allgather(column) for column in columns]


def split_table(call):
    """The rows from each rank to each, also where the library decides them."""
    if call.splits is not None:
        return call.splits
    size = len(call.ranks)
    return [[rows // size] * size for rows in call.rows[0]]


def reducible(dtype, op):
    names = [_native.library.tf_hvd_dtype_name(i).decode() for i in range(len(DTYPES))]
    return bool(_native.library.tf_hvd_is_reducible(names.index(dtype), getattr(hvd, op)))


REDUCTIONS = {
    dtype: [op for op in reference.REDUCTIONS if reducible(dtype, op)] for dtype in DTYPES
}

small_shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
any_shapes = st.one_of(
    small_shapes,
    small_shapes,
    st.lists(st.integers(1, 2), min_size=8, max_size=8).map(tuple),
    st.just((30011,)),  # more than one message
)
# Shapes with rows: TensorFlow's tensors have at most 8 dimensions.
row_shapes = st.one_of(
    small_shapes, small_shapes, st.lists(st.integers(1, 2), min_size=7, max_size=7).map(tuple)
)


@st.composite
def tensors(draw, operation, size):
    """The arguments `shapes` and `rows` of a call."""
    count = draw(st.integers(1, 3)) if operation.startswith("grouped") else 1
    if operation == "barrier":
        return {}
    if operation in UNEVEN:
        shapes = [draw(row_shapes) for _ in range(count)]
        rows = [tuple(draw(st.integers(0, 5)) for _ in range(size)) for _ in range(count)]
        return {"shapes": tuple(shapes), "rows": tuple(rows)}
    shapes = [draw(any_shapes) for _ in range(count)]
    if operation in WITH_ROWS:
        shapes = [(draw(st.integers(0, 2 * size + 1)), *shape[:7]) for shape in shapes]
    return {"shapes": tuple(shapes)}


@st.composite
def split_tables(draw, rows):
    """Splits that do not send more rows than a tensor has; None: equal numbers for all."""
    if draw(st.booleans()) and all(count % len(rows) == 0 for count in rows):
        return None
    table = []
    for left in rows:
        parts = []
        for _ in rows:
            parts.append(draw(st.integers(0, left)))
            left -= parts[-1]
        table.append(tuple(parts))
    return tuple(table)


@st.composite
def calls(draw, sets, name, operations, may_be_wrong):
    """One call in any of the sets."""
    process_set = draw(st.integers(0, len(sets) - 1))
    ranks = sets[process_set]
    operation = draw(st.sampled_from(operations))
    dtype = draw(st.sampled_from(DTYPES))
    arguments = draw(tensors(operation, len(ranks)))
    if operation in REDUCING:
        several = hvd.cross_size() > 1
        # Half-precision values are rounded before they are sent: scaled values must be exact.
        rounds = several and dtype in ("float16", "bfloat16")
        uneven = bool(len(ranks) & (len(ranks) - 1))
        ops = [op for op in REDUCTIONS[dtype] if not (rounds and uneven and op == "Average")]
        arguments["op"] = draw(st.sampled_from(ops))
        # Across machines, each machine sums first: a different order from the reference's.
        arguments["prescale"] = draw(st.sampled_from(EXACT if several else SCALES))
        arguments["postscale"] = draw(st.sampled_from(EXACT if rounds else SCALES))
        arguments["special"] = tf.as_dtype(dtype).is_floating and draw(st.integers(0, 3)) == 0
    if operation in ROOTED:
        arguments["root"] = draw(st.sampled_from(ranks))
    if operation == "alltoall":
        arguments["splits"] = draw(split_tables(arguments["rows"][0]))
    call = Call(
        operation, name, ranks, process_set, dtype, salt=draw(st.integers(0, 7)), **arguments
    )
    if may_be_wrong and draw(st.integers(0, 4)) == 0:
        call = dataclasses.replace(call, **draw(mistakes(call)))
    return call


@st.composite
def mistakes(draw, call):
    """The arguments `mistake` and `odd` of a call; none if ranks cannot disagree."""
    possible = [
        mistake
        for mistake, operations in MISTAKES.items()
        if call.operation in operations
        and (len(call.ranks) > 1 or mistake in REFUSED)
        and not (mistake == "op" and len(REDUCTIONS[call.dtype]) < 2)
    ]
    if not possible:
        return {}
    return {"mistake": draw(st.sampled_from(possible)), "odd": draw(st.sampled_from(call.ranks))}


@st.composite
def batches(draw, sets):
    """Some calls, and how each rank makes them."""
    world = len(sets[0])
    ways = [ONE_BY_ONE, ONE_BY_ONE, THREADS, THREADS, FUNCTION, COMPILED, SESSION]
    how = draw(st.sampled_from(ways))
    in_graph = how in (FUNCTION, COMPILED, SESSION)
    operations = [o for o in OPERATIONS if not (in_graph and o in ORDERED)]
    if how == COMPILED:
        operations = [o for o in operations if o in FIXED]
    count = draw(st.integers(1, 4))
    # A graph ends with its first error, and calls that have not begun do not run. Compiled calls
    # have the function's name before their own.
    may_be_wrong = how != COMPILED and (not in_graph or count == 1)
    made = tuple(draw(calls(sets, f"c{i}", operations, may_be_wrong)) for i in range(count))
    order = st.permutations(range(count)).map(tuple)
    same = tuple(range(count))
    orders = tuple(same if how == ONE_BY_ONE else draw(order) for _ in range(world))
    delays = tuple(draw(st.sampled_from([0, 0, 0, 1, 3])) for _ in range(world))
    return Batch(how, made, orders, delays)


def programs(sets):
    """Programs for a job with these process sets, the first of which is all ranks."""
    return st.lists(batches(sets), min_size=1, max_size=3).map(tuple)
