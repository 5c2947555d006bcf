"""The timeline of a job: the contents of its files, while programs run."""

import contextlib
import ctypes
import fcntl
import json
import os
import time

import numpy as np
import pytest
import tensorflow as tf

import tf_hvd as hvd
from tf_hvd.observe import step_report, step_times, trace_reader

MS = 1_000_000


@pytest.fixture
def written(folder):
    """Runs a program with a timeline; returns the timelines of all ranks."""
    path = os.path.join(folder, "trace.json")

    def run(program, **options):
        hvd.start_timeline(path, **options)
        try:
            program()
        finally:
            hvd.stop_timeline()
        hvd.barrier()  # all ranks have written their files
        files = [path, *(path.replace(".json", f".rank-{r}.json") for r in range(1, hvd.size()))]
        return [trace for file in files for trace in trace_reader.read(file)]

    run.path = path
    return run


def calls_of(trace):
    return {span.name: span for span in trace.spans["agreement"]}


def operations_of(trace):
    return {
        span.values["operation"]: span
        for spans in trace.spans.values()
        for span in spans
        if "calls" in span.values
    }


def test_each_call_of_each_rank_is_recorded(written, rank, size):
    def program():
        hvd.allreduce(tf.ones([1000]), name="sum", op=hvd.Sum)
        hvd.grouped_allreduce([tf.ones([3]), tf.ones([4])], name="group")
        hvd.allgather(tf.ones([rank + 1, 2]), name="rows")
        hvd.broadcast(tf.ones([5]), 0, name="first")
        hvd.barrier()

    traces = written(program)
    assert [trace.rank for trace in traces] == list(range(size))
    for trace in traces:
        assert trace.size == size
        assert trace.dropped == 0
        if hvd.local_size() == size:
            assert trace.clock_error == 0  # on one machine
        else:
            assert trace.clock_error is not None
        calls, operations = calls_of(trace), operations_of(trace)
        assert calls["sum"].values["bytes"] == 4000
        assert calls["sum"].values["first"] == "float32[1000]"
        assert calls["sum"].values["reduce"] == "Sum"
        assert calls["sum"].values["source"].split(":")[0].endswith("timeline_test.py")
        assert calls["group"].values["tensors"] == 2
        assert calls["rows"].values["bytes"] == 8 * (trace.rank + 1)
        for name in ("sum", "group", "rows", "first"):
            call = calls[name]
            assert call.values["order"] == calls_of(traces[0])[name].values["order"]
            assert 0 <= call.values["last_rank"] < size
            begins = [part.begin for part in call.parts]
            assert begins == sorted(begins)
            operation = operations[call.values["operation"]]
            assert call.end == operation.begin < operation.end
            for part in operation.parts:
                assert operation.begin <= part.begin <= part.end <= operation.end


def test_all_ranks_use_one_clock(written, rank):
    marks = []

    def program():
        for number in range(5):
            hvd.barrier()
            if rank == number % 2:
                time.sleep(0.02)
            marks.append(time.clock_gettime_ns(time.CLOCK_MONOTONIC))
            hvd.allreduce(tf.ones([2]), name=f"x{number}")

    traces = written(program)
    made = hvd.allgather_object(marks)
    for trace, its in zip(traces, made, strict=True):
        for number, mark in enumerate(its):
            assert calls_of(trace)[f"x{number}"].begin >= mark - trace.clock_error


@pytest.mark.ranks(2)
def test_a_late_rank_is_named_in_each_step(written, rank, size):
    """By the delay that its own clock shows."""
    late = size - 1
    times = []

    def program():
        for _ in range(6):
            hvd.allreduce(tf.ones([10]), name="early")
            hvd.allreduce(tf.ones([10]), name="middle")
            if rank == late:
                time.sleep(0.1)
            times.append(time.clock_gettime_ns(time.CLOCK_MONOTONIC))
            hvd.allreduce(tf.ones([10]), name="end")

    traces = written(program)
    made = hvd.allgather_object(times)
    found = step_report.report(traces)
    assert found.count == 5
    assert [step.late and step.late[0] for step in found.steps.steps] == [late] * 5
    off = [
        abs(step.late[1] - (made[late][number] - min(each[number] for each in made[:late])))
        for number, step in enumerate(found.steps.steps)
    ]
    assert min(off) < 5 * MS  # of 100, in the best step: a busy machine delays calls
    assert f"Rank {late} " in found.advice


def test_bytes_in_flight_rise_and_fall(written):
    def program():
        for _ in range(3):
            hvd.allreduce(tf.ones([1 << 16]), name="large")
            time.sleep(0.01)

    for trace in written(program):
        values = [value for _, value in trace.counters["bytes in flight"]]
        assert max(values) == 1 << 18
        assert values[-1] == 0


def test_fused_calls_are_one_operation(written):
    @tf.function
    def many():
        return [hvd.allreduce(tf.ones([100]), name=f"g{n}") for n in range(20)]

    traces = written(lambda: [many() for _ in range(3)])
    for trace in traces:
        calls = [span for span in trace.spans["agreement"] if span.name.startswith("g")]
        assert len(calls) == 60
        counted = sum(
            operation.values["calls"]
            for number, operation in operations_of(trace).items()
            if number in {call.values["operation"] for call in calls}
        )
        assert counted == 60
    steps = step_times.analyse(traces)
    assert len(steps.steps) == 2
    assert all(len(step.calls) == 20 for step in steps.steps)


