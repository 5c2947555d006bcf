"""Flight recordings: valid files, and damaged ones."""

import argparse
import dataclasses
import json
import os
import pathlib
import re
import struct
from datetime import datetime, timedelta

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from tf_hvd.launch.commands import dump, dump_report
from tf_hvd.launch.errors import UsageError
from tf_hvd.observe import failure, recording

# The layout of runtime/events/recording.h; the numbers are copied from there.
HEADER_BYTES, SLOT_BYTES, CAPACITY = 4096, 320, 2000
ROUNDS = int(os.environ.get("TF_HVD_FUZZ_ROUNDS", "300"))  # ./dev prove fuzz runs more


def file_of(calls=1, **others):
    """A recording of rank 3 of 8, with `calls` calls named "x"."""
    head = struct.pack(
        "<8s4IQ3iI2i3q", b"tfhvdrec", 1, HEADER_BYTES, SLOT_BYTES, CAPACITY,
        calls, 3, 8, 1234, 3, 5, 2, others.get("began", 1_000_000), 1000, 5000,
    )  # fmt: skip
    texts = b"".join(
        text.ljust(length, b"\0")
        for text, length in (
            (b"host3", 64),
            (b"a job", 128),
            (b"boom", 512),
            (b"rank 1 died", 1024),
        )
    )
    end = struct.pack("<qQQ", 4000, 2, 0) + b"".ljust(1024, b"\0")
    slots = b"".join(
        struct.pack(
            "<Q5qd2qQ4i6B2x4q8s104s72s", number, 2000, 3000, 0, 0, 24, 0.25, -1, 9, 0,
            0, 1, 3, 2, 0, 7, 1, 0, 0, 0, 2, 3, 0, 0, b"shm", b"x", b"train.py:88",
        )
        for number in range(1, calls + 1)
    )  # fmt: skip
    body = (head + texts + end).ljust(HEADER_BYTES, b"\0") + slots
    return body.ljust(HEADER_BYTES + CAPACITY * SLOT_BYTES, b"\0")


def test_recording_is_parsed():
    one = recording.parse(file_of(2))
    assert (one.rank, one.size, one.process, one.host, one.job) == (3, 8, 1234, "host3", "a job")
    assert (one.launched, one.part, one.began) == (5, 2, 1_000_000)
    assert (one.state, one.reason, one.ended) == ("failed", "boom", "rank 1 died")
    # The recorder's clock showed 1000 when the system clock showed 1,000,000.
    assert (one.left, one.told) == (1_004_000, 1_003_000)
    assert (one.lost_call, one.failed_call, one.made) == (2, 0, 2)
    call = one.last
    assert (call.number, call.name, call.kind, call.source) == (2, "x", "allreduce", "train.py:88")
    assert (call.dtype, call.shape, call.bytes, call.reduce_op) == ("float32", (2, 3), 24, "Sum")
    assert (call.submitted, call.agreed, call.started) == (1_001_000, 1_002_000, 0)
    assert (call.state, call.order, call.awaited, call.part) == ("agreed", 9, 2, 0.25)
    assert call.title == "allreduce 'x' (train.py:88)"


def test_wrapped_ring_is_read_in_order():
    data = bytearray(file_of(3))
    struct.pack_into("<Q", data, HEADER_BYTES, 2001)
    struct.pack_into("<Q", data, HEADER_BYTES + SLOT_BYTES, 0)  # a slot that is being filled
    assert [call.number for call in recording.parse(bytes(data)).calls] == [3, 2001]


def test_other_files_are_refused():
    for data in (b"", b"tfhvdrec", b"x" * 700_000, file_of()[:5000]):
        with pytest.raises(recording.RecordingError):
            recording.parse(data)


@settings(max_examples=ROUNDS)
@given(data=st.data())
def test_a_damaged_file_is_read_or_refused(data):
    damaged = bytearray(file_of(data.draw(st.integers(0, 3)))[: HEADER_BYTES + 8 * SLOT_BYTES])
    for _ in range(data.draw(st.integers(1, 20))):
        place = data.draw(st.integers(0, len(damaged) - 1))
        damaged[place] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        # A capacity that fits the file's size.
        struct.pack_into("<I", damaged, 20, data.draw(st.integers(0, 9)))
    try:
        one = recording.parse(bytes(damaged[: data.draw(st.integers(0, len(damaged)))]))
    except recording.RecordingError:
        return
    assert all(call.title and call.state for call in one.calls)
    assert dump_report.page([one], failure.explain([one]))


def test_impossible_number_of_ranks_is_refused():
    """Regression: listing the missing ranks used all memory."""
    data = bytearray(file_of())
    for rank, size in ((3, 2**31 - 1), (3, 3), (-1, 8)):
        struct.pack_into("<2i", data, 32, rank, size)
        with pytest.raises(recording.RecordingError, match=f"it names rank {rank} of {size}"):
            recording.parse(bytes(data))


