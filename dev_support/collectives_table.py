"""Generates docs/collectives.md: a table of operation x dtype x mode, as data and as a page.

    .venv/bin/python dev_support/collectives_table.py > docs/collectives.md

The supported types come from the library: the registered ops' attribute T and the native table of
reductions. Derivatives come from TensorFlow's registry. tests/python/parallel/table_test.py runs
each cell.
"""

import dataclasses
import pathlib
from collections.abc import Iterator

from tensorflow.python.framework import op_def_registry, ops

import tf_hvd  # noqa: F401 - registers the derivatives
from tf_hvd.core import _native, kinds

TEMPLATE = pathlib.Path(__file__).with_name("collectives_page.md")

# The modes by the names that the tests use, and their letters in the table.
MODES = {"eager": "e", "function": "f", "session": "s"}
# Ops of a kind of collective besides those with its name.
IN_PLACE = {
    "broadcast": {
        "HorovodBroadcastInplaceResource": "broadcast_",
        "HorovodBroadcastInplace": "broadcast_",
    }
}
# The ops that move tensors, and the tf_hvd function that calls each.
FUNCTIONS = {
    op_type: function
    for name, kind in kinds.OF_TENSORS.items()
    for op_type, function in (kind.functions | IN_PLACE.get(name, {})).items()
}
# The ops without tensors, and the tf_hvd function that calls each.
PLAIN_FUNCTIONS = {
    "HorovodBarrier": "barrier",
    "HorovodJoin": "join",
    "HorovodRank": "rank_op",
    "HorovodSize": "size_op",
    "HorovodLocalRank": "local_rank_op",
    "HorovodLocalSize": "local_size_op",
    "HorovodCrossRank": "cross_rank_op",
    "HorovodCrossSize": "cross_size_op",
    "HorovodProcessSetIncluded": "process_set_included_op",
}
# Local ops, which have no row in the table.
LOCAL = {
    "HorovodFingerprints", "HorovodVerdict",
    "HorovodBroadcastNumber", "HorovodIdentify", "HorovodCountReduction",
}  # fmt: skip
NOTES = {
    "HorovodBroadcastInplaceResource": "of resource variables",
    "HorovodBroadcastInplace": "of reference variables",
}


@dataclasses.dataclass(frozen=True)
class Operation:
    """A row of the table."""

    op_type: str
    reduce_op: str = ""
    """Name of the reduce op; empty for operations that do not reduce."""

    @property
    def function(self) -> str:
        """Name of the function of tf_hvd that calls it."""
        return (FUNCTIONS | PLAIN_FUNCTIONS)[self.op_type]

    @property
    def modes(self) -> list[str]:
        """The modes in which the op can be called at all."""
        # TensorFlow has reference variables in v1 graphs only.
        return ["session"] if self.op_type == "HorovodBroadcastInplace" else list(MODES)

    def __str__(self) -> str:
        note = self.reduce_op or NOTES.get(self.op_type, "")
        return f"{self.function} {note}".strip()


@dataclasses.dataclass(frozen=True)
class Cell:
    """Whether an operation is defined for a dtype in a mode."""

    operation: Operation
    dtype: str
    mode: str
    defined: bool

    def __str__(self) -> str:
        return f"{self.operation}, {self.dtype}, {self.mode}"


def registered() -> set[str]:
    """The op types of collectives that the library has registered with TensorFlow."""
    return {name for name in vars(_native.ops) if name.startswith("Horovod")} - LOCAL


def _native_names(of: str) -> list[str]:
    names: list[str] = []
    while name := getattr(_native.library, f"tf_hvd_{of}")(len(names)):
        names.append(name.decode())
    return names


DTYPES = _native_names("dtype_name")
REDUCE_OPS = _native_names("reduce_op_name")


def _takes(operation: Operation, dtype: str) -> bool:
    if not operation.reduce_op:  # ops that only move tensors support all types
        return True
    return bool(
        _native.library.tf_hvd_is_reducible(
            DTYPES.index(dtype), REDUCE_OPS.index(operation.reduce_op)
        )
    )


def _reduces(op_type: str) -> bool:
    return any(a.name == "reduce_op" for a in op_def_registry.get(op_type).attr)


def operations() -> list[Operation]:
    """All rows: one per op that moves tensors, or one per reduce operation if the op reduces."""
    rows = []
    for op_type in FUNCTIONS:
        if op_type in registered():
            names = REDUCE_OPS if _reduces(op_type) else [""]
            rows += [Operation(op_type, name) for name in names]
    return [row for row in rows if any(_takes(row, dtype) for dtype in DTYPES)]


def plain_operations() -> list[Operation]:
    """The ops without tensors."""
    return [Operation(op_type) for op_type in PLAIN_FUNCTIONS if op_type in registered()]


def cells(operation: Operation) -> Iterator[Cell]:
    """The cells of a row."""
    for dtype in DTYPES:
        for mode in MODES:
            defined = mode in operation.modes and _takes(operation, dtype)
            yield Cell(operation, dtype, mode, defined)


def _shown(operation: Operation, dtype: str) -> str:
    letters = [MODES[c.mode] for c in cells(operation) if c.dtype == dtype and c.defined]
    return " ".join(letters) or "–"


def _rows(lines: list[list[str]]) -> str:
    lines = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def dtype_table() -> str:
    """Operation x dtype; a cell has the letters of the modes."""
    head = ["operation", *DTYPES]
    return _rows(
        [head, *[[str(o), *[_shown(o, d) for d in DTYPES]] for o in operations()]],
    )


def _derivative(op_type: str) -> str:
    """Whether TensorFlow knows a derivative of the op."""
    try:
        function = ops.gradient_registry.lookup(op_type)
    except LookupError:
        function = None
    return "yes" if function is not None else "no"


def op_table() -> str:
    """Each registered op, with the function that calls it."""
    lines = [["function", "TensorFlow op", "modes", "derivative"]]
    everything = [o for o in operations() if o.reduce_op in ("", "Sum")] + plain_operations()
    for operation in everything:
        note = NOTES.get(operation.op_type, "")
        function = f"`{operation.function}` {note}".strip()
        modes = " ".join(MODES[mode] for mode in operation.modes)
        lines.append([function, operation.op_type, modes, _derivative(operation.op_type)])
    return _rows(lines)


def page() -> str:
    """docs/collectives.md."""
    template = TEMPLATE.read_text()
    return template.replace("{{ops}}", op_table()).replace("{{dtypes}}", dtype_table())


if __name__ == "__main__":
    print(page(), end="")
