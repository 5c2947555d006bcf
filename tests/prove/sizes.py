"""Large data: tensors above 2 GiB, thousands of tensors in one function, large objects."""

from __future__ import annotations

import json

import jobs
from prove import Table

# Each value of a tensor depends only on its index and rank, so results are compared bit by bit and
# piece by piece with NumPy's result for the same pieces.
PROGRAM = """
import json, resource
import numpy as np

PERIOD = 61
PIECE = PERIOD << 16  # values; the length of a tensor is a multiple of it
scale, rows = int(os.environ["SIZES_SCALE"]), []

def piece(of, start, size, dtype):
    phase = (start + 7 * of) % PERIOD
    return pattern[dtype][phase : phase + size]

pattern = {dtype: np.resize(np.arange(PERIOD), PERIOD + PIECE).astype(dtype)
           for dtype in ("float32", "int8")}

def tensor(of, size, dtype):
    # Not from an array, because TensorFlow would copy it more than once.
    return tf.tile(tf.constant(piece(of, 0, PIECE, dtype)), [size // PIECE])

def check(result, parts):
    # parts: number of values, and a function of start, size and dtype for the expected values.
    values = np.asarray(result)  # numpy() would copy
    assert values.shape == (sum(size for size, _ in parts),), values.shape
    at = 0
    for size, due in parts:
        for start in range(at, at + size, PIECE):
            got = values[start : start + PIECE]
            wanted = due(start - at, PIECE, values.dtype.name)
            assert got.tobytes() == wanted.tobytes(), start
        at += size

def timed(what, size, call):
    hvd.barrier()
    started = time.monotonic()
    result = call()
    rows.append([what, size, time.monotonic() - started])
    return result

def text(size):
    return f"{size / 2**30:.3g} GiB" if size >> 30 else f"{size / 2**20:.3g} MiB"

def large(dtype, size):
    count = -(-size // np.dtype(dtype).itemsize // scale // PIECE) * PIECE
    mine = tensor(rank, count, dtype)
    name = f"{text(mine.shape[0] * mine.dtype.size)} of {dtype}"
    check(
        timed("allreduce", name, lambda: hvd.allreduce(mine, op=hvd.Sum, name="sum")),
        [(count, lambda *where: piece(0, *where) + piece(1, *where))],
    )
    check(
        timed("broadcast", name, lambda: hvd.broadcast(mine, 1, name="root")),
        [(count, lambda *where: piece(1, *where))],
    )
    del mine
    # Together the ranks have the same size, in different lengths.
    counts = [count // PIECE // 2 * PIECE, (count // PIECE // 2 + 1) * PIECE]
    mine = tensor(rank, counts[rank], dtype)
    check(
        timed("allgather", name, lambda: hvd.allgather(mine, name="rows")),
        [(counts[of], lambda *where, of=of: piece(of, *where)) for of in (0, 1)],
    )

def many(count):
    shapes = [[number % 7 + 1] for number in range(count)]
    values = [np.full(shape, number + rank, "float32") for number, shape in enumerate(shapes)]
    due = [2.0 * number + 1.0 for number in range(count)]

    @tf.function
    def one_by_one(values):
        return [hvd.allreduce(value, op=hvd.Sum, name=f"v{number}")
                for number, value in enumerate(values)]

    @tf.function
    def in_a_group(values):
        return hvd.grouped_allreduce(values, op=hvd.Sum, name="group")

    for what, function in (("allreduce in one tf.function", one_by_one),
                           ("grouped_allreduce in one tf.function", in_a_group)):
        given = [tf.constant(value) for value in values]
        for turn in ("first", "next"):
            results = timed(f"{what}, {turn} call", f"{count} tensors", lambda: function(given))
            assert [result.shape.as_list() for result in results] == shapes
            assert all((r.numpy() == d).all() for r, d in zip(results, due, strict=True))

def objects(size):
    mine = {"rank": rank, "array": np.full(size // 8 // scale, rank, "int64"), "text": "x" * 10}
    name = text(mine["array"].nbytes)
    got = timed("broadcast_object", name, lambda: hvd.broadcast_object(mine, 1, name="object"))
    assert got["rank"] == 1 and (got["array"] == 1).all() and got["text"] == mine["text"]
    got = timed("allgather_object", name, lambda: hvd.allgather_object(mine, name="objects"))
    assert [each["rank"] for each in got] == [0, 1]
    assert all((each["array"] == each["rank"]).all() for each in got)

large("float32", 3 << 30)
large("int8", (2 << 30) + (256 << 20))
objects(240 << 20)
many(5000 // scale)
most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
rows.append(["highest memory use on any rank", "", max(hvd.allgather_object(most))])
if rank == 0:
    with open(os.path.join(os.environ["TF_HVD_PROVE"], "rows"), "w") as file:
        json.dump(rows, file)
"""
LIMIT = 900  # seconds


def rows_of(family: str, scale: int) -> dict[tuple[str, str], str]:
    """The measured calls, each with its size and the text of its cell."""
    settings = {"SIZES_SCALE": f"{scale}"}
    with jobs.Job(family, 2, jobs.PREAMBLE + PROGRAM, settings) as job:
        code = job.wait(jobs.STARTS + LIMIT)
        assert code == 0, job.output()
        rows = json.loads((job.folder / "rows").read_text())
        left = job.left()
    assert not left, left
    return {
        (what, size): f"{value:.2f} s" if size else f"{value / 2**30:.1f} GiB"
        for what, size, value in rows
    }


def prove(short: bool) -> Table:
    table = Table(
        "Two ranks on one machine made each call. Each result was compared bit by bit with a NumPy "
        "result. A cell shows how long the call took on rank 0.",
        ["what", "how much", *jobs.LIBRARIES],
    )
    found = {family: rows_of(family, 64 if short else 1) for family in jobs.LIBRARIES}
    for row in next(iter(found.values())):
        table.add(*row, *(cells[row] for cells in found.values()))
    return table