def test_cycles_are_marked(written):
    def program():
        for number in range(4):
            hvd.allreduce(tf.ones([2]), name=f"c{number}")

    written(program, mark_cycles=True)
    if hvd.rank() == 0:
        with open(written.path) as file:
            assert file.read().count('"CYCLE_START"') >= 4


def test_json_is_json_with_horovods_names(folder, rank):
    path = os.path.join(folder, "trace.json")
    hvd.start_timeline(path)
    hvd.allreduce(tf.ones([1 << 20]), name="x")
    hvd.stop_timeline()
    mine = path if rank == 0 else path.replace(".json", f".rank-{rank}.json")
    with open(mine) as file:
        events = json.loads(file.read().rstrip().rstrip(",") + "]")
    names = {event["name"] for event in events if event["ph"] == "X"}
    assert {"NEGOTIATE_ALLREDUCE", "ALLREDUCE", "x"} <= names
    if hvd.local_size() > 1:  # between machines a single large tensor needs no buffer
        assert {"MEMCPY_IN_FUSION_BUFFER", "MEMCPY_OUT_FUSION_BUFFER"} <= names
    assert {event["pid"] for event in events} == {rank}


def test_one_timeline_at_a_time(tmp_path):
    hvd.stop_timeline()  # no timeline is running
    hvd.start_timeline(str(tmp_path / "a.json"))
    with pytest.raises(ValueError, match="stop_timeline"):
        hvd.start_timeline(str(tmp_path / "b.json"))
    hvd.stop_timeline()
    hvd.stop_timeline()
    hvd.start_timeline(str(tmp_path / "b.json"))
    hvd.stop_timeline()


def test_a_forked_process_does_not_keep_a_timeline(tmp_path):
    """It inherits the open file and so the lock: the next timeline was refused."""
    path = str(tmp_path / "a.json")
    hvd.start_timeline(path)
    ends, end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end)
        os.read(ends, 1)
        os._exit(0)
    hvd.stop_timeline()
    hvd.start_timeline(path)
    hvd.stop_timeline()
    os.close(end)
    os.close(ends)
    os.waitpid(child, 0)


class _Given(ctypes.Structure):
    """malloc's allocated memory (mallinfo2)."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def _held():
    """Descriptors, threads and bytes of this process."""
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = _Given
    given = mallinfo()
    counts = (len(os.listdir(f"/proc/self/{kind}")) for kind in ("fd", "task"))
    return [*counts, given.uordblks + given.hblkhd]


def test_sixty_timelines_leak_nothing(folder, rank):
    """Each has its own calls, and none leaks a descriptor, a thread or memory."""
    files = [os.path.join(folder, f"trace{number}.json") for number in range(60)]
    for number, file in enumerate(files):
        hvd.start_timeline(file)
        hvd.allreduce(tf.ones([10]), name=f"within {number}")
        hvd.stop_timeline()
        hvd.allreduce(tf.ones([10]), name=f"after {number}")
        if number == 9:  # one-time allocations exist by now
            first = _held()
    last = _held()
    for number, file in enumerate(files):
        (trace,) = trace_reader.read(file if rank == 0 else f"{file[:-5]}.rank-{rank}.json")
        assert [*calls_of(trace)] == [f"within {number}"], file
    for now, before, few in zip(last, first, (1, 5, 1 << 20), strict=True):
        assert now < before + few, (last, first)  # a thread begins only when it has work


def test_a_file_that_cannot_be_created_is_an_error(tmp_path, rank):
    own = ".json" if rank == 0 else f".rank-{rank}.json"
    os.mkfifo(tmp_path / f"pipe{own}")
    with pytest.raises(ValueError, match="it is a pipe, not a file"):
        hvd.start_timeline(str(tmp_path / "pipe.json"))
    with open(tmp_path / f"busy{own}", "w") as busy:
        fcntl.flock(busy, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="another timeline is being written to this file"):
            hvd.start_timeline(str(tmp_path / "busy.json"))
    with pytest.raises(ValueError, match=r"/no/such/folder/a.*: No such file"):
        hvd.start_timeline("/no/such/folder/a.json")
    hvd.allreduce(tf.ones([2]))


def put_instead_of(path, file):
    """Redirect a file that this process writes."""
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{number}") == str(path):
                os.dup2(file, int(number))
    os.close(file)


def test_a_full_disk_ends_only_the_timeline(tmp_path, rank, capfd):
    path = tmp_path / "full.json"
    hvd.start_timeline(str(path))
    mine = path if rank == 0 else tmp_path / f"full.rank-{rank}.json"
    put_instead_of(mine, os.open("/dev/full", os.O_WRONLY))
    for _ in range(20):
        result = hvd.allreduce(tf.ones([10]), op=hvd.Sum)
        time.sleep(0.005)
    assert result.numpy()[0] == hvd.size()
    hvd.stop_timeline()
    assert "the timeline ends" in capfd.readouterr().err
    hvd.start_timeline(str(tmp_path / "again.json"))
    hvd.stop_timeline()


def test_a_stalled_disk_delays_nothing(tmp_path, rank):
    """Nothing reads the pipe: events without room are counted, and `stop_timeline` returns."""
    path = tmp_path / "pipe.json"
    hvd.start_timeline(str(path))
    reader, writer = os.pipe()
    put_instead_of(path if rank == 0 else tmp_path / f"pipe.rank-{rank}.json", writer)
    names = [f"{'name' * 20}{n}" for n in range(3000)]
    for name in names:
        hvd.allreduce(tf.ones([2]), name=name)
    hvd.stop_timeline()
    os.close(reader)
    assert hvd.allreduce(np.ones(3, "f4"), op=hvd.Sum).numpy().tolist() == [hvd.size()] * 3