def test_dump_tells_several_jobs_apart(monkeypatch):
    """The list had only the jobs' names, which are random."""
    files = {}
    for name in ("one", "two"):
        data = bytearray(file_of().replace(b"a job", name.encode().ljust(5, b"\0")))
        struct.pack_into("<i", data, 40, os.getpid())
        files[pathlib.Path("/proc", name)] = bytes(data)
    monkeypatch.setattr(recording, "running", lambda: ((os.getpid(), file) for file in files))
    monkeypatch.setattr(dump.files, "read", lambda file, most: files[file])
    monkeypatch.setattr(dump.proc, "arguments", lambda process: ["python", "my train.py", "\x1b"])
    with pytest.raises(UsageError) as raised:
        dump._start(argparse.Namespace(job=None))
    first, *lines = str(raised.value).splitlines()
    assert first == "several jobs are running; pass one of these process ids:"
    for line, name in zip(lines, files, strict=True):
        found = re.fullmatch(
            rf"  {os.getpid()}: 1 of 8 ranks of job {name.name}, started ([-\d]+ [:\d]+): "
            r"python 'my train.py' '\\x1b'",
            line,
        )
        assert found, line
        age = datetime.now() - datetime.fromisoformat(found[1])
        assert timedelta() <= age < timedelta(days=1)


def test_dump_of_a_running_job_is_in_the_present(tmp_path, capsys):
    """The report of a running job ended in "never left"."""
    data = bytearray(file_of())
    struct.pack_into("<I", data, 44, 1)  # joined
    (tmp_path / "rank.5").write_bytes(data)
    for said, text in (({}, "never left"), (recording.STILL_RUNS, "still running")):
        (tmp_path / recording.ENDS).write_text(json.dumps(said))
        assert recording.read(tmp_path).running is (text == "still running")
        dump_report.show(tmp_path, as_json=False)
        assert f"1 calls; {text}" in capsys.readouterr().out


def test_shortened_reason_is_not_repeated():
    """The text of a stall was printed twice: as the rank's error and as the job's end."""
    ended = "stall: 'x' (world) waited 4 s: missing rank 1 (b); raise the limit if it needs longer"
    shown = "UnknownError: stall: 'x' (world) waited 4 s: ... raise the limit if it needs longer"
    one = dataclasses.replace(recording.parse(file_of()), reason=shown, ended=ended, lost_call=2)
    about = dump_report.page([one], failure.explain([one]))[-2]
    assert about.endswith(f": UnknownError: {ended}")
    assert about.count("stall") == 1
    other = dataclasses.replace(one, reason="ValueError: no ... images")
    about = dump_report.page([other], failure.explain([other]))[-2]
    assert about.endswith(f": ValueError: no ... images; the job had ended: {ended}")


def test_terminal_escapes_are_removed():
    data = file_of().replace(b"boom", b"a\n\x1bb")
    assert recording.parse(data).reason == r"a \x1bb"


def test_newest_job_is_chosen(tmp_path, capsys):
    for name, ranks, began in (("first", 3, 2_000_000), ("second", 2, 1_000_000)):
        (tmp_path / name).mkdir()
        for rank in range(ranks):
            data = bytearray(file_of(began=began))
            struct.pack_into("<i", data, 32, rank)
            (tmp_path / name / f"rank.{rank}").write_bytes(data)
    dump = recording.read(tmp_path)
    assert dump.folder == tmp_path / "first"
    assert [one.rank for one in dump.recordings] == [0, 1, 2]
    assert recording.read(tmp_path / "second" / "rank.0").folder == tmp_path / "second"
    dump_report.show(tmp_path, as_json=False)
    last = capsys.readouterr().out.splitlines()[-1]
    newest = f"this report is about {dump.folder}, the newest job"
    assert last == f"{newest}; the folder has 1 other job (second)"
    with pytest.raises(recording.RecordingError, match="has no recordings"):
        recording.read(tmp_path / "third")


def test_damaged_recording_beside_an_intact_one(tmp_path):
    """Regression: `tf_hvd doctor .` treated tf_hvd/launch/machine/rank.py as a recording."""
    (tmp_path / "rank.py").write_text("?")
    (tmp_path / "rank.0").write_bytes(file_of())
    (tmp_path / "rank.1").write_bytes(file_of()[:9000])
    dump = recording.read(tmp_path)
    assert [one.rank for one in dump.recordings] == [3]
    assert dump.faults == [f"{tmp_path}/rank.1: the file is truncated: it has only 9000 bytes"]


def test_only_files_are_recordings(tmp_path):
    """Regression: a pipe hung the doctor, and a large file used all memory."""
    (tmp_path / "rank.0").write_bytes(file_of())
    os.mkfifo(tmp_path / "rank.1")
    (tmp_path / "rank.2").symlink_to("/dev/zero")
    (tmp_path / "rank.3").touch()
    os.truncate(tmp_path / "rank.3", 20 << 30)
    (tmp_path / "rank.4").mkdir()  # of --output-filename
    (tmp_path / recording.ENDS).write_text("[" * 100_000)
    dump = recording.read(tmp_path)
    assert [one.rank for one in dump.recordings] == [3]
    assert dump.first is None
    assert dump.faults == [
        f"{tmp_path}/rank.1 is a pipe, not a file",
        f"{tmp_path}/rank.2 is a device, not a file",
        f"{tmp_path}/rank.3 is 21.5 GB; at most 64 MB are read",
    ]
