"""Runs every cell of the table in docs/collectives.md; eagerly unless the job has 2 ranks.

Where the operation is defined, results are bitwise equal to NumPy's. Other cells end with the
error that the page describes. The last test counts the cells.
"""

import os

import collectives_table as table
import numpy_collectives as reference
import pytest
import tensorflow as tf

import tf_hvd as hvd
from tf_hvd.core import _native

# Every test here that uses it runs in each mode; see conftest.
every_operation = pytest.mark.parametrize("operation", table.operations(), ids=str)
RAN = set()


@pytest.fixture
def mode(request):
    return request.node.callspec.params["evaluate"]


def shapes(operation):
    """The shapes of a call's tensors."""
    return [(5, 3), (4,)] if operation.function.startswith("grouped") else [(5, 3)]


def inputs(operation, dtype, place):
    """A rank's input, with different numbers of rows where ranks may differ."""
    uneven = "gather" in operation.function or operation.function == "alltoall"
    arrays = []
    for shape in shapes(operation):
        rows = shape[0] + (place if uneven else 0)
        arrays.append(reference.numbers(dtype, (rows, *shape[1:]), place + len(arrays)))
    return arrays


def splits(place, size):
    """The destinations of the rows of `inputs`: one row to each, the rest to the last rank."""
    return [1] * (size - 1) + [5 + place - (size - 1)]


def expected(operation, dtype, rank, size):
    """The rank's result, from all ranks' inputs."""
    columns = list(zip(*[inputs(operation, dtype, r) for r in range(size)], strict=True))
    match operation.function.removeprefix("grouped_"):
        case "allreduce":
            return [reference.allreduce(c, operation.reduce_op) for c in columns]
        case "reducescatter":
            return [reference.reducescatter(c, operation.reduce_op, rank) for c in columns]
        case "allgather":
            return [reference.allgather(c) for c in columns]
        case "alltoall":
            everybody = [splits(r, size) for r in range(size)]
            return list(reference.alltoall(columns[0], everybody, rank))
        case _:
            return [c[size - 1] for c in columns]  # broadcasts from the last rank


def make_variables(operation, arrays):
    resource = operation.op_type == "HorovodBroadcastInplaceResource"
    return [tf.compat.v1.Variable(array, use_resource=resource) for array in arrays]


def call(operation, tensors, name, size):
    """The results of the operation, as a list of tensors; `tensors` may be variables."""
    function = getattr(hvd, operation.function)
    options = {"name": name}
    if operation.reduce_op:
        options["op"] = getattr(hvd, operation.reduce_op)
    if operation.function == "broadcast_":
        return function(tensors, size - 1, **options)
    if operation.function == "broadcast":
        return [function(tensors[0], size - 1, **options)]
    if operation.function == "alltoall":
        return list(function(tensors[0], splits=splits(hvd.rank(), size), **options))
    if operation.function.startswith("grouped"):
        return list(function(tensors, **options))
    return [function(tensors[0], **options)]


def run_cells(operation, dtypes, evaluate, rank, size):
    """All of a row's dtypes at once; the results by dtype."""
    given = {dtype: inputs(operation, dtype, rank) for dtype in dtypes}
    in_place, in_session = operation.function == "broadcast_", evaluate.__name__ == "run_in_session"
    variables = {}
    if in_place and not in_session:  # a function cannot create variables
        variables = {dtype: make_variables(operation, arrays) for dtype, arrays in given.items()}

    def function(*flat):
        rest, results = list(flat), {}
        for dtype, arrays in given.items():
            tensors = [rest.pop(0) for _ in arrays]
            if in_place:
                tensors = variables.get(dtype) or make_variables(operation, arrays)
            results[dtype] = call(operation, tensors, f"{dtype}_cell", size)
        return results

    return evaluate(function, *[array for arrays in given.values() for array in arrays])


@every_operation
def test_defined_cells(operation, evaluate, mode, rank, size):
    cells = [c for c in table.cells(operation) if c.mode == mode and c.defined]
    if not cells:
        return
    try:
        results = run_cells(operation, [c.dtype for c in cells], evaluate, rank, size)
    except tf.errors.OpError as error:
        pytest.fail(f"{operation} in mode {mode}, '<dtype>_cell' is which cell: {error.message}")
    for cell in cells:
        wanted = expected(operation, cell.dtype, rank, size)
        for actual, result in zip(results[cell.dtype], wanted, strict=True):
            fault = reference.difference(actual, result)
            assert not fault, f"{cell}: {fault}"
        RAN.add(cell)


@every_operation
def test_undefined_cells_give_the_documented_error(operation, evaluate, mode, rank, size):
    """Undefined cells give the error on the page."""
    if mode not in operation.modes:
        return  # the next test
    for cell in [c for c in table.cells(operation) if c.mode == mode and not c.defined]:
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            run_cells(operation, [cell.dtype], evaluate, rank, size)
        wanted = f"cannot compute {operation.reduce_op} of {cell.dtype}"
        assert wanted in caught.value.message, cell
        RAN.add(cell)


@every_operation
def test_reference_variables_need_a_v1_graph(operation, evaluate, mode):
    """Reference variables: TensorFlow has them only in a v1 graph."""
    cells = [c for c in table.cells(operation) if c.mode == mode and mode not in operation.modes]
    for cell in cells:
        array = reference.numbers(cell.dtype, (3,), 0)
        variable = tf.compat.v1.Variable(array, use_resource=False)
        with pytest.raises((RuntimeError, TypeError), match=r"ref|mutable"):
            evaluate(lambda v=variable: _native.ops.horovod_broadcast_inplace([v], 0, []))
        RAN.add(cell)


def plain_results(rank, size):
    """The results of operations without tensors, on one machine or on simulated ones."""
    on_each = int(os.environ.get("TF_HVD_RANKS_PER_NODE", "0")) or size
    return {
        "HorovodRank": rank, "HorovodSize": size,
        "HorovodLocalRank": rank % on_each, "HorovodLocalSize": on_each,
        "HorovodCrossRank": rank // on_each, "HorovodCrossSize": size // on_each,
        "HorovodProcessSetIncluded": 1,
        "HorovodBarrier": -1,
    }  # fmt: skip


@pytest.mark.parametrize("operation", table.plain_operations(), ids=str)
def test_operations_without_tensors(operation, evaluate, rank, size):
    if operation.op_type == "HorovodJoin" and evaluate.__name__ == "run_compiled":
        pytest.skip("XLA does not compile join")
    function = getattr(hvd, operation.function)

    def run():
        result = function()
        if operation.op_type != "HorovodBarrier":
            return result
        # It has no value; in a graph, later ops must wait for it.
        with tf.control_dependencies([] if result is None else [result]):
            return tf.identity(-1)

    result = evaluate(run)
    if operation.op_type == "HorovodJoin":
        assert 0 <= result < size
        assert len(set(hvd.allgather_object(int(result)))) == 1
    else:
        assert result == plain_results(rank, size)[operation.op_type]


def test_every_cell_ran(modes):
    cells = {cell for operation in table.operations() for cell in table.cells(operation)}
    assert len(cells) == len(table.operations()) * len(table.DTYPES) * len(table.MODES)
    everything = {cell for cell in cells if cell.mode in modes}
    missing = sorted(map(str, everything - RAN))
    assert not missing, f"{len(missing)} of {len(everything)} cells did not run: {missing[:5]}"
