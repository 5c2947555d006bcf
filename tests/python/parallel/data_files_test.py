"""shard_files and shares of arrays: each rank reads only its own part."""

import itertools
import pathlib

import numpy as np
import pytest
import tensorflow as tf

import tf_hvd as hvd
from tf_hvd.training import data_arrays
from tf_hvd.training.data import shard_files

pytestmark = [pytest.mark.framework, pytest.mark.jobs(2, 3)]

READ_BESIDES = 1 << 18
"""Bytes that other threads of a rank may read meanwhile."""

MAPPED_BESIDES = 4 << 20
"""Linux may map a file in pages of 2 MiB, at both ends of a block."""


@pytest.fixture
def write(folder, rank):
    """Write a TFRecord file for each name, with the given number of records of 1 MiB."""

    def written(**counts):
        if rank == 0:
            for name, count in counts.items():
                with tf.io.TFRecordWriter(f"{folder}/{name}.tfrecord") as writer:
                    for number in range(count):
                        writer.write(f"{name}{number}".encode().ljust(1 << 20))
        hvd.barrier()
        return [f"{folder}/{name}.tfrecord" for name in sorted(counts)]

    return written


def read_bytes():
    text = pathlib.Path("/proc/self/io").read_text()
    return int(text.split("rchar: ")[1].split()[0])


def test_each_rank_reads_its_own_files_only(write, folder, rank, size):
    paths = write(d=1, a=2, c=2, b=1, e=3)
    mine = shard_files(f"{folder}/*.tfrecord")
    assert mine == paths[rank::size]
    before = read_bytes()
    records = [
        record.rstrip().decode() for record in tf.data.TFRecordDataset(mine).as_numpy_iterator()
    ]
    read = read_bytes() - before
    own = sum(pathlib.Path(path).stat().st_size for path in mine)
    assert own <= read < own + READ_BESIDES
    everybody = itertools.chain.from_iterable(hvd.allgather_object(records))
    assert sorted(everybody) == ["a0", "a1", "b0", "c0", "c1", "d0", "e0", "e1", "e2"]


def test_patterns_and_paths(write, folder, rank, size):
    a, b, c = write(a=0, b=0, c=0)
    chosen = [pathlib.Path(c), f"{folder}/[ab].*", a, f"{folder}/not yet written"]
    assert shard_files(chosen) == [a, b, c, f"{folder}/not yet written"][rank::size]
    odd, _, _ = write(**{"[0]": 0, "y": 0, "z": 0})
    assert shard_files([pathlib.Path(odd), a.encode(), b, c])[0] == [odd, a, b, c][rank]


def on_all(call):
    """The text of a ValueError, the same on all ranks."""
    with pytest.raises(ValueError, match=r"^shard") as raised:
        call()
    text = str(raised.value)
    assert hvd.allgather_object(text) == [text] * hvd.size()
    return text


def test_files_that_cannot_be_shared(write, folder, rank, size):
    write(a=0)
    last = size - 1
    text = on_all(lambda: shard_files(f"{folder}/*.csv" if rank == last else f"{folder}/a.*"))
    assert f"no file matches the pattern '{folder}/*.csv' (on rank {last})" in text
    assert "the list of files is empty" in on_all(lambda: shard_files([]))
    text = on_all(lambda: shard_files(f"{folder}/a.*"))
    assert f"{size} ranks cannot share 1 files" in text
    assert "hvd.shard(tf.data.TFRecordDataset(files))" in text
    for other in ([1], None, 1):
        with pytest.raises(TypeError, match=r"shard_files takes patterns and paths, not (1|None)"):
            shard_files(other)


DIFFERENT = {
    "another": (
        ["a", "b", "d"],
        "Rank 0 has 3 files, and rank {0} has 3. In sorted order, file number 2 is 'c' on rank 0",
    ),
    "missing": (["a", "b"], "number 2 is 'c' on rank 0 and missing on rank {}"),
    "more": (["a", "b", "c", "d"], "number 3 is missing on rank 0 and 'd' on rank {}"),
}


@pytest.mark.parametrize("kind", list(DIFFERENT))
def test_ranks_that_see_different_files_get_an_error(kind, rank, size):
    other, text = DIFFERENT[kind]
    last = size - 1
    found = on_all(lambda: shard_files(other if rank == last else ["a", "b", "c"]))
    assert text.format(last) in found
    assert "pass the same list of paths" in found


