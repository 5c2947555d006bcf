"""Python objects sent between ranks: small, large, in pieces, and failing ones."""

import gc
import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf

import tf_hvd as hvd
from tf_hvd.collectives import objects


class Unpicklable:
    def __reduce__(self):
        raise TypeError("no pickle of me")


@pytest.fixture
def short_pieces(monkeypatch):
    """Pieces of 1000 bytes; buffers of at least 100 bytes are sent separately."""
    monkeypatch.setattr(objects, "PIECE_BYTES", 1000)
    monkeypatch.setattr(objects, "OUT_OF_BAND_BYTES", 100)


@pytest.fixture(params=["eager", "graph"])
def mode(request):
    """The calls of a test in eager mode and while a v1 graph is being built."""
    if request.param == "eager":
        yield
    else:
        with tf.Graph().as_default() as graph:
            yield
            assert len(graph.get_operations()) == 0


def example(rank):
    return {
        "array": np.arange(5000, dtype=np.float32) + rank,
        "columns": np.asfortranarray(np.arange(600.0).reshape(20, 30)),
        "every other": np.arange(4000)[::2] + rank,
        "short": np.arange(3),
        "empty": np.zeros([0, 3]),
        "text": "x" * 5000 * rank,
        "bytes": bytearray(b"y" * 1001),
        "none": None,
    }


def same(a, b):
    assert a.keys() == b.keys()
    for key, value in a.items():
        if isinstance(value, np.ndarray):
            assert (value.dtype, value.shape) == (b[key].dtype, b[key].shape)
            np.testing.assert_array_equal(value, b[key])
        else:
            assert value == b[key]


def test_broadcast_from_every_root(mode, short_pieces, rank, size):
    for root in range(size):
        mine = example(rank)
        result = hvd.broadcast_object(mine if rank == root else None, root_rank=root)
        same(result, example(root))
        assert (result is mine) == (rank == root)
        result["array"] += 1  # writable, and this rank's own


def test_allgather(mode, short_pieces, rank, size):
    mine = example(rank)
    results = hvd.allgather_object(mine)
    assert len(results) == size
    for r, result in enumerate(results):
        same(result, example(r))
        result["array"][:] = 0  # a copy, also on the sending rank
        result["bytes"][:] = b""
    same(mine, example(rank))


def test_exactly_one_piece_and_one_byte_more(short_pieces):
    for length in range(900, 1100):
        assert hvd.broadcast_object(b"z" * length) == b"z" * length


def test_small_objects(mode, rank, size):
    assert hvd.allgather_object("x" * rank) == ["x" * r for r in range(size)]
    assert hvd.allgather_object((rank, None), name="pairs") == [(r, None) for r in range(size)]
    assert hvd.broadcast_object(lambda x: x + 1, name="a_function")(1) == 2
    assert hvd.broadcast_object(rank, root_rank=size - 1) == size - 1


def test_arrays_in_small_objects_are_writable(rank):
    gathered = hvd.allgather_object(np.arange(3) + rank)
    for r, array in enumerate(gathered):
        array += 1
        assert list(array) == [1 + r, 2 + r, 3 + r]


def test_broadcast_object_fn(mode, rank, size):
    first = hvd.broadcast_object_fn(root_rank=size - 1, name="first")
    second = hvd.broadcast_object_fn()
    for step in range(3):
        assert first((step, rank)) == (step, size - 1)
        assert second([rank] * step) == [0] * step


def test_one_graph_for_all_calls(monkeypatch, rank):
    graphs = []

    class Counted(tf.Graph):
        def __init__(self):
            super().__init__()
            graphs.append(self)

    with tf.Graph().as_default():
        send = hvd.broadcast_object_fn(name="counted")
        monkeypatch.setattr(tf, "Graph", Counted)
        assert [send((rank, i)) for i in range(4)] == [(0, i) for i in range(4)]
    assert len(graphs) == 2  # one for the header, one for the bytes


def test_in_a_session_and_in_a_final_graph(rank, size):
    with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
        graph.finalize()
        assert hvd.broadcast_object(rank + 4, session=session) == 4
        assert hvd.broadcast_object_fn(session=session)(rank) == 0
        assert hvd.allgather_object(rank, session=session) == list(range(size))


def test_while_a_function_is_traced(rank, size):
    @tf.function
    def function():
        return tf.constant(hvd.allgather_object(rank))

    assert list(function().numpy()) == list(range(size))


@pytest.mark.parametrize("failing", [0, 1])
def test_an_unpicklable_object_fails_everywhere(mode, rank, size, failing):
    failing = min(failing, size - 1)
    mine = Unpicklable() if rank == failing else "x" * 3000
    kind = TypeError if rank == failing else RuntimeError
    told = "no pickle of me" if rank == failing else f"rank {failing} could not pickle.*no pickle"
    for call in (
        lambda: hvd.broadcast_object(mine, root_rank=failing),
        lambda: hvd.broadcast_object_fn(root_rank=failing)(mine),
        lambda: hvd.allgather_object(mine),
    ):
        with pytest.raises(kind, match=told):
            call()
    assert hvd.broadcast_object(rank) == 0


class UnspeakableError(TypeError):
    def __str__(self):
        raise ValueError("no text of me")


class Refuses:
    def __reduce__(self):
        raise UnspeakableError


@pytest.mark.ranks(2)
def test_an_unprintable_pickling_error_fails_everywhere(rank):
    """The others waited for that rank, which had raised before it reported the failure."""
    kind = UnspeakableError if rank == 0 else RuntimeError
    with pytest.raises(kind):
        hvd.allgather_object(Refuses() if rank == 0 else rank)
    assert hvd.broadcast_object(rank) == 0


@pytest.mark.ranks(2)
def test_the_first_of_two_failures_is_reported(rank, size):
    text = "no pickle" if rank < 2 else "rank 0 could not pickle"
    with pytest.raises((TypeError, RuntimeError), match=text):
        hvd.allgather_object(Unpicklable() if rank < 2 else rank)


def test_a_missing_root_of_objects_is_an_error(size):
    with pytest.raises(tf.errors.OpError, match=f"{size}"):
        hvd.broadcast_object(1, root_rank=size)


def memory(what):
    """VmHWM or VmRSS of this process, in bytes."""
    text = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(rf"{what}:\s+(\d+) kB", text)[1]) << 10


def peak_growth(function):
    """The call's result, and its peak additional memory."""
    gc.collect()
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = memory("VmRSS")
    result = function()
    return result, memory("VmHWM") - before


@pytest.mark.ranks(2)
@pytest.mark.large
def test_more_than_2_gib(rank):
    """2 GiB outside of the pickle, and 200 MiB in it."""
    count, length = (1 << 31) + 5, 200 << 20
    marks = [0, 1 << 30, (1 << 31) - 1, 1 << 31, count - 1]
    mine = None
    if rank == 0:
        mine = np.zeros(count, np.uint8), b"x" * length
        mine[0][marks] = range(1, 6)
    (array, text), growth = peak_growth(lambda: hvd.broadcast_object(mine))
    assert (array.shape, len(text)) == ((count,), length)
    assert (list(array[marks]), np.count_nonzero(array)) == ([1, 2, 3, 4, 5], 5)
    # The root also needs the pickle of the bytes, and other ranks the objects. 64 MiB for pieces:
    # TensorFlow's input and output, and memory that allocators keep.
    needed = (count if rank == 0 else count + length) + length
    assert growth < needed + (64 << 20), f"{growth >> 20} MiB"