def test_files_of_a_process_set(rank, size):
    single = hvd.add_process_set([size - 1])
    try:
        if rank == size - 1:
            assert shard_files(["a", "b"], process_set=single) == ["a", "b"]
        else:
            with pytest.raises(ValueError, match=f"rank {rank} is not in"):
                shard_files(["a", "b"], process_set=single)
    finally:
        hvd.remove_process_set(single)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
def test_blocks_of_rows(count):
    for rows in range(30):
        blocks = {
            uneven: [
                list(range(rows))[data_arrays.block(rows, count, place, uneven)]
                for place in range(count)
            ]
            for uneven in ("repeat", "drop", "keep")
        }
        flat = {
            uneven: list(itertools.chain.from_iterable(parts)) for uneven, parts in blocks.items()
        }
        assert flat["keep"] == list(range(rows))
        assert [len(part) for part in blocks["keep"]] == [
            len(range(rows)[place::count]) for place in range(count)
        ]
        assert flat["drop"] == list(range(rows // count * count))
        assert {len(part) for part in blocks["drop"]} == {rows // count}
        assert {len(part) for part in blocks["repeat"]} == {-(-rows // count)}
        assert sorted(set(flat["repeat"])) == list(range(rows))
        most = 2 if rows >= count else count
        assert all(flat["repeat"].count(row) <= most for row in range(rows))


def test_arrays_are_views_in_the_same_structure(rank, size):
    images = np.arange(4 * (2 * size + 1), dtype=np.float32).reshape(-1, 2, 2)
    labels = np.arange(2 * size + 1)
    share = hvd.shard({"x": images, "y": (labels,)}, uneven="drop")
    rows = slice(2 * rank, 2 * rank + 2)
    np.testing.assert_array_equal(share["x"], images[rows])
    np.testing.assert_array_equal(share["y"][0], labels[rows])
    assert np.shares_memory(share["x"], images)
    assert np.shares_memory(share["y"][0], labels)
    assert [len(each) for each in hvd.allgather_object(hvd.shard(labels))] == [3] * size
    keys = ["x", "y"] if rank else ["y", "x"]  # tf.nest ignores this order
    assert set(hvd.shard(dict.fromkeys(keys, labels))) == {"x", "y"}


def test_arrays_that_cannot_be_shared(rank, size):
    last = rank == size - 1
    text = on_all(lambda: hvd.shard(np.zeros([4, 2], np.float32 if last else np.float64)))
    assert f"float64[2] on rank 0, arrays with rows of float32[2] on rank {size - 1}" in text
    text = on_all(lambda: hvd.shard(np.zeros([2 if last else 4])))
    assert f"4 elements on rank 0, 2 elements on rank {size - 1}" in text
    text = on_all(lambda: hvd.shard(tf.data.Dataset.range(4) if last else np.zeros([4])))
    assert f"float64[] on rank 0, a dataset on rank {size - 1}" in text
    assert "numbers of rows: 2, 3." in on_all(lambda: hvd.shard([np.zeros(2), np.zeros([3, 1])]))
    assert "no rows" in on_all(lambda: hvd.shard(np.array(1.0)))
    for other in ([1, 2], [], {"x": np.zeros(2), "y": 3}):
        with pytest.raises(TypeError, match=r"NumPy arrays, not (int|list)"):
            hvd.shard(other)


def mapped_bytes(path):
    """The size of a mapped file's part in this process's memory."""
    total, inside = 0, False
    for line in pathlib.Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ")[0]:
            inside = line.endswith(path)
        elif inside and line.startswith("Rss:"):
            total += int(line.split()[1]) << 10
    return total


def test_each_rank_reads_its_own_pages_of_a_mapped_file(folder, rank, size):
    path, rows = f"{folder}/rows.npy", 3 << 13
    if rank == 0:
        np.save(path, np.repeat(np.arange(rows, dtype=np.int64)[:, None], 256, axis=1))
    hvd.barrier()
    share = hvd.shard(np.load(path, mmap_mode="r"))
    assert isinstance(share, np.memmap)
    assert mapped_bytes(path) == 0
    first = rank * rows // size
    assert int(share.sum()) == 256 * sum(range(first, first + rows // size))
    assert share.nbytes <= mapped_bytes(path) < share.nbytes + MAPPED_BESIDES
